from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from dsv4bench.errors import CaptureError
from dsv4bench.profiling.capture import (
    Listeners,
    capture_breakable,
    capture_full,
    run_pieces,
    tape_breakable,
    tape_full,
    warm_up,
)
from dsv4bench.profiling.capture_ledger import CaptureLedger
from dsv4bench.profiling.graph_nodes import GraphNodes, load_graph_nodes
from dsv4bench.profiling.ledger import CallLedger, Ledger
from dsv4bench.ranges import Range, Several
from dsv4bench.workloads.ops import Ops
from tests.profiling.fake_cuda import Bindings, FakeCuda, FakeStream


@dataclass(frozen=True)
class Piece:
    name: str
    kind: str
    run: Any


@pytest.fixture
def device(monkeypatch):
    return FakeCuda().install(monkeypatch)


@pytest.fixture
def side(device):
    return FakeStream(device, 7)


class Program:
    """value -> (value + 1) * 10 -> + 2 -> host reads it -> + 3: every launch needs the result of the one before."""

    def __init__(self, device):
        self.device = device
        self.value = 0
        self.read = []
        self.pieces = [
            Piece("add 1", "segment", self.launch("add 1", lambda v: v + 1)),
            Piece("times 10", "segment", self.launch("times 10", lambda v: v * 10)),
            Piece("read", "break", self.read_value),
            Piece("add 2", "break", self.launch("add 2", lambda v: v + 2)),
            Piece("add 3", "segment", self.launch("add 3", lambda v: v + 3)),
        ]

    def launch(self, name, compute):
        def work():
            self.value = compute(self.value)

        return lambda: self.device.launch(name, work)

    def read_value(self):
        self.device.synchronise_illegally()
        self.read.append(self.value)


def test_consecutive_segments_share_a_graph_and_every_break_stands_alone(device, side):
    captured = capture_breakable(Program(device).pieces, side)
    assert (captured.segments, captured.breaks, captured.graph_launches) == (2, 2, 2)
    assert captured.kind == "breakable CUDA graph"
    assert captured.memory_bytes == 2 * 64
    assert captured.capture_ns > 0
    assert [entry for entry in device.log if "graph" in entry or "capture" in entry] == [
        "capture into pool (0, 1)",
        "launch graph 1",
        "capture into pool (0, 1)",
        "launch graph 2",
    ]


def test_breaks_see_true_values_while_capturing_and_replays_compute_what_eager_does(device, side):
    program = Program(device)
    captured = capture_breakable(program.pieces, side)
    assert (program.read, program.value) == ([10], 15)
    captured.replay()
    assert (program.read, program.value) == ([10, 160], 165)
    program.value = 0
    run_pieces(program.pieces)
    eager = program.value
    program.value = 0
    captured.replay()
    assert program.value == eager == 15


def test_a_pool_can_be_shared_with_other_captures(device, side):
    capture_breakable(Program(device).pieces, side, pool=(4, 2))
    assert device.log.count("capture into pool (4, 2)") == 2


def test_a_full_capture_is_one_graph(device, side):
    program = Program(device)
    pieces = [piece for piece in program.pieces if piece.name != "read"]
    captured = capture_full(pieces, side)
    assert (captured.kind, captured.segments, captured.breaks, captured.graph_launches) == ("full CUDA graph", 1, 0, 1)
    program.value = 1
    captured.replay()
    assert program.value == 25


def test_a_full_capture_refuses_what_a_graph_cannot_hold_and_names_it(device, side):
    with pytest.raises(CaptureError, match="read: operation not permitted"):
        capture_full(Program(device).pieces, side)
    assert device.capturing is None
    assert device.current.cuda_stream == 0


@pytest.mark.parametrize("spoils", [True, False], ids=["capture spoilt", "capture intact"])
def test_a_failing_piece_leaves_no_capture_behind_and_frees_the_graphs(device, side, spoils):
    program = Program(device)

    def fail():
        if spoils:
            device.synchronise_illegally()
        raise KeyError("boom")

    with pytest.raises(CaptureError, match=r"bad: (operation not permitted|'boom')"):
        capture_breakable([*program.pieces, Piece("bad", "segment", fail)], side)
    assert device.capturing is None
    assert device.current.cuda_stream == 0
    assert device.reset_graphs == [10_001, 10_002]
    capture_breakable(program.pieces, side)  # and the next capture works


def test_an_error_that_only_shows_when_the_capture_ends_names_the_group(device, side):
    def spoil_quietly():
        device.invalidated = True

    pieces = [Piece("first", "segment", device.launch), Piece("last", "segment", spoil_quietly)]
    with pytest.raises(CaptureError, match=r"first \.\. last: operation failed due to a previous error"):
        capture_breakable(pieces, side)
    assert device.capturing is None


def test_a_device_that_makes_no_graphs_is_named_with_the_piece(device, side, monkeypatch):
    def none():
        raise RuntimeError("graphs are not supported")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", none)
    with pytest.raises(CaptureError, match="add 1: graphs are not supported"):
        capture_breakable(Program(device).pieces, side)
    assert (device.capturing, device.current.cuda_stream, device.reset_graphs) == (None, 0, [])


def test_a_failing_break_is_named(device, side):
    def fail():
        raise ValueError("no rows")

    with pytest.raises(CaptureError, match="attention: no rows"):
        capture_breakable([Piece("attention", "break", fail)], side)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), KeyboardInterrupt()], ids=["memory", "Ctrl-C"])
