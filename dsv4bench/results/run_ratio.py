"""The ratio of times of two runs that were not made by turns, from the samples of each."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from dsv4bench.results.stats import CONFIDENCE, Interval

RESAMPLES = 2000

Samples = Sequence[Sequence[int]]


def ratio_of_runs(before: Samples, after: Samples) -> Interval:
    """Return median time after / before with its 95 % interval: the bootstrap over runs and over the samples of each.

    `before` and `after` hold the samples of each run; the time of several is the median of their medians. ValueError
    without samples. With one run a side the interval is that of the noise within a run.
    """
    if not all(len(run) for side in (before, after) for run in (*side, side)):
        raise ValueError("no samples")
    old, new = (_medians(side, seed) for seed, side in enumerate((before, after)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(new / old, [tail, 1 - tail])
    first, second = (median(median(run) for run in side) for side in (before, after))
    return Interval(second / max(first, 1), float(low), float(high), CONFIDENCE)


def _medians(runs: Samples, seed: int) -> NDArray[np.float64]:
    """Return the median of each resample: runs are drawn with replacement, and then samples within each."""
    generator = np.random.default_rng(seed)  # two sides must not be drawn alike
    each = [np.maximum(np.asarray(run, dtype=np.float64), 1) for run in runs]
    medians = [np.median(run[generator.integers(len(run), size=(RESAMPLES, len(run)))], axis=1) for run in each]
    drawn = generator.integers(len(each), size=(len(each), RESAMPLES))
    return np.asarray(np.median(np.take_along_axis(np.array(medians), drawn, axis=0), axis=0))
