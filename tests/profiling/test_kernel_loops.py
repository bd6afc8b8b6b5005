"""Loops: the calls themselves on a CPU, one graph of at least 32 calls on a GPU, one by one where a graph cannot."""

import pytest
import torch

from dsv4bench.errors import CaptureError
from dsv4bench.profiling import kernel_loops
from dsv4bench.profiling.graph_nodes import GraphNodes
from dsv4bench.profiling.kernel_loops import loop
from tests.profiling.fake_cuda import COPY, HOST, SET, Bindings, FakeCuda

CUDA = torch.device("cuda")


@pytest.fixture
def gpu(monkeypatch):
    return FakeCuda().install(monkeypatch)


def test_on_a_cpu_a_loop_makes_every_call_once():
    ran = []
    one = loop([lambda: ran.append("a"), lambda: ran.append("b")], torch.device("cpu"))
    one.run()
    assert (ran, one.calls, one.rounds, one.why_eager) == (["a", "b"], 2, 1, None)


@pytest.mark.parametrize(("sets", "rounds"), [(1, 32), (2, 16), (3, 11), (32, 1), (50, 1)])
def test_on_a_gpu_a_loop_is_one_graph_of_whole_rounds(gpu, sets, rounds):
    ran = []
    calls = [lambda n=n: gpu.launch(f"k{n}", lambda: ran.append(n)) for n in range(sets)]
    one = loop(calls, CUDA)
    assert (one.calls, one.rounds, one.why_eager) == (sets * rounds, rounds, None)
    (nodes,) = gpu.graph_nodes.values()
    assert [gpu.nodes[node][1] for node in nodes] == [f"k{n}" for n in range(sets)] * rounds
    ran.clear()
    one.run()
    assert ran == list(range(sets)) * rounds
    assert one.kept == tuple(calls)  # a graph holds addresses only: somebody must hold the tensors behind them


@pytest.mark.parametrize(
    ("operations", "launches"),
    [([None], 1), ([None, COPY, SET, HOST], 3), ([], 0)],
    ids=["one-kernel", "kernel-copy-set", "nothing"],
)
def test_the_launches_of_a_call_are_counted_in_the_graph(gpu, monkeypatch, operations, launches):
    """A host node does no work of the device's; the warm-up is not counted."""
    bindings = Bindings(gpu)
    monkeypatch.setattr(kernel_loops, "load_graph_nodes", lambda: GraphNodes(bindings, bindings))

    def call():
        for kind in operations:
            gpu.launch("k", **({} if kind is None else {"kind": kind}))

    one = loop([call, call, call], CUDA)
    assert (one.launches, one.calls, one.why_eager) == (launches, 33, None)


@pytest.mark.parametrize("form", ["missing", "v2-plain"])
def test_a_loop_whose_launches_nobody_tells_is_a_graph_all_the_same(gpu, monkeypatch, form):
    def load():
        if form == "missing":
            raise CaptureError("needs cuda-bindings")
        bindings = Bindings(gpu, "other")  # a release that does not tell the graph of a capture
        return GraphNodes(bindings, bindings)

    monkeypatch.setattr(kernel_loops, "load_graph_nodes", load)
    one = loop([lambda: gpu.launch("k")], CUDA)
    assert (one.launches, one.why_eager) == (None, None)


def test_what_a_graph_cannot_hold_runs_call_by_call_and_says_why(gpu):
    ran = []

    def call():
        gpu.synchronise_illegally()
        gpu.launch("k", lambda: ran.append("k"))

    one = loop([call], CUDA)
    assert one.why_eager == "calls: operation not permitted when stream is capturing"
    ran.clear()
    one.run()
    assert ran == ["k"] * 32


def test_a_call_that_fails_by_itself_fails_the_loop(gpu):
    def call():
        raise ValueError("wrong dtype")

    with pytest.raises(ValueError, match="wrong dtype"):
        loop([call], CUDA)
