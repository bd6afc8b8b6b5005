"""Time several variants of a step, interleaved, and keep every sample.

A sample is the steady period of one step: K steps enqueued back to back between two events, divided by K, with K chosen
so that a sample lasts some milliseconds. Beside it stands `host_submit`, the CPU time to enqueue one step on an empty
queue. Neither is a kernel time: where launches bind, the period contains the gaps that the CPU leaves.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns
from typing import Literal, Protocol

import torch

from dsv4bench.results.stats import median_interval
from dsv4bench.units import NS_PER_MS, NS_PER_S

Call = Callable[[], None]
Period = Literal["step_period", "graph_replay", "compressor", "kernel_cold", "kernel_hot", "ceiling"]

HOST_SUBMIT = "host_submit"
LAUNCH_BOUND_SHARE = 0.95
WARM_UP_WINDOW = 2
WARM_UP_GAP = 0.02


def nothing() -> None:
    """Do nothing."""


class Clock(Protocol):
    """How long calls take; `enqueues` says whether a call returns before its work is done."""

    name: str
    enqueues: bool

    def now_ns(self) -> int:
        """Return the host's time."""

    def synchronize(self) -> None:
        """Wait until all queued work is done."""

    def measure(self, run: Call, repeat: int) -> tuple[int, int]:
        """Return (time of `repeat` calls back to back, host time of the first call), starting with an empty queue."""


class HostClock:
    """The host's performance counter; a call does its work before it returns."""

    name = "perf_counter"
    enqueues = False

    def now_ns(self) -> int:
        """Return the performance counter."""
        return perf_counter_ns()

    def synchronize(self) -> None:
        """Nothing is queued."""

    def measure(self, run: Call, repeat: int) -> tuple[int, int]:
        """Return (time of `repeat` calls, time of the first)."""
        started = perf_counter_ns()
        run()
        first = perf_counter_ns() - started
        for _ in range(repeat - 1):
            run()
        return perf_counter_ns() - started, first


class CudaClock:
    """Two CUDA events, made once, around calls on the current stream; the performance counter for the host."""

    name = "cuda events"
    enqueues = True

    def __init__(self) -> None:
        self._start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own gap
        self._end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def now_ns(self) -> int:
        """Return the performance counter."""
        return perf_counter_ns()

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize()

    def measure(self, run: Call, repeat: int) -> tuple[int, int]:
        """Return (time between the events around `repeat` calls, host time to enqueue the first)."""
        self._start.record()
        started = perf_counter_ns()
        run()
        submit = perf_counter_ns() - started
        for _ in range(repeat - 1):
            run()
        self._end.record()
        self._end.synchronize()
        return round(self._start.elapsed_time(self._end) * NS_PER_MS), submit


def clock(device: str) -> Clock:
    """Return the clock of a device type, "cpu" or "cuda"."""
    return CudaClock() if device == "cuda" else HostClock()


@dataclass(frozen=True, slots=True)
class Part:
    """One forward of a step: `prepare` is not timed, `run` is, and may be repeated after one `prepare`."""

    run: Call
    prepare: Call = nothing


@dataclass(frozen=True, slots=True)
class Subject:
    """What is timed: the forwards whose times make one sample by their sum, and the name of that metric."""

    parts: tuple[Part, ...]
    period: Period = "step_period"

    @classmethod
    def of(cls, run: Call, period: Period) -> Subject:
        """Return a subject of one call that needs no preparation."""
        return cls((Part(run),), period)


@dataclass(frozen=True, slots=True)
class StopRule:
    """When to stop: after `samples` if given, else when there are enough and their median is known well enough.

    The defaults are those of `docs/numbers.md`: at least 10 samples and 0.5 s, the half width of the median's 95 %
    interval at most 1 % of the median, or 15 s. `warm_ups` is the most warm-up steps of a subject. `alike`: a sample of
    each subject has as many steps as that of the fastest; else each has what it needs, as where some are far slower.
    `block`: how many rounds lie between two borders. `repeat`: the steps of a sample, where `sample_ns` does not say.
    """

    samples: int | None = None
    warm_ups: int = 20
    least_samples: int = 10
    least_ns: int = NS_PER_S // 2
    half_width: float = 0.01
    timeout_ns: int = 15 * NS_PER_S
    sample_ns: int = 5 * NS_PER_MS
    alike: bool = True
    block: int = 1
    repeat: int | None = None

    def reason(self, periods: Sequence[Sequence[int]], elapsed_ns: int) -> str | None:
        """Return why to stop ("fixed", "converged", "timeout"), or None; `periods` are each subject's samples."""
        taken = len(periods[0])
        if self.samples is not None:
            return "fixed" if taken >= self.samples else None
        enough = taken >= self.least_samples and elapsed_ns >= self.least_ns
        if enough and all(relative_half_width(samples) <= self.half_width for samples in periods):
            return "converged"
        return "timeout" if elapsed_ns >= self.timeout_ns else None


QUICK = StopRule(samples=3, warm_ups=1)


