"""From a finished cell to its record: every field that a reader relies on, and every line that must be told."""

import re
from dataclasses import replace

import pytest
import torch

from dsv4bench.profiling.cell_run import CellRun
from dsv4bench.profiling.clocks import ClockMonitor, ClockSample
from dsv4bench.profiling.group import GroupRun
from dsv4bench.profiling.passes import run_group
from dsv4bench.profiling.recording import record, records, unmeasured
from dsv4bench.profiling.timing import StopRule, Timing
from dsv4bench.results.compare import compare, pairs
from dsv4bench.results.schema import decode, encode
from tests.profiling.fake_gpu import fake_gpu
from tests.profiling.small_groups import COMMIT, TINY, allocated, group, model, requests_file, session

ON_A_TAPE = "tape: the semantics of a CUDA graph on a CPU, no GPU time"


def run(opened=None, **typed):
    return run_group(group(geometry=TINY, **typed), model(TINY), opened or session())


@pytest.fixture(scope="module")
def uniform():
    """One request of 7 tokens: reuse off and on, eager and on a tape."""
    return run(extend="7")


@pytest.fixture(scope="module")
def dealt():
    """Two requests dealt to three ranks."""
    return run(batch="2", dep_simulated="3", reuse="on", extend="7")


@pytest.fixture(scope="module")
def chunked(tmp_path_factory):
    """Requests of 5 and 12 tokens in forwards of 8, 8 and 1."""
    file = requests_file(tmp_path_factory.mktemp("recorded"), 5, 12)
    return run(requests=file, batch="2", chunk="8", reuse="on"), file


# what ran


def test_a_record_says_what_ran_by_the_names_of_the_command_line(uniform):
    switches = {
        "kv": "v41+fp4",
        "compressor": "fused",
        "graph-mode": "breakable",
        "provider": "torch",
        "fault": None,
        "replay": "off",
        "path": "sparse",
        "moe": "off",
        "mhc": "off",
        "chunk": 8192,
        "dep-simulated": 1,
        "seed": 0,
    }
    breaks = {False: {"breaks": None, "break-outputs": None}, True: {"breaks": "sm100", "break-outputs": "copy"}}
    assert [one.variant for one in uniform] == [
        {**switches, **breaks[graph], "graph": graph, "reuse": reuse}
        for graph in (False, True)
        for reuse in ("off", "on")
    ]
    assert {one.geometry for one in uniform} == {"tiny"}
    assert {one.ranks for one in uniform} == {1}


def test_a_record_says_where_and_how_it_was_seen(uniform):
    one = uniform[0]
    assert (one.label, one.engine, one.status, one.reason) == ("measured", "cpu-reference", "ok", None)
    assert one.environment == {"cpu": "a CPU", "commit": COMMIT, "dirty": False}
    assert one.argv == ["dsv4bench", "prefill"]
    assert one.created.endswith("+00:00")
    assert one.clocks is None


def test_the_key_holds_the_commit_and_the_group_does_not(uniform):
    cells = group(geometry=TINY, extend="7")
    assert [one.key for one in uniform] == [cell.key(COMMIT) for cell in cells]
    assert len({one.key for one in uniform}) == 4
    assert {one.group for one in uniform} == {cells[0].group}


def test_the_batch_of_an_eager_cell_has_no_padding(uniform):
    load = {
        "requests": 1, "extend": 7, "prefix": 60, "rows": 7, "source": "uniform", "divide": 1, "forwards": 1,
    }  # fmt: skip
    assert [one.batch for one in uniform] == [{**load, "padded_rows": rows, "rank_rows": [7]} for rows in (7, 7, 8, 8)]


def test_a_full_graph_runs_live_rows_beside_a_padded_one(monkeypatch):
    fake_gpu(monkeypatch)
    opened = session(device=torch.device("cuda"))
    full, padded = run(opened, extend="7", graph=True, reuse="on", graph_mode="full,breakable")
    assert (full.batch["padded_rows"], padded.batch["padded_rows"]) == (7, 8)
    assert full.note[-1] == "full graph: best case, nobody ships it; captured for these lengths alone"
    assert not any("best case" in line for line in padded.note)


def test_a_record_survives_its_line(uniform, dealt):
    for one in (*uniform, *dealt):
        assert decode(encode(one), "here:1") == one


# what was seen


def test_only_samples_of_the_step_are_kept_on_a_cpu(uniform):
    assert [one.samples_ns for one in uniform] == [{"step_period": [1_000_000] * 2}] * 4
    assert {one.rank_samples_ns for one in uniform} == {None}


