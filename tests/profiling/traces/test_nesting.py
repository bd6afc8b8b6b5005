import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.profiling.traces.columns import NO_ID
from dsv4bench.profiling.traces.nesting import Nesting

# group, start, length; lengths of 0 and starts that coincide are the cases that matter
RANGES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 10)), max_size=12)
MOMENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 35)), min_size=1, max_size=20)


def nesting(ranges):
    group, start, length = (np.array([one[at] for one in ranges], dtype=np.int64) for at in range(3))
    return Nesting(group, start, start + length)


def open_at(ranges, group, time):
    """Return (start, -end, row) of the ranges open then, one comparison a range."""
    return [
        (start, -start - length, row)
        for row, (owner, start, length) in enumerate(ranges)
        if owner == group and start <= time <= start + length
    ]


@given(RANGES, MOMENTS)
def test_the_innermost_range_is_the_one_that_began_last_of_those_that_are_open(ranges, moments):
    groups, times = (np.array([moment[at] for moment in moments], dtype=np.int64) for at in range(2))
    opened = [open_at(ranges, *moment) for moment in moments]
    made = nesting(ranges)
    assert made.innermost(groups, times).tolist() == [max(one)[2] if one else NO_ID for one in opened]
    assert made.open_count(groups, times).tolist() == [len(one) for one in opened]


@pytest.mark.parametrize(
    ("ranges", "parents"),
    [
        ([], []),
        ([(0, 0, 10), (0, 2, 3), (0, 3, 1), (0, 6, 2)], [NO_ID, 0, 1, 0]),
        ([(0, 0, 4), (0, 4, 4)], [NO_ID, NO_ID]),
        ([(0, 0, 10), (1, 2, 3)], [NO_ID, NO_ID]),
        ([(0, 2, 3), (0, 2, 8)], [1, NO_ID]),
        ([(0, 0, 10), (0, 5, 6)], [NO_ID, 0]),
    ],
    ids=[
        "none",
        "nested",
        "one after the other",
        "two groups",
        "the same start",
        "an end that comes too late",
    ],
)
def test_the_parent_is_the_range_around(ranges, parents):
    assert nesting(ranges).parents().tolist() == parents
