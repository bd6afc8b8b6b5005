"""The passes of a group: their order, what ends a cell before it is timed, and what an error leaves behind."""

from dataclasses import replace
from itertools import groupby

import pandas as pd
import pytest
import torch

from dsv4bench.errors import CaptureError, CellError, CellSkipped
from dsv4bench.profiling import counting, passes
from dsv4bench.profiling import graphs as graphs_module
from dsv4bench.profiling import predict as predict_module
from dsv4bench.profiling.capture import tape_breakable
from dsv4bench.profiling.graphs import Graphs
from dsv4bench.profiling.group import GroupRun
from dsv4bench.profiling.passes import run_group
from dsv4bench.profiling.traces.columns import COPY
from tests.profiling.fake_gpu import fake_gpu
from tests.profiling.small_groups import TINY, FakeClock, group, model, requests_file, session

PASSES = ["allocate", "verify", "time eager", "time graph", "count", "verify again"]


def run(events=None, **typed):
    """Run a group on a fake clock; return its records and the names of the passes that it was told."""
    told = []
    records = run_group(group(geometry=TINY, **typed), model(TINY), session(clock=FakeClock(events)), told.append)
    return records, told


def written_down(monkeypatch, events):
    """Let every step of the work write its name into `events`, in which the clock writes "measure"."""

    def wrap(owner, method, name):
        honest = getattr(owner, method)

        def wrapped(*args, **kwargs):
            events.append(name(kwargs) if callable(name) else name)
            return honest(*args, **kwargs)

        monkeypatch.setattr(owner, method, wrapped)

    wrap(GroupRun, "allocate", "allocate")
    wrap(GroupRun, "verify", lambda kwargs: "verify again" if kwargs.get("again") else "verify")
    wrap(GroupRun, "time_eager", "time eager")
    wrap(GroupRun, "time_graph", "time graph")
    wrap(GroupRun, "count", "count")
    wrap(Graphs, "capture", "capture")
    wrap(Graphs, "checks", "check replays")
    wrap(predict_module, "time_per_round_ns", "predict")


def test_the_order_of_work_in_a_group(monkeypatch):
    events = []
    written_down(monkeypatch, events)
    records, told = run(events)
    assert told == PASSES
    assert [name for name, _ in groupby(events)] == [
        *("allocate", "verify"),
        *("time eager", "measure"),
        *("time graph", "capture", "check replays", "measure"),
        *("count", "predict", "measure"),
        "verify again",
    ]
    # one warm-up and two samples of each of the two eager and the two graph cells; the rate is measured once
    assert events.count("measure") == 2 * 3 + 2 * 3 + 1
    assert [record.status for record in records] == ["ok"] * 4


def test_what_nobody_asked_for_is_not_run(monkeypatch):
    events = []
    written_down(monkeypatch, events)
    run(events, graph=False, reuse="off")
    assert [name for name, _ in groupby(events)] == [
        *("allocate", "verify", "time eager", "measure", "time graph", "count", "verify again")
    ]


def test_a_wrong_cell_is_not_timed():
    events = []
    (record,), told = run(events, graph=False, reuse="on", fault="wrong-row")
    assert (record.status, record.samples_ns) == ("wrong", {})
    assert told == ["allocate", "verify"]
    assert events == []


@pytest.mark.parametrize("fault", ["stale-head", "wrong-row"])
def test_a_fault_makes_the_graph_cell_wrong_and_not_its_partner(fault):
    events = []
    (off, on), told = run(events, graph=True, fault=fault)
    assert (off.status, on.status) == ("ok", "wrong")
    assert on.reason.startswith("reused heads: ")
    # every check of the first look is kept, and there is no second one
    assert [check["name"] for check in on.checks] == ["reused heads", "outputs, reuse on and off"]
    assert not any(check["passed"] for check in on.checks)
    assert on.samples_ns == {}
    assert on.predicted is None
    assert len(off.samples_ns["step_period"]) == 2
    assert told == PASSES
    assert events.count("measure") == 1 * 3  # the partner alone, and no prediction of what reuse saves


