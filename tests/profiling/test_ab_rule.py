"""When sampling in pairs ends: all pairs, a difference known well enough, or a share of the time."""

import pytest

from dsv4bench.profiling.ab_rule import ALL_PAIRS, CELL_LIMIT, NARROW, TIME_LIMIT, Budget, PairsRule, known
from dsv4bench.results.min_effect import MinEffect
from dsv4bench.results.trials import PairOfSamples

HALF_PERCENT = MinEffect(relative=0.005)


class Now:
    """A time that a test sets."""

    def __init__(self, ns=0):
        self.ns = ns

    def __call__(self):
        return self.ns


def rule(**changes):
    return PairsRule(**{"samples": 40, "block": 2, "least_pairs": 6, "min_effect": HALF_PERCENT, **changes})


def noisy(count, noise_ns, middle_ns=1_000_000):
    """Samples that lie `noise_ns` above and below the middle in turn, two of each."""
    return [middle_ns + noise_ns * (1 if place // 2 % 2 else -1) for place in range(count)]


@pytest.mark.parametrize(
    ("taken", "noise_ns", "reason"),
    [
        (40, 100_000, ALL_PAIRS),
        (41, 100_000, None),
        (38, 100_000, None),
        (10, 0, None),
        (12, 0, NARROW),
        (13, 0, None),
        (12, 1000, NARROW),
        (12, 4000, None),
    ],
    ids=[
        "all pairs, whatever the noise",
        "inside a block",
        "noise and pairs left",
        "too few pairs",
        "as many as are needed, equal",
        "as many, inside a block",
        "noise under half of the least effect",
        "noise over it",
    ],
)
def test_sampling_ends_after_a_block_of_all_pairs_or_of_enough(taken, noise_ns, reason):
    a, b = noisy(taken, 0), noisy(taken, noise_ns, 1_100_000)
    assert rule().reason([a, b], 0) == reason


def test_every_cell_must_be_known_well_enough():
    a, known, unknown = noisy(12, 0), noisy(12, 0), noisy(12, 50_000)
    assert rule().reason([a, known, a, known], 0) == NARROW
    assert rule().reason([a, known, a, unknown], 0) is None
    assert rule().reason([a, known, a], 0) == NARROW  # the other side of the second cell ended


def test_the_difference_is_looked_at_whenever_the_pairs_have_grown_by_a_quarter():
    known = [noisy(80, 0)] * 2
    looked = [pairs for pairs in range(1, 40) if rule(samples=None).reason([side[: 2 * pairs] for side in known], 0)]
    assert looked == [6, 7, 8, 10, 12, 15, 18, 22, 27, 33]


@pytest.mark.parametrize(
    ("pairs", "cells", "elapsed_ns", "reason"),
    [(6, 1, 100, CELL_LIMIT), (6, 1, 99, None), (5, 1, 1000, None), (6, 3, 299, None), (6, 3, 300, CELL_LIMIT)],
    ids=["over", "not yet", "over, and too few pairs", "of three cells", "of three cells, over"],
)
def test_a_cell_takes_no_more_than_its_time_but_as_many_pairs_as_are_needed(pairs, cells, elapsed_ns, reason):
    uncertain = [noisy(2 * pairs, 0), noisy(2 * pairs, 50_000)] * cells
    assert rule(samples=None, cell_ns=100).reason(uncertain, elapsed_ns) == reason


@pytest.mark.parametrize(
    ("effect", "is_narrow"),
    [
        (MinEffect(relative=0.005), True),
        (MinEffect(relative=0.001), False),
        (MinEffect(absolute_ns=5_000), True),
        (MinEffect(absolute_ns=1_000), False),
    ],
    ids=["0.5 %", "0.1 %", "5 us", "1 us"],
)
def test_narrow_is_half_of_the_least_effect_wherever_the_interval_lies(effect, is_narrow):
    for middle_ns in (1_000_000, 700_000, 1_400_000):
        share = middle_ns // 1_000_000 or 1
        pairs = [PairOfSamples((1_000_000,), (middle_ns + off * share,)) for off in (-900, 900) * 6]
        assert known(pairs, effect) is is_narrow


def test_fewer_pairs_than_an_interval_needs_are_never_narrow():
    assert not known([PairOfSamples((100,), (100,))] * 5, HALF_PERCENT)
    assert known([PairOfSamples((100,), (100,))] * 6, HALF_PERCENT)


# time


def test_time_is_dealt_evenly_to_what_is_left():
    now = Now()
    budget = Budget.of(100, now)
    budget.left = 4
    now.ns = 24
    assert not budget.over(24)  # began at 0: a quarter of 100
    now.ns = 25
    assert budget.over(25)
    budget.left = 3
    now.ns = 49
    assert not budget.over(24)  # began at 25: a third of 75
    now.ns = 50
    assert budget.over(25)
    assert not budget.spent
    now.ns = 100
    assert budget.spent


def test_what_groups_take_beside_their_timings_is_kept_back_by_the_roots_of_their_rows():
    now = Now()
    budget = Budget.of(1000, now)
    budget.begin(6, 4, [16, 16])
    now.ns = 20  # its caches, 10 for a root of one row: 40 for each group to come
    assert share(budget, now) == 150  # (1000 - 20 - 80) / 6
    assert share(budget, now) == 150
    now.ns += 600  # it also compiles, which no other group does
    budget.begin(4, 16, [16])
    now.ns += 40
    assert now.ns == 960
    assert share(budget, now) == 0  # (1000 - 960 - 40) / 4


def test_a_group_that_is_over_is_a_measure_for_those_to_come():
    now = Now()
    budget = Budget.of(1000, now)
    budget.begin(8, 4, [4, 16, 16])
    now.ns = 100
    budget.begin(6, 4, [16, 16])
    now.ns = 110
    assert share(budget, now) == 142  # (1000 - 110 - 2 * 2 * 10) / 6 is 141.7
    now.ns += 20  # its counts: 30 for a root of two, 60 for a root of four
    budget.begin(4, 16, [16])
    now.ns += 8
    assert now.ns == 280
    assert share(budget, now) == 165  # (1000 - 280 - 60) / 4


def share(budget, now):
    """How long a timing that begins now may take; it takes that long."""
    began_ns = now.ns
    while not budget.over(now.ns - began_ns):
        now.ns += 1
    budget.end(now.ns - began_ns)
    return now.ns - began_ns


def test_without_a_limit_time_is_never_over():
    now = Now(10**18)
    budget = Budget.of(None, now)
    assert not budget.over(10**18)
    assert not budget.spent


def test_a_share_ends_no_timing_before_its_least_pairs_but_the_deadline_does():
    now = Now()
    ruled = rule(budget=Budget(100, left=10, now_ns=now), least_pairs=3)
    now.ns = 50
    assert ruled.reason([[1] * 4] * 2, 50) is None
    assert ruled.reason([[1] * 6] * 2, 50) == TIME_LIMIT
    now.ns = 99
    assert ruled.reason([[1] * 4] * 2, 49) is None
    now.ns = 100
    assert ruled.reason([[1] * 2] * 2, 50) == TIME_LIMIT


def test_the_time_limit_ends_a_timing_after_a_block_and_leaves_its_share_to_the_next():
    now = Now()
    budget = Budget.of(100, now)
    budget.left = 2
    ruled = rule(budget=budget, least_pairs=1)
    now.ns = 60
    assert ruled.reason([[1] * 3] * 2, 60) is None
    assert ruled.reason([[1] * 2] * 2, 60) == TIME_LIMIT
    assert budget.left == 1
    now.ns = 99
    assert ruled.reason([[1] * 2] * 2, 39) is None  # all of the 40 that were left
    now.ns = 100
    assert ruled.reason([[1] * 2] * 2, 40) == TIME_LIMIT
    assert budget.left == 0
    now.ns = 120
    assert ruled.reason([[1] * 2] * 2, 1) == TIME_LIMIT  # one that nobody counted still ends
