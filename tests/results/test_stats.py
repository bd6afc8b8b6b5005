"""Medians and intervals by order statistics, against hand-computed cases and exact binomial coverage."""

from itertools import product
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.results.ranks import rank_times
from dsv4bench.results.stats import Interval, median_interval, paired_difference

# n samples: which smallest and largest bound the median at 95 %, by the binomial table; and what that covers
TABLE = [
    (1, 1, 0.0),
    (2, 1, 0.5),
    (3, 1, 0.75),
    (5, 1, 0.9375),
    (6, 1, 1 - 2 / 64),
    (8, 1, 1 - 2 / 256),
    (9, 2, 1 - 2 * (1 + 9) / 512),
    (11, 2, 1 - 2 * (1 + 11) / 2048),
    (12, 3, 1 - 2 * (1 + 12 + 66) / 4096),
    (20, 6, 1 - 2 * sum(comb(20, k) for k in range(6)) / 2**20),
]
numbers = st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=40)


@pytest.mark.parametrize(("count", "rank", "covered"), TABLE, ids=[f"n={row[0]}" for row in TABLE])
def test_the_bounds_are_the_order_statistics_of_the_binomial_table(count, rank, covered):
    samples = [10 * place for place in range(count, 0, -1)]  # 10, 20, ... in falling order
    found = median_interval(samples)
    assert (found.low, found.high) == (10 * rank, 10 * (count + 1 - rank))
    assert found.value == 5 * (count + 1)
    assert found.confidence == pytest.approx(covered)


def test_the_stated_confidence_is_the_share_of_samples_that_enclose_the_median():
    # every outcome of 7 fair coins is one way in which 7 samples can fall below (-1) or above (+1) the true median 0
    outcomes = list(product((-1, 1), repeat=7))
    enclosing = sum(median_interval(outcome).low < 0 < median_interval(outcome).high for outcome in outcomes)
    assert enclosing / len(outcomes) == pytest.approx(median_interval(range(7)).confidence)


@given(numbers)
def test_the_median_lies_within_its_bounds_and_they_within_the_samples(samples):
    found = median_interval(samples)
    assert min(samples) <= found.low <= found.value <= found.high <= max(samples)
    assert found.half_width >= 0


@given(numbers, st.integers(-1000, 1000))
def test_a_shift_of_all_samples_shifts_the_interval(samples, shift):
    one, other = median_interval(samples), median_interval([sample + shift for sample in samples])
    assert (other.low, other.high, other.value) == (one.low + shift, one.high + shift, one.value + shift)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=20))
def test_swapping_before_and_after_turns_the_sign(both):
    before, after = zip(*both, strict=True)
    forth, back = paired_difference(before, after), paired_difference(after, before)
    assert (forth.value, forth.low, forth.high) == (-back.value, -back.high, -back.low)


def test_a_drift_that_both_sides_share_leaves_no_trace_in_the_difference():
    drift = [0, 50, 100, 400, 800, 1600, 3200]
    found = paired_difference([1000 + shift for shift in drift], [990 + shift for shift in drift])
    assert found == Interval(-10, -10, -10, 1 - 2 / 128)


def test_what_cannot_be_summarised_is_refused():
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])
    with pytest.raises(ValueError, match="2 and 3 samples cannot be paired"):
        paired_difference([1, 2], [1, 2, 3])


@pytest.mark.parametrize(
    ("interval", "covers", "half"),
    [(Interval(5, 1, 6, 0.95), False, 4), (Interval(-1, -3, 0, 0.95), True, 2), (Interval(0, -1, 2, 0.95), True, 2)],
)
def test_an_interval_knows_its_width_and_whether_it_covers_zero(interval, covers, half):
    assert (interval.covers_zero, interval.half_width) == (covers, half)


def test_the_slowest_rank_is_found_sample_by_sample():
    # the ranks take turns in being late: each has the median 10, the slowest has 30
    found = rank_times([[10, 30, 10], [30, 10, 10], [10, 10, 30]])
    assert [one.value for one in found.ranks] == [10, 10, 10]
    assert found.slowest == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    assert found.skew == pytest.approx(2.0)  # 30 against the median rank's 10


def test_an_idle_rank_has_no_part_in_the_skew():
    found = rank_times([[10, 10], [0, 0], [0, 0], [12, 12]])
    assert found.skew == pytest.approx(12 / 11 - 1)  # the median of the two busy ranks is 11
    assert found.slowest == [0, 0, 0, 1]
    assert rank_times([[0], [0]]).skew == 0


def test_the_rows_of_a_rank_say_whether_it_was_idle_whatever_its_samples_are():
    dummy = [[10, 10], [3, 3], [12, 12]]  # an idle rank of a graph runs a batch of padding
    assert rank_times(dummy).skew == pytest.approx(12 / 10 - 1)
    assert rank_times(dummy, rows=[64, 0, 64]).skew == pytest.approx(12 / 11 - 1)
    assert rank_times(dummy, rows=[0, 0, 0]).skew == 0


def test_ranks_need_equally_many_samples():
    with pytest.raises(ValueError, match="same number"):
        rank_times([[1, 2], [1]])
    with pytest.raises(ValueError, match="rows of 1 ranks, samples of 2"):
        rank_times([[1], [1]], rows=[4])