def test_a_replay_that_leaves_something_out_is_wrong_before_it_is_timed(monkeypatch):
    def forgetful(pieces, ops):
        return tape_breakable(pieces[:-1], ops)

    monkeypatch.setattr(graphs_module, "tape_breakable", forgetful)
    events = []
    records, _ = run(events)
    # reuse changes no tape, so one of them is looked at
    assert [record.status for record in records] == ["ok", "ok", "ok", "wrong"]
    assert records[-1].reason.startswith("replay against eager: ")
    assert records[-1].samples_ns == {}
    assert events.count("measure") == 2 * 3 + 1 * 3 + 1


def test_a_result_that_changed_while_it_was_timed_is_wrong(monkeypatch):
    honest = GroupRun.count

    def spoiling(run):
        honest(run)
        for cache in run.prefill.pools.swa:
            cache[1:, :100] ^= 1

    monkeypatch.setattr(GroupRun, "count", spoiling)
    records, told = run(graph=False)
    assert told == ["allocate", "verify", "time eager", "time graph", "count", "verify again"]
    assert [record.status for record in records] == ["wrong", "wrong"]
    assert records[0].reason.startswith("outputs, as before, after timing: ")
    assert all(record.samples_ns == {} for record in records)


MEMORY = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.00 GiB"


@pytest.mark.parametrize("method", ["allocate", "verify", "time_eager", "time_graph", "count"])
def test_running_out_of_memory_in_any_pass_ends_the_cells_of_the_group(monkeypatch, method):
    def fail(*_, **__):
        raise torch.OutOfMemoryError(MEMORY)

    monkeypatch.setattr(GroupRun, method, fail)
    records, told = run()
    assert {record.status for record in records} == {"out_of_memory"}
    assert {record.reason for record in records} == {"CUDA out of memory. Tried to allocate 20.00 GiB"}
    assert all(record.samples_ns == {} for record in records)
    assert told == PASSES[: 1 + PASSES.index(method.replace("_", " "))]


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (CellSkipped("no such device"), "skipped", "no such device"),
        (CellError("two and two"), "failed", "two and two"),
        (CaptureError("layer 3 project: boom"), "failed", "capture: layer 3 project: boom"),
        (RuntimeError("CUDA error\nsecond line"), "failed", "RuntimeError: CUDA error"),
        (ValueError(), "failed", "ValueError: no message"),
        (KeyError("dequant has no provider"), "failed", "KeyError: 'dequant has no provider'"),
    ],
    ids=["skipped", "failed", "capture", "run time", "no message", "any other"],
)
def test_an_error_becomes_a_record_with_a_status_and_a_reason(monkeypatch, error, status, reason):
    def fail(run):
        raise error

    monkeypatch.setattr(GroupRun, "time_eager", fail)
    records, told = run(graph=False)
    assert [(record.status, record.reason) for record in records] == [(status, reason)] * 2
    assert told == PASSES[:3]


def test_an_error_leaves_alone_what_had_ended_before(monkeypatch):
    def fail(run):
        raise RuntimeError("boom")

    monkeypatch.setattr(GroupRun, "count", fail)
    records, _ = run(extend="1")
    assert [record.status for record in records] == ["failed", "failed", "refused", "refused"]
    assert records[2].reason == "bucket 4 is over 2 times the 1 tokens"


