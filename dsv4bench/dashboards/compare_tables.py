"""Tables of two stored runs: each cell's time before and after with a word, and what may not be compared.

Rows may be summed up by mode, batch or kv; a word is always that of a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import get_args

from dsv4bench.dashboards.cells import batch_text, grouped, mode_text, notes_of, provenance
from dsv4bench.dashboards.launch_change_tables import launch_change_tables
from dsv4bench.dashboards.stored_cells import (
    cell_words,
    kernel_values,
    section,
    several_geometries,
    shared_settings,
    title_of,
    which,
)
from dsv4bench.dashboards.style import arrow
from dsv4bench.dashboards.table import Cell, Column, Table, cell, empty
from dsv4bench.results.comparability import GPU_CHIP, HOST_ID
from dsv4bench.results.counts import DEVICE, add
from dsv4bench.results.record import Record
from dsv4bench.results.stats import Interval
from dsv4bench.results.stored import SIDES, TWO_MACHINES, StoredCell, nearest_strangers
from dsv4bench.results.verdict import Word
from dsv4bench.units import format_count, format_in_unit, format_percent, time_unit

BY = ("cell", "mode", "batch", "kv")
WORDS: tuple[Word, ...] = get_args(Word)
BETWEEN_RUNS = "noise between runs is not in the interval of single runs: dsv4bench ab measures it"
# by the fact that a record does not hold, what its machine may be
ANOTHER = {
    GPU_CHIP: "they may be of two GPUs of one model",
    HOST_ID: "they may be of two hosts with one model of processor",
}
HIDDEN = ("reason", "least", "before_runs", "after_runs", "before_key", "after_key")


def stored_tables(cells: Sequence[StoredCell], by: str = "cell") -> list[Table]:
    """Return what may be compared, summed up `by` one of `BY`, then launches that changed, and then what may not be."""
    compared = [one for one in cells if one.word]
    rest = [one for one in cells if not one.word and not one.refused and not one.two_machines]
    found = [_sum_table(compared, by)] if by != "cell" and compared else []
    if by == "cell":
        found = [_time_table(same) for same in grouped(compared, section)]
    found += launch_change_tables(compared)
    found += [_view(same) for same in grouped([one for one in cells if one.two_machines], section)]
    found += [_refused(cells)] if any(one.refused for one in cells) else []
    return [*found, _rest(rest, strangers=not found)] if rest else found


def _name_columns(kernel: bool) -> tuple[Column, ...]:
    if kernel:
        names = ("kernel", "case", "rows", "provider")
        return tuple(Column("" if name == "kernel" else name, (name,), right=name == "rows") for name in names)
    return (
        Column("batch", ("requests", "extend")),
        Column("mode", ("mode", "reuse", "kv"), right=False),
    )


def _name_cells(record: Record) -> tuple[Cell, ...]:
    if record.kernel:
        return tuple(map(cell, kernel_values(record)))
    return (
        Cell(batch_text(record), (record.batch.get("requests"), record.batch.get("extend"))),
        Cell(mode_text(record), (mode_text(record), record.variant.get("reuse"), record.variant.get("kv"))),
    )


def _bounds(side: str) -> tuple[str, ...]:
    return (f"{side}_ns", f"{side}_low_ns", f"{side}_high_ns")


def _unit(cells: Sequence[StoredCell]) -> tuple[int, str]:
    return time_unit([side.value for one in cells for side in (one.before_ns, one.after_ns) if side])


def _time_cell(interval: Interval | None, scale: int) -> Cell:
    if interval is None:
        return empty(3)
    return Cell(format_in_unit(interval.value, scale), (interval.value, interval.low, interval.high))


def _time_table(same: Sequence[StoredCell]) -> Table:
    scale, unit = _unit(same)
    counted = "launches" if same[0].any.engine == "gpu" else "calls"
    columns = (
        *_name_columns(bool(same[0].any.kernel)),
        *(Column(f"{side} {unit}", _bounds(side)) for side in SIDES),
        Column("change %", ("ratio", "ratio_low", "ratio_high")),
        Column(counted, (f"{counted}_before", f"{counted}_after", "nothing_added")),
        Column("verdict", ("verdict",), right=False),
        *(Column("", (name,)) for name in HIDDEN),
    )
    rows = tuple(_time_row(one, scale) for one in same)
    return Table(title_of("Before and after", same[0].any), columns, rows, tuple(_notes(same)))


def _time_row(one: StoredCell, scale: int) -> tuple[Cell, ...]:
    before, after = one.old[-1], one.new[-1]
    launches = [_launches(record) for record in (before, after)]
    nothing = None if one.added is None else not one.added
    hidden = (one.reason, one.least, len(one.old), len(one.new), before.key, after.key)
    return (
        *_name_cells(one.any),
        _time_cell(one.before_ns, scale),
        _time_cell(one.after_ns, scale),
        _change(one.ratio),
        Cell(arrow(*launches), (*launches, nothing)),
        cell(one.word),
        *(cell(value, "") for value in hidden),
    )


def _change(ratio: Interval | None) -> Cell:
    if ratio is None:
        return empty(3)
    change, bound = (ratio.value - 1) * 100, ratio.half_width * 100
    return Cell(f"{change:+.2f} ±{bound:.2f}", (ratio.value, ratio.low, ratio.high))


def _launches(record: Record) -> int | str | None:
    """Return the kernels, copies and sets of a forward or of a kernel's call; calls where devices counted nothing."""
    if record.kernel:
        launches = record.kernel.get("launches")
        return None if launches is None else f"{launches:g}"
    if not record.counts:
        return None
    device = add(row.get(name) for row in record.counts for name in DEVICE)
    return device if device is not None else add(row.get("calls") for row in record.counts)


