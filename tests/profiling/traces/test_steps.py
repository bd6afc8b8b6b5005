"""Steps: whose ranges mark them, what belongs to each, which ones were cut."""

import numpy as np
import pytest

from dsv4bench.profiling.traces.columns import NO_ID, START_END
from dsv4bench.profiling.traces.ranges_of import launch_rows
from dsv4bench.profiling.traces.steps import WHOLE, cut_steps, find_steps
from tests.profiling.traces.timed_steps import Timed, steps_of


def found(made, **options):
    trace = made.trace()
    return find_steps(trace, launch_rows(trace), **options)


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (["ProfilerStep#3", "ProfilerStep#4", "step 1"], ["ProfilerStep#3", "ProfilerStep#4"]),
        (["dsv4bench:step=0 rank=0", "dsv4bench:step=0 layer=2 rank=0"], ["dsv4bench:step=0 rank=0"]),
        (["step0", "step1", "warmup"], ["step0", "step1"]),
        (["iteration 7", "aten::add"], ["iteration 7"]),
        (["step[DECODE bs=1]", "attention"], ["step[DECODE bs=1]"]),
        (["execute_context_1(888)_generation_0(0)"], ["execute_context_1(888)_generation_0(0)"]),
        (["stepper", "mystep", "layer3"], [WHOLE]),
    ],
    ids=["torch", "ours", "plain", "iteration", "sglang", "vllm", "none"],
)
def test_a_family_of_names_marks_the_steps(names, steps):
    made = Timed()
    for place, name in enumerate(names):
        made.range(name, 100 * place, 100 * place + 90)
    made.launched("a", 5, 50, 60)
    frame = found(made).frame
    assert frame["name"].tolist() == steps


def test_a_row_that_lost_its_time_does_not_stretch_the_whole_trace():
    trace = Timed().launched("a", 5, 50, 60).launched("b", 7, 70, 90).trace()
    trace.operations.loc[0, ["start_ns", "end_ns"]] = NO_ID
    frame = find_steps(trace, launch_rows(trace)).frame
    assert frame[["start_ns", "end_ns"]].to_numpy().tolist() == [[5, 90]]
    trace.operations[["start_ns", "end_ns"]] = NO_ID
    trace.launches[["start_ns", "end_ns"]] = NO_ID
    frame = find_steps(trace, launch_rows(trace)).frame
    assert frame[["start_ns", "end_ns"]].to_numpy().tolist() == [[NO_ID, NO_ID]]


def test_a_step_inside_a_step_is_none():
    made = Timed().range("step 1", 0, 100).range("step 2", 10, 20).range("step 3", 200, 300)
    assert found(made).frame["name"].tolist() == ["step 1", "step 3"]


def test_an_operation_belongs_where_it_was_launched_not_where_it_ran():
    made = Timed().range("step0", 0, 100).range("step1", 100, 200)
    made.launched("late", 50, 150, 160).launched("own", 120, 190, 195).launched("outside", 500, 510, 520)
    assert found(made).of_operations.tolist() == [0, 1, NO_ID]


def test_another_thread_of_the_process_launches_into_the_step():
    made = Timed().range("step0", 0, 100).launched("backward", 50, 60, 70, thread=9)
    assert found(made).of_operations.tolist() == [0]


def test_threads_with_steps_at_one_time_keep_to_their_own():
    made = Timed().range("step0", 0, 100).range("step1", 10, 90, thread=1)
    made.launched("a", 50, 60, 70, thread=1).launched("b", 51, 80, 90, thread=0)
    steps = found(made)
    names = steps.frame["name"].to_numpy()[steps.of_operations]
    assert names.tolist() == ["step1", "step0"]


def test_an_unclosed_step_ends_where_the_next_begins():
    made = Timed().range("step0", 0, NO_ID).range("step1", 100, NO_ID).launched("a", 150, 160, 170)
    steps = found(made)
    assert steps.frame[["start_ns", "end_ns"]].to_numpy().tolist() == [[0, 100], [100, 170]]
    assert [reason is not None for reason in cut_steps(steps, [0, 1])] == [True, True]


def test_start_end_ranges_mark_steps_only_on_request():
    made = Timed().range("step0", 0, 100, kind=START_END).launched("a", 50, 60, 70)
    assert [found(made).marked, found(made, start_end=True).marked] == [False, True]


def test_without_marks_the_labels_of_operations_tell_steps():
    made = Timed().launched("a", 10, 20, 30).launched("b", 40, 50, 60).launched("c", 70, 80, 90)
    steps = found(made, labelled=np.array([4, NO_ID, 5]))
    assert steps.frame["name"].tolist() == ["step 4", "step 5"]
    assert steps.of_operations.tolist() == [0, NO_ID, 1]
    assert steps.frame["start_ns"].tolist() == [10, 70]


def test_an_empty_trace_has_no_step():
    assert len(found(Timed()).frame) == 0


@pytest.mark.parametrize(
    ("lasts", "kernels", "cut"),
    [
        ([100, 100, 100, 37], None, [3]),
        ([100, 100, 100, 80], None, []),
        ([100, 100, 100, 37], [5, 5, 5, 5], []),
        ([100, 100, 100, 100], [5, 5, 5, 3], [3]),
        ([100, 100, 100, 100], [2, 5, 6, 5], [0]),
        ([100, 100], [5, 1], []),
    ],
    ids=["short-last", "nearly", "kernels-decide", "kernels-last", "kernels-first", "two-steps-cannot-tell"],
)
def test_first_and_last_steps_may_be_cut(lasts, kernels, cut):
    made, at = Timed(), 0
    for place, last in enumerate(lasts):
        made.range(f"step{place}", at, at + last)
        at += 1_000
    made.launched("a", 5, 6, 7)
    reasons = cut_steps(found(made), kernels)
    assert [place for place, reason in enumerate(reasons) if reason] == cut


def test_made_steps_are_what_other_tests_take_them_for():
    steps = found(steps_of(3, kernels=2, last_kernels=1))
    assert np.bincount(steps.of_operations).tolist() == [2, 2, 1]


def test_ranges_mark_no_steps_where_no_launch_tells_what_is_theirs():
    alone = Timed().range("step0", 0, 90).range("step1", 100, 190)
    assert found(alone).frame["name"].tolist() == ["step0", "step1"]
    steps = found(alone.op("a", 10, 20).op("b", 110, 120))
    assert (steps.frame["name"].tolist(), steps.of_operations.tolist(), steps.marked) == ([WHOLE], [0, 0], False)


def test_steps_that_overlap_are_both_steps():
    made = Timed().range("step0", 0, 100).range("step1", 60, 160).range("step2", 70, 150)
    for at in (10, 80, 155):
        made.launched("a", at, at + 1_000, at + 1_010)
    steps = found(made)
    assert steps.frame["name"].tolist() == ["step0", "step1"]
    assert steps.of_operations.tolist() == [0, 1, 1]
