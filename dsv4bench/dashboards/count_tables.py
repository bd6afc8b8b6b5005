"""Tables of what was launched: dequants per kv_source, and all device operations per op, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsv4bench.dashboards.cells import (
    both_ran,
    cells_text,
    grouped,
    heading,
    notes_of,
    records_of,
    said_of,
    settings,
    sides_run,
    sides_text,
    status_of,
)
from dsv4bench.dashboards.style import yes
from dsv4bench.dashboards.table import Cell, Column, Table, cell
from dsv4bench.results.compare import Pair
from dsv4bench.results.counts import COMPRESSED, MISNAMED, SWA, Row, Sides, added, side_by_side
from dsv4bench.results.record import CLASSES, Record
from dsv4bench.units import format_percent

TITLES = {"calls": "calls", "kernels": "kernels", "copies": "copies", "sets": "sets", "aten_ops": "aten operations"}
OP, WHERE = Column("op", ("op",), right=False), Column("where", ("where",), right=False)
KV_SOURCE = Column("kv_source", ("kv_source",))
GRAPH_MODES = ("graph", "full graph")  # what a graph launched was counted, and an eager step over the same rows
ATEN_NOTE = "aten operations are what the CPU reference dispatched (views excluded), not launches on a GPU"
GEMM_NOTE = "a matrix product (*_proj) is one operation, its call, whatever number of kernels it takes"

Changes = dict[tuple[Any, ...], dict[str, Sides]]


def dequant_tables(compared: Sequence[Pair]) -> list[Table]:
    """Return the headline: KV dequants per kv_source and forward, before and after; one table per distinct answer."""
    tables = []
    for same in grouped(_counted(compared), lambda pair: _signature(pair, _dequants(pair))):
        rows = [
            (cell(source), cell(op), cell(where), *_numbers(same[0], change, ("calls", "kernels")))
            for (source, op, where), change in _dequants(same[0]).items()
        ]
        title = heading(f"KV dequants per forward, {sides_run(same[:1])}", same[0].any)
        columns = (KV_SOURCE, OP, WHERE, *_number_columns(("calls", "kernels")))
        tables.append(Table(title, columns, tuple(rows), tuple(_notes(same))))
    return tables


def operation_tables(compared: Sequence[Pair]) -> list[Table]:
    """Return the device operations per op and forward.

    Cells with the same ops and calls share a table; a count that differs between them is shown as "least..most".
    """
    tables = []
    for same in grouped(_counted(compared), lambda pair: _signature(pair, _calls(pair))):
        on_gpu = same[0].any.engine == "gpu"
        what = "Device operations" if on_gpu else "Aten operations (CPU reference)"
        title = heading(f"{what} per op and forward, {sides_run(same[:1])}", same[0].any)
        changes = [_operations(pair) for pair in same]
        rows = [(*map(cell, key), *_spans(same[0], [one[key] for one in changes])) for key in changes[0]]
        notes = [*_notes(same), GEMM_NOTE if on_gpu else ATEN_NOTE]
        notes += said_of(records_of(same), coverage_notes) + said_of(records_of(same), _agreement)
        tables.append(Table(title, (OP, WHERE, *_number_columns(CLASSES)), tuple(rows), tuple(notes)))
    return tables


def _counted(compared: Sequence[Pair]) -> list[Pair]:
    return [pair for pair in compared if any(record.counts for record in pair.records)]


def _sides(pair: Pair) -> list[Sequence[Row]]:
    return [[] if record is None else record.counts for record in (pair.before, pair.after)]


def _added(pair: Pair) -> list[str] | None:
    before, after = _sides(pair)
    return added(before, after) if before and after else None


def _dequants(pair: Pair) -> Changes:
    """Return the compressed dequants per (kv_source, op, where), and then the sums over all sources."""
    before, after = ([row for row in rows if row["op"] in (COMPRESSED, SWA)] for rows in _sides(pair))
    per_source = side_by_side(before, after, "kv_source", "op", "where")
    sources = {key: change for key, change in per_source.items() if key[1] == COMPRESSED}
    totals = sorted(side_by_side(before, after, "op", "where").items())
    return dict(sorted(sources.items())) | {("all", *key): change for key, change in totals}


def _operations(pair: Pair) -> Changes:
    before, after = _sides(pair)
    return dict(sorted(side_by_side(before, after, "op", "where").items()))


def _calls(pair: Pair) -> dict[tuple[Any, ...], Sides]:
    return {key: change["calls"] for key, change in _operations(pair).items()}


def _signature(pair: Pair, answer: object) -> str:
    return str((heading("", pair.any), answer, _added(pair)))


def _number_columns(classes: Sequence[str]) -> list[Column]:
    return [Column(TITLES[name], (f"{name}_before", f"{name}_after")) for name in classes]


def _numbers(pair: Pair, change: dict[str, Sides], classes: Sequence[str]) -> list[Cell]:
    # the headline shows both sides even where they are equal: that nothing changed is part of the answer
    return [_number_cell(pair, *change[name], always=True) for name in classes]


def _spans(pair: Pair, changes: Sequence[dict[str, Sides]]) -> list[Cell]:
    sides = [[_span([change[name][side] for change in changes]) for side in (0, 1)] for name in CLASSES]
    return [_number_cell(pair, before, after) for before, after in sides]


def _number_cell(pair: Pair, before: int | str | None, after: int | str | None, *, always: bool = False) -> Cell:
    return Cell(sides_text(both_ran([pair]), before, after, always=always), (before, after))


def _span(counts: Sequence[int | None]) -> int | str | None:
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return None
    return known[0] if min(known) == max(known) else f"{min(known)}..{max(known)}"


def _notes(same: Sequence[Pair]) -> list[str]:
    """Return what must be read with counts: whether anything else was added, and which cells they are of."""
    reports = [_added(pair) for pair in same]
    answer = None if None in reports else not any(reports)
    notes = [f"no other kernel or copy added: {yes(answer, 'not compared (needs the counts of both sides)')}"]
    notes += [f"added: {sentence}" for sentence in dict.fromkeys(text for report in reports for text in report or [])]
    for part in grouped(same, lambda pair: (settings(pair.any), status_of(pair))):
        status = status_of(part[0])
        notes.append(f"{cells_text([pair.any for pair in part])}; {settings(part[0].any)}{status and f' [{status}]'}")
    return notes + notes_of(records_of(same))


def coverage_notes(record: Record) -> list[str]:
    """Return how many device operations of a record found their range, by which method, and whether counts disagree."""
    seen = record.coverage
    if not seen:
        return []
    parts = [int(seen.get(name) or 0) for name in ("attributed", "unattributed", "ambiguous")]
    share = parts[0] / sum(parts) if sum(parts) else 1.0
    found = [
        f"coverage {format_percent(share)}: {parts[0]} attributed, {parts[1]} unattributed, {parts[2]} ambiguous;"
        f" {seen.get('method')}"
    ]
    if seen.get("misnamed"):
        found.append(f"{MISNAMED}: {seen['misnamed']}")
    return [*found, f"the sources of counts disagree: {seen['disagreement']}"] if seen.get("disagreement") else found


def _agreement(record: Record) -> list[str]:
    """Say of a graph cell whether an eager step over the same padded rows counted what its graph and breaks do."""
    seen = record.coverage
    if record.mode not in GRAPH_MODES or not seen or "disagreement" not in seen:
        return []
    return [f"eager = segments + breaks over the same rows, op by op: {yes(seen['disagreement'] is None, '')}"]