@dataclass(frozen=True, slots=True)
class Timing:
    """All samples of one subject, in the order taken: metric -> ns. The n-th samples of all subjects are neighbours.

    `sm_mhz` is the SM clock right after each sample, None where it is not told; empty where nobody asked.
    """

    samples_ns: dict[str, list[int]]
    warm_ups: int
    settled: bool
    repeat: int
    stop: str
    sm_mhz: tuple[int | None, ...] = ()

    @property
    def launch_bound(self) -> bool | None:
        """Whether the host needs (almost) the whole period to enqueue a step; None where it does not enqueue."""
        submit = self.samples_ns.get(HOST_SUBMIT)
        if not submit:
            return None
        period = next(samples for metric, samples in self.samples_ns.items() if metric != HOST_SUBMIT)
        return median(submit) >= LAUNCH_BOUND_SHARE * median(period)


def interleave(
    subjects: Sequence[Subject],
    clock: Clock,
    rule: StopRule | None = None,
    at_border: Call = nothing,
    sm_mhz: Callable[[], int | None] | None = None,
) -> list[Timing]:
    """Warm up and time `subjects` in the order A B B A A B B A ..., one sample of each a round; one `Timing` each.

    `at_border` is called, untimed, before every block of rounds and after the last (a clock monitor's `sample`), and
    `sm_mhz` right after every sample. The garbage collector rests meanwhile, and the queue is empty before every timed
    block.
    """
    rule = rule or StopRule()
    with _no_garbage_collection():
        warm = _warm_up(subjects, clock, rule)
        repeats = [rule.repeat or _repeat(durations, rule.sample_ns) for durations in warm]
        repeats = [max(repeats)] * len(repeats) if rule.alike else repeats
        samples = [_empty_samples(subject, clock) for subject in subjects]
        periods = [taken[subject.period] for taken, subject in zip(samples, subjects, strict=True)]
        clocks: list[list[int | None]] = [[] for _ in subjects]
        started, stop, turn = clock.now_ns(), None, 0
        while stop is None:
            if turn % rule.block == 0:
                at_border()
            for index in abba(len(subjects), turn):
                _take(subjects[index], clock, repeats[index], samples[index])
                clocks[index] += [sm_mhz()] if sm_mhz else []
            turn += 1
            stop = rule.reason(periods, clock.now_ns() - started)
        at_border()
    return [
        Timing(taken, len(durations), settled(durations), repeat, stop, tuple(mhz))
        for taken, durations, repeat, mhz in zip(samples, warm, repeats, clocks, strict=True)
    ]


def abba(count: int, turn: int) -> range:
    """Return the order of a round: forward, then reversed, so that a drift meets every subject alike."""
    return range(count) if turn % 2 == 0 else range(count - 1, -1, -1)


def settled(durations_ns: Sequence[int]) -> bool:
    """Return whether the last warm-ups took as long as the ones before, within 2 % by their medians."""
    if len(durations_ns) < 2 * WARM_UP_WINDOW:
        return False
    last = median(durations_ns[-WARM_UP_WINDOW:])
    before = median(durations_ns[-2 * WARM_UP_WINDOW : -WARM_UP_WINDOW])
    return abs(last - before) <= WARM_UP_GAP * before


def relative_half_width(samples_ns: Sequence[int]) -> float:
    """Return the half width of the median's interval, relative to the median."""
    interval = median_interval(samples_ns)
    return interval.half_width / interval.value if interval.value else 0.0


def _warm_up(subjects: Sequence[Subject], clock: Clock, rule: StopRule) -> list[list[int]]:
    """Run the subjects in turn until each has settled or has had `rule.warm_ups`; return their durations."""
    durations: list[list[int]] = [[] for _ in subjects]
    for turn in range(max(1, rule.warm_ups)):
        for index in abba(len(subjects), turn):
            if not settled(durations[index]):
                durations[index].append(_measure(subjects[index], clock, repeat=1)[0])
    return durations


def _repeat(warm_up_ns: Sequence[int], sample_ns: int) -> int:
    """Return how many steps make a sample of at least `sample_ns`."""
    return max(1, math.ceil(sample_ns / max(1, median(warm_up_ns[-WARM_UP_WINDOW:]))))


def _empty_samples(subject: Subject, clock: Clock) -> dict[str, list[int]]:
    metrics = (subject.period, HOST_SUBMIT) if clock.enqueues else (subject.period,)
    return {metric: [] for metric in metrics}


def _take(subject: Subject, clock: Clock, repeat: int, samples: dict[str, list[int]]) -> None:
    total_ns, submit_ns = _measure(subject, clock, repeat)
    samples[subject.period].append(round(total_ns / repeat))
    if clock.enqueues:
        samples[HOST_SUBMIT].append(submit_ns)


def _measure(subject: Subject, clock: Clock, repeat: int) -> tuple[int, int]:
    """Return the sums over the parts of (time of `repeat` runs, host time of the first run)."""
    total_ns = submit_ns = 0
    for part in subject.parts:
        part.prepare()
        clock.synchronize()
        taken_ns, first_ns = clock.measure(part.run, repeat)
        total_ns += taken_ns
        submit_ns += first_ns
    return total_ns, submit_ns


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Collect once, then let the collector rest; it is restored to what it was."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
