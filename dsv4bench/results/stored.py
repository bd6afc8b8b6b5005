"""Two stored runs, cell by cell: what was launched, compared exactly, and times, as far as two runs can tell.

A cell is a workload under a variant; the code that ran it is what is compared. Two single runs show the noise within
each of them and not the noise between runs, which `dsv4bench ab` measures.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from dsv4bench.results.comparability import Difference, differences, two_machines, unknown
from dsv4bench.results.compare import HOW_CAPTURED, reached
from dsv4bench.results.counts import added
from dsv4bench.results.noise_floor import Floor, noise_floor
from dsv4bench.results.plausibility import implausible
from dsv4bench.results.record import Record
from dsv4bench.results.run_ratio import ratio_of_runs
from dsv4bench.results.standing import Runs, standing, timed
from dsv4bench.results.stats import Interval, median_interval
from dsv4bench.results.trials import FRESH, NO_TIME, PairOfSamples, Trial, trials
from dsv4bench.results.verdict import Word, judge
from dsv4bench.results.verdict_stats import FEWEST_PAIRS
from dsv4bench.units import format_count, format_percent

LEAST = 0.02  # of the time before: the least difference that two single runs are trusted with
TWO_MACHINES = "two machines: no verdict"
MOST_STRANGERS = 30
SIDES = ("before", "after")
BATCH = ("requests", "extend", "prefix")


@dataclass(frozen=True, slots=True)
class StoredCell:
    """One cell of two stored runs.

    `old` and `new` are the records of either side's newest code, one a run, the one that stands for the side last; one
    of the two may be empty. `left_out` counts records of other code or settings. `word` is None where nothing may be
    said, and `reason` says why; else it says what decided. `ratio` is after / before, `least` the share of the time
    that a word needs, `added` what `counts.added` finds.
    """

    old: Runs
    new: Runs
    left_out: int = 0
    differences: tuple[Difference, ...] = ()
    unknown: tuple[str, ...] = ()
    word: Word | None = None
    reason: str = ""
    before_ns: Interval | None = None
    after_ns: Interval | None = None
    ratio: Interval | None = None
    least: float = LEAST
    added: list[str] | None = None

    @property
    def before(self) -> Record | None:
        """The record that stands for the time before."""
        return self.old[-1] if self.old else None

    @property
    def after(self) -> Record | None:
        """The record that stands for the time after."""
        return self.new[-1] if self.new else None

    @property
    def any(self) -> Record:
        """One of the two records, for what they share."""
        return (self.new or self.old)[-1]

    @property
    def two_machines(self) -> bool:
        """Whether the sides are of two machines, so that their times only stand side by side."""
        return two_machines(self.differences)

    @property
    def refused(self) -> bool:
        """Whether both sides have a time, measured in ways that must not be compared."""
        return bool(self.before_ns and self.after_ns and self.differences) and not self.two_machines

    @property
    def lost(self) -> bool:
        """Whether the cell had a time and now fails, is wrong, does not fit or takes 0 ns."""
        fallen = ("failed", "wrong", "out_of_memory", "ok")
        return bool(self.before_ns and not self.after_ns and self.after and self.after.status in fallen)


def compare_stored(before: Sequence[Record], after: Sequence[Record], least: float | None = None) -> list[StoredCell]:
    """Return the cells of two runs, those of `before` first; `least` is the share of the time that a word needs.

    Of a side's records those of its newest code count; of A/A records only side a, where there are no others. Where
    both sides measured a cell in 6 runs or more, these are paired in their order and judged as `ab` judges pairs.
    Without `least` it is 2 %, or what A/A trials of fresh processes among the records could tell. Where A/A trials of a
    cell needed more, it is that.
    """
    floors: dict[str, list[Floor]] = {}
    for floor in noise_floor(trials([*before, *after])):
        floors.setdefault(_identity(floor.verdict.trial.any), []).append(floor)
    found = [
        _cell(*standing(old, new), len(old) + len(new), _least(least, floors.get(_identity((new or old)[-1]), ())))
        for old, new in _matched(before, after)
    ]
    return _judged(found)


def nearest_strangers(cells: Sequence[StoredCell]) -> str | None:
    """Return in what the most alike cells of one side each differ; None where there are none on one of the sides."""
    old = [_names(one.any) for one in cells if not one.new][:MOST_STRANGERS]
    new = [_names(one.any) for one in cells if not one.old][:MOST_STRANGERS]
    found = [_differences(a, b) for a, b in product(old, new)]
    fewest: list[str] = min(found, key=len, default=[])
    return f"the most alike of them differ in {'; '.join(fewest)}" if fewest else None


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return what two cells have unlike, with both values: "none" of a switch that one of them has not."""
    values = [(name, before.get(name), after.get(name)) for name in before | after]
    words = [(name, "none" if old is None else old, "none" if new is None else new) for name, old, new in values]
    return [f"{name} {old} before, {new} after" for name, old, new in words if old != new]