def _notes(same: Sequence[StoredCell]) -> list[str]:
    least = list(dict.fromkeys(format_percent(one.least) for one in same))
    runs = [len(side) for one in same for side in (one.old, one.new)]
    return [
        *filter(None, [shared_settings(same[0].any)]),
        f"change: after / before - 1 with its 95 % interval; least effect that is named: {', '.join(least)}",
        BETWEEN_RUNS if max(runs) == 1 else f"{min(runs)} to {max(runs)} runs of a cell on a side: their median times",
        *_said(same, _remarks),
        *([] if same[0].any.kernel else notes_of([one.any for one in same])),
        *(f"before: {line}" for line in provenance(one.old[-1] for one in same)),
        *(f"after: {line}" for line in provenance(one.new[-1] for one in same)),
    ]


def _remarks(one: StoredCell) -> list[str]:
    """Return why a cell has no verdict, and what is not known of it."""
    found = [f"INCONCLUSIVE: {one.reason}"] if one.word == "INCONCLUSIVE" else []
    which = [name for name in one.unknown if name in ANOTHER]
    found += [f"not both sides say their {name}: {ANOTHER[name]}" for name in which]
    half_known = [name for name in one.unknown if name not in ANOTHER]
    found += [f"only one side says: {', '.join(half_known)}"] if half_known else []
    return found + (
        [f"{format_count(one.left_out, 'record')} of other code or settings left out"] if one.left_out else []
    )


def _said(cells: Sequence[StoredCell], sentences: Callable[[StoredCell], list[str]]) -> list[str]:
    """Return every distinct sentence that is said of some cell, with its cells unless it is said of all."""
    said = grouped([(text, one) for one in cells for text in sentences(one)], lambda pair: pair[0])
    every = [(same[0][0], [one for _, one in same]) for same in said]
    return [text if len(ones) == len(cells) else f"{text} ({which(ones)})" for text, ones in every]


