"""The tape: what runs again and on which storages, what is one node, and what a graph would refuse."""

from dataclasses import replace

import pytest
import torch
from torch.overrides import _get_current_function_mode
from torch.utils._python_dispatch import _get_current_dispatch_mode

from dsv4bench.errors import CaptureError
from dsv4bench.kernels import kernel
from dsv4bench.kernels.contract import Provider, torch_provider
from dsv4bench.profiling.capture import tape_breakable
from dsv4bench.profiling.tape_nodes import stands_for_a_kernel
from dsv4bench.ranges import Range, Silent
from dsv4bench.workloads.geometry import LayerKind
from dsv4bench.workloads.ops import Ops
from dsv4bench.workloads.step import Piece

KIND = LayerKind(layer=3, ratio=2, kv_source=2, index_source=2, owns_kv=False, owns_index=False, candidates="none")


def taped(run, ops=None, findings=None):
    """Capture one segment and return its tape and the replay."""
    captured = tape_breakable([Piece("work", "segment", run, 3)], ops or Ops("torch", "cpu"), findings=findings)
    return captured.graphs[0], captured.replay


def names(tape):
    return [node.name for node in tape.nodes]


# what runs again


def test_a_replay_works_on_the_storages_of_the_capture_without_python():
    x, out, calls = torch.tensor([1.0, 2.0]), torch.zeros(2), []

    def run():
        calls.append("python")
        out.copy_((x * 2 + 1).view(2))

    tape, replay = taped(run)
    assert out.tolist() == [3, 5]
    x.fill_(10)
    replay()
    assert (out.tolist(), calls) == ([21, 21], ["python"])
    assert names(tape) == ["mul.Tensor", "add.Tensor", "copy_"]  # a view is no node


def test_what_python_chose_at_capture_stays_chosen():
    x, out, state = torch.zeros(4), torch.zeros(4), {"live": 2}

    def run():
        out[: state["live"]].copy_(x[: state["live"]])

    _, replay = taped(run)
    x.fill_(1)
    state["live"] = 4
    replay()
    assert out.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("work", "nodes"),
    [
        (lambda x: torch.add(x, 1, out=x), ["add.out"]),
        (lambda x: x.addmm_(x, x), ["addmm_"]),
        (lambda x: torch.empty(3, dtype=x.dtype, device=x.device).zero_(), ["zero_"]),
        (lambda x: x.t().reshape(-1), ["clone"]),
        (torch.empty_like, []),
        (lambda x: x.clone().unsqueeze_(0).squeeze_(0).add_(1), ["clone", "add_.Tensor"]),
        (lambda x: x.max(0), ["max.dim"]),
        (lambda x: torch.cat([x, x]), ["cat"]),
        (lambda x: x.split([1, 1]), []),
    ],
    ids=["out", "in place", "allocation", "reshape", "nothing", "metadata", "two results", "list", "views"],
)
def test_views_and_allocations_are_no_nodes(work, nodes):
    tape, replay = taped(lambda: work(torch.ones(2, 2, device=X.device)))
    assert names(tape) == ["ones", *nodes]
    replay()


def test_a_result_goes_where_the_capture_put_it_even_when_its_shape_is_changed_in_place():
    x, seen = torch.ones(2, 3), []
    _, replay = taped(lambda: seen.append((x + 1).t_().mul_(2)))
    x.fill_(4)
    replay()
    assert seen[0].tolist() == [[10, 10]] * 3
    assert len(seen) == 1


def test_what_a_capture_holds_is_counted():
    x = torch.zeros(256)
    captured = tape_breakable([Piece("work", "segment", lambda: (x + 1).view(2, -1).add_(1))], Ops("torch", "cpu"))
    assert captured.memory_bytes == 256 * 4


def test_a_tensor_whose_shape_changed_is_refused_on_replay():
    x = torch.zeros(4)
    _, replay = taped(lambda: x.add_(1))
    x.resize_(2)
    with pytest.raises(
        CaptureError,
        match=r"layer 3 work: tests.*:\d+: has another shape than at capture \(\(4,\) at capture, \(2,\) now\)",
    ):
        replay()


# kernels


