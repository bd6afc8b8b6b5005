"""Ranks that time steps without waiting for each other first: what a straggler costs where nothing aligns them.

Warm-up and the steps of a sample are agreed on as aligned ranks do. Then every rank takes a block of rounds by its own
clock, sample behind sample; after a block ranks exchange all times and decide together whether it was the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from dsv4bench.profiling.clocks import ClockMonitor
from dsv4bench.profiling.lockstep import Lockstep
from dsv4bench.profiling.timing import Part, Period, StopRule, Subject, Timing, interleave

ALIGNMENT = "none within a block of samples"


def free_run(
    parts: Sequence[Part], period: Period, clock: Lockstep, rule: StopRule, monitor: ClockMonitor
) -> list[list[Timing]]:
    """Return the times of each part on every rank; `clock` is the one that ranks share.

    The n-th samples of two ranks are as many steps behind the beginning of a block, and at no common time.
    """
    aligned = [Subject((clock.part(number, one),), period) for number, one in enumerate(parts)]
    first = interleave(aligned, clock, replace(rule, samples=1))
    taken = [[replace(one, samples_ns={name: [] for name in one.samples_ns})] * clock.size for one in first]
    alone = replace(rule, samples=rule.samples or rule.least_samples, warm_ups=1, repeat=first[0].repeat)
    # what a part prepares it has prepared by now, and again it could be an exchange with other ranks
    own = partial(interleave, [Subject.of(one.run, period) for one in parts], clock.own, alone)
    started, stop = clock.now_ns(), None
    while stop is None:
        block = clock.together("a block", partial(own, monitor.sample, monitor.sm_mhz))
        taken = [
            [_added(so_far, found[place]) for so_far, found in zip(ranks, block, strict=True)]
            for place, ranks in enumerate(taken)
        ]
        stop = rule.reason([_slowest_ns(ranks, period) for ranks in taken], clock.now_ns() - started)
    return [[replace(one, stop=stop) for one in ranks] for ranks in taken]


def _added(so_far: Timing, block: Timing) -> Timing:
    samples = {name: [*taken, *block.samples_ns[name]] for name, taken in so_far.samples_ns.items()}
    return replace(so_far, samples_ns=samples, sm_mhz=(*so_far.sm_mhz, *block.sm_mhz))


def _slowest_ns(ranks: Sequence[Timing], period: Period) -> list[int]:
    return [max(times) for times in zip(*(one.samples_ns[period] for one in ranks), strict=True)]
