"""The doctor: a healthy trace has no finding, each planted fault has its own, with the numbers behind it."""

import re

import numpy as np
import pytest

from dsv4bench.profiling.traces.columns import NO_ID, START_END, Device, table
from dsv4bench.profiling.traces.doctor import examine
from dsv4bench.profiling.traces.labels import label
from dsv4bench.profiling.traces.open_trace import open_trace
from dsv4bench.profiling.traces.placed import place
from dsv4bench.profiling.traces.ranges_of import ranges_of
from dsv4bench.ranges import Range
from tests.profiling.traces.shared_traces import FOLDER, needs_traces
from tests.profiling.traces.timed_steps import ALL, Timed, steps_of
from tests.source_tree import ROOT


def placed(trace):
    found = ranges_of(trace)
    return place(found, label(trace, found))


def found_in(trace):
    """Return the findings by code."""
    return {finding.code: finding for finding in examine([placed(trace)])}


def healthy():
    """Return a Timed of four equal steps whose kernels follow each other closely."""
    made = Timed()
    for step in range(4):
        begin = step * 10_000
        made.range(f"step{step}", begin, begin + 9_000)
        for at in range(3):
            made.launched(f"kernel{at}", begin + 20 * at, begin + 1_000 + 110 * at, begin + 1_100 + 110 * at)
    return made


def test_a_healthy_trace_has_no_finding():
    assert examine([placed(healthy().trace())]) == []


def graphs_as_wholes():
    made = healthy()
    runs = {"start_ns": [0, 1_000], "end_ns": [780, 1_780], "process": [0, 0], "device": [0, 0], "correlation": [1, 2]}
    return made.trace(graph_runs=table("graph_runs", runs), recorded=ALL | {"graph_runs"})


def importer_too_old():
    return Timed().trace(recorded=(), facts={"collected": "Cuda, NvtxEvents"}, format="nsys")


def host_alone():
    made = Timed()
    made.call("cudaLaunchKernel", 10)
    return made.trace(recorded=("launches", "annotations"))


def capture_alone():
    made = Timed()
    made.call("cudaStreamBeginCapture_v10000", 0)
    for at in range(5):
        made.call("cudaLaunchKernel", 100 + 10 * at)
    made.call("cudaStreamEndCapture", 500)
    return made.trace(recorded=("launches",))


def kernels_lost():
    made = healthy()
    for at in range(10):
        made.call("cudaLaunchKernel", 40_000 + at * 20)
    return made.trace()


def empty_graphs():
    made = healthy()
    made.call("cudaGraphLaunch_v10000", 50_000)
    return made.trace()


def no_launches():
    return Timed().op("a", 10, 20).op("b", 20, 30).trace(recorded=ALL - {"launches"})


def launched_before():
    return healthy().op("early", 5, 10, 999_999).trace()


def ids_lost():
    """Three kernels of the healthy trace keep no correlation id."""
    made = healthy()
    for row in made.rows["operations"][:3]:
        row["correlation"] = NO_ID
    return made.trace()


def id_used_again():
    """Two launches of one process that follow one another have one id, as have their kernels."""
    made = healthy()
    for row in (made.rows["launches"][1], made.rows["operations"][1]):
        row["correlation"] = made.rows["launches"][0]["correlation"]
    return made.trace()


def starts_and_ends():
    made = Timed().range("layer.1", 0, 1_000, kind=START_END)
    return made.launched("a", 10, 100, 200).launched("b", 30, 200, 300).trace()


def graph_of_before():
    made = healthy()
    graph = made.call("cudaGraphLaunch", 50_000)
    return made.op("a", 50_100, 50_200, graph).op("b", 50_200, 50_300, graph).trace()


def never_closed():
    return healthy().range("open", 100, NO_ID).trace()


def clocks_apart():
    return healthy().launched("early", 9_000, 4_000, 4_100).trace()


