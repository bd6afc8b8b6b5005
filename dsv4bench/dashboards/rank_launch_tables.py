"""Tables of what each real rank launched, by kv_source, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsv4bench.dashboards.cells import (
    both_ran,
    grouped,
    heading,
    notes_of,
    records_of,
    rows_notes,
    section,
    settings,
    sides_run,
)
from dsv4bench.dashboards.style import arrow
from dsv4bench.dashboards.table import Cell, Column, Table, cell
from dsv4bench.dashboards.time_tables import CELL_COLUMNS, cell_cells
from dsv4bench.results.compare import Pair
from dsv4bench.results.counts import DEVICE
from dsv4bench.results.record import Record

ALL, NO_SOURCE = "all", "none"
LAUNCHES = "launches (without a GPU: calls) of the forward that a rank counted, its largest"
NOTES = (
    f"{LAUNCHES}; padding is a rank's own",
    "what a graph holds is equal on all ranks of a bucket, or else the cell fails",
)


def rank_launch_tables(compared: Sequence[Pair]) -> list[Table]:
    """Return the launches of every cell whose ranks were real; nothing where none was."""
    real = [pair for pair in compared if any(record.rank_launches for record in pair.records)]
    return [_table(same) for same in grouped(real, section)]


def _table(same: Sequence[Pair]) -> Table:
    records = records_of(same)
    size = max(record.ranks for record in records)
    sides = ("before", "after")
    columns = (
        *CELL_COLUMNS,
        Column("kv_source", ("kv_source",)),
        *(Column(f"rank {rank}", tuple(f"rank_{rank}_{side}" for side in sides)) for rank in range(size)),
    )
    rows = [row for pair in same for row in _rows(pair, size, both_ran(same))]
    whose, notes = ("each rank", NOTES) if size > 1 else ("the one rank", (LAUNCHES,))
    title = heading(f"Launches of {whose}, {sides_run(same)}", same[0].any)
    return Table(title, columns, tuple(rows), (settings(same[0].any), *rows_notes(records), *notes, *notes_of(records)))


def _rows(pair: Pair, size: int, both: bool) -> list[tuple[Cell, ...]]:
    sides = [_by_source(record, size) for record in (pair.before, pair.after)]
    sources = dict.fromkeys(source for side in sides for source in side or {})
    rows = []
    for source in sorted(sources, key=lambda name: (isinstance(name, str), str(name).zfill(3))):
        found = [
            [None if side is None else side.get(source, [0] * size)[rank] for side in sides] for rank in range(size)
        ]
        shown = [Cell(arrow(*one) if both else arrow(*[_only(one)] * 2), tuple(one)) for one in found]
        rows.append((*cell_cells(pair.any), cell(source), *shown))
    return rows


def _only(sides: Sequence[int | None]) -> int | None:
    return next((side for side in sides if side is not None), None)


def _by_source(record: Record | None, size: int) -> dict[Any, list[int]] | None:
    """Return the launches of every rank by kv_source and of all, or None where they are not known."""
    if record is None or not record.rank_launches:
        return None
    found: dict[Any, list[int]] = {}
    for rank, rows in enumerate(record.rank_launches):
        for row in rows:
            source = NO_SOURCE if row["kv_source"] is None else row["kv_source"]
            for name in (source, ALL):
                found.setdefault(name, [0] * size)[rank] += _launches(row)
    return found


def _launches(row: dict[str, Any]) -> int:
    """Return a row's device operations, or its calls where no device was there to count."""
    on_device = [row[name] for name in DEVICE if name in row]
    return sum(on_device) if on_device else row.get("calls", 0)