def _names(record: Record) -> dict[str, Any]:
    """Return what tells a cell from others, by name."""
    kernel = {name: (record.kernel or {}).get(name) for name in ("name", "case", "rows")}
    batch = {name: record.batch.get(name) for name in (*BATCH, "source")}
    return {"geometry": record.geometry, "ranks": record.ranks, **kernel, **batch, **record.variant}


def _matched(before: Iterable[Record], after: Iterable[Record]) -> list[tuple[list[Record], list[Record]]]:
    """Return the records of each cell on both sides; what is of one machine and method meets its like first."""
    sides = [_grouped(_once(records)) for records in (before, after)]
    found = []
    for identity in dict.fromkeys(identity for side in sides for identity in side):
        old, new = (side.get(identity, {}) for side in sides)
        found += [(old[how], new[how]) for how in old if how in new]
        rest = [[one for how, ones in a.items() if how not in b for one in ones] for a, b in ((old, new), (new, old))]
        found += [(rest[0], rest[1])] if any(rest) else []
    return found


def _once(records: Iterable[Record]) -> Iterable[Record]:
    """Return the records without copies of others, which are no more runs."""
    return {json.dumps([one.created, one.key, one.ab, one.samples_ns]): one for one in records}.values()


def _grouped(records: Iterable[Record]) -> dict[str, dict[tuple[str, ...], list[Record]]]:
    found: dict[str, dict[tuple[str, ...], list[Record]]] = {}
    for record in records:
        how = (record.label, record.engine, record.machine)
        found.setdefault(_identity(record), {}).setdefault(how, []).append(record)
    return {cell: {how: _reached(ones) for how, ones in kinds.items()} for cell, kinds in found.items()}


def _reached(records: Sequence[Record]) -> list[Record]:
    """Return a cell's records without those that a time limit left out, whatever the code."""
    return reached(records, lambda _: None, lambda one: one.reason)


def _identity(record: Record) -> str:
    """Return what makes a cell, whatever the code: geometry, batch, switches, ranks, or a kernel and its case."""
    ignored = () if record.variant.get("graph") else HOW_CAPTURED
    switches = {name: value for name, value in record.variant.items() if name not in ignored}
    batch = [record.batch.get(name) for name in BATCH]
    source = Path(str(record.batch.get("source"))).name  # the same file may lie elsewhere
    kernel = [record.kernel.get(name) for name in ("name", "case", "rows")] if record.kernel else None
    return json.dumps([record.geometry, batch, source, record.ranks, switches, kernel], sort_keys=True)


def _least(asked: float | None, floors: Sequence[Floor]) -> float:
    """Return the least effect of a cell: what was asked for, and what its A/A trials needed."""
    needed = [(floor.verdict.trial.how, floor.smallest) for floor in floors if floor.smallest is not None]
    between_runs = any(how == FRESH for how, _ in needed)
    own = asked if asked is not None else 0.0 if between_runs else LEAST
    return max([own, *(share for _, share in needed)])


def _cell(old: Runs, new: Runs, records: int, least: float) -> StoredCell:
    """Return one cell of both sides, compared as far as it may be; `records` are all that either side has of it."""
    left_out = records - len(old) - len(new)
    found = StoredCell(old, new, left_out, before_ns=_time(old), after_ns=_time(new), least=least)
    if not old or not new:
        return replace(found, reason=f"not run {'after' if old else 'before'}")
    first, second = old[-1], new[-1]
    unlike = tuple(differences(first, second))
    found = replace(found, differences=unlike)
    if failure := _failure(first, second):
        return replace(found, reason=failure)
    if unlike:
        return replace(found, reason=TWO_MACHINES if found.two_machines else f"not comparable: {unlike[0]}")
    return _worded(replace(found, unknown=tuple(unknown(first, second)), added=_added(first, second)))


def _failure(before: Record, after: Record) -> str:
    """Return why sides have no time, "" where both have one."""
    said = [
        "" if timed(one) else NO_TIME if one.status == "ok" else f"{one.status}: {one.reason}"
        for one in (before, after)
    ]
    if said[0] == said[1]:
        return said[0] and f"before and after: {said[0]}"
    return "; ".join(f"{side}: {text}" for side, text in zip(SIDES, said, strict=True) if text)


