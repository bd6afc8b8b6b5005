"""What records say of an A/B, and by what an experiment is known again."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from dsv4bench.profiling.ab_experiment import Experiment, block_clocks, cell_of, find_session, session_name
from dsv4bench.results.min_effect import MinEffect
from dsv4bench.results.trials import trials
from dsv4bench.workloads.sides import Two
from tests.profiling.small_groups import group
from tests.results.synthetic import record

EXPERIMENT = Experiment("s-1", {"a": "reuse=off", "b": "reuse=on"}, False, None, 9, 9, 10, False)


def two(graph=False):
    return Two(*group(graph=graph))


def test_a_record_says_which_side_of_which_session_it_is():
    assert EXPERIMENT.stamped(record(), two(), "b").ab == {
        "session": "s-1", "side": "b", "sides": {"a": "reuse=off", "b": "reuse=on"}, "pair": None, "place": None,
        "block": 10, "aa": False, "min_effect": {"relative": 0.01}, "sm_mhz": None,
    }  # fmt: skip


def test_a_record_of_a_fresh_process_says_which_pair_it_is():
    found = EXPERIMENT.stamped(record(), two(), "a", pair=3, place=1).ab
    assert (found["pair"], found["place"]) == (3, 1)


def test_stamped_records_are_trials():
    sides = [replace(record(reuse=reuse), samples_ns={"step_period": [5] * 20}) for reuse in ("off", "on")]
    stamped = [EXPERIMENT.stamped(one, two(), side) for one, side in zip(sides, "ab", strict=True)]
    (trial,) = trials(stamped)
    assert [len(pair.a_ns) for pair in trial.pairs] == [10, 10]


@pytest.mark.parametrize(
    ("given", "graph", "effect"),
    [
        (None, False, {"relative": 0.01}),
        (None, True, {"relative": 0.005}),
        (MinEffect(absolute_ns=50_000.0), True, {"absolute_ns": 50_000.0}),
        (MinEffect(relative=0.002), False, {"relative": 0.002}),
    ],
    ids=["eager", "graph", "a time", "a share"],
)
def test_the_least_effect_is_what_was_given_or_goes_by_the_launch(given, graph, effect):
    one = replace(EXPERIMENT, min_effect=given)
    assert one.stamped(record(), two(graph), "a").ab["min_effect"] == effect


def test_against_an_eager_side_the_least_effect_is_that_of_eager_steps():
    (eager, graph) = group(reuse="on")
    assert EXPERIMENT.min_effect_of(Two(eager, graph)) == MinEffect(relative=0.01)


@pytest.mark.parametrize(
    ("clocks", "found"),
    [
        (None, None),
        ({"sm_mhz": [1980]}, None),
        ({"sample_sm_mhz": []}, None),
        ({"sample_sm_mhz": [1980, 1900, 1970, None, 1500, None, None, None, None]}, [1970.0, 1500.0, None]),
        ({"sample_sm_mhz": [1980, 1970, None, 1960, 1950]}, [1975.0, 1955.0]),
    ],
    ids=["no NVML", "older record", "no sample", "some unknown", "last block not whole"],
)
def test_a_pair_has_the_median_of_the_clocks_of_its_samples(clocks, found):
    assert block_clocks(record(clocks=clocks), 3) == found


def test_an_experiment_is_known_again_by_what_it_measures():
    digest = EXPERIMENT.digest(["k1", "k2"])
    assert replace(EXPERIMENT, session="other", pairs=20, least_pairs=1).digest(["k1", "k2"]) == digest
    others = [
        EXPERIMENT.digest(["k1"]),
        replace(EXPERIMENT, aa=True).digest(["k1", "k2"]),
        replace(EXPERIMENT, fresh=True).digest(["k1", "k2"]),
        replace(EXPERIMENT, block=3).digest(["k1", "k2"]),
        replace(EXPERIMENT, sides={"a": "", "b": ""}).digest(["k1", "k2"]),
        replace(EXPERIMENT, min_effect=MinEffect(relative=0.005)).digest(["k1", "k2"]),
    ]
    assert len({digest, *others}) == 7


def test_the_last_session_that_measures_the_same_goes_on():
    first, second = (session_name("abc", datetime(2026, 11, 30, hour, tzinfo=UTC)) for hour in (1, 2))
    assert first == "20261130T010000Z-abc"
    records = [record(ab={"session": name}) for name in (first, second, "20261130T030000Z-xabc-other")]
    assert find_session([record(), *records], "abc") == second
    assert find_session(records, "bc") is None


def test_a_side_has_its_cell():
    one = two()
    assert (cell_of(one, "a"), cell_of(one, "b")) == (one.a, one.b)
