"""Busy time and waiting against an oracle that looks at every nanosecond."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.profiling.traces.idle import gaps, spans, stable_order
from dsv4bench.profiling.traces.placed import place
from dsv4bench.profiling.traces.ranges_of import ranges_of
from tests.profiling.traces.timed_steps import Timed

ROWS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(0, 40)), min_size=1, max_size=12)


def joined(rows):
    made = Timed()
    for start, length, before in rows:
        made.launched("a", start - before, start, start + length)
    return place(ranges_of(made.trace()))


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_busy_time_is_the_number_of_nanoseconds_in_which_something_runs(rows):
    placed = joined(rows)
    found = spans(placed.trace, placed.rows, "step").iloc[0]
    ran = {at for start, length, _ in rows for at in range(start, start + length)}
    first, last = min(start for start, _, _ in rows), max(start + length for start, length, _ in rows)
    assert (found["span_ns"], found["busy_ns"]) == (last - first, len(ran))


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_a_gap_waits_if_its_launch_returned_after_the_device_ran_out_of_work(rows):
    placed = joined(rows)
    found = gaps(placed.trace, placed.rows, "step")
    free_at = None
    returned = placed.trace.launches["end_ns"].to_numpy()[placed.rows["launch"].to_numpy()]
    for (_, row), late in zip(found.iterrows(), returned[found.index], strict=True):
        gap = 0 if free_at is None else max(row["start_ns"] - free_at, 0)
        assert row["gap_ns"] == gap
        assert row["waiting_ns"] == (gap if free_at is not None and late > free_at else 0)
        free_at = row["end_ns"]


@given(st.lists(st.integers(-3, 70_000), max_size=30))
def test_a_stable_order_keeps_equal_numbers_as_they_are(values):
    codes = np.asarray(values, dtype=np.int64)
    assert stable_order(codes).tolist() == sorted(range(len(values)), key=lambda at: values[at])
