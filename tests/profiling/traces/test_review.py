"""Reviews of made traces: totals, steps, groups, ranks; and the counted truth of real ones."""

import math

import pytest

from dsv4bench.errors import TraceFormatError, UsageError
from dsv4bench.profiling.traces.columns import table
from dsv4bench.profiling.traces.labels import label
from dsv4bench.profiling.traces.open_trace import open_trace
from dsv4bench.profiling.traces.placed import place
from dsv4bench.profiling.traces.ranges_of import ranges_of
from dsv4bench.profiling.traces.review import chosen_operations, review
from dsv4bench.results.reviews import whole
from tests.profiling.traces.shared_traces import FOLDER, counted, needs_traces
from tests.profiling.traces.timed_steps import ALL, Timed, steps_of

COUNTS = ("kernels", "copies", "sets")


def placed(made, **more):
    trace = made.trace(**more)
    found = ranges_of(trace)
    return place(found, label(trace, found))


def reviewed(made, axes=("kernel",), only=None, **more):
    return review([placed(made, **more)], axes, only=only)


def test_totals_count_what_the_trace_calls_each_operation():
    made = Timed().launched("a", 0, 10, 20).launched("b", 1, 20, 50)
    made.launched("Memcpy", 2, 60, 70, kind="copy", size=64).launched("Memset", 3, 80, 81, kind="set", size=8)
    totals = reviewed(made).totals
    assert [getattr(totals, name) for name in COUNTS] == [2, 1, 1]
    assert (totals.kernel_sum_ns, totals.copy_bytes, totals.set_bytes) == (40, 64, 8)
    assert (totals.graph_launches, totals.kernels_in_graphs, totals.launches) == (0, 0, 4)


