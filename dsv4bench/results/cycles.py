"""Whether a change of the SM clock alone made a difference: the same pairs, counted in cycles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsv4bench.results.stats import Interval
from dsv4bench.results.trials import PairOfSamples
from dsv4bench.results.verdict_stats import FEWEST_PAIRS, log_ratios, pair_interval
from dsv4bench.units import format_percent


def clock_objection(pairs: Sequence[PairOfSamples], faster: bool) -> str | None:
    """Return why the SM clock does not let B be called faster (or slower), or None; unknown clocks object to nothing.

    Cycles are time x clock. Their ratio must have the sign of the verdict, and where the clocks of both sides differ
    beyond their interval, its own interval must not cover zero. Readings that merely scatter do not object: those of an
    H200 at its power limit scatter by 4 %, its step times by less than 1 %.
    """
    known = [pair for pair in pairs if pair.a_mhz and pair.b_mhz]
    if len(known) < FEWEST_PAIRS:
        return None
    clock_ratios = np.log([(pair.b_mhz or 1) / (pair.a_mhz or 1) for pair in known])
    clock, cycles = pair_interval(clock_ratios), pair_interval(log_ratios(known) + clock_ratios)
    same_sign = cycles.value < 0 if faster else cycles.value > 0
    if same_sign and (clock.covers_zero or not cycles.covers_zero):
        return None
    return f"b's SM clock differs by {_change(clock)}, its cycles by {_change(cycles)}"


def _change(logs: Interval) -> str:
    """Return a ratio, given by its logarithm, as a change in percent with its interval."""
    value, low, high = (format_percent(float(np.expm1(log)), signed=True) for log in (logs.value, logs.low, logs.high))
    return f"{value} [{low}, {high}]"