def overlapping():
    return healthy().launched("dependent", 30, 1_300, 1_500).launched("next", 31, 1_450, 1_600).trace()


def without_duration():
    made = healthy().launched("none", 40, 1_330, 1_330)
    return made.launched("lost", 41, NO_ID, NO_ID).trace()


def loop_without_flush():
    made = Timed()
    for at in range(25):
        made.launched("gemm", 10 * at, 1_000 + 100 * at, 1_090 + 100 * at)
    return made.trace()


def flush_inside():
    made = Timed()
    for step in range(4):
        begin = step * 1_000_000
        made.range(f"step{step}", begin, begin + 900_000)
        made.launched("fill", begin, begin + 1_000, begin + 251_000, kind="set")
        made.launched("gemm", begin + 20, begin + 251_000, begin + 256_000)
    return made.trace()


def waiting_for_launches():
    made = Timed().range("step0", 0, 100_000)
    for at in range(10):  # kernels of 2 us every 8 us, each launched just before it runs
        made.launched(f"k{at % 3}", 8_000 * at + 100, 8_000 * at + 200, 8_000 * at + 2_200)
    return made.trace()


def last_step_cut():
    return steps_of(4, kernels=3, last_kernels=1).trace()


def uneven():
    made = healthy()
    return made.launched("extra", 10_100, 11_500, 11_600).trace()


CASES = {
    "graph-mode-hides-kernels": (graphs_as_wholes, True, {"graph_runs": 2, "graph_ns": 1_560}),
    "collected-but-absent": (importer_too_old, True, {"collected": "Cuda, NvtxEvents"}),
    "kernels-not-recorded": (host_alone, True, {"kernel_launches": 1}),
    "capture-not-run": (capture_alone, True, {"captured_launches": 5, "kernels": 0}),
    "launches-without-kernels": (kernels_lost, True, {"kernel_launches": 10, "graph_launches": 0}),
    "no-launch-rows": (no_launches, False, {"operations": 2}),
    "kernels-without-launch": (launched_before, False, {"without_launch": 1}),
    "capture-before-window": (graph_of_before, False, {"replayed": 2, "without_range": 2}),
    "start-end-unused": (starts_and_ends, False, {"ranges": 1}),
    "unclosed-ranges": (never_closed, False, {"ranges": 1}),
    "clock-skew": (clocks_apart, False, {"operations": 1, "most_ns": 5_000}),
    "overlap-on-one-stream": (overlapping, False, {"operations": 2, "most_ns": 50}),
    "zero-duration-kernels": (without_duration, False, {"kernels": 2, "without_start": 1}),
    "no-l2-flush": (loop_without_flush, False, {"in_a_row": 25, "kernel": "gemm"}),
    "flush-in-step": (flush_inside, False, {"fills": 4}),
    "launch-bound": (waiting_for_launches, False, {"waiting_ns": 54_000, "span_ns": 74_000}),
    "cut-steps": (last_step_cut, False, {"cut": 1}),
    "uneven-steps": (uneven, False, {"least": 3, "most": 4}),
}


@pytest.mark.parametrize("code", CASES)
def test_each_fault_has_its_finding_with_its_numbers(code):
    make, wrong, evidence = CASES[code]
    finding = found_in(make())[code]
    assert finding.wrong is wrong
    assert evidence.items() <= dict(finding.evidence).items()
    assert finding.command


@pytest.mark.parametrize(("make", "count"), [(ids_lost, 3), (id_used_again, 2)])
def test_kernels_whose_launch_cannot_be_told_are_not_said_to_be_missing_or_from_before(make, count):
    found = found_in(make())
    lost, alone = found["launches-without-kernels"], found["kernels-without-launch"]
    assert f"{count} kernels may be theirs, whose launch cannot be told" in lost.text
    assert alone.text.endswith(f"in the file: {count} that name no launch, or several")
    assert alone.evidence["unclear"] == count


