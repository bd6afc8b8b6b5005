"""The noise floor: what a machine calls a difference where there is none, and what a cell can resolve at all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from dsv4bench.results.min_effect import MinEffect
from dsv4bench.results.stats import CONFIDENCE
from dsv4bench.results.trials import Trial
from dsv4bench.results.verdict import ALPHA, Verdict, judge
from dsv4bench.results.verdict_stats import pairs_needed

SAMPLE_NOISE = 0.01  # standard deviation of a step of some milliseconds in a graph on an H200 (results/h200-default)
OF_A_MEDIAN = 1.25  # the error of a median of many samples over that of their mean: sqrt(pi / 2)


@dataclass(frozen=True, slots=True)
class Floor:
    """What one A/A trial found; `verdict` is judged as any other, with the interval of B / A that is pure noise.

    `names` says whether it has the pairs to name anything among the cells of its session.
    """

    verdict: Verdict
    names: bool = True

    @property
    def false(self) -> bool:
        """Whether noise alone was called a difference."""
        return self.verdict.word in ("FASTER", "SLOWER")

    @property
    def smallest_ns(self) -> float | None:
        """The smallest true difference that would have been named, of either side; None with too few pairs."""
        found, time = self.verdict.difference_ns, self.verdict.a_ns
        if found is None or time is None or not self.names or found.confidence < CONFIDENCE:
            return None
        return max(abs(found.low), abs(found.high)) + self.verdict.min_effect.of_ns(time.value)

    @property
    def smallest(self) -> float | None:
        """The same as a share of A's time."""
        smallest_ns, time = self.smallest_ns, self.verdict.a_ns
        return None if smallest_ns is None or time is None else smallest_ns / max(time.value, 1.0)


def noise_floor(trials: Iterable[Trial], alpha: float = ALPHA) -> list[Floor]:
    """Return what the A/A trials among these found; others are left out."""
    found = judge([trial for trial in trials if trial.aa], alpha)
    cells = Counter(_session(one) for one in found if one.p is not None)
    return [Floor(one, one.pairs >= pairs_needed(cells[_session(one)], alpha)) for one in found]


def _session(verdict: Verdict) -> object:
    return (verdict.trial.any.ab or {}).get("session")


def false_rate(floors: Sequence[Floor]) -> float | None:
    """Return the share of judged A/A trials that were called FASTER or SLOWER, or None where none was judged."""
    judged = [floor for floor in floors if floor.verdict.word is not None]
    return sum(floor.false for floor in judged) / len(judged) if judged else None


def resolvable_ns(step_ns: float, effect: MinEffect, pairs: int, block: int, noise: float = SAMPLE_NOISE) -> float:
    """Return the least difference that a cell is expected to name, before it runs: `Verdict.resolvable_ns` foretold.

    `step_ns` is the time of a step, `block` the samples of a side in each of the `pairs`, and `noise` the standard
    deviation of a sample as a share of `step_ns`.
    """
    error = noise * math.sqrt(2 / (pairs * block)) * (1 if block < 3 else OF_A_MEDIAN)
    return effect.of_ns(step_ns) - float(stdtrit(max(1, pairs - 1), (1 - CONFIDENCE) / 2)) * error * step_ns
