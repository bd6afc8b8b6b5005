"""Statistics of pairs: an estimate with its interval, the exact signed-rank test, and many cells at once (Holm)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import median

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, stdtrit  # scipy.stats has the same and takes a second to import

from dsv4bench.results.stats import CONFIDENCE, Interval
from dsv4bench.results.trials import PairOfSamples

FEWEST_PAIRS = 6  # 5 pairs cannot reach 0.05: the least p of n pairs is 2^(1-n)
RESAMPLED_VALUES = 64_000  # 7111 resamples of 9 pairs, 1000 of 64

Floats = NDArray[np.float64]
Counts = NDArray[np.int32]


def medians_ns(pairs: Sequence[PairOfSamples]) -> tuple[Floats, Floats]:
    """Return the median time of each side in each pair, in nanoseconds, at least one."""
    a, b = [median(pair.a_ns) for pair in pairs], [median(pair.b_ns) for pair in pairs]
    return np.maximum(a, 1.0), np.maximum(b, 1.0)


def log_ratios(pairs: Sequence[PairOfSamples]) -> Floats:
    """Return the logarithm of the ratio of medians, B / A, of each pair."""
    a, b = medians_ns(pairs)
    return np.asarray(np.log(b / a))


def pair_interval(values: ArrayLike) -> Interval:
    """Return the Hodges-Lehmann estimate of one value a pair, with its 95 % interval; ValueError without values.

    The interval is the percentile bootstrap over pairs. The percentiles are those of Student's t instead of the normal
    distribution, as few pairs need: Hesterberg, "What teachers should know about the bootstrap" (2015), section 5.2.
    Samples within a pair are not resampled as well, which would count their noise twice (Davison and Hinkley, section
    3.8). The resamples depend on nothing but the number of pairs and are drawn from sorted values, the upper bound as
    the lower one of the values' negatives: order, unit and sign change no bound. Fewer than 6 pairs have their extremes
    as bounds, and `confidence` is what these reach.
    """
    ordered = np.sort(_floats(values))
    sums, count = _sorted_sums(ordered), len(ordered)
    middle = float(np.median(sums)) / 2
    if count < FEWEST_PAIRS:
        return Interval(middle, float(ordered[0]), float(ordered[-1]), 1 - least_p(count))
    low, high = _lower_bound(ordered, sums), -_lower_bound(-ordered[::-1], -sums[::-1])
    return Interval(middle, low, high, CONFIDENCE)


def ratio_interval(pairs: Sequence[PairOfSamples]) -> Interval:
    """Return the estimate of the ratio B / A with its 95 % interval, from the logarithms of the pairs' ratios."""
    found = pair_interval(log_ratios(pairs))
    return Interval(math.exp(found.value), math.exp(found.low), math.exp(found.high), found.confidence)


def signed_rank_p(values: ArrayLike) -> float:
    """Return the exact two-sided p of Wilcoxon's signed-rank test; 1 where no value differs from zero.

    Zeros are left out and equal magnitudes share their mean rank. The distribution is that of all 2^n signs of the
    ranks found, so that it is exact with them, too.
    """
    found = _floats(values)
    found = found[found != 0]
    doubled = _doubled_ranks(np.abs(found))
    chances = np.zeros(doubled.sum() + 1)  # of each sum of the positive ranks
    chances[0] = 1.0
    for rank in doubled:
        chances /= 2
        chances[rank:] += chances[:-rank].copy()
    positive = int(doubled[found > 0].sum())
    return min(1.0, 2 * float(min(chances[: positive + 1].sum(), chances[positive:].sum())))


def least_p(pairs: int) -> float:
    """Return the least p that so many pairs can reach, all of one sign: 2^(1-n)."""
    return float(2.0 ** (1 - pairs))


def holm(ps: Sequence[float]) -> list[float]:
    """Return the p of each test corrected for all of them by Holm's step-down rule, in the order given."""
    corrected, reached = [1.0] * len(ps), 0.0
    for place, index in enumerate(sorted(range(len(ps)), key=lambda index: ps[index])):
        reached = max(reached, min(1.0, ps[index] * (len(ps) - place)))
        corrected[index] = reached
    return corrected


def pairs_needed(cells: int, alpha: float = 1 - CONFIDENCE) -> int:
    """Return how many pairs let the first of `cells` tests pass Holm: 6 or more, 9 for 7 cells, 11 for 28."""
    pairs = FEWEST_PAIRS
    while least_p(pairs) * cells > alpha + 1e-12:  # 1 - 0.95 is not quite 0.05
        pairs += 1
    return pairs


def _floats(values: ArrayLike) -> Floats:
    found = np.asarray(values, dtype=np.float64)
    if not len(found):
        raise ValueError("no pairs")
    return found


def _sorted_sums(ordered: Floats) -> Floats:
    """Return the sums of any two values, each with itself among them, in rising order: twice the Walsh averages."""
    first, second = np.triu_indices(len(ordered))
    return np.sort(ordered[first] + ordered[second])


def _lower_bound(ordered: Floats, sums: Floats) -> float:
    """Return the lower percentile of the estimates of all resamples, found by bisection over the possible estimates."""
    count = len(ordered)
    tail = ndtr(stdtrit(count - 1, (1 - CONFIDENCE) / 2) * np.sqrt(count / (count - 1)))
    table = ordered[:, None] + ordered
    low, high = 0, len(sums) - 1
    while low < high:
        middle = (low + high) // 2
        if _share_at_most(sums[middle], table) > tail:
            high = middle
        else:
            low = middle + 1
    return float(sums[low]) / 2


def _share_at_most(bound: float, table: Floats) -> float:
    """Return the share of resamples whose estimate, doubled, is at most `bound`.

    That is so if at least half of a resample's sums of two are. `table` holds the sums of the ordered values: those
    that make at most `bound` with the i-th are the first few, and a cumulated count says how often a resample has them.
    """
    times, cumulated = _resamples(len(table))
    partners = (table <= bound).sum(axis=1)
    twice = np.einsum("ij,ij->j", times, cumulated[partners]) + cumulated[np.count_nonzero(np.diagonal(table) <= bound)]
    return np.count_nonzero(twice >= len(table) * (len(table) + 1) // 2) / len(twice)


@lru_cache(maxsize=32)  # a minute of short steps is looked at with about 20 numbers of pairs, cell after cell
def _resamples(count: int) -> tuple[Counts, Counts]:
    """Return how often each value is in each resample [values, resamples], and how often the first i are [i, ...]."""
    size = max(500, RESAMPLED_VALUES // count)
    drawn = np.random.default_rng(count).multinomial(count, np.full(count, 1 / count), size)
    times = np.ascontiguousarray(drawn.T, dtype=np.int32)
    return times, np.concatenate([np.zeros((1, size), np.int32), np.cumsum(times, axis=0, dtype=np.int32)])


def _doubled_ranks(magnitudes: Floats) -> NDArray[np.int64]:
    """Return twice the rank of each magnitude, from 2 on; equal ones share their mean rank."""
    _, place, sizes = np.unique(magnitudes, return_inverse=True, return_counts=True)
    ends = np.cumsum(sizes)
    return np.asarray((2 * ends - sizes + 1)[place], dtype=np.int64)
