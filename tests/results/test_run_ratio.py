"""The ratio of two runs: its value by hand, and how often its interval covers the truth."""

import numpy as np
import pytest

from dsv4bench.results.run_ratio import ratio_of_runs


def test_the_ratio_is_that_of_medians():
    found = ratio_of_runs([[90, 100, 110]], [[100, 110, 500]])
    assert found.value == pytest.approx(1.1)
    assert found.low <= found.value <= found.high


def test_several_runs_count_by_the_median_of_their_medians():
    found = ratio_of_runs([[100], [200], [300]], [[400, 400], [100, 100], [110, 110]])
    assert found.value == pytest.approx(110 / 200)
    assert found.low == pytest.approx(100 / 300)
    assert found.high == pytest.approx(400 / 100)


def test_samples_without_spread_leave_no_doubt():
    found = ratio_of_runs([[100] * 8], [[103] * 8])
    assert (found.value, found.low, found.high) == (1.03, 1.03, 1.03)


def test_equal_samples_of_two_runs_are_drawn_apart():
    samples = [100, 101, 103, 106, 110, 115]
    found = ratio_of_runs([samples], [samples])
    assert found.value == 1
    assert found.low < 0.97
    assert found.high > 1.03


def test_the_same_samples_give_the_same_interval():
    assert ratio_of_runs([[5, 6, 9]], [[7, 8, 8]]) == ratio_of_runs([[5, 6, 9]], [[7, 8, 8]])


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    times = 100_000 + np.random.default_rng(7).normal(0, 1000, size=(100, 2, 12))
    found = [ratio_of_runs([old.tolist()], [(new * 1.01).tolist()]) for old, new in times]
    assert 0.88 <= sum(one.low <= 1.01 <= one.high for one in found) / len(found) <= 1


@pytest.mark.parametrize(("before", "after"), [([[]], [[1]]), ([[1]], []), ([[1], []], [[1]])], ids=str)
def test_nothing_has_no_ratio(before, after):
    with pytest.raises(ValueError, match="no samples"):
        ratio_of_runs(before, after)
