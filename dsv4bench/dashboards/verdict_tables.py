"""Tables of verdicts: both sides of every cell of an A/B, their difference beside the predicted one, and the word."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4bench.dashboards.cells import heading, notes_of, provenance, rows_beside
from dsv4bench.dashboards.table import Cell, Column, Table, cell
from dsv4bench.dashboards.time_tables import CELL_COLUMNS, bounds_ns, cell_cells
from dsv4bench.dashboards.trial_cells import (
    modes,
    sets,
    side_records,
    trial_settings,
)
from dsv4bench.dashboards.verdict_notes import mark_notes, sign, trust_notes, undecided_notes
from dsv4bench.results.explanation import explained
from dsv4bench.results.noise_floor import Floor
from dsv4bench.results.record import Record
from dsv4bench.results.stats import Interval
from dsv4bench.results.trials import SIDES
from dsv4bench.results.verdict import Verdict
from dsv4bench.units import NS_PER_US, difference_unit, format_in_unit, format_interval, format_percent, time_unit

NO_VERDICT = "none"
ONLY_IN_CSV = (
    "reason",
    "pairs",
    "p",
    "p_holm",
    "min_effect_relative",
    "min_effect_ns",
    "how",
    "aa",
    "session",
    "explained",
)
OF_SIDE = ("side", "status", "reason", "samples", "sm_mhz", "flags")


def verdict_tables(verdicts: Sequence[Verdict], floors: Sequence[Floor]) -> list[Table]:
    """Return a row for each trial, in a table for each set that shares session, sides, settings and versions.

    `floors` are those of the A/A trials, which say what of a difference is noise on this machine.
    """
    return [_verdict_table(same, verdicts, floors) for same in sets(verdicts)]


def times_unit(verdicts: Sequence[Verdict]) -> tuple[int, str]:
    """Return the unit in which the times of both sides are shown."""
    return time_unit([side.value for one in verdicts for side in (one.a_ns, one.b_ns) if side])


def no_time(record: Record | None) -> str:
    """Return why a side has no time: its status, "-" where it was not run."""
    if record is None:
        return "-"
    return "WRONG" if record.status == "wrong" else record.status


def difference_text(verdict: Verdict, scale: int = NS_PER_US) -> str:
    """Return the difference with its interval, to as many digits as that bears; one pair has none."""
    one = verdict.difference_ns
    if one is None or one.confidence == 0:
        return "" if one is None else format_in_unit(one.value, scale, signed=True)
    return format_interval(one.value, one.low, one.high, scale, digits=2)


def change_text(verdict: Verdict) -> str:
    """Return the change in percent."""
    return "" if verdict.ratio is None else format_percent(verdict.ratio.value - 1, signed=True)


def _verdict_table(same: Sequence[Verdict], every: Sequence[Verdict], floors: Sequence[Floor]) -> Table:
    trial = same[0].trial
    scale, unit = times_unit(same)
    apart = difference_unit(ns for one in same for ns in (*bounds_ns(one.difference_ns), one.predicted_ns))
    columns = (
        *CELL_COLUMNS,
        Column(f"a {unit}", _bounds("a", "_ns")),
        Column(f"b {unit}", _bounds("b", "_ns")),
        Column(f"diff {apart[1]}", _bounds("difference", "_ns")),
        Column("change", _bounds("change", "")),
        Column("pred", ("predicted_ns",)),
        Column("verdict", ("verdict", "marks"), right=False),
        *(Column("", (name,)) for name in ONLY_IN_CSV),
        *(Column("", tuple(f"{side}_{name}" for name in OF_SIDE)) for side in ("a", "b")),
    )
    rows = tuple(_row(verdict, mode, scale, apart[0]) for verdict, mode in zip(same, modes(same), strict=True))
    a, b = trial.sides
    what = f"A/A, {a or 'the same'} on both sides" if trial.aa else f"{a} (a) against {b} (b)"
    title = heading(f"Verdicts: {what}", trial.any, *trial.switched)
    return Table(title, columns, rows, tuple(_notes(same, every, floors)))


def _bounds(name: str, unit: str) -> tuple[str, ...]:
    return f"{name}{unit}", f"{name}_low{unit}", f"{name}_high{unit}"


def _row(verdict: Verdict, mode: str, scale: int, apart: int) -> tuple[Cell, ...]:
    trial, least = verdict.trial, verdict.min_effect
    batch, rows, forwards, how = cell_cells(trial.any)
    ratio = verdict.ratio
    change = (None,) * 3 if ratio is None else (ratio.value - 1, ratio.low - 1, ratio.high - 1)
    hidden = (verdict.reason, verdict.pairs, verdict.p, verdict.p_holm, least.relative, least.absolute_ns)
    word = f"{verdict.word} {''.join(map(sign, verdict.marks))}".rstrip() if verdict.word else NO_VERDICT
    return (
        batch,
        Cell(rows_beside(trial.any), rows.values),
        forwards,
        Cell(mode, how.values),
        Cell(_median_text(verdict.a_ns, trial.a, scale), _values(verdict.a_ns)),
        Cell(_median_text(verdict.b_ns, trial.b, scale), _values(verdict.b_ns)),
        Cell(difference_text(verdict, apart), _values(verdict.difference_ns)),
        Cell(change_text(verdict), change),
        cell(verdict.predicted_ns, format_in_unit(verdict.predicted_ns, apart, signed=True, digits=3)),
        Cell(word, (verdict.word, ", ".join(verdict.marks))),
        *(cell(value, "") for value in (*hidden, trial.how, trial.aa, _session(verdict), explained(verdict))),
        *(Cell("", _side(verdict, number)) for number in (0, 1)),
    )


def _median_text(interval: Interval | None, record: Record | None, scale: int) -> str:
    return no_time(record) if interval is None else format_in_unit(interval.value, scale)


def _values(interval: Interval | None) -> tuple[float | None, ...]:
    return (None, None, None) if interval is None else (interval.value, interval.low, interval.high)


def _side(verdict: Verdict, number: int) -> tuple[object, ...]:
    """Return the plain values of `OF_SIDE`; the SM clock is that of the middle pair."""
    trial = verdict.trial
    record = (trial.a, trial.b)[number]
    known = sorted(mhz for pair in trial.pairs if (mhz := (pair.a_mhz, pair.b_mhz)[number]))
    flags = "; ".join(record.flags) if record else None
    outcome = (None, None, None) if record is None else (record.status, record.reason, len(record.step_samples_ns))
    return (trial.sides[number], *outcome, known[len(known) // 2] if known else None, flags)


def _notes(same: Sequence[Verdict], every: Sequence[Verdict], floors: Sequence[Floor]) -> list[str]:
    trials = [verdict.trial for verdict in same]
    sides = {side: [one for trial in trials if (one := getattr(trial, side))] for side in SIDES}
    records = [record for trial in trials for record in side_records(trial)]
    notes = [
        "diff and change: b - a by pairs (Hodges-Lehmann), not of the medians; negative is time saved",
        trial_settings(same[0].trial),
        *trust_notes(same, every, floors),
        *(f"{mark} {text}" for mark, text in mark_notes(same).items()),
        *undecided_notes(same),
    ]
    return [note for note in [*notes, *notes_of(records, sides), *provenance(records)] if note]


def _session(verdict: Verdict) -> object:
    return (verdict.trial.any.ab or {}).get("session")
