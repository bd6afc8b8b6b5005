"""Tables of what a step takes: its time before and after, its memory and checks, and the ranks of a dealt batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsv4bench.dashboards.cells import (
    batch_text,
    both_ran,
    grouped,
    heading,
    mode_notes,
    mode_text,
    notes_of,
    provenance,
    records_of,
    rows_notes,
    rows_text,
    said_of,
    section,
    settings,
    short_modes,
    sides_run,
)
from dsv4bench.dashboards.style import plus_minus
from dsv4bench.dashboards.table import Cell, Column, Table, cell
from dsv4bench.results.compare import NOT_RESOLVABLE, Comparison, Pair, calls_left_out, compare
from dsv4bench.results.record import Record
from dsv4bench.results.stats import CONFIDENCE, Interval
from dsv4bench.units import difference_unit, format_in_unit, format_percent, format_rate, time_unit

CELL_COLUMNS = (
    Column("batch", ("requests", "extend")),
    Column("rows", ("rows", "padded_rows")),
    Column("forwards", ("forwards",)),
    Column("mode", ("mode",), right=False),
)
PAIRED = "; diff: the median of paired differences"
PREDICTED = "pred (modelled): rows not dequantised again x their bytes / the dequant rate; negative is time saved"


def step_tables(compared: Sequence[Pair]) -> list[Table]:
    """Return the step time of every cell, reuse off and on; one table for cells with the same settings."""
    return [_reuse_table(same) for same in grouped(compared, section)]


def time_table(title: str, sides: tuple[str, str], compared: Sequence[Comparison], notes: Sequence[str]) -> Table:
    """Return a table of times before and after, called `sides`: medians, difference, change and prediction.

    A cell that has no time shows its status instead, and its reason in a note.
    """
    scale, unit = time_unit([side.value for one in compared for side in (one.before, one.after) if side])
    apart = difference_unit(ns for one in compared for ns in (*bounds_ns(one.difference), one.predicted_ns))
    columns = (
        *CELL_COLUMNS,
        *side_columns(sides, [one.pair for one in compared], unit),
        Column(f"diff {apart[1]}", _names("difference")),
        Column("change", ("change", "unresolved")),
        Column(f"pred {apart[1]}", ("predicted_ns",)),
        *(Column("", (f"{side}_{name}",)) for side in sides for name in ("status", "reason", "samples")),
    )
    records = records_of([one.pair for one in compared])
    mode = short_modes(records)
    rows = tuple(_time_row(one, scale, apart[0], mode) for one in compared)
    found = [*_rows_alike(rows), *_unresolved_notes(compared)]
    found += [*said_of(records, lambda record: record.flags), *_reasons(records)]
    return Table(title, columns, rows, (*notes, *rows_notes(records), *mode_notes(records), *found))


def side_columns(sides: tuple[str, str], pairs: Sequence[Pair], unit: str) -> list[Column]:
    """Return the columns of times before and after; where only one side was run, that one is called "step"."""
    if both_ran(pairs):
        titles = [f"{side} {unit}" for side in sides]
    else:
        titles = [f"step {unit}", ""] if pairs[0].before else ["", f"step {unit}"]
    return [Column(title, _names(side)) for title, side in zip(titles, sides, strict=True)]


def sides_title(pairs: Sequence[Pair]) -> str:
    """Return which side is before and which after, or the one side that was run."""
    return "reuse off (before) and on (after)" if both_ran(pairs) else sides_run(pairs)


def cell_cells(record: Record, mode: Callable[[Record], str] = mode_text) -> list[Cell]:
    """Return the cells that say which cell a row is of, for `CELL_COLUMNS`; `mode` calls its mode for a reader."""
    batch = record.batch
    forwards = batch.get("forwards")
    return [
        Cell(batch_text(record), (batch.get("requests"), batch.get("extend"))),
        Cell(rows_text(record), (batch.get("rows"), batch.get("padded_rows"))),
        cell(forwards, "" if forwards in (None, 1) else str(forwards)),
        cell(mode_text(record), mode(record)),
    ]


def bounds_ns(interval: Interval | None) -> tuple[float, ...]:
    """Return a value and its bounds; nothing where there is none."""
    return () if interval is None else (interval.value, interval.low, interval.high)


def interval_cell(interval: Interval | None, scale: int, signed: bool = False, otherwise: str = "") -> Cell:
    """Return a median with its bounds, or the text `otherwise` where there is none."""
    if interval is None:
        return Cell(otherwise, (None, None, None))
    return Cell(plus_minus(interval, scale, signed), (interval.value, interval.low, interval.high))


def _reuse_table(same: Sequence[Pair]) -> Table:
    records = records_of(same)
    both = both_ran(same)
    notes = [settings(same[0].any), _confidence_note(records, both)]
    notes += prediction_notes(same) if both else []
    notes += notes_of(records)
    title = heading(f"Step time, {sides_title(same)}", same[0].any)
    return time_table(title, ("before", "after"), [compare(pair) for pair in same], [*notes, *provenance(records)])


def _names(side: str) -> tuple[str, ...]:
    return (f"{side}_ns", f"{side}_low_ns", f"{side}_high_ns")


def _time_row(one: Comparison, scale: int, apart: int, mode: Callable[[Record], str]) -> tuple[Cell, ...]:
    first, second = one.pair.before, one.pair.after
    return (
        *cell_cells(one.pair.any, mode),
        interval_cell(one.before, scale, otherwise=_status(first)),
        interval_cell(one.after, scale, otherwise=_status(second)),
        interval_cell(one.difference, apart, signed=True),
        _change_cell(one),
        cell(one.predicted_ns, format_in_unit(one.predicted_ns, apart, signed=True)),
        *(cell(value, "") for record in (first, second) for value in _outcome(record)),
    )


def _status(record: Record | None) -> str:
    if record is None:
        return "-"
    return "WRONG" if record.status == "wrong" else record.status


def _outcome(record: Record | None) -> tuple[object, object, object]:
    return (None, None, None) if record is None else (record.status, record.reason, len(record.step_samples_ns))


def _change_cell(one: Comparison) -> Cell:
    mark = " ?" if one.unresolved and one.relative is not None else ""
    text = "" if one.relative is None else format_percent(one.relative, signed=True) + mark
    return Cell(text, (one.relative, one.unresolved))


def _confidence_note(records: Sequence[Record], both: bool) -> str:
    if all(record.label == "modelled" for record in records):
        return "one modelled time each, without an interval"
    counts = sorted({len(record.step_samples_ns) for record in records if record.step_samples_ns})
    samples = _least_to_most([str(count) for count in counts]) if counts else "no"
    return (
        f"medians of {samples} samples ± the farther bound of the {CONFIDENCE * 100:.0f} % interval"
        f" (the extremes where there are fewer than 6){PAIRED if both else ''}"
    )


def prediction_notes(same: Sequence[Pair]) -> list[str]:
    """Return what a predicted difference is, how it was made and at which rates; nothing where none was."""
    guesses = [record.predicted for pair in same for record in pair.records if record.predicted]
    rates = [rate for guess in guesses if (rate := guess.get("dequant_bytes_per_s"))]
    how = list(dict.fromkeys(guess["how"] for guess in guesses if guess.get("how")))
    found = [PREDICTED] if guesses else []
    found += [f"pred: {how[0]}"] if len(how) == 1 else []
    found += _calls_notes(same)
    return found + ([f"dequant rate: {_least_to_most([format_rate(rate) for rate in sorted(rates)])}"] if rates else [])


def _calls_notes(same: Sequence[Pair]) -> list[str]:
    """Return which cells' predictions are the host's time for the calls left out, and what that is."""
    calls = {id(pair.any): calls_left_out(pair.before, pair.after) for pair in same}

    def said(record: Record) -> list[str]:
        found = calls[id(record)]
        return [f"pred, launch-bound: not bytes but {found.text}"] if found else []

    return said_of([pair.any for pair in same], said)


def _least_to_most(texts: Sequence[str]) -> str:
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


def _rows_alike(rows: Sequence[tuple[Cell, ...]]) -> list[str]:
    """Return what tells rows of one cell apart: a cell that two commands measured is not averaged over them."""
    cells = [row[: len(CELL_COLUMNS)] for row in rows]
    alike = any(one in cells[:at] for at, one in enumerate(cells))
    return ["rows alike: one cell that several commands measured, in the order of their making"] if alike else []


def _unresolved_notes(compared: Sequence[Comparison]) -> list[str]:
    why = {id(one.pair.any): [f"? {NOT_RESOLVABLE}: {one.unresolved}"] for one in compared if one.unresolved}
    return said_of([one.pair.any for one in compared], lambda record: why.get(id(record), []))


def _reasons(records: Sequence[Record]) -> list[str]:
    return said_of(records, lambda record: [] if record.status == "ok" else [f"{_status(record)}: {record.reason}"])
