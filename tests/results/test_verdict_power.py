"""What verdicts are worth with the noise of an H200: how often noise is named, and how often a true effect is found.

Every cell is sampled as `dsv4bench ab` does in one process, by the same code on a simulated GPU: pairs of 2 samples of
each side by turns, the SM clock read after each, until the stop rule has looked and found the difference known well
enough, or for 60 s of device time. Then a sweep is judged: Holm corrects over its cells. Graphs that wait for the host
take part throughout; only how often an effect is found is told without them, since a minute cannot tell it there.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from dsv4bench.profiling.ab_experiment import CELL_S, block_clocks
from dsv4bench.profiling.ab_rule import CELL_LIMIT, NARROW, PairsRule
from dsv4bench.profiling.timing import Subject, interleave
from dsv4bench.results.min_effect import default_min_effect
from dsv4bench.results.trials import trials
from dsv4bench.results.verdict import judge
from dsv4bench.results.verdict_stats import pairs_needed
from dsv4bench.units import NS_PER_S
from tests.results.recorded_noise import Noise, recorded
from tests.results.synthetic import record, with_side

BLOCK = 2
NAMED = ("FASTER", "SLOWER")
RECORDS = {graph: record(graph=graph) for graph in (False, True)}
# of the sweeps of one size: cells, whether eager ones alone (whose rule goes by 1 % instead of 0.5 %)
SIZES = {"14 cells": (14, False), "28 cells": (28, False), "14 eager cells": (14, True)}
# how many sweeps of each size have no effect anywhere, and how many have one in three of four cells
FEW = {"14 cells": (8, 4), "28 cells": (1, 1), "14 eager cells": (5, 2)}
MANY = {"14 cells": (400, 100), "28 cells": (200, 50), "14 eager cells": (400, 100)}


class Gpu:
    """A clock whose time passes by the steps that run on it, each as long as the noise says."""

    name, enqueues = "simulated", False

    def __init__(self, noise, rng):
        self.steps, self.ns, self.mhz = noise.steps(rng), 0, 0

    def step(self, factor):
        ns, self.mhz = next(self.steps)
        self.ns += round(ns * factor)

    def now_ns(self):
        return self.ns

    def synchronize(self):
        """Nothing is queued."""

    def measure(self, run: Callable[[], None], repeat):
        started_ns = self.ns
        for _ in range(repeat):
            run()
        return self.ns - started_ns, 0


@dataclass(frozen=True)
class Simulated:
    """One cell: its noise, the share by which B is slower, why sampling stopped, and what the verdict says.

    `taken_ns` is the device time of all samples, `before_ns` without the last pair.
    """

    noise: Noise
    effect: float
    stop: str
    before_ns: int
    taken_ns: int
    word: str
    reason: str
    narrow: bool

    @property
    def false(self):
        """Whether the verdict names what is not there: any difference where there is none, else the wrong sign."""
        return (self.word == "FASTER" and self.effect >= 0) or (self.word == "SLOWER" and self.effect <= 0)


def least_effect(noise):
    return default_min_effect(noise.graph)


def measured(noise, effect, rule, rng):
    """Return the records of both sides of a cell, B slower by the share `effect`, and why sampling stopped."""
    gpu, metric = Gpu(noise, rng), "graph_replay" if noise.graph else "step_period"
    subjects = [Subject.of(lambda: gpu.step(1), metric), Subject.of(lambda: gpu.step(1 + effect), metric)]
    timings = interleave(subjects, gpu, rule, sm_mhz=lambda: gpu.mhz)
    sides = [
        replace(RECORDS[noise.graph], samples_ns=one.samples_ns, clocks={"sample_sm_mhz": list(one.sm_mhz)})
        for one in timings
    ]
    return sides, timings[0].stop


def sweep(noises, effects, rng):
    """Return all cells of one sweep, measured one after another and judged together."""
    rule = PairsRule(
        block=BLOCK,
        least_pairs=pairs_needed(len(noises)),
        cell_ns=CELL_S * NS_PER_S,
        min_effect=min(map(least_effect, noises), key=lambda effect: effect.relative),
    )
    records, done = [], []
    for place, (noise, effect) in enumerate(zip(noises, effects, strict=True)):
        sides, stop = measured(noise, effect, rule, rng)
        taken = [one.step_samples_ns for one in sides]
        done.append((noise, effect, stop, sum(sum(one[:-BLOCK]) for one in taken), sum(map(sum, taken))))
        for side, one in zip("ab", sides, strict=True):
            ab = {"block": BLOCK, "min_effect": {"relative": least_effect(noise).relative}}
            named = replace(one, geometry=f"cell {place}")
            records.append(with_side(named, side, ("src=a", "src=b"), sm_mhz=block_clocks(one, BLOCK), **ab))
    verdicts = judge(trials(records))
    return [
        Simulated(*one, said.word, said.reason, said.narrow_enough) for one, said in zip(done, verdicts, strict=True)
    ]


@dataclass(frozen=True)
class Simulation:
    """Sweeps without any effect, and sweeps with twice the least effect, of either sign, in three of four cells."""

    noise: list[list[Simulated]]
    effect: list[list[Simulated]]

    @property
    def findable(self):
        """Every cell with an effect whose GPU does not wait for the host."""
        return [one for cells in self.effect for one in cells if one.effect and not one.noise.host_bound]

    @property
    def all(self):
        """Every cell."""
        return [one for cells in (*self.noise, *self.effect) for one in cells]


def simulation(sweeps, seed):
    rng, done = np.random.default_rng(seed), Simulation([], [])
    for size, (without, with_effect) in sweeps.items():
        cells, eager = SIZES[size]
        pool = [noise for noise in recorded() if not (eager and noise.graph)]
        for number in range(without + with_effect):
            noises = [pool[place] for place in rng.choice(len(pool), cells, replace=False)]
            if number < without:
                done.noise.append(sweep(noises, [0.0] * cells, rng))
            else:
                shares = (2, -2, 0, 2, -2, 2, 0, -2)
                effects = [shares[place % 8] * least_effect(noise).relative for place, noise in enumerate(noises)]
                done.effect.append(sweep(noises, effects, rng))
            gc.freeze()  # every timing collects first, and what is kept of these sweeps is no garbage
    return done


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((FEW, 6), id="few"),
        pytest.param((MANY, 7), id="many", marks=(pytest.mark.slow, pytest.mark.timeout(7200))),
    ],
)
def simulated(request):
    return simulation(*request.param)


def words(cells):
    return [one.word for one in cells]


def test_noise_is_hardly_ever_named(simulated):
    for sweeps in (simulated.noise, simulated.effect):
        false = [any(one.false for one in cells) for cells in sweeps]
        assert sum(false) <= 0.05 * len(false)
    assert sum(map(len, simulated.noise)) >= 200


def test_a_cell_without_a_difference_is_mostly_called_the_same(simulated):
    found = words(one for cells in simulated.noise for one in cells)
    assert found.count("SAME") >= 0.7 * len(found)


def test_twice_the_least_effect_is_found_within_a_minute(simulated):
    found = words(simulated.findable)
    assert sum(word in NAMED for word in found) >= 0.9 * len(found)


def test_sampling_stops_when_the_verdict_has_its_interval_or_the_minute_is_over(simulated):
    assert {one.stop for one in simulated.all} == {NARROW, CELL_LIMIT}
    for one in simulated.all:
        assert one.before_ns < CELL_S * NS_PER_S
        assert one.narrow if one.stop == NARROW else one.taken_ns >= CELL_S * NS_PER_S


def test_a_graph_that_waits_for_the_host_says_that_it_cannot_tell(simulated):
    noisy = [one for one in simulated.all if one.noise.host_bound and np.std(one.noise.scatter) > 0.1]
    assert len(noisy) >= 10
    told = [one.reason for one in noisy if one.word == "INCONCLUSIVE"]
    assert len(told) >= 0.9 * len(noisy)
    assert all(reason.endswith(("pairs would do", "is not below 0.05")) for reason in told)


def test_a_graph_that_waits_for_the_host_is_hardly_ever_named_for_noise(simulated):
    waiting = [one for one in simulated.all if one.noise.host_bound and not one.effect]
    assert len(waiting) >= 10
    assert sum(one.false for one in waiting) <= 0.05 * len(waiting)