def test_an_interrupt_is_not_a_result(monkeypatch):
    def interrupt(run):
        raise KeyboardInterrupt

    monkeypatch.setattr(GroupRun, "count", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(graph=False)


# a GPU that exists only here


@pytest.fixture
def gpu(monkeypatch):
    return fake_gpu(monkeypatch)


def run_on_gpu(**typed):
    return run_group(group(geometry=TINY, **typed), model(TINY), session(device=torch.device("cuda")))


def test_a_gpu_times_replays_counts_nodes_and_tells_its_peak(gpu):
    off, on = run_on_gpu(graph=True)
    assert (off.status, on.status) == ("ok", "ok")
    assert (on.engine, list(on.samples_ns)) == ("gpu", ["graph_replay"])
    assert on.memory["peak_bytes"] == 4096
    assert on.graph["graph_launches"] == on.graph["segments"]
    # one kernel each of 18 pieces. Breaks: 3 attentions, source projections and full top-k of 2 layers
    assert [kernels(on, where) for where in ("segment", "break", "eager")] == [11, 7, 0]
    assert on.coverage["attributed"] == 18
    assert on.coverage["disagreement"] is None
    names = {check["name"] for check in on.checks if check["passed"]}
    replays = {"replay against eager", "replay of another batch against eager", "replay against eager, after timing"}
    assert names >= replays | {"padded rows against live rows"}


def kernels(record, where):
    return sum(row["kernels"] or 0 for row in record.counts if row["where"] == where)


def test_an_eager_step_that_launches_more_than_its_graph_is_a_disagreement(gpu, monkeypatch):
    honest = counting.profile_trace

    def profile_trace(run, device):
        trace = honest(run, device)
        if "cudaGraphLaunch" in trace.strings:
            return trace
        last = trace.operations[trace.names(trace.operations["name"]) == "layer_1_output"]
        return replace(trace, operations=pd.concat([trace.operations, last.assign(kind=COPY)], ignore_index=True))

    monkeypatch.setattr(counting, "profile_trace", profile_trace)
    (record,) = run_on_gpu(graph=True, reuse="on")
    assert record.coverage["disagreement"] == "layer_1_output: 1/1/0 eager, 1/0/0 in segments and breaks"


def test_a_failed_capture_ends_its_cell_and_no_other(gpu, monkeypatch):
    honest = Graphs.capture

    def capture(graphs, cell, step, first):
        if cell.full:
            raise CaptureError("layer 1 attention: operation not permitted")
        honest(graphs, cell, step, first)

    monkeypatch.setattr(Graphs, "capture", capture)
    full, breakable = run_on_gpu(graph=True, reuse="on", graph_mode="full,breakable")
    assert (full.status, full.reason) == ("failed", "capture: layer 1 attention: operation not permitted")
    assert breakable.status == "ok"


def test_without_graphs_on_the_device_graph_cells_say_so_and_eager_cells_are_measured(gpu, monkeypatch):
    def none():
        raise RuntimeError("not supported")

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", none)
    eager, graph = run_on_gpu(reuse="on")
    assert (eager.status, list(eager.samples_ns), eager.predicted) == ("ok", ["step_period"], None)
    assert (graph.status, graph.reason) == ("failed", "capture: this device has no CUDA graphs (not supported)")


def test_a_kernel_that_synchronises_in_the_second_buckets_capture_ends_its_cell_and_no_other(
    gpu, monkeypatch, tmp_path
):
    honest, seen = gpu.launch, []

    def launch(name, *args):
        if gpu.capturing and name == "layer_0_compress":
            seen.append((gpu.captures, len(gpu.reset_graphs)))
            if len(seen) == 2:
                gpu.synchronise_illegally()
        honest(name, *args)

    monkeypatch.setattr(gpu, "launch", launch)
    lengths = requests_file(tmp_path, 12)  # forwards of 8 and 4 rows, a bucket each
    torch_path, fused = run_on_gpu(graph=True, reuse="on", compressor="both", requests=lengths, chunk="8")
    assert torch_path.status == "failed"
    assert torch_path.reason == "capture: layer 0 compress: operation not permitted when stream is capturing"
    assert len(seen) == 2 + 2
    # all that the first cell had captured, and the one that failed, before the next cell; in the end that one's
    assert seen[2][1] == seen[1][0]
    assert len(gpu.reset_graphs) - seen[2][1] == sum(one["segments"] for one in fused.graph["each"])
    assert (fused.status, gpu.capturing) == ("ok", None)


def test_both_compressors_in_graphs_are_timed_alone_too(gpu):
    records = run_on_gpu(graph=True, reuse="on", compressor="both")
    assert [sorted(record.samples_ns) for record in records] == [["compressor", "graph_replay"]] * 2
    (alone,) = run_on_gpu(graph=True, reuse="on", compressor="fused")
    assert list(alone.samples_ns) == ["graph_replay"]


def test_no_graph_outlives_its_group(monkeypatch):
    made, kept = passes.group_run, []
    monkeypatch.setattr(passes, "group_run", lambda *parts: kept.append(made(*parts)) or kept[0])
    (one,) = run_group(group(geometry=TINY, graph=True, reuse="on"), model(TINY), session())
    assert (one.status, one.graph["graphs"]) == ("ok", 1)
    assert [run.captured for run in kept[0].runs] == [{}]
