"""Nanoseconds and ids of a trace, whatever type the file gives them."""

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.profiling.traces.columns import NO_ID
from dsv4bench.profiling.traces.kineto_numbers import (
    EXACT_FLOAT_US,
    NO_TIME,
    loses_nanoseconds,
    texts_among,
    whole_ids,
    whole_ns,
)

LIMIT_NS = int(EXACT_FLOAT_US) * 1000


def as_text(time_ns):
    sign = "-" if time_ns < 0 else ""
    return f"{sign}{abs(time_ns) // 1000}.{abs(time_ns) % 1000:03d}"


@given(st.lists(st.integers(1 - LIMIT_NS, LIMIT_NS - 1) | st.integers(LIMIT_NS - 10**6, LIMIT_NS - 1), min_size=1))
def test_a_float_below_the_limit_gives_the_nanosecond_of_its_text(times_ns):
    floats = [float(as_text(time_ns)) for time_ns in times_ns]
    if not loses_nanoseconds(floats):  # the last half microsecond rounds up to the limit
        assert whole_ns(floats).tolist() == times_ns


def test_every_nanosecond_of_the_last_part_below_the_limit_is_told_apart():
    times_ns = range(LIMIT_NS - 50_000, LIMIT_NS - 1)
    floats = [float(as_text(time_ns)) for time_ns in times_ns]
    assert whole_ns(floats).tolist() == list(times_ns)


def test_from_the_limit_on_a_float_is_not_enough():
    beyond_ns = LIMIT_NS + 1
    assert loses_nanoseconds([1.0, 2, None, float(as_text(beyond_ns))])
    assert len({float(as_text(time_ns)) for time_ns in range(beyond_ns, beyond_ns + 1000)}) < 1000


@given(st.lists(st.integers(-(2**61), 2**61), min_size=1))
def test_a_decimal_or_a_text_gives_every_nanosecond(times_ns):
    texts = [as_text(time_ns) for time_ns in times_ns]
    assert whole_ns(texts).tolist() == times_ns
    assert whole_ns([Decimal(text) for text in texts]).tolist() == times_ns


@pytest.mark.parametrize(
    ("times_us", "expected_ns"),
    [
        ([], []),
        ([1_695_835_573_014_944, 0, -5], [1_695_835_573_014_944_000, 0, -5000]),
        ([1_712_195_495_820_905, 0.5], [1_712_195_495_820_905_000, 500]),
        ([Decimal("1712000000000000.1"), Decimal("1712000000000000.4")], [1712000000000000100, 1712000000000000400]),
        ([None, "soon", "", True, [1], {}, "inf", "nan", float("inf"), float("nan")], [NO_TIME] * 10),
        ([2**70, -(2**70), 1e300, Decimal("1e999999"), "1e400"], [NO_TIME] * 5),
    ],
    ids=["none", "whole microseconds of the epoch", "mixed", "0.3 us apart", "no numbers", "too large"],
)
def test_what_a_file_may_hold_for_a_time(times_us, expected_ns):
    assert whole_ns(times_us).tolist() == expected_ns


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([], np.int64, []),
        ([5, None, 0], np.int64, [5, NO_ID, 0]),
        (["7", " 8 ", 9.0, Decimal(10)], np.int64, [7, 8, 9, 10]),
        (["x", 1.5, [1], {}, float("nan"), "1e400", Decimal("1e99999")], np.int64, [NO_ID] * 7),
        ([2**63 + 1, 2**64 - 2, 2**64, -(2**63) - 1], np.int64, [-(2**63) + 1, -2, NO_ID, NO_ID]),
        ([2**31, 2**31 - 1, -1], np.int32, [NO_ID, 2**31 - 1, -1]),
    ],
    ids=["none", "missing", "texts and fractions", "no ids", "64 bits keep their bits", "too large for 32 bits"],
)
def test_what_a_file_may_hold_for_an_id(values, dtype, expected):
    found = whole_ids(values, dtype)
    assert found.dtype == dtype
    assert found.tolist() == expected


def test_texts_that_were_read_are_counted():
    assert texts_among([1, "2", None, "3", "x"], np.array([True, True, False, True, False])) == 2
    assert texts_among([1, 2.0], np.array([True, True])) == 0
