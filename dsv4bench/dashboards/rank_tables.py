"""Tables of the ranks of a dealt batch: each rank's time, the slowest one, and how far it falls behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from dsv4bench.dashboards.cells import (
    both_ran,
    grouped,
    heading,
    mode_notes,
    notes_of,
    rank_rows,
    records_of,
    rows_notes,
    section,
    settings,
    short_modes,
    sides_text,
)
from dsv4bench.dashboards.table import Cell, Column, Table, cell, empty
from dsv4bench.dashboards.time_tables import CELL_COLUMNS, cell_cells, interval_cell, side_columns, sides_title
from dsv4bench.results.compare import Pair
from dsv4bench.results.ranks import RankTimes, rank_times
from dsv4bench.results.record import Record
from dsv4bench.results.stats import Interval, median_interval
from dsv4bench.units import time_unit

_WHOLE_FROM = 10  # percent, from which no decimal matters
SIDES = ("before", "after")
LIVE_NOTE = "live: new tokens of the rank; an idle one has none"
NOTES = (
    "step: the slowest rank of each forward, summed over forwards, in each sample; then the median",
    "slowest: the share of samples in which the rank was the last one",
    "skew: how much longer the slowest rank took than the median rank, idle ranks apart",
)
# of ranks that begin samples apart: no step was as long as the longest of them, and none was late for another
FREE_NOTES = (
    "step: of the n-th samples of all ranks, taken at no common time, the longest of each forward, summed over"
    " forwards; then the median",
    "slowest: the share of samples of which the rank's was the longest",
    "skew: how much longer the longest sample was than that of the median rank, idle ranks apart",
)


def rank_tables(compared: Sequence[Pair]) -> list[Table]:
    """Return the time of each rank of every dealt cell, the step's and its skew; one rank's time is the step's."""
    dealt = [pair for pair in compared if any(_dealt(record) for record in pair.records)]
    return [_rank_table(same) for same in grouped(dealt, section)]


def _rank_table(same: Sequence[Pair]) -> Table:
    times = [(pair, [_times(record) for record in (pair.before, pair.after)]) for pair in same]
    steps = [step.value for pair in same for record in pair.records if (step := _step(record))]
    scale, unit = time_unit(steps)
    columns = (
        *CELL_COLUMNS,
        Column("rank", ("rank",)),
        Column("live", ("rank_rows",)),
        *side_columns(SIDES, same, unit),
        *(Column(f"{name} %", tuple(f"{name}_{side}" for side in SIDES)) for name in ("slowest", "skew")),
    )
    records = records_of(same)
    mode = short_modes(records)
    text = partial(sides_text, both_ran(same))
    rows = [row for pair, sides in times for row in _rank_rows(pair, sides, scale, mode, text)]
    lines = (*rows_notes(records), *mode_notes(records), *notes_of(records))
    title = heading(f"Ranks, {sides_title(same)}", same[0].any)
    notes = FREE_NOTES if same[0].any.variant.get("align") == "free" else NOTES
    live = [LIVE_NOTE] if any(rank_rows(pair.any) for pair in same) else []
    return Table(title, columns, tuple(rows), (settings(same[0].any), *live, *notes, *lines))


def _dealt(record: Record) -> bool:
    return bool(record.rank_samples_ns) and record.ranks > 1


def _times(record: Record | None) -> RankTimes | None:
    if record is None or not record.rank_samples_ns:
        return None
    return rank_times([samples[record.step_metric or ""] for samples in record.rank_samples_ns], rank_rows(record))


def _step(record: Record | None) -> Interval | None:
    return median_interval(record.step_samples_ns) if record and record.step_samples_ns else None


def _rank_rows(
    pair: Pair,
    sides: Sequence[RankTimes | None],
    scale: int,
    mode: Callable[[Record], str],
    text: Callable[[object, object], str],
) -> list[tuple[Cell, ...]]:
    rows = []
    live = rank_rows(pair.any)
    for rank in range(max(len(side.ranks) for side in sides if side)):
        intervals = [interval_cell(side.ranks[rank] if side else None, scale) for side in sides]
        late = _shares([side.slowest[rank] if side else None for side in sides], text, decimals=0)
        rows.append((*cell_cells(pair.any, mode), cell(rank), _live_cell(live, rank), *intervals, late, empty(2)))
    steps = [interval_cell(_step(record), scale) for record in (pair.before, pair.after)]
    skew = _shares([side.skew if side else None for side in sides], text, decimals=1)
    return [*rows, (*cell_cells(pair.any, mode), cell("step"), empty(), *steps, empty(2), skew)]


def _live_cell(live: Sequence[int] | None, rank: int) -> Cell:
    return empty() if live is None else cell(live[rank], str(live[rank] or "idle"))


def _shares(shares: Sequence[float | None], text: Callable[[object, object], str], decimals: int) -> Cell:
    percents = (None if share is None else _percent(share * 100, decimals) for share in shares)
    return Cell(text(*percents), tuple(shares))


def _percent(percent: float, decimals: int) -> str:
    return f"{percent:.{decimals if percent < _WHOLE_FROM else 0}f}"