def test_counts_are_those_of_one_forward(uniform):
    classes = {"op", "kv_source", "where", "calls", "kernels", "copies", "sets", "aten_ops"}
    for one in uniform:
        assert one.counted_forwards == 1
        assert all(set(row) == classes for row in one.counts)
    assert {row["where"] for row in uniform[0].counts} == {"eager"}
    assert {row["where"] for row in uniform[2].counts} == {"segment", "break"}
    compressed = [
        {row["kv_source"]: row["calls"] for row in one.counts if row["op"] == "dequant_compressed"} for one in uniform
    ]
    assert compressed == [{0: 2, 2: 1}, {0: 1, 2: 1}] * 2
    assert all(compare(pair).added == [] for pair in pairs(uniform, "reuse", "off", "on"))


def test_checks_memory_and_graph_are_plain_values(uniform):
    on, taped = uniform[1], uniform[3]
    assert {"name": "reused heads", "passed": True, "detail": "1 reused heads equal a fresh dequant byte for byte"} in (
        on.checks
    )
    assert set(on.memory) == {"peak_bytes", "workspace_bytes", "pool_bytes", "buffer_bytes"}
    assert (on.graph, on.coverage) == (None, None)
    # 3 attentions, projections and full top-k of 2 sources; no segment between a top-k and the attention after it
    assert {name: taped.graph[name] for name in ("kind", "breaks", "graph_launches", "graphs")} == {
        "kind": "breakable tape", "breaks": 7, "graph_launches": 6, "graphs": 1,
    }  # fmt: skip


def test_a_record_tells_each_bucket_of_its_graphs(tmp_path):
    """13 rows in forwards of 8 and 5, in buckets of 8 and 6; what a full bucket copies is modelled."""
    requests = requests_file(tmp_path, 13)
    (one,) = run(requests=requests, chunk="8", buckets="6,8", graph=True, reuse="on")
    large, small = one.graph["each"]
    assert [graph["bucket"] for graph in (large, small)] == [8, 6]
    assert [(graph["segments"], graph["breaks"]) for graph in (large, small)] == [(one.graph["segments"], 7)] * 2
    # bytes of a row: 3 attentions; kv | score in f32, index queries and their weights of 2 sources
    row = 3 * TINY.heads * 512 * 2 + 2 * (1024 * 4 + TINY.index_heads * (128 * 2 + 2))
    assert [graph["copied_bytes"] for graph in (large, small)] == [8 * row, 6 * row]


def test_the_prediction_is_the_groups(uniform):
    # 67 tokens: 33 rows of source 0 are not dequantised for layer 1
    assert {one.predicted["saved_rows"] for one in uniform} == {33}


# what must be told


def test_notes_say_what_is_measured_and_on_what(uniform):
    eager, taped = uniform[0].note, uniform[2].note
    assert eager[0] == "a note of the session"
    assert re.fullmatch(
        r"attention stack only: about \d+% of the FLOPs and \d+% of the bytes of v41-flash's layers \(modelled\)",
        eager[1],
    )
    assert ON_A_TAPE not in eager
    one_for_both = "replays were compared with eager steps for one of reuse off and on: they differ in breaks alone"
    assert taped == [*eager, ON_A_TAPE, one_for_both]


def test_few_samples_are_flagged(uniform):
    assert all(one.flags == ["too few samples"] for one in uniform)


def test_a_dealt_batch_is_simulated_and_its_step_is_the_slowest_ranks(dealt):
    eager, taped = dealt
    assert (eager.label, eager.ranks) == ("simulated", 3)
    assert eager.variant["dep-simulated"] == 3
    assert (eager.batch["padded_rows"], eager.batch["rank_rows"]) == (14, [7, 7, 0])
    assert "simulated: 3 ranks one after another on one device; the step is the slowest rank's" in eager.note
    # two requests: the third rank has none, sits the eager step out and replays padded rows in a graph
    busy, idle = {"step_period": [1_000_000] * 2}, {"step_period": [0, 0]}
    assert eager.rank_samples_ns == [busy, busy, idle]
    assert taped.rank_samples_ns == [busy] * 3
    assert eager.samples_ns == taped.samples_ns == busy
    assert taped.batch["padded_rows"] == 3 * 8


