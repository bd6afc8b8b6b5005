"""Times of ranks that run one step together: what each takes, and how far the slowest falls behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsv4bench.results.stats import Interval, median_interval


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The ranks of a cell, times in nanoseconds, shares between 0 and 1.

    `slowest` says for each rank in what share of the samples it was the slowest; `skew` is how much longer the slowest
    rank took than the median rank, as a share, in the median sample. An idle rank has no part in the skew.
    """

    ranks: list[Interval]
    skew: float
    slowest: list[float]


def rank_times(samples_ns: Sequence[Sequence[int]], rows: Sequence[int] | None = None) -> RankTimes:
    """Summarise the samples of each rank; sample i of every rank is held against the others.

    It is of the same step, or of ranks that begin samples apart as many steps behind the last time that they met.
    `rows` are the live rows of each rank: one without any is idle. Where they are not known (records from before they
    were kept), a rank whose samples are all 0 is.

    The slowest rank is found in each sample, then the median taken over samples: the median of one rank would leave out
    that ranks take turns in being late. ValueError for ranks with different numbers of samples, or rows of other ranks.
    """
    if len({len(one) for one in samples_ns}) != 1:
        raise ValueError("every rank needs the same number of samples")
    if rows is not None and len(rows) != len(samples_ns):
        raise ValueError(f"rows of {len(rows)} ranks, samples of {len(samples_ns)}")
    times = np.asarray(samples_ns, dtype=np.float64)  # [ranks, samples]
    at_work = times.any(axis=1) if rows is None else np.asarray(rows) > 0
    busy = times[at_work] if times[at_work].any() else np.ones_like(times)
    late = np.bincount(times.argmax(axis=0), minlength=len(times)) / times.shape[1]
    return RankTimes(
        ranks=[median_interval(one) for one in samples_ns],
        skew=float(np.median(busy.max(axis=0) / np.median(busy, axis=0))) - 1,
        slowest=late.tolist(),
    )


def exchange_times(ranks: Sequence[Sequence[Mapping[str, Any]]], ops: Sequence[str]) -> list[dict[str, int]]:
    """Return the device time of each rank in operations that exchange rows, in ns, and what of it is work or waiting.

    `ranks` are the rows of `device_time` of each. The work is what the fastest rank took, operation by operation of a
    kv_source; what another took longer it waited. Empty where some rank has no such operation.
    """
    sides = [
        {(row["op"], row["kv_source"], row["where"]): row["device_ns"] for row in rows if row["op"] in ops}
        for rows in ranks
    ]
    if not sides or not all(sides):
        return []
    places = set.intersection(*map(set, sides))
    work_ns = sum(min(side[place] for side in sides) for place in places)
    taken = [sum(side.values()) for side in sides]
    return [{"device_ns": spent, "work_ns": work_ns, "wait_ns": spent - work_ns} for spent in taken]
