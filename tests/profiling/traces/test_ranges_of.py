import pytest

from dsv4bench.profiling.traces.columns import COPY, KERNEL, MARK, NO_ID, SET, START_END
from dsv4bench.profiling.traces.ranges_of import METHODS, classes, graph_launch_rows, ranges_of
from tests.profiling.traces.made_rows import Made, texts


def found_in(made, kind=0):
    trace = made.trace()
    found = ranges_of(trace, kind)
    return texts(trace, found.range), found


@pytest.mark.parametrize(
    ("at_ns", "thread", "process", "expected"),
    [
        (5, 0, 0, None),
        (10, 0, 0, "step"),
        (25, 0, 0, "layer"),
        (35, 0, 0, "op"),
        (41, 0, 0, "layer"),
        (61, 0, 0, "step"),
        (101, 0, 0, None),
        (35, 1, 0, None),
        (35, 0, 1, "of another process"),
    ],
    ids=[
        "before all",
        "at the start of a range",
        "in a range",
        "in a range within",
        "after the inner one",
        "after both",
        "after all",
        "on a thread without ranges",
        "the same thread number in another process",
    ],
)
def test_an_operation_belongs_to_the_innermost_range_open_at_its_launch(at_ns, thread, process, expected):
    made = Made().opened("step", 10, 100).opened("layer", 20, 60).opened("op", 30, 40)
    made.opened("of another process", 0, 100, process=1).opened("a mark", 35, 35, kind=MARK)
    made.launched(at_ns, 5, thread=thread, process=process).ran(5, process=process)
    made.launched(38, 5, process=2)  # the same correlation id in yet another process
    assert found_in(made)[0] == [expected]


def test_every_enclosing_range_is_in_the_chain():
    made = Made().opened("step", 10, 100).opened("layer", 20, 60).opened("op", 30, 40)
    made.launched(35, 1).ran(1).launched(50, 2).ran(2).launched(200, 3).ran(3)
    trace = made.trace()
    operations, ranges = ranges_of(trace).chain()
    pairs = sorted(zip(operations.tolist(), texts(trace, ranges.tolist()), strict=True))
    assert pairs == [(0, "layer"), (0, "op"), (0, "step"), (1, "layer"), (1, "step")]


@pytest.mark.parametrize(
    "names", [["cuLaunchKernelEx", "cudaGraphLaunch"], ["cudaGraphLaunch_v10000", "cuLaunchKernel"]]
)
def test_a_graph_launch_decides_among_calls_of_one_correlation_id(names):
    made = Made().opened("around", 0, 100)
    for place, name in enumerate(names):
        made.launched(10 + place, 4, name)
    ranges, found = found_in(made.ran(4))
    assert ranges == [None]
    assert found.in_graph.tolist() == [True]
    assert found.coverage().in_graphs == 1


def test_a_call_that_launches_work_decides_over_others_and_the_innermost_over_those_around():
    made = Made().opened("outer", 0, 100).opened("inner", 20, 30)
    made.launched(10, 1, "cudaLaunchKernel", length_ns=50).launched(25, 1, "cuLaunchKernel").launched(
        40, 1, "cuFuncLoad"
    ).ran(1)
    assert found_in(made)[0] == ["inner"]


def test_start_end_ranges_hold_every_thread_of_their_process_and_are_ambiguous_where_two_are_open():
    made = Made().opened("push", 0, 100).opened("first", 0, 20, thread=1, kind=START_END)
    made.opened("second", 15, 40, thread=2, kind=START_END)
    for correlation, at_ns in enumerate((10, 18, 30, 50)):
        made.launched(at_ns, correlation).ran(correlation)
    assert found_in(made)[0] == ["push", "push", "push", "push"]
    ranges, found = found_in(made, START_END)
    assert ranges == ["first", None, "second", None]
    coverage = found.coverage()
    assert (coverage.attributed, coverage.ambiguous, coverage.unattributed) == (2, 1, 1)


