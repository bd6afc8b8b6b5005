"""Launches into a capture: those between its begin and its end on the same thread."""

import numpy as np

from dsv4bench.profiling.traces.captures import in_capture
from dsv4bench.profiling.traces.ranges_of import kernel_launches
from tests.profiling.traces.timed_steps import Timed


def launches(*calls):
    """Return a trace of calls (name, time, thread) and which of them are in a capture."""
    made = Timed()
    for name, time, thread in calls:
        made.call(name, time, thread=thread)
    trace = made.trace()
    names = trace.names(trace.launches["name"])
    begins, ends = (names.str.contains(word).to_numpy(dtype=bool) for word in ("BeginCapture", "EndCapture"))
    return trace, in_capture(trace, begins, ends)


BEGIN, END, KERNEL = "cudaStreamBeginCapture_v10000", "cudaStreamEndCapture_v10000", "cudaLaunchKernel"


def test_what_lies_between_begin_and_end_on_their_thread_is_captured():
    calls = [(KERNEL, 0, 0), (BEGIN, 10, 0), (KERNEL, 20, 0), (KERNEL, 21, 1), (END, 30, 0), (KERNEL, 40, 0)]
    trace, captured = launches(*calls)
    kernels = np.array([name == KERNEL for name, _, _ in calls])
    assert captured[kernels].tolist() == [False, True, False, False]
    assert kernel_launches(trace).tolist() == (kernels & ~captured).tolist()


def test_captures_one_after_another_leave_what_lies_between_them():
    _, captured = launches((BEGIN, 0, 0), (END, 10, 0), (KERNEL, 20, 0), (BEGIN, 30, 0), (KERNEL, 40, 0), (END, 50, 0))
    assert captured[[2, 4]].tolist() == [False, True]


def test_a_capture_that_does_not_end_lasts():
    _, captured = launches((KERNEL, 0, 0), (BEGIN, 10, 0), (KERNEL, 20, 0), (END, 5, 0))
    assert captured[[0, 3]].tolist() == [False, True]


def test_without_a_capture_nothing_is_captured():
    assert not launches((KERNEL, 0, 0))[1].any()
    assert len(launches()[1]) == 0
