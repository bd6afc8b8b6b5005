"""Counts of a forward: calls and aten operations on a CPU, nodes and a profiler's trace on a GPU, set side by side."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dsv4bench.profiling import counting
from dsv4bench.profiling.capture import capture_breakable
from dsv4bench.profiling.counting import Counts, GraphCounter, agreed, count_eager, count_on_cpu, same_operations
from dsv4bench.profiling.graph_nodes import GraphNodes
from dsv4bench.ranges import Range, RecordFunction, Silent
from dsv4bench.results.ledger_table import Node, read_ledger
from dsv4bench.workloads.ops import Ops
from dsv4bench.workloads.step import Piece
from tests.profiling.fake_cuda import COPY, KERNEL, SET, Bindings, FakeCuda, FakeStream
from tests.profiling.replays import Replay
from tests.profiling.small_groups import allocated

NOT_COUNTED = dict.fromkeys(("kernels", "copies", "sets"))


@pytest.fixture(scope="module")
def run():
    return allocated(graph=False)


def counted(run, reuse="on", where="eager"):
    step = run.steps[reuse, ("fused", "torch")]
    (forward,) = run.prefill.all_forwards()
    with torch.no_grad():
        step.load(forward)
        return count_on_cpu(step, step.pieces(forward.live), where)


def calls(counts, op):
    return {row["kv_source"]: row["calls"] for row in counts.rows if row["op"] == op}


# a CPU


@pytest.mark.parametrize(
    ("reuse", "compressed"), [("off", {1: 2, 3: 1, 4: 2}), ("on", {1: 1, 3: 1, 4: 1})], ids=["reuse off", "reuse on"]
)
def test_calls_are_counted_per_source(run, reuse, compressed):
    counts = counted(run, reuse)
    assert calls(counts, "dequant_compressed") == compressed
    # every layer, the one of ratio 0 too
    assert calls(counts, "dequant_swa") == {None: 1, 1: 2, 3: 1, 4: 2}
    assert calls(counts, "compress_c2") == {1: 1, 3: 1}


def test_a_cpu_counts_aten_operations_and_no_device_operation(run):
    counts = counted(run)
    rows = {row["op"]: row for row in counts.rows if row["kv_source"] is None}
    # one matrix product of layer 0, straight into its buffer
    assert rows["qkv_proj"] == {
        "op": "qkv_proj",
        "kv_source": None,
        "where": "eager",
        "calls": 1,
        "aten_ops": 1,
        **NOT_COUNTED,
    }
    assert (counts.coverage, counts.disagreement) == (None, None)
    assert all(row["aten_ops"] for row in counts.rows if row["calls"])


def test_a_tape_is_counted_where_a_graph_would_be(run):
    eager, graph = counted(run), counted(run, where=None)
    assert {row["where"] for row in eager.rows} == {"eager"}
    where = {row["op"]: row["where"] for row in graph.rows}
    breaks = {"combine", "dequant_compressed", "dequant_swa", "sparse_attention", "compress_proj", "index_q_proj"}
    assert {op for op in where if where[op] == "break"} >= breaks
    assert {where[op] for op in ("compress_c1", "compress_c2", "index_key", "q_rope", "o_proj_b")} == {"segment"}
    for op in {row["op"] for row in eager.rows}:
        one, other = (sum(row["aten_ops"] for row in counts.rows if row["op"] == op) for counts in (eager, graph))
        assert one == other


def test_marks_are_silent_again_even_after_an_error(run):
    step = run.steps["on", ("fused", "torch")]

    def fail():
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        count_on_cpu(step, [Piece("bad", "segment", fail)], "eager")
    assert isinstance(step.ops.mark, Silent)


# a GPU that exists only here


class FakeStep:
    """All that counting needs of a step: its marks, and that it exchanges nothing."""

    def __init__(self):
        self.ops = Ops("torch", "cpu")
        self.moe = None


class Program:
    """Two ropes of two kernels in a segment, an attention of three in a break."""

    def __init__(self, device):
        self.device = device
        self.step = FakeStep()
        self.pieces = [
            Piece("rope", "segment", lambda: self.op("rope", KERNEL, KERNEL)),
            Piece("attend", "break", lambda: self.op("sparse_attention", KERNEL, KERNEL, KERNEL)),
            Piece("rope again", "segment", lambda: self.op("rope", KERNEL, KERNEL)),
        ]

    def op(self, name, *kinds):
        rng = Range(layer=0, op=name)
        self.step.ops.mark.enter(rng)
        for kind in kinds:
            self.device.launch(kind=kind)
        self.step.ops.mark.exit(rng)


@pytest.fixture
def gpu(monkeypatch):
    device = FakeCuda().install(monkeypatch)
    bindings = Bindings(device)
    monkeypatch.setattr(counting, "load_graph_nodes", lambda: GraphNodes(bindings, bindings))
    return device


def profiler(monkeypatch, step, write):
    """A profiler whose trace `write` writes into a `Replay`, and whom the step told its ranges."""
    seen = []

    def profile_trace(run, device):
        seen.append((device, step.ops.mark))
        run()
        replay = Replay()
        write(replay)
        return replay.trace

    monkeypatch.setattr(counting, "profile_trace", profile_trace)
    return seen


def row(op, where, calls, kernels=0, copies=0, sets=0):
    return {
        "op": op,
        "kv_source": None,
        "where": where,
        "calls": calls,
        "kernels": kernels,
        "copies": copies,
        "sets": sets,
        "aten_ops": None,
    }


ROPE, ATTENTION = Range(layer=0, op="rope"), Range(layer=0, op="sparse_attention")
NODE = Node(0, None, "rope", "kernels", "k", 0)
SEGMENT = (NODE, replace(NODE, number=1))


def test_an_eager_step_is_counted_by_calls_and_by_the_profiler(gpu, monkeypatch):
    program = Program(gpu)

    def write(replay):
        replay.eager(ROPE, "k", "k")
        replay.eager(ATTENTION, "k", "k", "k")
        replay.eager(ROPE, "k", "k")

    seen = profiler(monkeypatch, program.step, write)
    counts = count_eager(program.step, program.pieces)
    assert counts.rows == [row("rope", "eager", 2, 4), row("sparse_attention", "eager", 1, 3)]
    assert (counts.coverage["attributed"], counts.capture_ledger) == (7, None)
    assert [(one["op"], one["where"], one["device_ns"]) for one in counts.device_time["rows"]] == [
        ("rope", "eager", 16),
        ("sparse_attention", "eager", 12),
    ]
    ((device, marks),) = seen
    assert device == "cuda"
    assert any(isinstance(mark, RecordFunction) for mark in marks._marks)
    assert isinstance(program.step.ops.mark, Silent)


def replayed(replay, segment=SEGMENT):
    """What a profiler sees of a replay of the program: its segments, and the attention between them."""
    replay.graph(segment)
    replay.eager(ATTENTION, "k", "k", "k")
    replay.graph(SEGMENT)


def capture_counted(gpu, program, monkeypatch, write=replayed, *marks):
    seen = profiler(monkeypatch, program.step, write)
    with GraphCounter(program.step, *marks) as counter:
        captured = capture_breakable(program.pieces, FakeStream(gpu, 7), listeners=counter.listeners)
    assert isinstance(program.step.ops.mark, Silent)
    return counter.count(counter.profile(captured)), seen


def test_segments_come_from_the_graph_and_breaks_from_a_profiled_replay(gpu, monkeypatch):
    program = Program(gpu)
    counts, seen = capture_counted(gpu, program, monkeypatch)
    assert counts.rows == [row("rope", "segment", 2, 4), row("sparse_attention", "break", 1, 3)]
    # 4 nodes in segments and 3 kernels in the break; what was replayed is the segments over again
    assert (counts.coverage["attributed"], counts.coverage["unattributed"]) == (7, 0)
    assert (
        counts.coverage["method"]
        == "capture ledger joined by order (inferred) (segments) + launch correlation (breaks)"
    )
    assert counts.disagreement is None
    assert [device for device, _ in seen] == ["cuda"]
    assert gpu.log.count("launch graph 1") == 2  # once after its capture, once under the profiler


def test_the_same_replay_tells_the_time_of_segments_and_breaks(gpu, monkeypatch):
    counts, _ = capture_counted(gpu, Program(gpu), monkeypatch)
    assert [(one["op"], one["where"], one["device_ns"], one["operations"]) for one in counts.device_time["rows"]] == [
        ("rope", "segment", 16, 4),
        ("sparse_attention", "break", 12, 3),
    ]
    assert [piece["where"] for piece in counts.device_time["pieces"]] == ["segment", "break", "segment"]
    assert read_ledger(counts.capture_ledger) == (SEGMENT, SEGMENT)


def test_a_fill_that_the_trace_calls_a_copy_is_counted_as_it_was_captured(gpu, monkeypatch):
    program = Program(gpu)
    program.pieces = [Piece("rope", "segment", lambda: program.op("rope", KERNEL, SET, KERNEL, COPY))]

    def write(replay):
        replay.host("cudaGraphLaunch")
        for name in ("k", "memcpy32_post", "k", "memcpy32_post"):
            replay.ran(name)

    counts, _ = capture_counted(gpu, program, monkeypatch, write)
    assert counts.rows == [row("rope", "segment", 1, 2, copies=1, sets=1)]
    assert {name: counts.coverage[name] for name in ("attributed", "unattributed", "misnamed")} == {
        "attributed": 4,
        "unattributed": 0,
        "misnamed": 1,
    }
    assert counts.disagreement is None
    assert [(one["op"], one["operations"]) for one in counts.device_time["rows"]] == [("rope", 4)]


def test_another_number_of_replayed_operations_is_a_disagreement(gpu, monkeypatch):
    counts, _ = capture_counted(gpu, Program(gpu), monkeypatch, lambda replay: replayed(replay, (*SEGMENT, NODE)))
    assert counts.disagreement == "5 operations replayed, 4 captured"
    # what is not in order with the ledger has no range: its own three records
    assert (counts.coverage["attributed"], counts.coverage["unattributed"]) == (5, 3)
    assert counts.device_time["unmatched"] == ["segment 0: kernels k ran 3 times, 2 captured"]


def test_what_lies_outside_every_range_is_not_attributed(gpu, monkeypatch):
    program = Program(gpu)
    program.pieces.append(Piece("loose", "segment", lambda: gpu.launch("copy_it", kind=COPY)))

    def write(replay):
        replay.graph(SEGMENT)
        replay.eager(ATTENTION, "k", "k", "k")
        replay.graph((*SEGMENT, Node(None, None, None, "copies", "Memcpy", 2)))
        replay.eager(None, "philox", "philox")

    counts, _ = capture_counted(gpu, program, monkeypatch, write)
    assert (counts.coverage["attributed"], counts.coverage["unattributed"]) == (7, 3)
    assert counts.device_time["unattributed_ns"] == 12
    assert counts.disagreement is None
    assert "copies" not in {row["op"] for row in counts.rows}


def test_the_replay_that_is_profiled_is_not_counted_again(gpu, monkeypatch):
    program = Program(gpu)
    counts, seen = capture_counted(gpu, program, monkeypatch)
    assert [type(mark) for mark in seen[0][1]._marks] == [RecordFunction]
    assert sum(one["calls"] for one in counts.rows) == 3  # those of the replay are not counted again
    assert isinstance(program.step.ops.mark, Silent)


def test_other_marks_hear_the_capture_and_the_breaks_of_the_replay(gpu, monkeypatch):
    heard = Heard()
    capture_counted(gpu, Program(gpu), monkeypatch, replayed, heard)
    assert heard.ranges == ["rope", "sparse_attention", "rope", "sparse_attention"]


class Heard:
    """A mark that keeps the operations that it hears."""

    def __init__(self):
        self.ranges = []

    def enter(self, rng):
        self.ranges.append(rng.op)

    def exit(self, rng):
        """Nothing to keep."""


# an eager step against segments and breaks

EAGER = [row("rope", "eager", 2, 4), row("compress_proj", "eager", 1, 3), row("store", "eager", 1, 1, copies=2)]
SAME = [
    row("rope", "segment", 1, 2),
    row("rope", "break", 1, 2),
    row("compress_proj", "break", 1, 5),
    row("store", "segment", 1, 1, copies=2),
]


@pytest.mark.parametrize(
    ("graph", "difference"),
    [
        (SAME, None),
        ([*SAME, row("store", "break", 0, copies=1)], "store: 1/2/0 eager, 1/3/0 in segments and breaks"),
        (SAME[1:], "rope: 4/0/0 eager, 2/0/0 in segments and breaks"),
        (SAME[:3], "store: 1/2/0 eager, nothing in segments and breaks"),
        ([*SAME, row("zero_padding", "break", 1, sets=1)], "zero_padding: nothing eager, 0/0/1 in segments and breaks"),
        ([*SAME, row("compress_proj", "break", 1, 0)], "compress_proj: 1 eager, 2 in segments and breaks"),
    ],
    ids=["the same", "a copy more", "a segment less", "an op less", "an op more", "a GEMM more"],
)
def test_the_first_difference_between_eager_and_graph_is_named(graph, difference):
    assert same_operations(EAGER, graph) == difference


def test_every_projection_is_compared_by_calls():
    eager = [row(op, "eager", 1, 1) for op in ("qkv_proj", "o_proj_a", "o_proj_b")]
    graph = [row(op, "segment", 1, 9) for op in ("qkv_proj", "o_proj_a", "o_proj_b")]
    assert same_operations(eager, graph) is None


def test_an_own_disagreement_of_the_graph_stands_before_one_with_the_eager_step():
    eager, graph = Counts(EAGER, None), Counts(SAME[1:], {"method": "both"})
    assert agreed(Counts(SAME, None), eager) == Counts(SAME, None)
    assert agreed(graph, eager) == replace(graph, disagreement="rope: 4/0/0 eager, 2/0/0 in segments and breaks")
    assert agreed(replace(graph, disagreement="1 and 2"), eager).disagreement == "1 and 2"


def test_ranks_that_exchange_rows_begin_a_profiled_step_together(gpu, monkeypatch):
    program, order = Program(gpu), []
    profiler(monkeypatch, program.step, lambda _: order.append("trace"))
    pieces = [replace(piece, run=lambda: order.append("piece")) for piece in program.pieces]
    program.step.moe = SimpleNamespace(ranks=SimpleNamespace(tell=lambda place, _: order.append(place)))
    counting.profile_eager(program.step, pieces)
    assert order == ["a profiled step", "piece", "piece", "piece", "trace"]