def rms_norm(ops, rows=4, **changes):
    x, weight, out = (torch.ones(shape).bfloat16() for shape in ((rows, 8), (8,), (rows, 8)))
    tensors = {"x": x, "weight": weight, "eps": 1e-6, "out": out} | changes
    return tensors, lambda: ops.run(KIND, "q_norm", "rms_norm", **tensors)


def test_a_kernels_call_is_one_node_with_its_range_and_arguments():
    ops = Ops("torch", "cpu")
    tensors, run = rms_norm(ops)
    tape, replay = taped(run, ops)
    (node,) = tape.nodes
    assert (node.name, node.kernel, node.piece) == ("rms_norm", True, "layer 3 work")
    assert node.range == Range(0, 3, 2, 2, "q_norm")
    assert dict(node.arguments)["eps"] == 1e-6
    assert (dict(node.arguments)["x"].shape, dict(node.arguments)["x"].made) == ((4, 8), False)
    tensors["x"].copy_(torch.arange(8.0).expand(4, 8))
    replay()
    assert torch.equal(tensors["out"][0], (torch.arange(8.0) / 17.5**0.5).bfloat16())  # the mean of 0, 1, 4, ... 49


def test_a_reference_may_do_what_a_kernel_may():
    ops = Ops("torch", "cpu")
    honest, provider = ops.provider("rms_norm")
    reads = Provider("torch", lambda tensors: lambda: tensors["out"][tensors["x"] > 0].sum().item())
    ops._providers["rms_norm"] = (honest, reads)
    tape, _ = taped(rms_norm(ops)[1], ops)
    assert names(tape) == ["rms_norm"]
    assert provider.name == "torch"


def test_a_kernel_that_only_torch_has_is_its_operations():
    pool, norm = kernel("compress_pool"), kernel("rms_norm")
    assert not stands_for_a_kernel(pool, pool.provider("torch"))
    assert stands_for_a_kernel(norm, norm.provider("torch"))
    own = torch_provider(norm.reference)
    assert not stands_for_a_kernel(norm, replace(own, name="my.py:norm"))
    ops, shape = Ops("torch", "cpu"), pool.examples[0]
    tensors = pool.inputs(shape, torch.Generator().manual_seed(0))
    parked = tensors["ring"].clone()
    tape, replay = taped(lambda: ops.run(KIND, "compress_pool", "compress_pool", **tensors), ops)
    # its lines: pad 1, before 2, rows of the ring 5, parked 1, joined 9, old states 4, newest 4, kept 2, rows of the
    # ring 5, scatter and sentinel 4, pooled 6, group and slot 7. The -1 of a torch.where is a node and no launch, and a
    # masked_fill (before, kept) is two launches on a GPU and one node
    counted = [node for node in tape.nodes if node.name != "scalar_tensor"]
    assert len(counted) == 1 + 2 + 5 + 1 + 9 + 4 + 4 + 2 + 5 + 4 + 6 + 7
    assert {node.range.op for node in counted} == {"compress_pool"}
    assert {node.place.split(":")[0] for node in counted} == {"dsv4bench/kernels/compress_pool.py"}
    ring, pooled = tensors["ring"].clone(), tensors["pooled"].clone()
    tensors["ring"].copy_(parked)
    tensors["pooled"].zero_()
    replay()
    assert torch.equal(tensors["pooled"], pooled)
    assert torch.equal(tensors["ring"], ring)


# what a graph refuses

