"""Times of ranks that run one synchronous step: the step lasts as long as its slowest rank, sample by sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsv4bench.results.stats import Interval, median_interval


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The ranks of a cell, times in nanoseconds, shares between 0 and 1.

    `slowest` says for each rank in what share of the samples it was the slowest; `skew` is how much longer the slowest
    rank took than the median rank, as a share, in the median sample. A rank whose samples are all 0 was idle: it has
    no part in the skew.
    """

    ranks: list[Interval]
    maximum: Interval
    skew: float
    slowest: list[float]


def rank_times(samples_ns: Sequence[Sequence[int]]) -> RankTimes:
    """Summarise the samples of each rank; sample i of every rank belongs to the same step.

    The maximum is taken over ranks in each sample, then the median over samples: the median of one rank would leave out
    that ranks take turns in being late. ValueError for ranks with different numbers of samples.
    """
    if len({len(one) for one in samples_ns}) != 1:
        raise ValueError("every rank needs the same number of samples")
    times = np.asarray(samples_ns, dtype=np.float64)  # [ranks, samples]
    longest = times.max(axis=0)
    busy = times[times.any(axis=1)] if times.any() else np.ones_like(times)
    late = np.bincount(times.argmax(axis=0), minlength=len(times)) / times.shape[1]
    return RankTimes(
        ranks=[median_interval(one) for one in samples_ns],
        maximum=median_interval(longest.tolist()),
        skew=float(np.median(busy.max(axis=0) / np.median(busy, axis=0))) - 1,
        slowest=late.tolist(),
    )
