"""Trials: what A and B of one cell took, measured next to each other, pair by pair; read back from records.

A record of `dsv4bench ab` says in its field `ab` which side of which trial it is:
  session     one call of the command; trials never cross sessions
  side        "a" or "b"; `sides` says what both are, e.g. {"a": "reuse=off", "b": "reuse=on"}
  pair        the number of its pair where every pair is two fresh processes; null where both sides ran in one process
  place       0 or 1: which of its pair ran first (fresh processes)
  block       samples of one side in a pair (one process: sample i of a and of b were taken next to each other); more
              than about 64 such pairs are merged with their neighbours
  aa          whether both sides are the same build and the same switches: the noise floor
  min_effect  {"relative": 0.005} or {"absolute_ns": 50000}: the least difference that a verdict may name
  sm_mhz      the SM clock around each pair of this side, or null where NVML does not tell
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from dsv4bench.results.comparability import GPU_CHIP, HOST_ID, differences
from dsv4bench.results.plausibility import implausible
from dsv4bench.results.record import Record

SIDES = ("a", "b")
ONE_PROCESS, FRESH = "one process", "fresh processes"
ABOUT_PAIRS = 64  # what a verdict from one process rests on: more pairs of fewer samples would tell no more
# what a pair must share, so that nothing but its sides differs; environments bring a CUDA of their own
SHARED = ("machine", "SMs", "host", GPU_CHIP, HOST_ID, "power limit", "driver", "MIG", "threads", "profiler")
NO_TIME = "a step of 0 ns: nothing was measured"
# switches that an eager step, or a whole graph, does not have
ONE_SIDE_ONLY = {"graph": ("graph-mode", "breaks", "break-outputs"), "graph-mode": ("breaks", "break-outputs")}


@dataclass(frozen=True, slots=True)
class PairOfSamples:
    """The samples of both sides in one pair, in nanoseconds, and the SM clock around them in MHz where it is known."""

    a_ns: tuple[int, ...]
    b_ns: tuple[int, ...]
    a_mhz: float | None = None
    b_mhz: float | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """One cell's A and B. Where a side has no time, or was wrong in any process, there are no pairs.

    The record of such a side says why; `refused` does where there were pairs that must not be judged. `how` is "one
    process" or "fresh processes"; `aa`: both sides are the same. `processes`: the records of both sides, a first, of
    every process that measured them.
    """

    a: Record | None
    b: Record | None
    pairs: tuple[PairOfSamples, ...]
    how: str
    aa: bool
    refused: str = ""
    processes: tuple[Record, ...] = ()

    @property
    def any(self) -> Record:
        """One of the two records, for what they share."""
        record = self.b or self.a
        if record is None:
            raise ValueError("a trial of nothing")
        return record

    @property
    def sides(self) -> tuple[str, str]:
        """What a and b are, e.g. ("reuse=off", "reuse=on")."""
        named = (self.any.ab or {})["sides"]
        return named["a"], named["b"]

    @property
    def switched(self) -> set[str]:
        """The names of what the sides set, e.g. {"reuse"}."""
        return _switched(self.any.ab or {})


def check_side(ab: Mapping[str, Any]) -> None:
    """Raise ValueError where the field `ab` of a record does not say what a trial needs, naming what was expected."""
    for name, (wanted, holds) in SAID.items():
        if not holds(ab.get(name)):
            raise ValueError(f"ab.{name}: expected {wanted}, found {ab.get(name)!r:.80}")


def trials(records: Iterable[Record]) -> list[Trial]:
    """Return the trials of all records that have a side, in the order of their first records; nothing modelled."""
    found: dict[str, dict[str, list[Record]]] = {}
    for record in records:
        if record.ab is not None and record.label != "modelled":
            found.setdefault(_cell(record), {side: [] for side in SIDES})[record.ab["side"]].append(record)
    return [_trial(*(sorted(sides[side], key=_when) for side in SIDES)) for sides in found.values()]


def merged(pairs: Sequence[PairOfSamples]) -> list[PairOfSamples]:
    """Return about 64 pairs, each made of neighbours that follow one another, or all where there are no more."""
    count = len(pairs) // max(1, round(len(pairs) / ABOUT_PAIRS))
    borders = [len(pairs) * place // count for place in range(count + 1)] if count else []
    return [_merge(pairs[start:end]) for start, end in pairwise(borders)]


def _when(record: Record) -> tuple[str, int]:
    """Return what orders the records of a side by when they were made: the later of one pair is the one that counts."""
    return record.created, (record.ab or {}).get("pair") or 0


def _is_effect(value: Any) -> bool:
    """Return whether a value is a least effect: a share or nanoseconds, above 0."""
    return (
        isinstance(value, dict)
        and len(value) == 1
        and all(
            name in ("relative", "absolute_ns") and isinstance(share, int | float) and share > 0
            for name, share in value.items()
        )
    )


def _are_clocks(value: Any) -> bool:
    known = [mhz for mhz in value if mhz is not None] if isinstance(value, list) else None
    return value is None or (known is not None and all(isinstance(mhz, int | float) for mhz in known))


def _are_sides(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(side), str) for side in SIDES)


# what the field `ab` must say: in words, and whether a value is that
SAID: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "session": ("a name", lambda value: isinstance(value, str)),
    "side": ("a or b", lambda value: value in SIDES),
    "sides": ("what a and b are", _are_sides),
    "pair": ("a whole number or null", lambda value: value is None or type(value) is int),
    "block": ("a whole number from 1 on", lambda value: type(value) is int and value >= 1),
    "aa": ("true or false", lambda value: isinstance(value, bool)),
    "min_effect": ("relative or absolute_ns, above 0", _is_effect),
    "sm_mhz": ("clocks or null", _are_clocks),
}


def _cell(record: Record) -> str:
    """Return what the records of one trial share: all that neither side names."""
    ab: dict[str, Any] = record.ab or {}
    named = _switched(ab)
    switches = {name: value for name, value in record.variant.items() if name not in named}
    for name in named & set(ONE_SIDE_ONLY):
        switches = {switch: value for switch, value in switches.items() if switch not in ONE_SIDE_ONLY[name]}
    batch = {name: record.batch.get(name) for name in ("requests", "extend", "prefix", "source")}
    engine = "" if "graph" in named else record.engine  # on a CPU eager steps and tapes are two engines
    what = [ab["session"], ab["aa"], record.geometry, record.ranks, record.label, engine, record.machine]
    return json.dumps([*what, batch, switches], sort_keys=True)


def _switched(ab: dict[str, Any]) -> set[str]:
    return {setting.split("=")[0] for side in ab["sides"].values() for setting in side.split(",") if setting}


def _trial(first: list[Record], second: list[Record]) -> Trial:
    one = (first or second)[0].ab or {}
    how = ONE_PROCESS if one.get("pair") is None else FRESH
    a, b = (_standing(side, how) for side in (first, second))
    wrong = any(side is not None and side.status == "wrong" for side in (a, b))
    both = [] if wrong else _matched(first, second)
    pairs = [
        pair
        for records in both
        for pair in (_split(*records, one["block"]) if how == ONE_PROCESS else [_fresh(*records)])
    ]
    refused = _refused(both)
    return Trial(a, b, () if refused else tuple(pairs), how, bool(one["aa"]), refused, (*first, *second))


def _standing(side: list[Record], how: str) -> Record | None:
    """Return the record that stands for a side: one that is wrong, else the last, of processes the last with a time."""
    wrong = [record for record in side if record.status == "wrong"]
    timed = [record for record in side if record.status == "ok" and how == FRESH]
    return next(reversed(wrong or timed or side), None)


def _matched(first: list[Record], second: list[Record]) -> list[tuple[Record, Record]]:
    """Return the records of the pairs of which both sides gave a time; of one that was measured again the last."""
    a, b = ({(record.ab or {}).get("pair"): record for record in side} for side in (first, second))
    both = [(a[pair], b[pair]) for pair in a if pair in b]
    return [pair for pair in both if all(record.status == "ok" for record in pair)]


def _refused(both: Sequence[tuple[Record, Record]]) -> str:
    """Return why pairs must not be judged, "" where nothing speaks against it.

    Their sides are unlike, took 0 ns, or a rate that was measured beside them cannot be true.
    """
    for pair in both:
        for one in differences(*pair):
            if one.what in SHARED:
                return f"not comparable: {one.what}: {one.before} in a, {one.after} in b"
        if any(0 in record.step_samples_ns for record in pair):
            return NO_TIME
        if said := next(filter(None, map(implausible, pair)), None):
            return said
    return ""


def _split(first: Record, second: Record, block: int) -> list[PairOfSamples]:
    """Return the pairs of two records whose samples alternated: blocks of the same place."""
    a, b = first.step_samples_ns, second.step_samples_ns
    clocks = [(record.ab or {}).get("sm_mhz") or [] for record in (first, second)]
    count = min(len(a), len(b)) // block
    places = [slice(i * block, (i + 1) * block) for i in range(count)]
    return merged(
        [
            PairOfSamples(tuple(a[at]), tuple(b[at]), *(mhz[i] if i < len(mhz) else None for mhz in clocks))
            for i, at in enumerate(places)
        ]
    )


def _fresh(first: Record, second: Record) -> PairOfSamples:
    """Return the pair of two processes: all their samples."""
    return PairOfSamples(
        tuple(first.step_samples_ns), tuple(second.step_samples_ns), *(_clock(side) for side in (first, second))
    )


def _clock(record: Record) -> float | None:
    return _middle((record.ab or {}).get("sm_mhz") or [])


def _merge(pairs: Sequence[PairOfSamples]) -> PairOfSamples:
    return PairOfSamples(
        tuple(sample for pair in pairs for sample in pair.a_ns),
        tuple(sample for pair in pairs for sample in pair.b_ns),
        _middle([pair.a_mhz for pair in pairs]),
        _middle([pair.b_mhz for pair in pairs]),
    )


def _middle(clocks: Sequence[float | None]) -> float | None:
    """Return the median of the clocks that are known."""
    known = [mhz for mhz in clocks if mhz]
    return float(median(known)) if known else None
