"""Tables of how long each rank worked and waited where ranks exchange rows inside a step."""

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
    said_of,
    section,
    settings,
    sides_run,
)
from dsv4bench.dashboards.cells import sides_text as text_of
from dsv4bench.dashboards.table import Cell, Column, Table, cell
from dsv4bench.dashboards.time_tables import CELL_COLUMNS, cell_cells
from dsv4bench.results.compare import Pair
from dsv4bench.results.counts import incomplete
from dsv4bench.results.record import Record
from dsv4bench.units import format_in_unit, time_unit

TIMES = {"exchange": "device_ns", "work": "work_ns", "wait": "wait_ns"}
SIDES = ("before", "after")
NOTES = (
    "exchange: device time in moe_gather and moe_return of one profiled step, which all ranks began together",
    "work: what the fastest rank took, operation by operation; wait: what a rank took longer",
)
LEFT_OUT = "left out: times of an exchange of which a rank's operations did not all find their place"


def exchange_tables(compared: Sequence[Pair]) -> list[Table]:
    """Return the waiting of every cell whose ranks exchange rows on a GPU; nothing where none does."""
    found = [pair for pair in compared if any(_ranks(record) for record in pair.records)]
    return [_table(same) for same in grouped(found, section)]


def _ranks(record: Record | None) -> list[dict[str, Any]]:
    """Return the times of each rank; none where some rank's are too few, whose difference would be no waiting."""
    return [] if record is None or incomplete(record.coverage) else _told(record)


def _told(record: Record) -> list[dict[str, Any]]:
    return (record.device_time or {}).get("exchange") or []


def _table(same: Sequence[Pair]) -> Table:
    every = [rank["device_ns"] for record in records_of(same) for rank in _ranks(record)]
    scale, unit = time_unit(every)
    columns = (
        *CELL_COLUMNS,
        Column("rank", ("rank",)),
        *(Column(f"{name} {unit}", tuple(f"{field}_{side}" for side in SIDES)) for name, field in TIMES.items()),
    )
    rows = [row for pair in same for row in _rows(pair, both_ran(same), scale)]
    records = records_of(same)
    title = heading(f"Exchange of rows, {sides_run(same)}", same[0].any)
    less = said_of(records, lambda one: [LEFT_OUT] if _told(one) and not _ranks(one) else [])
    notes = (settings(same[0].any), *rows_notes(records), *NOTES, *less, *notes_of(records))
    return Table(title, columns, tuple(rows), notes)


def _rows(pair: Pair, both: bool, scale: int) -> list[tuple[Cell, ...]]:
    sides = [_ranks(record) for record in (pair.before, pair.after)]
    rows = []
    for rank in range(max(map(len, sides))):
        times = [[side[rank][name] if side else None for side in sides] for name in TIMES.values()]
        shown = [Cell(_text(both, before, after, scale), (before, after)) for before, after in times]
        rows.append((*cell_cells(pair.any), cell(rank), *shown))
    return rows


def _text(both: bool, before: int | None, after: int | None, scale: int) -> str:
    words = [None if one is None else format_in_unit(one, scale) for one in (before, after)]
    return text_of(both, *words)
