"""A clock that ranks share: they begin every sample together, and it lasts as long as the slowest of them.

So all ranks see the same times, and decide alike when a subject has warmed up and when there are samples enough; the
time since the start, on which a limit depends, is rank 0's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from dsv4bench.profiling.clocks import ClockMonitor
from dsv4bench.profiling.peers import OutOfStep, Peers, exchange
from dsv4bench.profiling.timing import HOST_SUBMIT, Call, Clock, Part, Period, StopRule, Subject, Timing, interleave

ALIGNMENT = "barrier before every sample"

Measured = TypeVar("Measured")
Times = list[tuple[int, int]]  # of each rank, in nanoseconds: all repetitions, and the host's for the first


class Lockstep:
    """The clock of one stretch of a step; it keeps every rank's times of every subject. `own` is this rank's.

    `tied`: ranks wait for each other inside a step. There an error of one strands the others in a collective: it must
    end this process, so it is told to nobody but raised.
    """

    def __init__(self, clock: Clock, peers: Peers, tied: bool = False) -> None:
        self.name = clock.name
        self.enqueues = clock.enqueues
        self.own = clock
        self.size = peers.size
        self._peers = peers
        self._tied = tied
        self._subject = 0
        self._taken: dict[int, list[Times]] = {}

    def part(self, subject: int, part: Part) -> Part:
        """Return the part of a numbered subject, whose times are kept under that number."""

        def prepare() -> None:
            self._subject = subject
            part.prepare()

        return Part(part.run, prepare)

    def now_ns(self) -> int:
        """Return rank 0's time."""
        return int(exchange(self._peers, "clock", self.own.now_ns())[0])

    def synchronize(self) -> None:
        """Wait for this rank's device."""
        self.own.synchronize()

    def measure(self, run: Call, repeat: int) -> tuple[int, int]:
        """Return the longest of all ranks' times; an error here or elsewhere ends the sample on every rank."""
        exchange(self._peers, "sample")  # nobody queues a barrier that a rank with an error would not reach
        self._peers.barrier()
        every = self.together("time", partial(self.own.measure, run, repeat))
        self._taken.setdefault(self._subject, []).append(every)
        return max(total for total, _ in every), max(submit for _, submit in every)

    def together(self, place: str, measure: Callable[[], Measured]) -> list[Measured]:
        """Return what every rank measured; an error here or elsewhere ends it on all."""
        taken, caught = (measure(), None) if self._tied else _tried(measure)
        every = exchange(self._peers, place, taken)
        if caught is not None:
            raise caught
        if None in every:
            raise OutOfStep(f"left behind at {place} by rank {every.index(None)}, which failed in a step")
        return every

    def timings(self, subject: int, slowest: Timing, period: Period) -> list[Timing]:
        """Return the samples of each rank, given those of the slowest."""
        count = len(slowest.samples_ns[period])
        taken = self._taken[subject][-count:]
        return [self._of_rank(rank, taken, slowest, period) for rank in range(self.size)]

    def _of_rank(self, rank: int, taken: Sequence[Times], slowest: Timing, period: Period) -> Timing:
        samples: dict[str, list[int]] = {period: [round(times[rank][0] / slowest.repeat) for times in taken]}
        if self.enqueues:
            samples[HOST_SUBMIT] = [times[rank][1] for times in taken]
        return replace(slowest, samples_ns=samples)


def aligned_run(
    parts: Sequence[Part], period: Period, clock: Lockstep, rule: StopRule, monitor: ClockMonitor
) -> list[list[Timing]]:
    """Return the times of each part on every rank, which begin every sample together."""
    subjects = [Subject((clock.part(number, one),), period) for number, one in enumerate(parts)]
    found = interleave(subjects, clock, rule, monitor.sample, monitor.sm_mhz)
    return [clock.timings(number, slowest, period) for number, slowest in enumerate(found)]


def _tried(measure: Callable[[], Measured]) -> tuple[Measured | None, Exception | None]:
    """Return what was measured, or the error."""
    try:
        return measure(), None
    except Exception as error:
        return None, error
