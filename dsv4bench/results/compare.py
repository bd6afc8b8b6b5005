"""Before against after: records that differ in one switch, their difference in time and what was launched more.

No verdict is given here: a difference comes with its interval, beside the predicted one, and says where it cannot be
told from noise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dsv4bench.results.counts import added
from dsv4bench.results.record import LAUNCH_BOUND, Record
from dsv4bench.results.stats import CONFIDENCE, Interval, median_interval, paired_difference
from dsv4bench.results.store import NO_TIME_LEFT
from dsv4bench.units import format_count, format_ns

PLACE = ("--out", "--resume")  # where a run writes
BLOCK = "--md"  # where its block goes
SHARE = "--shard"  # how much of its plan one process runs
LIMIT = "--time-limit"  # by when it should be over
CALL_BY_CALL = ("eager", "graph")  # modes whose dequants the host submits: a full graph is one launch
HOW_CAPTURED = ("graph-mode", "breaks", "break-outputs")  # an eager step has none of these
NOT_RESOLVABLE = "not resolvable here"
MODELLED = "modelled, not measured"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two records that differ in one switch; None where the other side was not run. At least one is there."""

    before: Record | None
    after: Record | None

    @property
    def any(self) -> Record:
        """One of the two, for what they share."""
        record = self.after or self.before
        if record is None:
            raise ValueError("a pair of nothing")
        return record

    @property
    def records(self) -> list[Record]:
        """The records that are there, before first."""
        return [record for record in (self.before, self.after) if record is not None]


@dataclass(frozen=True, slots=True)
class Calls:
    """Dequants that reuse leaves out of a step, and the nanoseconds in which the host submits one."""

    count: int
    submit_ns: float

    @property
    def host_ns(self) -> float:
        """The host's time for all of them."""
        return self.count * self.submit_ns

    @property
    def text(self) -> str:
        """What they are, in words: "34 dequants x 30.2 us to submit one"."""
        return f"{format_count(self.count, 'dequant')} x {format_ns(self.submit_ns, 3)} to submit one"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A pair with its numbers; times in nanoseconds, differences are after - before (negative: time was saved)."""

    pair: Pair
    before: Interval | None
    after: Interval | None
    difference: Interval | None
    predicted_ns: float | None
    unresolved: str | None
    added: list[str] | None

    @property
    def relative(self) -> float | None:
        """The difference as a share of the time before."""
        if self.difference is None or self.before is None or not self.before.value:
            return None
        return self.difference.value / self.before.value

    @property
    def nothing_added(self) -> bool | None:
        """Whether no other kernel or copy was added; None where it was not compared."""
        return None if self.added is None else not self.added


def latest(records: Iterable[Record]) -> list[Record]:
    """Return the last record of every cell, machine and command, in the order of their first appearance.

    A cell that two commands measured is two cells: each was interleaved with its own neighbours. So is each side of
    each pair of `ab`. What a time limit left out gives way to any other record.
    """
    found: dict[tuple[str, ...], Record] = {}
    for record in records:
        cell = (*_measured(record), _command(record), _side(record))
        if record.reason != NO_TIME_LEFT or cell not in found:
            found[cell] = record
    return list(found.values())


def reached(rows: Sequence[T], cell: Callable[[T], Hashable], reason: Callable[[T], str | None]) -> list[T]:
    """Return rows but for those that a time limit left out; of a cell that has no others, the last of these."""
    last = {cell(row): place for place, row in enumerate(rows)}
    measured = {cell(row) for row in rows if reason(row) != NO_TIME_LEFT}
    return [
        row
        for place, row in enumerate(rows)
        if reason(row) != NO_TIME_LEFT or (cell(row) not in measured and last[cell(row)] == place)
    ]


def reached_records(records: Sequence[Record]) -> list[Record]:
    """Return the records but for those of cells that a time limit left out and somebody has measured, in any command.

    Sides of `ab` are told apart by their session; of a cell that was only left out the last record stays.
    """
    return reached(records, lambda one: (*_measured(one), _side(one)), lambda one: one.reason)


def _measured(record: Record) -> tuple[str, str, str, str]:
    return (record.key, record.label, record.engine, record.machine)


def _side(record: Record) -> str:
    """Return which side of which pair of which session a record of `ab` is; each was measured for itself."""
    return json.dumps([(record.ab or {}).get(name) for name in ("session", "side", "pair")])


def _fresh(record: Record) -> bool:
    """Return whether a record is of one of `ab`'s pairs of fresh processes, whose samples did not alternate."""
    return (record.ab or {}).get("pair") is not None


def _command(record: Record) -> str:
    return json.dumps(without_place(record.argv))


def without_place(arguments: Sequence[str]) -> list[str]:
    """Return a command's arguments without where it wrote and which share it ran: resumed or dealt, it is the same.

    So it is with another time limit; but that of `ab` decides how many pairs a cell has.
    """
    limit = (LIMIT,) if arguments[1:2] == ["prefill"] else ()
    return without(arguments, (*PLACE, BLOCK, SHARE, *limit))