def test_recorded_requests_run_forward_by_forward(chunked):
    (eager, taped), file = chunked
    assert (eager.status, taped.status) == ("ok", "ok")
    assert eager.samples_ns == taped.samples_ns == {"step_period": [3_000_000] * 2}
    expected = {
        "requests": 2, "extend": None, "prefix": 0, "rows": 17, "source": file, "divide": 64, "forwards": 3,
    }  # fmt: skip
    assert eager.batch == {**expected, "padded_rows": 17, "rank_rows": [17]}
    # 8 and 8 rows fill their bucket; one row is refused and runs as it is
    assert taped.batch == eager.batch
    refused = "1 of 3 forwards run eagerly, refused by the graph: bucket 4 is over 2 times the 1 tokens"
    assert refused in taped.note
    assert refused not in eager.note
    assert taped.graph["graphs"] == 1


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ({"extend": "1"}, "bucket 4 is over 2 times the 1 tokens"),
        ({"chunk": "3"}, "3 tokens are over the largest bucket, 0"),
        ({"prefix": "16380"}, "context 16388 is over the graph's limit of 16384"),
    ],
    ids=["one row", "a small chunk", "a long context"],
)
def test_a_refused_graph_is_a_row_with_a_reason(typed, reason):
    (one,) = run(graph=True, reuse="on", **typed)
    assert (one.status, one.reason) == ("refused", reason)
    assert (one.samples_ns, one.counts, one.flags, one.predicted) == ({}, [], [], None)
    assert not any("run eagerly" in line for line in one.note)


def test_a_cell_without_a_time_has_no_prediction_either():
    eager, refused = run(extend="1", reuse="on")
    assert (eager.status, refused.status) == ("ok", "refused")
    assert eager.predicted["saved_rows"] == 30
    assert refused.predicted is None


def test_a_full_graph_on_a_cpu_is_one_tape():
    (one,) = run(graph=True, reuse="on", graph_mode="full")
    assert (one.status, one.engine, one.mode) == ("ok", "tape", "full tape")
    assert {name: one.graph[name] for name in ("kind", "segments", "breaks")} == {
        "kind": "full tape", "segments": 1, "breaks": 0,
    }  # fmt: skip
    assert {row["where"] for row in one.counts} == {"segment"}
    assert {ON_A_TAPE, "full graph: best case, nobody ships it; captured for these lengths alone"} <= set(one.note)


def test_a_group_that_could_not_be_allocated_still_has_a_record_for_every_cell():
    broken = GroupRun(group(geometry=TINY), model(TINY), session())
    for cell in broken.runs:
        cell.end("out_of_memory", "CUDA out of memory")
    assert [(one.status, one.reason, one.batch["rows"]) for one in records(broken)] == [
        ("out_of_memory", "CUDA out of memory", 8)
    ] * 4


def test_a_cell_that_never_got_to_a_run_has_a_record_too(uniform):
    cell = group(geometry=TINY, extend="7")[0]
    one = unmeasured(cell, session(), "out_of_memory", "the weights do not fit")
    assert (one.status, one.reason, one.samples_ns) == ("out_of_memory", "the weights do not fit", {})
    same = ("key", "group", "label", "engine", "geometry", "ranks", "variant", "environment", "argv")
    assert [getattr(one, name) for name in same] == [getattr(uniform[0], name) for name in same]
    assert one.batch == {
        name: value for name, value in uniform[0].batch.items() if name not in ("padded_rows", "rank_rows")
    }
    assert one.note == ["a note of the session"]


# flags and warm-up, of timings made by hand


def of_timings(*timings, rule=None, monitor=None, **typed):
    """The record of one cell with these timings, a rank of one stretch each."""
    opened = session(rule=rule or StopRule())
    run = allocated(opened, geometry=TINY, graph=False, reuse="on", **typed)
    cell = CellRun(run.runs[0].cell, timings=[[timing] for timing in timings], clocks=monitor)
    return record(cell, run)


def timing(period, submit=(), warm_ups=4, settled=True, stop="converged"):
    samples = {"step_period": list(period)} | ({"host_submit": list(submit)} if submit else {})
    return Timing(samples, warm_ups, settled, 1, stop)


TEN = (100,) * 10


