"""Tables of device time: per operation and kv_source of one step or replay, and where the GPU waits in a replay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dsv4bench.dashboards.cells import batch_text, grouped, heading, notes_of, records_of, said_of, section, settings
from dsv4bench.dashboards.count_tables import coverage_notes
from dsv4bench.dashboards.panels import largest
from dsv4bench.dashboards.table import Cell, Column, Table, cell, empty
from dsv4bench.results.compare import Pair
from dsv4bench.results.record import Record
from dsv4bench.units import NS_PER_US, format_in_unit, format_ns, format_percent

Source = int | None
Times = dict[tuple[str, str], dict[Source, int]]  # (op, where) -> kv_source -> nanoseconds
SIDES = ("before", "after")
LARGEST = 10
LOOSE = "unattributed"
KERNEL_SUM = (
    "kernel time: the sum of the durations of kernels, copies and sets under a profiler (kernel_sum), not the time of a"
    " step"
)
WAITS = "gap: nothing runs before the piece; idle: nothing runs within it. A profiler slows the host and widens both"
STRETCH = "between two segments all breaks together are one piece; host: launches that the host makes for it"


def device_tables(compared: Sequence[Pair]) -> list[Table]:
    """Return device time and gaps of the largest cell of each mode among those with the same settings."""
    found: list[Table] = []
    timed = [pair for pair in compared if any(record.device_time for record in pair.records)]
    for same in grouped(timed, lambda pair: (section(pair), pair.any.mode)):
        pair = largest(same)
        which = _which(pair.any, len(same) - 1)
        found.append(_time_table(pair, which))
        found += [_wait_table(record, which) for record in pair.records[-1:] if _seen(record).get("pieces")]
    return found


def _seen(record: Record | None) -> Mapping[str, Any]:
    return (record.device_time if record else None) or {}


def _which(one: Record, others: int) -> str:
    text = f"{one.mode}, batch {batch_text(one)}; {settings(one)}"
    return f"{text}; of {others} more the records hold it (device_time)" if others else text


def _time_table(pair: Pair, which: str) -> Table:
    sides = [_times(record) for record in (pair.before, pair.after)]
    shown = sides[1] if pair.after and sides[1] else sides[0]
    sources = sorted({source for side in sides for row in side.values() for source in row}, key=_none_last)
    columns = (
        Column("op", ("op",), right=False),
        Column("where", ("where",), right=False),
        *(Column(_title(source), tuple(f"{_title(source)}_{side}_ns" for side in SIDES)) for source in sources),
        *(Column(f"{reuse} us", (f"{side}_ns",)) for reuse, side in zip(("off", "on"), SIDES, strict=True)),
    )
    keys = dict.fromkeys(key for side in sides for key in side)
    timed = [(_total(shown, key), _time_row(key, sides, shown, sources)) for key in keys]
    loose = [_loose(record) for record in (pair.before, pair.after)]
    if any(loose):
        timed.append((loose[int(shown is sides[1])] or 0, _loose_row(loose, len(sources))))
    rows = [row for _, row in sorted(timed, key=lambda one: -one[0])]
    rows.append(_sums(pair, sides, shown, sources))
    what = "step" if pair.any.mode == "eager" else "replay"
    title = heading(f"Device time of one {what}, reuse off and on", pair.any)
    records, reuse = records_of([pair]), "on" if shown is sides[1] else "off"
    columns_note = f"{', '.join(map(_title, sources))}: us by kv_source, reuse {reuse}"
    notes = [which, KERNEL_SUM, columns_note, *said_of(records, _found)]
    return Table(title, columns, tuple(rows), (*notes, *notes_of(records)))


def _times(record: Record | None) -> Times:
    found: Times = {}
    for row in _seen(record).get("rows", ()):
        found.setdefault((row["op"], row["where"]), {})[row["kv_source"]] = row["device_ns"]
    return found


def _none_last(source: Source) -> tuple[bool, int]:
    return source is None, source or 0


def _title(source: Source) -> str:
    return "none" if source is None else str(source)


def _total(side: Times, key: tuple[str, str]) -> int:
    return sum(side.get(key, {}).values())


def _time_row(
    key: tuple[str, str], sides: Sequence[Times], shown: Times, sources: Sequence[Source]
) -> tuple[Cell, ...]:
    each = [
        Cell(_us(shown.get(key, {}).get(one)), tuple(side.get(key, {}).get(one) for side in sides)) for one in sources
    ]
    totals = [_total(side, key) if side else None for side in sides]
    return (*map(cell, key), *each, *(cell(total, _us(total)) for total in totals))


def _sums(pair: Pair, sides: Sequence[Times], shown: Times, sources: Sequence[Source]) -> tuple[Cell, ...]:
    """Return the last row: everything, what found no place included, which has no kv_source."""
    each = [[sum(row.get(one, 0) for row in side.values()) if side else None for side in sides] for one in sources]
    totals = [_kernel_sum(record) for record in (pair.before, pair.after)]
    place = int(shown is sides[1])
    return (
        cell("all"),
        cell(None),
        *(Cell(_us(both[place]), tuple(both)) for both in each),
        *(cell(total, _us(total)) for total in totals),
    )


def _loose(record: Record | None) -> int | None:
    """Return the nanoseconds of what found no place, None where nothing was timed."""
    seen = _seen(record)
    return int(seen.get("unattributed_ns") or 0) if seen else None


def _loose_row(loose: Sequence[int | None], sources: int) -> tuple[Cell, ...]:
    """Return the row of what found no place: of no kv_source either, so that the rows add up to the last one."""
    return (cell(LOOSE), cell(None), *[empty(2)] * sources, *(cell(ns, _us(ns)) for ns in loose))


def _kernel_sum(record: Record | None) -> int | None:
    seen = _seen(record)
    return sum(row["device_ns"] for row in seen["rows"]) + (_loose(record) or 0) if seen else None


def _us(ns: float | None) -> str:
    return format_in_unit(ns, NS_PER_US)


def _found(record: Record) -> list[str]:
    """Return how complete the times of a record are, and what did not fit."""
    seen = _seen(record)
    if not seen:
        return []
    loose, found = _loose(record), []
    if loose:
        side = f"reuse {record.variant.get('reuse')}"
        found = [f"{LOOSE}: {format_ns(loose)} of {side} found no place: its other rows may be too low by as much"]
    return [*found, *coverage_notes(record), *(f"not matched: {why}" for why in seen.get("unmatched", ()))]


def _wait_table(record: Record, which: str) -> Table:
    pieces = _seen(record)["pieces"]
    columns = (
        Column("piece", ("piece",), right=False),
        Column("where", ("where",), right=False),
        Column("host", ("launches",)),
        Column("", ("operations",)),
        *(Column(f"{name} us", (f"{name}_ns",)) for name in ("device", "gap", "idle")),
    )
    largest = sorted(pieces, key=lambda piece: -piece["gap_ns"])[:LARGEST]
    rows = [_piece_row(piece["name"].replace("layer ", ""), piece) for piece in largest]
    rows += [_piece_row(f"all {len(same)}", _added(same)) for same in grouped(pieces, lambda piece: piece["where"])]
    rows.append(_piece_row("all", {**_added(pieces), "where": None}))
    seen = _seen(record)
    title = heading(f"Where the GPU waits in one replay, reuse {record.variant.get('reuse')}", record)
    span = f"first start to last end {format_ns(seen['span_ns'])}, of it nothing ran for {format_ns(seen['idle_ns'])}"
    head = (
        f"the {len(largest)} largest of {len(pieces)} gaps, by the piece behind it (layer and operation, first .. last)"
    )
    return Table(title, columns, tuple(rows), (which, head, f"{span} ({_share(seen)})", WAITS, STRETCH))


def _share(seen: Mapping[str, Any]) -> str:
    return format_percent(seen["idle_ns"] / seen["span_ns"] if seen["span_ns"] else None)


def _added(pieces: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    pieces = list(pieces)
    names = ("launches", "operations", "device_ns", "gap_ns", "idle_ns")
    return {"where": pieces[0]["where"], **{name: sum(piece[name] for piece in pieces) for name in names}}


def _piece_row(name: str, piece: Mapping[str, Any]) -> tuple[Cell, ...]:
    times = (cell(piece[key], _us(piece[key])) for key in ("device_ns", "gap_ns", "idle_ns"))
    return (cell(name), cell(piece["where"]), cell(piece["launches"]), cell(piece["operations"]), *times)