def _sum_table(cells: Sequence[StoredCell], by: str) -> Table:
    """Return a row for each mode, batch or kv: the change of its cells from the least to the most, and their words."""
    names: dict[str, Callable[[Record], str]] = {
        "mode": mode_text,
        "batch": lambda record: batch_text(record) if record.batch else "kernels",
        "kv": lambda record: str(record.variant.get("kv") or "-"),
    }
    columns = (
        Column(by, (by,), right=by == "batch"),
        Column("cells", ("cells",)),
        Column("change %", ("ratio",)),
        Column("least", ("ratio_least",)),
        Column("most", ("ratio_most",)),
        *(Column(word, (word.lower(),)) for word in WORDS),
        Column("added", ("added",)),
    )
    rows = tuple(_sum_row(name, same) for name, same in _by_name(cells, names[by]))
    notes = (
        "change: the median of after / before - 1 over the cells, each counted once; words are those of the cells",
        "added: cells that launch something more than before",
    )
    return Table(f"Before and after by {by}, {format_count(len(cells), 'cell')}", columns, rows, notes)


def _by_name(cells: Sequence[StoredCell], name: Callable[[Record], str]) -> list[tuple[str, list[StoredCell]]]:
    groups = grouped(cells, lambda one: name(one.any))
    return [(name(same[0].any), same) for same in groups]


def _sum_row(name: str, same: Sequence[StoredCell]) -> tuple[Cell, ...]:
    ratios = [one.ratio.value for one in same if one.ratio]
    spread = (median(ratios), min(ratios), max(ratios))
    counts = [sum(one.word == word for one in same) for word in WORDS]
    return (
        cell(name),
        cell(len(same)),
        *(cell(ratio, f"{(ratio - 1) * 100:+.2f}") for ratio in spread),
        *(cell(count, str(count) if count else "") for count in counts),
        cell(sum(bool(one.added) for one in same)),
    )


def _view(same: Sequence[StoredCell]) -> Table:
    scale, unit = _unit(same)
    columns = (
        *_name_columns(bool(same[0].any.kernel)),
        *(Column(f"{side} {unit}", _bounds(side)) for side in SIDES),
    )
    rows = tuple(
        (*_name_cells(one.any), _time_cell(one.before_ns, scale), _time_cell(one.after_ns, scale)) for one in same
    )
    facts = list(dict.fromkeys(str(found) for one in same for found in one.differences))
    title = f"{TWO_MACHINES}. {title_of('Side by side', same[0].any)}"
    return Table(title, columns, rows, (*filter(None, [shared_settings(same[0].any)]), *facts))


def _refused(cells: Sequence[StoredCell]) -> Table:
    """Return a row for each fact that differs, with the number of cells in which it does."""
    columns = (*(Column(name, (name,), right=False) for name in ("what differs", *SIDES)), Column("cells", ("cells",)))
    refused = [one for one in cells if one.refused]
    facts = grouped([(found, one) for one in refused for found in one.differences], lambda pair: pair[0])
    rows = [(cell(same[0][0].what), cell(same[0][0].before), cell(same[0][0].after), cell(len(same))) for same in facts]
    note = which(refused, several_geometries(refused))
    return Table("Refused: measured in ways that must not be compared", columns, tuple(rows), (note,))


def _rest(cells: Sequence[StoredCell], strangers: bool) -> Table:
    """Return what has no time on both sides, a note for each reason; in CSV a row for each cell.

    `strangers`: no cell met another, and the user may want to know by how little.
    """
    columns = tuple(Column("", (name,)) for name in ("cell", "reason"))
    several = several_geometries(cells)
    rows = tuple((cell(cell_words(one.any, several)), cell(one.reason)) for one in cells)
    notes = [f"{same[0].reason}: {which(same, several)}" for same in grouped(cells, lambda one: one.reason)]
    notes += filter(None, [nearest_strangers(cells) if strangers else None])
    return Table(f"Without a comparison: {format_count(len(cells), 'cell')}", columns, rows, tuple(notes))
