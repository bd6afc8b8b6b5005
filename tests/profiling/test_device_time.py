"""Device time from a trace: sums per operation, and the gaps between the pieces of a replay."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.profiling.device_time import device_time
from dsv4bench.profiling.passes import run_group
from dsv4bench.profiling.replay_match import Replayed, match_replay
from dsv4bench.ranges import Range
from dsv4bench.results.counts import incomplete
from dsv4bench.results.ledger_table import read_ledger
from tests.profiling.fake_gpu import fake_gpu
from tests.profiling.replays import Replay, node, numbered
from tests.profiling.small_groups import TINY, group, model, session

PROJECT = numbered(
    node("input_norm", "_norm", layer=1), node("qkv_proj", "gemm", layer=1), node("store", "M", "copies", 1)
)
OUTPUT = numbered(node("o_proj_b", "gemm", layer=1), node("input_norm", "_norm", layer=2))
ATTENTION = Range(layer=1, kv_source=2, op="sparse_attention")
DEQUANT = Range(layer=1, kv_source=2, op="dequant_swa")


def replay():
    """A segment of three, 50 ns of nothing, a break of one kernel and two, 100 ns of nothing, a segment of two."""
    made = Replay()
    made.graph(PROJECT)
    made.idle(50)
    made.eager(DEQUANT, "_dequant")
    made.eager(ATTENTION, "_attend", "_merge")
    made.idle(100)
    made.graph(OUTPUT)
    return made


def timed(trace, graphs=(PROJECT, OUTPUT)):
    return device_time(trace, match_replay(trace, graphs), "break")


def row(op, where, device_ns, operations, kv_source=2):
    return {"op": op, "kv_source": kv_source, "where": where, "device_ns": device_ns, "operations": operations}


def test_segments_and_breaks_are_told_apart():
    assert timed(replay().trace)["rows"] == [
        row("dequant_swa", "break", 4, 1),
        row("input_norm", "segment", 8, 2),
        row("o_proj_b", "segment", 4, 1),
        row("qkv_proj", "segment", 4, 1),
        row("sparse_attention", "break", 8, 2),
        row("store", "segment", 4, 1),
    ]


def test_every_piece_has_the_gap_before_it():
    found = timed(replay().trace)
    # operations start every 10 ns and last 4: 6 ns between two of them, and what was waited on top
    assert found["pieces"] == [
        {
            "where": "segment",
            "name": "layer 1 input_norm .. store",
            "launches": 1,
            "operations": 3,
            "device_ns": 12,
            "gap_ns": 0,
            "idle_ns": 12,
        },
        {
            "where": "break",
            "name": "layer 1 dequant_swa .. sparse_attention",
            "launches": 3,
            "operations": 3,
            "device_ns": 12,
            "gap_ns": 56,
            "idle_ns": 12,
        },
        {
            "where": "segment",
            "name": "layer 1 o_proj_b .. layer 2 input_norm",
            "launches": 1,
            "operations": 2,
            "device_ns": 8,
            "gap_ns": 106,
            "idle_ns": 6,
        },
    ]
    assert (found["span_ns"], found["idle_ns"]) == (32 + 12 + 12 + 6 + 56 + 106, 12 + 12 + 6 + 56 + 106)
    assert found["method"] == "order (inferred) (segments), launch correlation (breaks)"


def test_an_eager_step_has_no_pieces():
    made = Replay()
    made.eager(ATTENTION, "_attend")
    made.eager(Range(layer=1), "_fill")
    made.eager(None, "loose")
    found = device_time(made.trace, Replayed())
    assert found["rows"] == [
        row("other", "eager", 4, 1, None),
        row("sparse_attention", "eager", 4, 1),
    ]
    assert (found["unattributed_ns"], found["pieces"], found["method"]) == (4, [], "launch correlation")


def test_nothing_ran():
    found = device_time(Replay().trace, Replayed())
    assert (found["rows"], found["span_ns"], found["idle_ns"], found["unattributed_ns"]) == ([], 0, 0, 0)


def test_overlapping_operations_leave_no_gap():
    made = replay()
    for place in range(len(made.operations)):
        made.last(10_000, place)
    found = timed(made.trace)
    assert found["idle_ns"] == 0
    assert sum(one["device_ns"] for one in found["rows"]) == 80_000


def test_what_was_not_matched_is_no_operations_time():
    found = timed(replay().trace, (PROJECT, PROJECT))
    assert found["unattributed_ns"] == 8
    assert [piece["name"] for piece in found["pieces"]][2] == "of no range"
    assert found["unmatched"] == ["segment 1: copies or fills ran 0 times, 1 captured"]


@pytest.mark.parametrize("loose", [0, 2], ids=["all in ranges", "two in none"])
@given(st.lists(st.integers(0, 50), min_size=8, max_size=8))
def test_sums_of_rows_and_of_pieces_are_the_total(loose, spent):
    made = replay()
    for _ in range(loose):
        made.eager(None, "loose")
    durations = [*spent, *[3] * loose]
    assert len(durations) == len(made.operations)
    for place, spent_ns in enumerate(durations):
        made.last(spent_ns, place)
    found = timed(made.trace)
    total = sum(durations)
    assert sum(one["device_ns"] for one in found["rows"]) + found["unattributed_ns"] == total
    assert sum(one["device_ns"] for one in found["pieces"]) == total
    assert sum(one["gap_ns"] + one["idle_ns"] for one in found["pieces"]) == found["idle_ns"]
    assert found["idle_ns"] <= found["span_ns"]


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
def test_a_cell_of_a_gpu_keeps_its_device_time_and_its_ledger(monkeypatch, graph):
    fake_gpu(monkeypatch)
    opened = session(device=torch.device("cuda"))
    (record,) = run_group(group(geometry=TINY, graph=graph, reuse="on"), model(TINY), opened)
    assert record.status == "ok"
    found = {(one["op"], one["where"]): one["operations"] for one in record.device_time["rows"]}
    assert (sum(found.values()), record.device_time["unattributed_ns"]) == (18, 0)
    if not graph:
        assert {where for _, where in found} == {"eager"}
        assert (record.capture_ledger, record.device_time["pieces"]) == (None, [])
        return
    counted = {(row["op"], row["where"]): row["kernels"] for row in record.counts if row["kernels"]}
    assert found == counted
    graphs = read_ledger(record.capture_ledger)
    assert (len(graphs), sum(map(len, graphs))) == (record.graph["segments"], 11)
    assert [piece["where"] for piece in record.device_time["pieces"]].count("segment") == len(graphs)
    assert (
        record.coverage["method"]
        == "capture ledger joined by order (inferred) (segments) + launch correlation (breaks)"
    )
    assert not incomplete(record.coverage)