@pytest.mark.parametrize(
    ("missing", "none"),
    [
        ("kernels", ["kernels", "kernels_in_graphs", "kernel_sum_ns"]),
        ("copies", ["copies", "copy_bytes"]),
        ("sets", ["sets", "set_bytes"]),
        ("launches", ["graph_launches", "kernels_in_graphs", "launches"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_recorded_is_none_and_never_zero(missing, none):
    totals = reviewed(Timed(), recorded=ALL - {missing}).totals
    assert [name for name in totals.__dataclass_fields__ if getattr(totals, name) is None] == sorted(
        none, key=list(totals.__dataclass_fields__).index
    )


def graph_of_two(made, at):
    """Replay a graph of two kernels, one of which is a copy in disguise."""
    graph = made.call("cudaGraphLaunch", at)
    made.op("a", at + 50, at + 150, graph).op("memcpy128", at + 150, at + 200, graph)


def test_a_graph_launch_is_one_launch_of_many_kernels():
    made = Timed().range("step0", 0, 500)
    graph_of_two(made, 10)
    found = reviewed(made)
    assert (found.totals.graph_launches, found.totals.kernels, found.totals.kernels_in_graphs) == (1, 2, 2)
    step = found.steps[0]  # in steps and groups a copy in a kernel's guise is a copy
    assert (step.kernels, step.copies, step.graph_launches, step.kernels_in_graphs) == (1, 1, 1, 1)
    assert {row.keys["kernel"]: (row.kernels, row.copies, row.in_graphs) for row in found.by["kernel"]} == {
        "a": (1, 0, 1),
        "memcpy128": (0, 1, 1),
    }


def test_a_step_has_host_span_busy_sum_and_waiting_time():
    made = Timed().range("step0", 0, 1_000)
    made.launched("a", 10, 100, 200)
    made.launched("b", 20, 150, 250, stream=8)  # overlaps by 50
    made.launched("c", 30, 300, 400)  # a gap of 50, though it was launched long ago
    made.launched("d", 500, 550, 600)  # a gap of 150, in which nothing was launched
    step = reviewed(made).steps[0]
    assert (step.host_ns, step.span_ns, step.busy_ns) == (1_000, 500, 300)
    assert (step.kernel_sum_ns, step.waiting_ns) == (350, 150)


def test_the_gap_between_steps_is_no_ones():
    found = reviewed(steps_of(3, kernels=1))
    assert [(step.span_ns, step.busy_ns, step.waiting_ns) for step in found.steps] == [(100, 100, 0)] * 3


def test_a_cut_step_is_shown_and_left_out_of_what_a_step_has():
    found = reviewed(steps_of(4, kernels=3, last_kernels=1))
    assert [step.cut is None for step in found.steps] == [True, True, True, False]
    assert {row.keys["kernel"]: (row.kernels, row.per_step) for row in found.by["kernel"]} == {
        "kernel0": (4, (1, 1)),
        "kernel1": (3, (1, 1)),
        "kernel2": (3, (1, 1)),
    }


def test_a_mean_would_hide_uneven_steps():
    made = steps_of(3, kernels=2)
    made.launched("kernel0", 1_050, 1_700, 1_800)
    rows = {row.keys["kernel"]: row.per_step for row in reviewed(made).by["kernel"]}
    assert rows == {"kernel0": (1, 2), "kernel1": (1, 1)}


def test_a_kernel_of_one_step_only_is_zero_in_the_others():
    made = steps_of(3, kernels=1).launched("odd", 1_050, 1_700, 1_800)
    rows = {row.keys["kernel"]: row.per_step for row in reviewed(made).by["kernel"]}
    assert rows["odd"] == (0, 1)


def test_groups_by_layer_source_and_op_come_from_our_ranges():
    made = Timed()
    for layer, source, at in ((2, 2, 0), (3, 2, 100), (8, 8, 200)):
        made.range(
            f"dsv4bench:step=0 layer={layer} ratio=1 kv_source={source} op=dequant_compressed rank=0", at, at + 90
        )
        made.launched("dequant", at + 10, at + 20, at + 30)
    found = reviewed(made, ("layer", "kv_source", "op", "op and kv_source", "stream", "range"))
    counts = {axis: {tuple(row.keys.values()): row.kernels for row in rows} for axis, rows in found.by.items()}
    assert counts["layer"] == {(2,): 1, (3,): 1, (8,): 1}
    assert counts["kv_source"] == {(2,): 2, (8,): 1}
    assert counts["op"] == {("dequant_compressed",): 3}
    assert counts["op and kv_source"] == {("dequant_compressed", 2): 2, ("dequant_compressed", 8): 1}
    assert counts["stream"] == {(0, 7): 3}
    assert len(counts["range"]) == 3
    assert sum(row.share for row in found.by["layer"]) == pytest.approx(1)


def test_chosen_steps_count_in_steps_and_groups_but_not_in_totals():
    made = steps_of(5, kernels=2)
    found = reviewed(made, only=(1, 2))
    assert [step.number for step in found.steps] == [1, 2]
    assert {row.keys["kernel"]: row.kernels for row in found.by["kernel"]} == {"kernel0": 2, "kernel1": 2}
    assert found.totals.kernels == 10
    assert chosen_operations(placed(made), (1, 2)).sum() == 4


def test_steps_have_the_numbers_of_their_names():
    found = reviewed(steps_of(3, name="ProfilerStep#1{}"), only=(11, 11))
    assert [(step.number, step.name) for step in found.steps] == [(11, "ProfilerStep#11")]


def test_ranks_of_two_formats_name_both():
    ranks = [place(ranges_of(steps_of(1).trace(format=name))) for name in ("nsys", "kineto", "nsys")]
    found = review(ranks, []).head
    assert (found.format, found.source) == ("nsys and kineto", "made and 2 more ranks")


def test_a_step_whose_device_was_not_recorded_has_no_times():
    made = Timed().range("step0", 0, 90)
    made.call("cudaLaunchKernel", 10)
    (step,) = review([place(ranges_of(made.trace(recorded=("launches", "annotations"))))], []).steps
    assert (step.kernels, step.span_ns, step.busy_ns, step.waiting_ns, step.host_ns) == (None, None, None, None, 90)


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["dsv4bench:step=0 rank=3"], [0]),
        (["dsv4bench:step=0 rank=0", "dsv4bench:step=0 rank=0"], [0, 1]),
        (["step[DECODE bs=32]", "step[EXTEND bs=8]"], [0, 1]),
        (["train_step_7", "train_step_8"], [7, 8]),
        (["step 7", f"step {'9' * 5_000}"], [0, 1]),
    ],
    ids=["ours", "ours-twice", "no-numbers", "words", "too-long"],
)
def test_a_number_is_that_of_the_step_or_its_place(names, numbers):
    made = Timed()
    for at, name in enumerate(names):
        made.range(name, 100 * at, 100 * at + 90)
    assert [step.number for step in reviewed(made).steps] == numbers


def test_a_step_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(UsageError, match="--steps 7-9: no such step; this trace has 0 to 2"):
        reviewed(steps_of(3), only=(7, 9))


def test_ranks_have_a_straggler_in_each_step():
    ranks = [placed(steps_of(4, kernels=count), rank=rank, source=f"rank{rank}") for rank, count in ((0, 2), (1, 3))]
    found = review(ranks, ["kernel"])
    assert [(row.rank, row.steps, row.kernels, row.slowest) for row in found.ranks] == [(0, 4, 8, 0.0), (1, 4, 12, 1.0)]
    assert found.totals.kernels == 20
    assert {row.keys["kernel"]: (row.kernels, row.per_step) for row in found.by["kernel"]} == {
        "kernel0": (8, (1, 1)),
        "kernel1": (8, (1, 1)),
        "kernel2": (4, (0, 1)),  # rank 0 does not launch it
    }


def test_a_rank_that_launches_nothing_is_no_zero_of_the_others():
    """It sat the step out, as a rank without requests does."""
    ranks = [placed(steps_of(2, kernels=count), rank=rank, source=f"rank{rank}") for rank, count in ((0, 1), (1, 0))]
    (row,) = review(ranks, ["kernel"]).by["kernel"]
    assert (row.kernels, row.per_step) == (2, (1, 1))


def test_what_one_rank_did_not_record_is_not_known_of_all():
    ranks = [placed(steps_of(2)), placed(steps_of(2), recorded=ALL - {"sets"})]
    found = review(ranks, ["kernel"])
    assert (found.totals.sets, found.totals.kernels) == (None, 8)
    assert "sets" in found.head.not_recorded


def test_whole_steps_are_all_where_all_were_cut():
    steps = reviewed(Timed().range("step0", 0, -1).launched("a", 1, 2, 3)).steps
    assert steps[0].cut == "its range was never closed"
    assert whole(steps) == steps


@pytest.mark.parametrize(
    ("calls", "mode"),
    [(["cudaLaunchKernel"], "eager"), (["cudaLaunchKernel", "cudaGraphLaunch"], "graphs"), ([], "eager")],
    ids=["eager", "graphs", "nothing"],
)
def test_the_head_says_how_kernels_were_launched(calls, mode):
    made = Timed()
    for call in calls:
        made.op("a", 50, 60, made.call(call, 10))
    assert reviewed(made).head.graph_mode == mode


def test_the_head_names_devices_once_with_their_number():
    trace = Timed().trace()
    trace = Timed().trace(devices=trace.devices * 8)
    found = ranges_of(trace)
    assert review([place(found)], []).head.devices == ["8 x NVIDIA H200"]


def test_graphs_as_wholes_keep_the_device_busy_and_hide_their_kernels():
    made = Timed().range("step0", 0, 1_000).launched("a", 10, 100, 200)
    graph = made.call("cudaGraphLaunch", 30)
    columns = {"start_ns": [200], "end_ns": [900], "process": [0], "device": [0], "correlation": [graph]}
    found = reviewed(made, graph_runs=table("graph_runs", columns))
    assert (found.totals.kernels, found.totals.kernels_in_graphs) == (1, None)
    step = found.steps[0]
    assert (step.span_ns, step.busy_ns, step.kernel_sum_ns, step.kernels_in_graphs) == (800, 800, 100, None)
    assert found.head.graph_mode == "graphs, traced as wholes"


def test_a_copy_in_a_kernels_guise_is_told():
    made = Timed()
    graph_of_two(made, 10)
    assert reviewed(made).notes == ["1 kernels of the totals are copies or fills (memcpy128); below they count as such"]


def wanted(entry):
    """Return the truth of a file by the names of `Totals`; None where the file has no such table."""
    truth = entry["truth"]
    names = {"kernels": "kernels", "copies": "memcpy", "sets": "memset", "graph_launches": "graph_launch_calls"}
    found = {ours: truth.get(theirs) for ours, theirs in names.items()}
    found["kernels_in_graphs"] = truth.get("kernels_in_graph_launch", truth.get("kernels_correlated_to_graph_launch"))
    time = truth.get("kernel_time_us")
    found["kernel_sum_ns"] = None if time is None else round(time * 1_000)
    return {name: None if isinstance(value, str) else value for name, value in found.items()}


@needs_traces
@pytest.mark.corpus
@pytest.mark.parametrize(
    "entry", list(counted(lambda entry: True).values()), ids=lambda entry: entry["dst"].rsplit("/", 1)[-1]
)
def test_a_review_gives_the_counted_truth(entry):
    if "kernels" not in entry["truth"]:
        with pytest.raises(TraceFormatError, match=entry["dst"].rsplit("/", 1)[-1]):
            open_trace(FOLDER / "real" / entry["dst"])
        return
    try:
        traces = open_trace(FOLDER / "real" / entry["dst"])
    except TraceFormatError:
        assert entry["truth"]["kernels"] in (0, "no table")  # another kind of file
        return
    totals = review([place(ranges_of(trace)) for trace in traces], []).totals
    for name, value in wanted(entry).items():
        # a file that shows nothing of a kind did not record it, which independent code counts as 0
        assert getattr(totals, name) == value or (getattr(totals, name) is None and not value), name


@needs_traces
@pytest.mark.corpus
def test_a_replay_of_the_probe_launches_five_kernels_and_a_copy_for_each_source():
    (trace,) = open_trace(FOLDER / "h200" / "probe_graph_node.sqlite")
    found = ranges_of(trace)
    probe = place(found, label(trace, found))
    for step in (0, 1, 2):
        rows = review([probe], ["kv_source"], only=(step, step)).by["kv_source"]
        assert {row.keys["kv_source"]: (row.kernels, row.copies, row.in_graphs) for row in rows} == dict.fromkeys(
            (2, 8, 14, 20), (5, 1, 6)
        )


@needs_traces
@pytest.mark.corpus
@pytest.mark.parametrize("file", sorted((FOLDER / "broken").glob("*")) if FOLDER.exists() else [], ids=lambda f: f.name)
def test_a_broken_file_gives_counts_or_one_error(file):
    try:
        traces = open_trace(file)
    except TraceFormatError as error:
        said = str(error)
    else:
        found, said = review([place(ranges_of(trace)) for trace in traces], ["kernel"]), f"{file}"
        assert found.totals.kernels is None or found.totals.kernels > 0
        assert all(math.isfinite(row.share) for row in found.by["kernel"])
    assert said.startswith(str(file))
    assert "\n" not in said