def _time(runs: Runs) -> Interval | None:
    """Return the time of a side: that of its samples, or with several runs that of their medians."""
    each = [record.step_samples_ns for record in runs if timed(record)]
    return median_interval(each[0] if len(each) == 1 else [median(samples) for samples in each]) if each else None


def _added(before: Record, after: Record) -> list[str] | None:
    if before.kernel is None or after.kernel is None:
        return added(before.counts, after.counts)
    old, new = (kernel.get("launches") for kernel in (before.kernel, after.kernel))
    if old is None or new is None:
        return None
    return [f"{after.kernel['name']}: launches a call {old:g} -> {new:g}"] if new > old else []


def _worded(cell: StoredCell) -> StoredCell:
    """Return a cell with the ratio of its times and the word that single runs earn."""
    before, after = ([record.step_samples_ns for record in side] for side in (cell.old, cell.new))
    ratio = ratio_of_runs(before, after)
    fewest = min(sum(map(len, side)) for side in (before, after))
    word, reason = _word(ratio, cell.least)
    objection = _clock_objection(cell, ratio) if word in ("FASTER", "SLOWER") else None
    if fewest < FEWEST_PAIRS:
        word, reason = "INCONCLUSIVE", f"{format_count(fewest, 'sample')}: too few to tell"
    elif said := _implausible(cell):
        word, reason = "INCONCLUSIVE", said
    elif objection:
        word, reason = "INCONCLUSIVE", objection
    return replace(cell, word=word, reason=reason, ratio=ratio)


def _word(ratio: Interval, least: float) -> tuple[Word, str]:
    """Return what an interval of after / before says of a least difference, and why; the bounds are symmetric."""
    most, share = 1 + least, format_percent(least)
    if ratio.low > most:
        return "SLOWER", f"the whole interval is beyond {share}"
    if ratio.high < 1 / most:
        return "FASTER", f"the whole interval is beyond {share}"
    if 1 / most <= ratio.low and ratio.high <= most:
        return "SAME", f"the whole interval is within {share}"
    return "INCONCLUSIVE", f"the interval reaches across {share}"


def _implausible(cell: StoredCell) -> str | None:
    """Return which side's rate cannot be true, so that neither can its time; None where none is like that."""
    said = (
        (side, implausible(record)) for side, runs in zip(SIDES, (cell.old, cell.new), strict=True) for record in runs
    )
    return next((f"{side}: {text}" for side, text in said if text), None)


def _clock_objection(cell: StoredCell, ratio: Interval) -> str | None:
    """Return why the SM clock may have made a difference: in cycles of it the sign is another one."""
    old, new = _clock(cell.old[-1]), _clock(cell.new[-1])
    if old is None or new is None or (ratio.value - 1) * (ratio.value * new / old - 1) > 0:
        return None
    return f"the SM clock went from {old:.0f} to {new:.0f} MHz, which may have made it"


def _clock(record: Record) -> float | None:
    known = [mhz for mhz in (record.clocks or {}).get("sm_mhz") or () if mhz]
    return float(median(known)) if known else None


def _judged(cells: Sequence[StoredCell]) -> list[StoredCell]:
    """Return the cells, those that both sides measured often enough with the verdict over pairs of runs."""
    enough = (one for one in cells if one.word and min(len(one.old), len(one.new)) >= FEWEST_PAIRS)
    often = [one for one in enough if not _implausible(one)]
    verdicts = {id(one): verdict for one, verdict in zip(often, judge(map(_trial, often)), strict=True)}
    found = []
    for one in cells:
        verdict = verdicts.get(id(one))
        found.append(replace(one, word=verdict.word, reason=verdict.reason, ratio=verdict.ratio) if verdict else one)
    return found


def _trial(cell: StoredCell) -> Trial:
    """Return the newest runs of both sides as pairs of fresh processes."""
    count = min(len(cell.old), len(cell.new))
    ab = {"session": "stored", "sides": {"a": SIDES[0], "b": SIDES[1]}, "min_effect": {"relative": cell.least}}
    pairs = tuple(
        PairOfSamples(tuple(a.step_samples_ns), tuple(b.step_samples_ns), _clock(a), _clock(b))
        for a, b in zip(cell.old[-count:], cell.new[-count:], strict=True)
    )
    return Trial(replace(cell.old[-1], ab=ab), replace(cell.new[-1], ab=ab), pairs, FRESH, aa=False)