X, PLACES, MASK = torch.arange(6.0), torch.tensor([1, 2]), torch.tensor([True, False] * 3)
REFUSED = {
    "item": (lambda: X[0].item() + 1, "reads a value to the host"),
    "int": (lambda: int(X[0]), "reads a value to the host"),
    "bool": (lambda: bool(X[0] > 1), "reads a value to the host"),
    "slice": (lambda: X[: PLACES[0]], "reads a value to the host"),
    "equal": (lambda: torch.equal(X, X), "reads a value to the host"),
    "tolist": (lambda: X.tolist()[0], r"reads a value to the host \(tolist\)"),
    "numpy": (lambda: X.numpy()[0], r"reads a value to the host \(numpy\)"),
    "cpu": (lambda: X.cpu()[0], r"reads a value to the host \(cpu\)"),
    "to the cpu": (lambda: X.to("cpu"), r"reads a value to the host \(to\)"),
    "to a device": (lambda: X.to(device="cpu"), r"reads a value to the host \(to\)"),
    "nonzero": (lambda: X.nonzero()[0], r"has a size that depends on data \(nonzero\)"),
    "where": (lambda: torch.where(MASK), "has a size that depends on data"),
    "boolean index": (lambda: X[MASK], r"has a size that depends on data \(index.Tensor\)"),
    "assigned mask": (lambda: X.clone().__setitem__(MASK, X[3:]), "has a size that depends on data"),
    "put mask": (lambda: X.index_put((MASK,), X[3:]), "has a size that depends on data"),
    "masked_select": (lambda: X.masked_select(MASK), "has a size that depends on data"),
    "unique": (lambda: torch.unique(X), "has a size that depends on data"),
    "repeats": (lambda: torch.repeat_interleave(PLACES), "has a size that depends on data"),
    "tensor": (lambda: torch.tensor([1, 2]), "copies fresh host memory to the device"),
    "as_tensor": (lambda: torch.as_tensor([1, 2]), "copies fresh host memory to the device"),
    "index list": (lambda: X[[0, 1]], "copies fresh host memory to the device"),
    "no device": (lambda: X[torch.arange(2)], r"makes a tensor in host memory \(arange\)"),
    "host device": (lambda: torch.zeros(2, device="cpu"), r"makes a tensor in host memory \(zeros\)"),
    "one element": (lambda: X.clone().__setitem__(0, 5), r"copies fresh host memory .*use fill_"),
}


def arange_inside_its_device():
    with X.device:
        return torch.arange(4)


ALLOWED = {
    "index": lambda: X[PLACES],
    "fill a slice": lambda: X.clone().__setitem__(slice(0, 2), 5),
    "fill a mask": lambda: X.clone().__setitem__(MASK, 5),
    "where": lambda: torch.where(MASK, X, -1),
    "repeats": lambda: torch.repeat_interleave(PLACES, output_size=3),
    "arange": lambda: torch.arange(4, device=X.device),
    "device around": arange_inside_its_device,
    "host number": lambda: X + torch.full((), 2.0),
    "in a tensor": lambda: torch.arange(2, out=PLACES.clone()),
    "to a type": lambda: X.to(torch.float64).to(X.device),
    "sort": lambda: X.sort().values,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_graph_refuses_names_piece_file_and_line_and_leaves_no_mode(name):
    work, what = REFUSED[name]
    ops, line = Ops("torch", "cpu"), work.__code__.co_firstlineno
    with pytest.raises(CaptureError, match=rf"^layer 3 work: tests/profiling/test_tape.py:{line}: {what}"):
        taped(work, ops)
    assert _get_current_dispatch_mode() is None
    assert _get_current_function_mode() is None
    assert ops.audit is None
    assert isinstance(ops.mark, Silent)
    taped(lambda: X + 1, ops)  # and the next capture works


@pytest.mark.parametrize("name", ALLOWED)
def test_what_a_graph_holds_is_not_refused(name):
    _, replay = taped(ALLOWED[name])
    replay()


def test_host_memory_that_is_copied_is_one_finding_where_it_is_made():
    findings = []

    def copies():
        made = torch.tensor([5.0])
        X.clone()[:1].copy_(made)

    taped(copies, findings=findings)
    assert [found.rule.text for found in findings] == [
        "copies fresh host memory to the device (torch.tensor or the like)"
    ]


def test_a_failing_piece_leaves_no_mode_either():
    ops = Ops("torch", "cpu")

    def fail():
        raise KeyError("boom")

    with pytest.raises(CaptureError, match="layer 3 work: 'boom'"):
        taped(fail, ops)
    assert _get_current_dispatch_mode() is None
    assert ops.audit is None


def test_findings_are_collected_where_somebody_wants_them_all():
    findings, seen = [], []
    taped(lambda: seen.append((X[1].item(), X[MASK].tolist())), findings=findings)
    assert [found.rule.text for found in findings] == [
        "reads a value to the host (_local_scalar_dense)",
        "has a size that depends on data (index.Tensor)",
        "reads a value to the host (tolist)",
    ]
    assert seen == [(1, [0, 2, 4])]  # the step went on
    assert all(found.rule.mend for found in findings)
