"""The table of calls that had inputs seen before: who did it twice, before and after, and what is still repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dsv4bench.dashboards.cells import (
    batch_text,
    grouped,
    heading,
    mode_text,
    notes_of,
    records_of,
    section,
    settings,
    sides_run,
)
from dsv4bench.dashboards.panels import largest
from dsv4bench.dashboards.style import arrow
from dsv4bench.dashboards.table import Cell, Column, Table, cell, joined
from dsv4bench.results.compare import Pair
from dsv4bench.results.record import Record
from dsv4bench.results.redundant import InferredRow
from dsv4bench.units import NS_PER_US, format_bytes, format_in_unit, time_unit

Key = tuple[str, int | None]  # op, kv_source
WHAT = "again: calls of a kernel whose inputs an earlier call of the step had, by identity, and nothing wrote since"
READ = "read again: the least that these calls read (the kernel's cost)"
SPENT = "us: their share of the operation's device time under the profiler"
INFERRED = (
    "inferred: another layer's kernel of the same name for the same kv_source, its cache (combine: its top-k) not"
    " written in between; dequant_compressed and combine alone are looked at, and a trace shows no inputs"
)
NOT_LOOKED_AT = "matrix products and plain torch operations are not looked at"


def redundancy_tables(compared: Sequence[Pair]) -> list[Table]:
    """Return what the largest cell of each mode repeats, reuse off and on.

    Modes that repeat the same in the same places share a table.
    """
    seen = [pair for pair in compared if any(record.redundant is not None for record in pair.records)]
    shown = [largest(same) for same in grouped(seen, lambda pair: (section(pair), mode_text(pair.any)))]
    tables = grouped(((pair, _rows(pair)) for pair in shown), lambda one: (section(one[0]), one[1]))
    return [_table([pair for pair, _ in same], same[0][1]) for same in tables if same[0][1]]


def repeated_table(rows: Sequence[InferredRow]) -> Table:
    """Return what the steps of a trace repeat, the longest time first."""
    scale, unit = time_unit([row.time_ns for row in rows])
    columns = (
        Column("op", ("op",), right=False),
        Column("kv_source", ("kv_source",)),
        Column("kernels", ("kernels",)),
        Column("again", ("repeated",)),
        Column("a step", ("least_per_step", "most_per_step")),
        Column(unit, ("time_ns",)),
    )
    cells = tuple(
        (
            *map(cell, (row.op, row.kv_source, row.kernels, row.repeated)),
            Cell("..".join(map(str, dict.fromkeys(row.per_step))), row.per_step),
            cell(row.time_ns, format_in_unit(row.time_ns, scale)),
        )
        for row in sorted(rows, key=lambda row: -row.time_ns)
    )
    return Table("Launched again, inputs inferred to be equal", columns, cells, (INFERRED,))


def _table(pairs: Sequence[Pair], rows: tuple[tuple[Cell, ...], ...]) -> Table:
    first = pairs[0].any
    columns = (
        Column("op", ("op",), right=False),
        Column("kv_source", ("kv_source",)),
        Column("where", ("where",), right=False),
        Column("calls", ("calls_before", "calls_after")),
        Column("again", ("redundant_before", "redundant_after")),
        Column("", ("kept_before", "kept_after")),
        Column("read again", ("bytes_read_again_before", "bytes_read_again_after")),
        Column("us", ("redundant_before_ns", "redundant_after_ns")),
    )
    cells = "; ".join(f"{mode_text(pair.any)}, batch {batch_text(pair.any)}" for pair in pairs)
    records = records_of(pairs)
    spent = [SPENT] if any(record.device_time for record in records) else []
    notes = (f"{cells}; {settings(first)}", WHAT, *_kept(pairs), READ, *spent, NOT_LOOKED_AT, *notes_of(records))
    return Table(heading(f"Launched again with equal inputs, {sides_run(pairs[:1])}", first), columns, rows, notes)


def _rows(pair: Pair) -> tuple[tuple[Cell, ...], ...]:
    sides = [None if record is None else _by_key(record) for record in (pair.before, pair.after)]
    keys = sorted({key for side in sides for key in side or ()}, key=lambda key: (key[0], key[1] is None, key[1] or 0))
    both = list(zip((pair.before, pair.after), sides, strict=True))
    return tuple(_row(key, _where(pair, key), [_numbers(record, side, key) for record, side in both]) for key in keys)


def _where(pair: Pair, key: Key) -> str:
    """Return where an operation's calls lie: eager code, breaks, segments."""
    return joined([r["where"] for record in pair.records for r in record.counts if (r["op"], r["kv_source"]) == key])


def _by_key(record: Record) -> dict[Key, dict[str, Any]] | None:
    if record.redundant is None:
        return None
    return {(row["op"], row["kv_source"]): row for row in record.redundant}


def _numbers(record: Record | None, side: dict[Key, dict[str, Any]] | None, key: Key) -> dict[str, int | None]:
    """Return calls, redundant calls, those kept, bytes read again and time of one side; all None where not known."""
    if record is None or side is None:
        return dict.fromkeys(("calls", "redundant", "kept", "bytes_read_again", "ns"))
    row = side.get(key) or {"redundant": 0, "kept": 0, "bytes_read_again": 0}
    calls = sum(int(one["calls"] or 0) for one in record.counts if (one["op"], one["kv_source"]) == key)
    timed = [one for one in (record.device_time or {}).get("rows", ()) if (one["op"], one["kv_source"]) == key]
    spent = sum(int(one["device_ns"]) for one in timed)
    ns = round(spent * row["redundant"] / calls) if record.device_time and calls else None
    return {
        "calls": row.get("calls", calls),
        **{k: row[k] for k in ("redundant", "kept", "bytes_read_again")},
        "ns": ns,
    }


def _row(key: Key, where: str, sides: Sequence[dict[str, int | None]]) -> tuple[Cell, ...]:
    def both(name: str, text: Callable[[int], object] = str) -> Cell:
        values = [side[name] for side in sides]
        texts = [None if value is None else text(value) for value in values]
        known = [one for one in texts if one is not None] or [None]
        return Cell(arrow(known[0], known[-1]), tuple(values))

    return (
        *map(cell, (*key, where)),
        both("calls"),
        both("redundant"),
        both("kept"),
        both("bytes_read_again", format_bytes),
        both("ns", lambda ns: format_in_unit(ns, NS_PER_US)),
    )


def _kept(pairs: Sequence[Pair]) -> list[str]:
    """Return how many of the repeated calls found the earlier result in place, unless there were none."""
    rows = [row for record in records_of(pairs[:1]) for row in record.redundant or ()]
    kept, total = sum(row["kept"] for row in rows), sum(row["redundant"] for row in rows)
    return [f"the earlier result still lay where they wrote theirs: {kept} of {total}"] if total else []
