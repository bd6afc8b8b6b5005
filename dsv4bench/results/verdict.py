"""Verdicts: whether B is faster than A by more than what matters, from pairs that were measured next to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dsv4bench.results.stats import Interval
from dsv4bench.results.trials import Trial

Word = Literal["FASTER", "SLOWER", "SAME", "INCONCLUSIVE"]


@dataclass(frozen=True, slots=True)
class MinEffect:
    """The least difference that a verdict may name: a share of A's time, or nanoseconds; exactly one is given."""

    relative: float | None = None
    absolute_ns: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the pairs of one trial say. B - A in nanoseconds: negative means that time was saved.

    `word` is None where there is nothing to judge (no pairs: a side failed or gave a wrong result), and `reason` says
    why; else `reason` is one sentence on what decided. `ratio` is B / A and `difference_ns` B - A, both with their 95 %
    intervals over pairs. `p` is that of the exact signed-rank test, `p_holm` corrected for all cells of the session.
    `marks` are words that must stand beside the verdict: "not resolvable here", "unexplained", "clock", "implausible".
    """

    trial: Trial
    word: Word | None
    reason: str
    pairs: int
    a_ns: Interval | None = None
    b_ns: Interval | None = None
    ratio: Interval | None = None
    difference_ns: Interval | None = None
    predicted_ns: float | None = None
    p: float | None = None
    p_holm: float | None = None
    min_effect: MinEffect = MinEffect()
    marks: tuple[str, ...] = ()