def without(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return a command's arguments without these options and their values, written `--name value` or `--name=value`."""
    kept, skip = [], False
    for argument in arguments:
        if not skip and argument not in names and not argument.startswith(tuple(f"{name}=" for name in names)):
            kept.append(argument)
        skip = not skip and argument in names
    return kept


def pairs(records: Iterable[Record], switch: str, before: Any, after: Any) -> list[Pair]:
    """Pair the records of a group that differ only in `switch`, whose two values are `before` and `after`.

    Pairs come in the order of their first record. A comparison never crosses machines or commits.
    """
    sides: dict[Any, dict[str, Record]] = {before: {}, after: {}}
    order: dict[str, None] = {}
    for record in latest(records):
        value = record.variant.get(switch)
        if value in sides:
            identity = _identity(record, switch)
            order[identity] = None
            sides[value][identity] = record
    return [Pair(sides[before].get(identity), sides[after].get(identity)) for identity in order]


def compare(pair: Pair, metric: str | None = None) -> Comparison:
    """Compare a pair by `metric`, by default the one that stands for the step time."""
    first, second = (_samples(record, metric) for record in (pair.before, pair.after))
    alternated = len(first) == len(second) and not any(map(_fresh, pair.records))
    difference = paired_difference(first, second) if first and alternated else None
    predicted_ns = predicted_difference_ns(pair.before, pair.after)
    return Comparison(
        pair=pair,
        before=median_interval(first) if first else None,
        after=median_interval(second) if second else None,
        difference=difference,
        predicted_ns=predicted_ns,
        unresolved=MODELLED if pair.any.label == "modelled" else _unresolved(first, second, difference, predicted_ns),
        added=added(pair.before.counts, pair.after.counts) if pair.before and pair.after else None,
    )


def _samples(record: Record | None, metric: str | None) -> Sequence[int]:
    if record is None:
        return []
    return record.samples_ns.get(metric, []) if metric else record.step_samples_ns


def predicted_difference_ns(before: Record | None, after: Record | None) -> float | None:
    """Return the predicted time of `after` - `before`, or None unless they differ in reuse, all that is predicted.

    It is the host's time for the dequants that are left out where the host sets the pace of both sides, else the time
    of their bytes at the measured rate.
    """
    sides = [record.variant.get("reuse") for record in (before, after) if record is not None]
    if before is None or after is None or sorted(map(str, sides)) != ["off", "on"]:
        return None
    calls = calls_left_out(before, after)
    saved_ns = calls.host_ns if calls else _predicted(before, after).get("saved_ns")
    if not isinstance(saved_ns, int | float):
        return None
    return float(-saved_ns if sides[1] == "on" else saved_ns)


def calls_left_out(before: Record | None, after: Record | None) -> Calls | None:
    """Return the dequants that set the predicted difference of two sides, or None where their bytes do.

    They do where both sides are launch-bound and the host submits each of them: then a step is as long as the host
    takes. A step of several ranks is as long as its slowest, and nobody says which one that was. Records of before
    there was a `submit_ns_a_call` have none.
    """
    if before is None or after is None or not (_paced_by_host(before) and _paced_by_host(after)):
        return None
    guess = _predicted(before, after)
    count, submit_ns = guess.get("saved_calls"), guess.get("submit_ns_a_call")
    if not isinstance(count, int) or not isinstance(submit_ns, int | float):
        return None
    return Calls(count, submit_ns)


def _predicted(before: Record, after: Record) -> dict[str, Any]:
    return after.predicted or before.predicted or {}


def _paced_by_host(record: Record) -> bool:
    return LAUNCH_BOUND in record.flags and record.mode in CALL_BY_CALL and record.ranks == 1


def _unresolved(
    first: Sequence[int], second: Sequence[int], difference: Interval | None, predicted_ns: float | None
) -> str | None:
    """Return why the difference of two timed cells cannot be told from noise, or None if it can."""
    if not first or not second:
        return None
    if difference is None:
        return f"{len(first)} and {len(second)} samples: not interleaved"
    if difference.confidence < CONFIDENCE:
        return f"{len(first)} samples are too few"
    if difference.covers_zero:
        return "the interval covers 0"
    if predicted_ns is not None and abs(predicted_ns) < difference.half_width:
        return "the prediction lies below the noise"
    return None


def _identity(record: Record, switch: str) -> str:
    """Return what two sides of a comparison share."""
    ignored = {switch, *HOW_CAPTURED} if switch == "graph" or not record.variant.get("graph") else {switch}
    switches = {name: value for name, value in record.variant.items() if name not in ignored}
    batch = {name: record.batch.get(name) for name in ("requests", "extend", "prefix", "source")}
    code = [record.environment.get(name) for name in ("commit", "diff", "src")]
    run = [record.group, record.label, record.engine, record.machine, *code, _command(record)]
    return json.dumps([*run, record.geometry, record.ranks, batch, switches], sort_keys=True)
