"""Step times with the noise of an H200, resampled from the committed runs, for simulated A/B experiments.

Cells of a group that were timed by turns share one timeline: their samples in the order in which they were taken, each
as the logarithm of its ratio to the median of its own cell. The running median over 5 samples is the timeline's level
(drifts, and steps as of a clock at its power limit); what is left of it is scatter, with its outliers. A simulated
series is the recorded level from a random sample on, followed by another such stretch where it ends (one more step),
plus scatter drawn with replacement, without end. Who takes samples of A and B by turns from one series, as one process
of `dsv4bench ab` does, has a drift in both and an outlier in one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from dsv4bench.results.store import read_records

ROOT = Path(__file__).parents[2] / "results"
RUNS = ("h200-default", "h200-graph-forms", "h200-compressor", "h200-ab-floor", "h200-ab-compressor-v4")
WINDOW = 5
LEAST_SAMPLES = 6  # of all cells of a group together: fewer say nothing of drifts


@dataclass(frozen=True)
class Noise:
    """The noise of one recorded group: level and scatter (logarithms of shares), and the SM clocks read meanwhile.

    `host_bound`: graphs whose GPU waits for the host, so that the noise is that of the host.
    """

    name: str
    graph: bool
    step_ns: float
    level: np.ndarray
    scatter: np.ndarray
    mhz: np.ndarray
    host_bound: bool

    def steps(self, rng):
        """Yield the nanoseconds of one step after another, as floats, each with a reading of the SM clock in MHz."""
        while True:
            level = self.level[rng.integers(len(self.level)) :]
            times = np.exp(level + rng.choice(self.scatter, len(level))) * self.step_ns
            yield from zip(times.tolist(), rng.choice(self.mhz, len(level)).tolist(), strict=True)


@cache
def recorded():
    """Return the noise of every group of the committed runs that was timed, eager and graph cells apart."""
    groups = {}
    for run in RUNS:
        for record in read_records(ROOT / run).records:
            if record.status == "ok":
                groups.setdefault((run, record.group, bool(record.variant["graph"])), []).append(record)
    noises = [_noise(run, graph, records) for (run, _, graph), records in groups.items()]
    return [noise for noise in noises if len(noise.level) >= LEAST_SAMPLES]


def _noise(run, graph, records):
    times = np.array([record.step_samples_ns for record in records], dtype=float)
    medians = np.median(times, axis=1, keepdims=True)
    logs = np.log(times / medians)
    logs[:, 1::2] = logs[::-1, 1::2]  # every other round was taken in reverse
    timeline = logs.T.ravel()
    level = np.array([np.median(timeline[max(0, i - WINDOW // 2) : i + WINDOW // 2 + 1]) for i in range(len(timeline))])
    batch, mode = records[0].batch, "graph" if graph else "eager"
    return Noise(
        name=f"{run} {batch['requests']} x {batch['extend']} {mode}",
        graph=graph,
        step_ns=float(np.median(medians)),
        level=level,
        scatter=timeline - level,
        mhz=np.array(records[0].clocks["sm_mhz"], dtype=float),
        host_bound=graph and any("launch-bound" in record.flags for record in records),
    )