def test_a_range_that_was_never_closed_runs_to_the_end_and_is_noted():
    made = Made().opened("killed", 10, NO_ID).opened("done", 20, 30).launched(25, 1).ran(1).launched(9_000, 2).ran(2)
    ranges, found = found_in(made)
    assert ranges == ["done", "killed"]
    assert found.notes == ("1 ranges were never closed: taken to run to the end of the trace",)


def test_the_kinds_of_coverage_are_all_operations_together():
    made = Made().opened("here", 10, 20).launched(15, 1).ran(1)  # attributed
    made.launched(30, 2).ran(2).ran(NO_ID).ran(99)  # outside, without an id, with an id of no launch
    made.launched(15, 3, "cudaGraphLaunch").ran(3).ran(3)  # a replay that tells nothing
    made.launched(16, 4)  # a kernel that never came
    coverage = ranges_of(made.trace()).coverage()
    assert (coverage.attributed, coverage.unattributed, coverage.ambiguous, coverage.in_graphs) == (1, 3, 0, 2)
    assert (coverage.total, coverage.lost, coverage.complete) == (6, 1, False)
    assert coverage.method == "launch correlation"


def test_a_trace_without_kernels_has_lost_none():
    made = Made().launched(16, 4)
    assert ranges_of(made.trace(recorded=["launches"])).coverage().lost == 0


@pytest.mark.parametrize("empty", [Made(), Made().ran(1), Made().launched(1, 1), Made().opened("x", 1, 2)])
def test_tables_without_rows_are_no_ranges(empty):
    trace = empty.trace()
    found = ranges_of(trace)
    assert found.range.tolist() == [NO_ID] * len(trace.operations)
    assert found.chain()[0].tolist() == []


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("memcpy128", "kernel", COPY),
        ("memcpy32_post", "kernel", COPY),
        ("memset128", "kernel", SET),
        ("my_memcpy128", "kernel", KERNEL),
        ("memcpy128", "set", SET),
        ("Memcpy DtoD", "copy", COPY),
    ],
)
def test_copies_in_disguise_are_copies(name, kind, expected):
    assert classes(Made().ran(1, name, kind).trace()).tolist() == [expected]


def test_a_replayed_operation_belongs_to_the_range_of_its_capture():
    made = Made().opened("kv_source=2", 10, 20).opened("step0", 100, 200)
    made.node(1 << 32 | 7, NO_ID, 15).node(2 << 32 | 7, 1 << 32 | 7, 50)
    made.launched(150, 9, "cudaGraphLaunch").ran(9, node=2 << 32 | 7)
    trace = made.trace()
    found = ranges_of(trace)
    assert texts(trace, found.range) == ["kv_source=2"]
    assert texts(trace, found.around) == ["step0"]
    assert [METHODS[code] for code in found.method] == ["capture of the graph node"]
    assert found.coverage().complete


def test_an_id_that_is_used_again_after_its_launch_tells_no_launch():
    made = Made().opened("first", 0, 50).opened("second", 100, 150)
    made.launched(5, 1).launched(105, 1).launched(110, 2)
    made.ran(1, start_ns=10).ran(1, start_ns=120).ran(2, start_ns=130)
    found = ranges_of(made.trace())
    assert found.launch.tolist() == [NO_ID, NO_ID, 2]
    assert (found.coverage().attributed, found.coverage().unattributed, found.lost) == (1, 2, 1)


def test_launches_without_an_id_are_launches_of_their_own():
    made = Made()
    for at in range(3):
        made.launched(at, NO_ID, "cudaGraphLaunch").launched(100 + at, NO_ID)
    made.launched(10, 5, "cudaGraphLaunch", length_ns=9).launched(12, 5, "cuGraphLaunch")
    trace = made.trace()
    assert graph_launch_rows(trace).tolist() == [0, 1, 2, 4]
    assert ranges_of(trace).lost == 3
