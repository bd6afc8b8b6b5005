"""Quantities as text: units, signs and digits; and times that share a unit."""

import numpy as np
import pytest

from dsv4bench import units


@pytest.mark.parametrize(
    ("times_ns", "unit"),
    [([999_999.0], (1000, "us")), ([1.0, 1e6], (10**6, "ms")), ([5e9], (10**6, "ms")), ([], (10**6, "ms"))],
    ids=["just under", "the longest decides", "seconds stay ms", "none"],
)
def test_times_that_stand_together_share_a_unit(times_ns, unit):
    assert units.time_unit(times_ns) == unit


def test_a_time_or_an_array_of_them_is_converted():
    assert units.in_unit(1500, units.NS_PER_US) == 1.5
    assert units.in_unit(np.array([1e6, 2e6]), units.NS_PER_MS).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("ns", "signed", "text"),
    [(None, True, ""), (1500.0, True, "+1.500"), (-1500.0, False, "-1.500"), (1500.0, False, "1.500"), (0, True, "0")],
)
def test_a_bare_number_has_four_digits(ns, signed, text):
    assert units.format_in_unit(ns, 1000, signed) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0%"), (0.414, "41%"), (0.985, "98%"), (0.9999, "99%"), (1.0, "100%")]
)
def test_nearly_all_is_not_all(share, text):
    assert units.format_share(share) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows")])
def test_a_count_agrees_with_its_noun(count, text):
    assert units.format_count(count, "row") == text


@pytest.mark.parametrize(
    ("ns", "half_width_ns", "scale", "signed", "text"),
    [
        (253_123_456, 423_456, 10**6, False, "253.1 ±0.4"),
        (1_280_000_000, 40_000, 10**6, False, "1280.00 ±0.04"),
        (45_230, 3_230, 10**3, True, "+45.2 ±3.2"),
        (0, 500, 10**3, True, "0.0 ±0.5"),
        (-250_700, 7_707_000, 10**3, True, "-251 ±7707"),
        (36_710_000, 10_750_000, 10**6, False, "37 ±11"),
        (36_710_000, 950_000, 10**6, False, "36.71 ±0.95"),
        (12_340, 0, 10**3, False, "12.34 ±0.00"),
    ],
)
def test_the_bound_shows_at_least_its_first_digit_and_at_most_two(ns, half_width_ns, scale, signed, text):
    assert units.format_plus_minus(ns, half_width_ns, scale, signed) == text


@pytest.mark.parametrize(
    ("ns", "half_width_ns", "text"),
    [
        (-540_400, 2_935_400, "-540 ±2935"),
        (-45_230, 3_230, "-45 ±3"),
        (-540_400, 400, "-540.4 ±0.4"),
        (600_000, 0, "+600 ±0"),
    ],
)
def test_two_digits_are_enough_where_the_bound_bears_no_more(ns, half_width_ns, text):
    assert units.format_plus_minus(ns, half_width_ns, 10**3, signed=True, digits=2) == text


@pytest.mark.parametrize(
    ("ns", "low_ns", "high_ns", "text"),
    [
        (-325_100, -761_900, -229_400, "-325 [-762, -229]"),
        (54_000, -259_000, 312_000, "+54 [-259, +312]"),
        (-400, -1_240, 300, "-0.40 [-1.24, +0.30]"),
        (600_000, 600_000, 600_000, "+600 [+600, +600]"),
        (-12_000, -24_000, -400, "-12 [-24, 0]"),
        (0, -500, 500, "0.0 [-0.5, +0.5]"),
    ],
    ids=["one bound near", "around 0", "small", "no width", "a bound that rounds to 0", "nothing"],
)
def test_a_difference_shows_both_bounds_with_their_signs(ns, low_ns, high_ns, text):
    assert units.format_interval(ns, low_ns, high_ns, 10**3, digits=2) == text


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (units.format_ns, None, "-"),
        (units.format_ns, 999, "999.0 ns"),
        (units.format_ns, 1_500, "1.500 us"),
        (units.format_ns, -2_000_000, "-2.000 ms"),
        (units.format_ns, 61e9, "61.00 s"),
        (units.format_bytes, None, "-"),
        (units.format_bytes, 1023, "1023 B"),
        (units.format_bytes, 1536, "1.500 KiB"),
        (units.format_bytes, 3 * 2**20, "3.000 MiB"),
        (units.format_bytes, 150 * 2**30, "150.0 GiB"),
        (units.format_rate, None, "-"),
        (units.format_rate, 1.75e12, "1.75 TB/s"),
        (units.format_rate, 4e9, "4.00 GB/s"),
        (units.format_flop_rate, None, "-"),
        (units.format_flop_rate, 5.56e14, "556 TFLOP/s"),
        (units.format_flop_rate, 4e9, "4.00 GFLOP/s"),
        (units.format_percent, None, "-"),
        (units.format_percent, 0.005, "0.50 %"),
    ],
)
def test_a_quantity_has_the_unit_that_reads_best(function, value, text):
    assert function(value) == text


def test_differences_have_a_sign():
    assert [units.format_percent(share, signed=True) for share in (0.01, -0.01)] == ["+1.00 %", "-1.00 %"]


@pytest.mark.parametrize(
    ("differences_ns", "unit"),
    [([-99_999_999, None], "us"), ([5, -100_000_000], "ms"), ([100_000_000], "ms"), ([None], "us"), ([], "us")],
    ids=["five digits of us", "six, negative", "six", "nothing known", "nothing"],
)
def test_differences_of_six_digits_of_us_are_in_ms(differences_ns, unit):
    assert units.difference_unit(differences_ns)[1] == unit