CPU_ONLY = "no device operation is in it, nor a call that launches one: recorded "


@pytest.mark.parametrize(
    ("form", "devices", "text", "command"),
    [
        ("kineto", (), f"{CPU_ONLY}on a CPU or without ProfilerActivity.CUDA", "on a GPU: torch.profiler"),
        ("kineto", (Device(0, "NVIDIA H200"),), f"{CPU_ONLY}without ProfilerActivity.CUDA", "torch.profiler"),
        ("nsys", (), f"{CPU_ONLY}on a CPU or without -t cuda", "on a GPU: nsys profile"),
    ],
    ids=["no GPU is known", "a GPU is known", "nsys"],
)
def test_a_trace_without_launches_does_not_say_that_there_was_a_gpu(form, devices, text, command):
    trace = Timed().range("aten::mm", 0, 100).trace(recorded=("annotations",), format=form, devices=devices)
    found = found_in(trace)["kernels-not-recorded"]
    assert found.text == text
    assert found.command.startswith(command)


def test_a_capture_of_a_graph_that_was_launched_is_no_capture_alone():
    made = Timed()
    made.call("cudaStreamBeginCapture", 0)
    made.call("cudaLaunchKernel", 100)
    made.call("cudaStreamEndCapture", 500)
    made.call("cudaGraphLaunch", 600)
    assert set(found_in(made.trace(recorded=("launches",)))) == {"kernels-not-recorded"}


def test_kernels_that_lost_their_time_have_no_clock():
    assert "clock-skew" not in found_in(without_duration())


def test_clocks_that_differ_tell_nothing_of_waiting():
    made = Timed().range("step0", 0, 100_000)
    for at in range(10):  # as waiting_for_launches, the device's clock 5 us late
        made.launched(f"k{at % 3}", 8_000 * at + 5_100, 8_000 * at + 200, 8_000 * at + 2_200)
    assert set(found_in(made.trace())) == {"clock-skew"}
    assert [step.waiting_ns for step in placed(made.trace()).told] == [None]


@pytest.mark.parametrize(("text", "command"), [("decode", "nsys profile"), (Range().text(), "--ledger RECORDS")])
def test_replays_of_our_own_runs_have_their_capture_in_a_record(text, command):
    made = Timed().range(text, 0, 1_000)
    made.op("a", 100, 200, made.call("cudaGraphLaunch", 10))
    assert found_in(made.trace())["capture-before-window"].command.startswith(command)


def test_a_replay_outside_of_ranges_is_not_one_of_before_the_window():
    made = healthy()
    nodes = {"node": [11, 12], "original": [NO_ID, NO_ID], "time_ns": [9_500, 50], "process": [0, 0], "thread": [0, 0]}
    graph = made.call("cudaGraphLaunch", 50_000)
    for number in (11, 12, 13):  # captured outside of ranges, captured in step0, captured before
        made.op(f"k{number}", 50_000 + 100 * number, 50_050 + 100 * number, graph, node=number)
    found = found_in(made.trace(format="nsys", graph_nodes=table("graph_nodes", nodes)))
    assert found["capture-before-window"].evidence == {"replayed": 3, "without_range": 1}
    assert found["incomplete-attribution"].evidence == {"unattributed": 1, "ambiguous": 0, "operations": 15}


def test_a_graph_launch_without_a_kernel_is_lost_too():
    evidence = found_in(empty_graphs())["launches-without-kernels"].evidence
    assert (evidence["kernel_launches"], evidence["graph_launches"]) == (0, 1)


