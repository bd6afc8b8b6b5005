"""Statistics of pairs against hand-computed values, all 2^n signs, scipy, and resamples that are written out."""

from itertools import product
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, stdtrit
from scipy.stats import rankdata, wilcoxon

from dsv4bench.results import verdict_stats
from dsv4bench.results.stats import Interval
from dsv4bench.results.trials import PairOfSamples
from dsv4bench.results.verdict_stats import (
    holm,
    least_p,
    log_ratios,
    medians_ns,
    pair_interval,
    pairs_needed,
    signed_rank_p,
)

values = st.lists(st.integers(-(10**6), 10**6).map(float), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("numbers", "estimate"),
    [
        ([7], 7),
        ([1, 4], 2.5),  # 1, 2.5, 4
        ([1, 2, 6], 2.75),  # 1, 1.5, 2, 3.5, 4, 6
        ([0, 0, 0, 100], 0),  # six averages are 0, three 50, one 100
        ([4, 1, 3, 10], 3.75),  # 1 2 2.5 3 3.5 | 4 5.5 6.5 7 10
    ],
    ids=str,
)
def test_the_estimate_is_the_median_of_all_averages_of_two(numbers, estimate):
    assert pair_interval(numbers).value == estimate


@pytest.mark.parametrize("count", range(6, 12))
def test_all_pairs_of_one_sign_have_the_least_p(count):
    found = [place + 1.5 for place in range(count)]
    assert signed_rank_p(found) == least_p(count) == 2 / 2**count
    # the smallest of the other sign: positive ranks sum to 1, as only one other choice of signs does beside none
    assert signed_rank_p([-found[0], *found[1:]]) == 4 / 2**count
    assert signed_rank_p([-found[0], -found[1], *found[2:]]) == 2 * 5 / 2**count  # {}, 1, 2, 1+2, 3


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8))
@settings(max_examples=40)
def test_the_p_is_that_of_all_signs_with_ties_and_zeros_too(numbers):
    moved = np.array([number for number in numbers if number])
    ranks = rankdata(abs(moved)) if len(moved) else moved
    every = np.array([np.dot(ranks, signs) for signs in product((0, 1), repeat=len(moved))])
    seen = ranks[moved > 0].sum()
    assert signed_rank_p(numbers) == pytest.approx(min(1, 2 * min((every <= seen).mean(), (every >= seen).mean())))


@pytest.mark.parametrize("count", [9, 40, 120])
def test_the_p_is_scipys_where_there_are_no_ties(count):
    numbers = np.random.default_rng(count).normal(0.2, 1, count)
    assert signed_rank_p(numbers) == pytest.approx(wilcoxon(numbers, method="exact").pvalue)


@pytest.mark.parametrize(
    ("ps", "corrected"),
    [
        ([0.03], [0.03]),
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),  # 3 x 0.01, 2 x 0.03, and never less than the one before
        ([0.04, 0.011, 0.01], [0.04, 0.03, 0.03]),
        ([0.5, 0.6], [1.0, 1.0]),
        ([], []),
    ],
    ids=str,
)
def test_holm_steps_down(ps, corrected):
    assert holm(ps) == pytest.approx(corrected)


@pytest.mark.parametrize(("cells", "pairs"), [(1, 6), (2, 7), (7, 9), (12, 9), (13, 10), (28, 11), (1000, 16)])
def test_the_fewest_pairs_let_the_first_cell_pass(cells, pairs):
    assert pairs_needed(cells) == pairs
    assert holm([least_p(pairs)] + [1.0] * (cells - 1))[0] <= 0.05
    assert pairs == 6 or cells * least_p(pairs - 1) > 0.05


@pytest.mark.parametrize(("count", "reached"), [(1, 0.0), (2, 0.5), (5, 0.9375)])
def test_too_few_pairs_have_their_extremes_as_bounds(count, reached):
    numbers = [float(10 * place) for place in range(count, 0, -1)]
    assert pair_interval(numbers) == Interval(5 * (count + 1), 10, 10 * count, reached)


def lower_percentile(numbers, tail):
    """The least estimate that more than `tail` of the resamples do not exceed, every resample written out."""
    times, _ = verdict_stats._resamples(9)
    rows, columns = np.triu_indices(9)
    drawn = np.sort([np.repeat(numbers, column) for column in times.T], axis=1)
    estimates = np.sort((drawn[:, rows] + drawn[:, columns]) / 2, axis=1)[:, 22]  # the middle one of 45
    return next(bound for bound in np.unique(estimates) if (estimates <= bound).mean() > tail)


def test_the_bounds_are_percentiles_of_the_estimates_of_all_resamples():
    numbers = np.sort(np.random.default_rng(2).normal(size=9))
    assert set(verdict_stats._resamples(9)[0].sum(axis=0)) == {9}
    tail = ndtr(stdtrit(8, 0.025) * sqrt(9 / 8))
    assert tail == pytest.approx(0.0072, abs=1e-4)  # plain percentiles would have 0.025
    expected = lower_percentile(numbers, tail), -lower_percentile(-numbers[::-1], tail)
    assert (pair_interval(numbers).low, pair_interval(numbers).high) == pytest.approx(expected)


@pytest.mark.parametrize(("count", "least"), [(6, 0.90), (9, 0.93), (64, 0.92)])
def test_the_interval_covers_the_truth_as_often_as_it_says(count, least):
    draw = np.random.default_rng(1).standard_t
    found = [pair_interval(draw(3, count)) for _ in range(200)]
    assert least <= np.mean([one.low <= 0 <= one.high for one in found]) <= 0.99


@given(values)
@settings(max_examples=40)
def test_neither_order_nor_sign_nor_scale_matters(numbers):
    found = pair_interval(numbers)
    assert found.low <= found.value <= found.high
    assert pair_interval(numbers[::-1]) == found
    turned = pair_interval([-number for number in numbers])
    assert (turned.low, turned.value, turned.high) == (-found.high, -found.value, -found.low)
    scaled = pair_interval([8 * number for number in numbers])
    assert (scaled.low, scaled.value, scaled.high) == (8 * found.low, 8 * found.value, 8 * found.high)


@given(values)
@settings(max_examples=40)
def test_the_p_of_the_other_sign_is_the_same(numbers):
    assert signed_rank_p(numbers) == pytest.approx(signed_rank_p([-number for number in numbers]))
    assert 0 < signed_rank_p(numbers) <= 1


def test_each_side_of_a_pair_is_its_median():
    pairs = [PairOfSamples((30, 10, 20), (40, 90)), PairOfSamples((0,), (7, 7, 7))]
    a, b = medians_ns(pairs)
    assert (a.tolist(), b.tolist()) == ([20, 1], [65, 7])  # a time of 0 ns is less than one
    assert log_ratios(pairs) == pytest.approx(np.log([65 / 20, 7]))


def test_nothing_has_no_interval():
    with pytest.raises(ValueError, match="no pairs"):
        pair_interval([])