def test_running_out_of_memory_and_interrupts_stay_what_they_are(device, side, error):
    def fail():
        raise error

    with pytest.raises(type(error)):
        capture_breakable([Piece("bad", "segment", fail)], side)
    assert device.capturing is None


def test_warm_up_runs_on_the_stream_of_the_capture(device, side):
    seen = []
    warm_up([Piece("p", "segment", lambda: seen.append(device.current.cuda_stream))], side, times=3)
    assert seen == [7, 7, 7]
    assert device.current.cuda_stream == 0
    assert device.log == ["7 waits for 0", "0 waits for 7"]


def test_ledgers_count_a_capture_per_range_and_per_place(device, side):
    rope, attend = Range(layer=0, op="rope"), Range(layer=0, op="sparse_attention")
    bindings, ledger = Bindings(device), Ledger()
    nodes, calls = CaptureLedger(ledger, GraphNodes(bindings, bindings)), CallLedger(ledger)
    mark = Several(calls, nodes)

    def piece(kind, rng, launches):
        def run():
            mark.enter(rng)
            for _ in range(launches):
                device.launch(rng.op)
            mark.exit(rng)

        return Piece(rng.op, kind, run)

    pieces = [piece("segment", rope, 2), piece("break", attend, 5), piece("segment", rope, 1)]
    capture_breakable(pieces, side, listeners=Listeners(nodes, calls.hear))
    assert [(r["op"], r["where"], r["calls"], r["kernels"]) for r in ledger.rows()] == [
        ("rope", "segment", 2, 3),
        ("sparse_attention", "break", 1, None),
    ]
    assert ledger.unattributed("kernels") == 0
    capture_full(pieces, side, listeners=Listeners(nodes, calls.hear))
    assert ledger.total("kernels", where="segment") == 3 + 8
    assert ledger.total("calls", where="segment") == 2 + 3


def on_a_cpu(buffer, read):
    """(value + 1) * 2, a host reads it, - 1: one tape, a break, a tape."""
    return [
        Piece("a", "segment", lambda: buffer.add_(1)),
        Piece("b", "segment", lambda: buffer.mul_(2)),
        Piece("c", "break", lambda: read.append(buffer[0].item())),
        Piece("d", "segment", lambda: buffer.sub_(1)),
    ]


def test_on_a_cpu_segments_are_tapes_with_eager_breaks_between_them():
    buffer, read, heard = torch.zeros(2), [], []
    captured = tape_breakable(on_a_cpu(buffer, read), Ops("torch", "cpu"), Listeners(on_piece=heard.append))
    assert (buffer.tolist(), read) == ([1, 1], [2])  # recording has run the step once
    captured.replay()
    captured.replay()
    assert (buffer.tolist(), read) == ([7, 7], [2, 4, 8])
    assert (captured.kind, captured.segments, captured.breaks, captured.graph_launches) == ("breakable tape", 2, 1, 2)
    assert captured.capture_ns > 0
    assert heard == ["segment", "segment", "break", "segment"]


def test_on_a_cpu_a_full_tape_holds_breaks_too_and_refuses_what_the_host_reads():
    buffer = torch.zeros(2)
    pieces = on_a_cpu(buffer, [])
    captured = tape_full([pieces[0], replace(pieces[1], kind="break"), pieces[3]], Ops("torch", "cpu"))
    captured.replay()
    assert (captured.kind, captured.segments, captured.breaks, buffer.tolist()) == ("full tape", 1, 0, [3, 3])
    with pytest.raises(CaptureError, match=r"c: .*test_capture.py:\d+: reads a value to the host"):
        tape_full(pieces, Ops("torch", "cpu"))


def test_running_the_pieces_tells_where_each_runs():
    heard = []
    pieces = [Piece(kind, kind, lambda kind=kind: heard.append(f"run {kind}")) for kind in ("segment", "break")]
    run_pieces(pieces, heard.append)
    assert heard == ["segment", "run segment", "break", "run break"]


@pytest.mark.gpu
def test_a_real_capture_is_counted_node_by_node_and_replays():
    pytest.importorskip("cuda.bindings.runtime", reason="needs the package cuda-bindings")
    x, y, read = torch.zeros(1024, device="cuda"), torch.zeros(1024, device="cuda"), []
    nodes = CaptureLedger(Ledger(), load_graph_nodes())

    def piece(name, kind, work):
        def run():
            nodes.enter(Range(op=name))
            work()
            nodes.exit(Range(op=name))

        return Piece(name, kind, run)

    pieces = [
        piece("add", "segment", lambda: x.add_(1)),
        piece("copy", "segment", lambda: y.copy_(x)),
        piece("read", "break", lambda: read.append(y[0].item())),
        piece("double", "segment", lambda: x.mul_(2)),
    ]
    stream = torch.cuda.Stream()
    warm_up(pieces, stream, times=1)
    captured = capture_breakable(pieces, stream, listeners=Listeners(nodes))
    captured.replay()
    torch.cuda.synchronize()
    assert (read, x[0].item()) == ([1, 3, 7], 14)  # 0 + 1, doubled, + 1, doubled, + 1, doubled
    assert [(row["op"], row["kernels"], row["copies"]) for row in nodes.ledger.rows()] == [
        ("add", 1, 0),
        ("copy", 0, 1),
        ("double", 1, 0),
    ]
    assert nodes.ledger.unattributed("kernels", "copies", "sets") == 0
    with pytest.raises(CaptureError, match="read: "):
        capture_full(pieces, stream)
    assert not torch.cuda.is_current_stream_capturing()
    captured.replay()  # the device still works after a failed capture
    torch.cuda.synchronize()
    assert x[0].item() == 30