@pytest.mark.parametrize(
    ("repair", "wrong"),
    [
        ("the gzip stream ends early after 10 of its 20 bytes", True),
        ("events of another kind, left out: 3", True),
        ("a byte order mark stands before the JSON; it was skipped", False),
    ],
    ids=["cut", "left-out", "harmless"],
)
def test_a_repair_makes_counts_wrong_where_something_is_lost(repair, wrong):
    finding = found_in(healthy().trace(repairs=(repair,)))["repaired"]
    assert (finding.wrong, finding.text) == (wrong, repair)


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"world_size": "8"}, "one-of-N-processes"),
        ({"python_functions": "1000"}, "python-stacks-dominate"),
        ({"warnings": "No CUDA events collected."}, "profiler-warnings"),
    ],
    ids=["rank", "stacks", "warnings"],
)
def test_what_a_file_says_of_itself_is_a_finding(facts, code):
    assert list(found_in(healthy().trace(facts=facts))) == [code]


@pytest.mark.parametrize("facts", [{"world_size": "1"}, {"python_functions": "3"}, {"api_calls_skipped": "true"}])
def test_a_fact_that_harms_nothing_is_none(facts):
    assert found_in(healthy().trace(facts=facts)) == {}


def test_findings_that_make_counts_wrong_come_first():
    trace = overlapping()
    wrong = [finding.wrong for finding in examine([placed(kernels_lost()), placed(trace)])]
    assert wrong == sorted(wrong, reverse=True)


def test_findings_of_ranks_name_their_rank():
    ranks = [placed(healthy().trace(rank=0)), placed(kernels_lost())]
    (finding,) = examine(ranks)
    assert finding.text.startswith("rank 1: ")
    assert finding.evidence["rank"] == 1


@pytest.mark.parametrize(("ranks", "said"), [(1, "this is rank 0 of 3"), (2, "these are 2 ranks of 3"), (3, None)])
def test_ranks_that_are_not_there_are_one_finding_and_none_where_all_are(ranks, said):
    found = examine([placed(healthy().trace(rank=rank, facts={"world_size": "3"})) for rank in range(ranks)])
    assert [finding.text.partition(":")[0] for finding in found] == ([] if said is None else [said])


def test_no_count_of_a_finding_is_a_numpy_number():
    for make, _, _ in CASES.values():
        values = [value for finding in examine([placed(make())]) for value in finding.evidence.values()]
        assert not [value for value in values if isinstance(value, np.generic)]


def test_the_page_names_every_code_and_whether_it_makes_counts_wrong():
    rooms = [ROOT / "dsv4bench" / "profiling" / "traces" / f"doctor_{name}.py" for name in ("counts", "times")]
    codes = re.findall(r'Finding\(\s*"([\w-]+)"', "".join(room.read_text(encoding="utf-8") for room in rooms))
    page = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `([\w-]+)` \| (yes|no|where rows were lost) \|", page, re.MULTILINE))
    assert sorted(told) == sorted(codes)
    assert {code: told[code] for code in CASES} == {
        code: "yes" if wrong else "no" for code, (_, wrong, _) in CASES.items()
    }


REAL = {
    "h200/probe_old_importer_lost_tables.sqlite": "collected-but-absent",
    "real/ZhangXin8069-qcu/runtime_without_kernels.sqlite": "kernels-not-recorded",
    "real/IhorAtlanov-assignment2-systems/no_cuda_at_all.sqlite": "collected-but-absent",
    "real/facebookresearch-HolisticTraceAnalysis/cpu_only_rank34.json.gz": "kernels-not-recorded",
    "broken/01_truncated_gzip.json.gz": "repaired",
    "broken/02_truncated_json.json": "repaired",
    "broken/15_kernels_without_correlation.json": "kernels-without-launch",
    "broken/16_clock_skew_kernels_5ms_early.json": "clock-skew",
    "broken/34_nvtx_unclosed_crossthread_textid.sqlite": "unclosed-ranges",
}


@needs_traces
@pytest.mark.corpus
@pytest.mark.parametrize("name", REAL)
def test_real_and_broken_traces_have_their_findings(name):
    (trace,) = open_trace(FOLDER / name)
    assert REAL[name] in found_in(trace)
