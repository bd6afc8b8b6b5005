"""Medians with intervals, and paired differences of interleaved samples; distribution-free, by order statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with the bounds that cover the true median with probability `confidence`, in the unit of the samples."""

    value: float
    low: float
    high: float
    confidence: float

    @property
    def half_width(self) -> float:
        """The distance from the median to the farther bound."""
        return max(self.value - self.low, self.high - self.value)

    @property
    def covers_zero(self) -> bool:
        """Whether zero lies between the bounds, or on one of them."""
        return self.low <= 0 <= self.high

    def scaled(self, factor: float) -> Interval:
        """Return the interval in a unit that is `factor` (positive) times finer."""
        return Interval(self.value * factor, self.low * factor, self.high * factor, self.confidence)


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the median and its interval between two order statistics; ValueError without samples.

    The number of samples below the true median is binomial (n, 1/2), so the k-th smallest and the k-th largest sample
    enclose it with probability 1 - 2 P(fewer than k below). The narrowest pair that reaches `confidence` is taken.
    Fewer than 6 samples cannot reach 95 %: the bounds are then the extremes, and `confidence` says what they do reach.
    """
    if not len(samples):
        raise ValueError("no samples")
    ordered = sorted(map(float, samples))
    rank, reached = _rank(len(ordered), confidence)
    return Interval(median(ordered), ordered[rank - 1], ordered[-rank], reached)


@cache
def _rank(count: int, confidence: float) -> tuple[int, float]:
    """Return k such that the k-th smallest and the k-th largest enclose the true median, and how surely they do."""
    # of all 2^count ways to lie below or above the true median: fewer than k samples below, and exactly k
    fewer, exactly, k, outcomes = 0, 1, 0, 2**count
    while k < 1 or (fewer + exactly) / outcomes < (1 - confidence) / 2:
        fewer, exactly, k = fewer + exactly, exactly * (count - k) // (k + 1), k + 1
    return k, max(0.0, 1 - 2 * fewer / outcomes)


def paired_difference(before: Sequence[float], after: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the median of after - before with its interval; negative means that time was saved.

    Sample i of one belongs to sample i of the other: they were taken next to each other (A B, B A, A B, ...), so that a
    drift of the machine shifts both alike. ValueError if the numbers of samples differ.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} and {len(after)} samples cannot be paired")
    differences = np.asarray(after, dtype=np.float64) - np.asarray(before, dtype=np.float64)
    return median_interval(differences.tolist(), confidence)