@pytest.mark.parametrize(
    ("seen", "flags"),
    [
        (timing(TEN), []),
        (timing(TEN, submit=(94,) * 10), []),
        (timing(TEN, submit=(95,) * 10), ["launch-bound"]),
        (timing(TEN, stop="timeout"), ["stopped after 15 s, interval wider than 1.00 %"]),
        (timing(TEN[:5]), ["too few samples"]),
        (timing(TEN[:3], submit=(99,) * 3, stop="fixed"), ["launch-bound", "too few samples"]),
    ],
    ids=["fine", "host is faster", "host is as slow", "timeout", "five samples", "several"],
)
def test_what_a_reader_must_know_of_a_time_is_a_flag(seen, flags):
    assert of_timings(seen).flags == flags


def test_throttled_clocks_are_a_flag():
    monitor = ClockMonitor(None)
    monitor.samples = [ClockSample(clock, 2619, 600_000, 60, ()) for clock in (1980, 1400)]
    one = of_timings(timing(TEN), monitor=monitor)
    assert one.flags == ["throttled: SM clock fell from 1980 to 1400 MHz"]
    assert one.clocks["sm_mhz"] == [1980, 1400]


def test_a_sample_of_several_stretches_has_the_median_of_their_clocks():
    monitor = ClockMonitor(None)
    monitor.samples = [ClockSample(1980, 2619, 600_000, 60, ())]
    stretches = [replace(timing(TEN[:3]), sm_mhz=mhz) for mhz in [(1980, None, 1900), (1960, None, None), (1970, None)]]
    one = of_timings(*stretches, monitor=monitor, batch="3", dep_simulated="3")
    assert one.clocks["sample_sm_mhz"] == [1970, None]


@pytest.mark.parametrize(
    ("seen", "lines"),
    [
        (timing(TEN, warm_ups=20, settled=False), ["warm-up had not settled after 20 steps"]),
        (timing(TEN, warm_ups=1, settled=False), []),
        (timing(TEN), []),
    ],
    ids=["not settled", "one warm-up cannot settle", "settled"],
)
def test_warm_up_that_never_settled_is_told(seen, lines):
    assert [line for line in of_timings(seen).note if "warm-up" in line] == lines


def test_ranks_are_cut_to_the_fewest_samples_and_the_step_is_their_maximum():
    first = timing((10, 20, 30), submit=(1, 1, 9), stop="fixed")
    second = timing((15, 5), submit=(2, 2), stop="fixed")
    one = of_timings(first, second, None, batch="2", dep_simulated="3")
    assert one.rank_samples_ns == [
        {"step_period": [10, 20], "host_submit": [1, 1]},
        {"step_period": [15, 5], "host_submit": [2, 2]},
        {"step_period": [0, 0], "host_submit": [0, 0]},
    ]
    assert one.samples_ns == {"step_period": [15, 20], "host_submit": [2, 2]}


def test_ranks_wait_for_each_other_in_every_forward():
    run = allocated(session(), geometry=TINY, graph=False, reuse="on", batch="2", dep_simulated="2")
    early, late = [timing((10, 10)), timing((50, 60))], [timing((40, 30)), timing((20, 20))]
    one = record(CellRun(run.runs[0].cell, timings=[early, late]), run)
    assert one.rank_samples_ns == [{"step_period": [60, 70]}, {"step_period": [60, 50]}]
    assert one.samples_ns == {"step_period": [40 + 50, 30 + 60]}  # not 60 and 70


def test_dequants_faster_than_the_memory_are_a_flag():
    run = allocated(geometry=TINY, graph=False, reuse="on")
    run.session = replace(run.session, device=torch.device("cuda"), environment={"gpu": "NVIDIA H200"})
    run.runs[0].timings = [[timing(TEN)]]
    for rate, flags in ((4.8e12, []), (2e13, ["implausible: 417 % of the peak HBM rate (4.8 TB/s)"])):
        run.predicted = {run.runs[0].cell.variant.provider: {"dequant_bytes_per_s": rate}}
        assert records(run)[0].flags == flags


def test_a_record_of_a_gpu_says_so():
    run = allocated(geometry=TINY, graph=False, reuse="on")
    run.session = replace(run.session, device=torch.device("cuda"))
    run.runs[0].end("failed", "boom")
    assert records(run)[0].engine == "gpu"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "changes",
    [{"graph": False}, {"graph": True}, {"graph": True, "graph_mode": "full"}],
    ids=["eager", "breakable", "full"],
)
def test_a_plan_calls_a_cell_what_its_record_calls_it(device, changes):
    (one, *_) = group(graph=False, reuse="on")
    cell = replace(one, device=device, variant=replace(one.variant, **changes))
    assert cell.mode == unmeasured(cell, session(device=torch.device(device)), "refused", "not here").mode
