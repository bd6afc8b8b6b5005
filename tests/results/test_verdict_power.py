"""What verdicts are worth with the noise of an H200: how often noise is named, and how often a true effect is found.

Every experiment has at most 60 s of device time a cell, all in one process, in pairs of 2 samples of each side, and the
SM clock read around every pair. Cells are judged in sessions of 8, half of them A/A: Holm corrects over all of these.
"""

from dataclasses import replace
from functools import cache

import numpy as np

from dsv4bench.results.min_effect import default_min_effect
from dsv4bench.results.trials import trials
from dsv4bench.results.verdict import judge
from tests.results.recorded_noise import recorded
from tests.results.synthetic import record, with_side

DEVICE_NS = 60 * 10**9
BLOCK = 2
EXPERIMENTS = 200


def experiment(noise, effect, name, session, rng):
    """Return the records of both sides of a cell called `name`, B slower by the share `effect`."""
    a, b = noise.sides(int(DEVICE_NS / noise.step_ns), rng)
    b *= 1 + effect
    count = np.searchsorted(np.cumsum(a + b), DEVICE_NS) // BLOCK * BLOCK
    sides = {"a": a[:count], "b": b[:count]}
    ab = {"block": BLOCK, "session": session, "min_effect": {"relative": least_effect(noise)}}
    return [
        with_side(
            replace(record(), geometry=name, samples_ns={"graph_replay": np.round(times).astype(int).tolist()}),
            side,
            ("src=a", "src=b"),
            sm_mhz=np.median(noise.clocks(count, rng).reshape(-1, BLOCK), axis=1).tolist(),
            **ab,
        )
        for side, times in sides.items()
    ]


def least_effect(noise):
    return default_min_effect(noise.graph).relative


@cache
def simulated():
    """Return (noise, true effect, verdict) of 200 A/A experiments and of 200 with twice the least effect."""
    rng, noises = np.random.default_rng(6), recorded()
    steady = [noise for noise in noises if not noise.host_bound]
    done, records = [], []
    for number in range(EXPERIMENTS):
        calm, any_one = steady[number % len(steady)], noises[number % len(noises)]
        for noise, effect in ((any_one, 0.0), (calm, (-2, 2)[number % 2] * least_effect(calm))):
            done.append((noise, effect))
            records += experiment(noise, effect, f"cell {len(done)}", f"session {number // 4}", rng)
    return [(*one, verdict) for one, verdict in zip(done, judge(trials(records)), strict=True)]


def words(effects):
    """Return the words of the experiments whose true effect is as asked, "none" where there is no word."""
    return [verdict.word or "none" for _, effect, verdict in simulated() if effects(effect)]


def test_noise_is_hardly_ever_named():
    found = words(lambda effect: effect == 0)
    assert len(found) == EXPERIMENTS
    assert sum(word in ("FASTER", "SLOWER") for word in found) <= 0.05 * EXPERIMENTS


def test_a_cell_without_a_difference_is_mostly_called_the_same():
    assert words(lambda effect: effect == 0).count("SAME") >= 0.7 * EXPERIMENTS


def test_twice_the_least_effect_is_found_within_a_minute():
    faster, slower = words(lambda effect: effect < 0), words(lambda effect: effect > 0)
    assert len(faster) == len(slower) == EXPERIMENTS // 2
    assert faster.count("FASTER") + slower.count("SLOWER") >= 0.9 * EXPERIMENTS
    assert "SLOWER" not in faster
    assert "FASTER" not in slower


def test_no_cell_takes_more_than_its_minute():
    taken_ns = [sum(sum(pair.a_ns) + sum(pair.b_ns) for pair in verdict.trial.pairs) for *_, verdict in simulated()]
    assert 0.9 * DEVICE_NS < min(taken_ns) < max(taken_ns) <= DEVICE_NS


def test_a_graph_that_waits_for_the_host_says_that_it_cannot_tell():
    noisy = [verdict for noise, _, verdict in simulated() if noise.host_bound and np.std(noise.scatter) > 0.1]
    assert len(noisy) >= 10
    assert all(verdict.word == "INCONCLUSIVE" for verdict in noisy)
    assert all(verdict.reason.endswith("pairs would do") for verdict in noisy)
