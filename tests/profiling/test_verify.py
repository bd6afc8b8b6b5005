"""What a check sees: stale heads, other bytes, a kernel out of tolerance."""

from dataclasses import replace

import pytest
import torch

from dsv4bench.kernels.arguments import expect_range
from dsv4bench.kernels.contract import EXACT, Kernel, Provider, Tolerance
from dsv4bench.profiling import verify
from dsv4bench.profiling.capture import run_pieces
from dsv4bench.profiling.verify import Check, KernelAudit, Seen
from dsv4bench.ranges import Range
from dsv4bench.workloads.batch import Batch, Request
from dsv4bench.workloads.geometry import V41_FLASH_MINI
from tests.profiling.small_groups import SMALL, allocated


@pytest.fixture(scope="module")
def eager():
    """One batch of 8 rows, reuse off and on."""
    return allocated(graph=False)


def observe(group, reuse, run=None):
    step = group.steps[reuse, ("fused", "torch")]
    with torch.no_grad():
        return verify.observe(step, list(group.prefill.all_forwards()), run or run_live(step))


def run_live(step):
    return lambda forward: run_pieces(step.pieces(forward.live))


# reused heads


def test_reused_heads_equal_a_fresh_dequant(eager):
    _, watch = observe(eager, "on")
    # layer 2 reads the head of source 1, layer 5 that of source 4
    assert watch.heads == 2
    assert watch.check(2) == Check("reused heads", True, "2 reused heads equal a fresh dequant byte for byte")
    assert watch.check(3) == Check("reused heads", False, "2 heads were reused, expected 3")


def test_without_reuse_there_is_no_head_to_compare(eager):
    _, watch = observe(eager, "off")
    assert watch.heads == 0


def test_a_head_that_changed_in_one_bit_is_stale(eager):
    step = eager.steps["on", ("fused", "torch")]

    def spoil_after_layer_4(forward):
        for piece in step.pieces(forward.live):
            piece.run()
            if piece.name == "layer 4 output":
                head = step.kv_buffer.reserve(0)[0].view(torch.int16)
                head[0, 100] ^= 1

    _, watch = observe(eager, "on", run=spoil_after_layer_4)
    assert watch.stale == [5]
    assert watch.check(2) == Check("reused heads", False, "1 of 2 reused heads differ, first in layer 5")


# outputs


def test_two_runs_of_one_step_leave_the_same_bytes(eager):
    first, _ = observe(eager, "on")
    again, _ = observe(eager, "on")
    assert len(first.layers) == 6 + 1  # what enters each layer, and the output
    check = verify.compare("twice", again, first)
    assert check == Check("twice", True, f"7 layer outputs and {len(first.caches)} caches and rings are byte-equal")


def test_a_run_begins_with_the_saved_rings_and_poisoned_buffers(eager):
    step = eager.steps["on", ("fused", "torch")]
    for ring in step.pools.rings.values():
        ring.fill_(3.0)
    step.buffers.x.fill_(3.0)
    seen = []

    def look(forward):
        seen.append([ring.clone() for ring in step.pools.rings.values()])
        seen.append(step.buffers.x.isnan().all().item())
        seen.append(step.kv_buffer.reserve(0).isnan().all().item())
        step.buffers.residual.zero_()

    observe(eager, "on", run=look)
    saved = list(step.pools.saved_rings.values())
    assert all(torch.equal(one, other) for one, other in zip(seen[0], saved, strict=True))
    assert seen[1:] == [True, True]


def test_nobody_observes_a_step_any_more_after_an_error(eager):
    step = eager.steps["on", ("fused", "torch")]

    def fail(forward):
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        observe(eager, "on", run=fail)
    assert step.observer is None


ONE, TWO, THREE = (1, 1), (2, 2), (3, 3)


@pytest.mark.parametrize(
    ("got", "check"),
    [
        (Seen((ONE, TWO), (THREE,)), Check("x", True, "2 layer outputs and 1 caches and rings are byte-equal")),
        (Seen((ONE, ONE), (THREE,)), Check("x", False, "1 of 2 layer outputs differ, first is number 1")),
        (Seen((TWO, ONE), (ONE,)), Check("x", False, "2 of 2 layer outputs differ, first is number 0")),
        (Seen((ONE, TWO), (ONE,)), Check("x", False, "layer outputs are equal, 1 of 1 caches or rings differ")),
    ],
    ids=["equal", "last layer", "both layers", "a cache"],
)
def test_what_differs_is_named(got, check):
    assert verify.compare("x", got, Seen((ONE, TWO), (THREE,))) == check


def test_another_number_of_outputs_is_never_equal():
    with pytest.raises(ValueError, match="zip"):
        verify.compare("x", Seen((ONE,), ()), Seen((ONE, TWO), ()))


# kernels against torch


def kernel_that_doubles(tolerance=EXACT, output="out"):
    def reference(x, **outputs):
        outputs[output].copy_(2 * x)

    return Kernel("double", None, reference, None, {output: tolerance}, ())


def audited(factor, layer=0, provider="triton", **kernel):
    """Audit a call that multiplies by `factor` where 2 is right; return (audit, what the call wrote)."""
    double = kernel_that_doubles(**kernel)
    (name,) = double.outputs
    x = torch.arange(1, 4, dtype=torch.float32)
    tensors = {"x": x, name: torch.full((3,), float("nan"))}
    audit = KernelAudit(SMALL)
    audit(
        Range(layer=layer, op="op"), double, Provider(provider, None), tensors, lambda: tensors[name].copy_(factor * x)
    )
    return audit, tensors[name].tolist()


def test_a_kernel_that_agrees_with_its_reference_is_counted():
    audit, written = audited(factor=2)
    assert written == [2, 4, 6]
    assert audit.check() == Check(
        "kernels against torch", True, "1 outputs in layers [0, 1, 2, 4, 5] within their kernels' tolerances"
    )


def test_a_kernel_that_does_not_agree_is_named_with_its_layer():
    audit, written = audited(factor=3, layer=2)
    assert written == [3, 6, 9]  # what the kernel wrote stays, not what the reference would have
    check = audit.check()
    assert not check.passed
    assert check.detail.startswith("layer 2 op out: 3 of 3 elements differ")


def test_the_tolerance_is_the_kernels_own():
    audit, _ = audited(factor=2.001, tolerance=Tolerance(rtol=0.01))
    assert audit.check().passed


@pytest.mark.parametrize(("layer", "provider"), [(3, "triton"), (0, "torch")], ids=["another layer", "torch itself"])
def test_what_is_not_audited_is_only_launched(layer, provider):
    audit, written = audited(factor=3, layer=layer, provider=provider)
    assert written == [3, 6, 9]
    assert audit.compared == 0


@pytest.mark.parametrize(("layer", "provider"), [(0, "triton"), (3, "triton"), (0, "torch")])
def test_an_id_outside_its_tensor_is_named_with_its_layer_before_anything_is_launched(layer, provider):
    def check_values(tensors):
        expect_range("ids", tensors["ids"], 0, 4)

    kernel = replace(kernel_that_doubles(), check_values=check_values)
    audit = KernelAudit(SMALL)
    with pytest.raises(ValueError, match=rf"layer {layer} read: ids\[1\]: 4, expected 0 to 3"):
        audit(
            Range(layer=layer, op="read"),
            kernel,
            Provider(provider, None),
            {"ids": torch.tensor([0, 4])},
            lambda: pytest.fail("launched"),
        )


def test_the_reserved_page_of_a_cache_is_nobodys():
    double = kernel_that_doubles(output="cache")
    x = torch.ones(2, 3)
    tensors = {"x": x, "cache": torch.zeros(2, 3)}

    def launch():
        tensors["cache"].copy_(2 * x)
        tensors["cache"][0] = 7.0  # several padded rows end in slot 0, in any order

    audit = KernelAudit(SMALL)
    audit(Range(layer=0, op="store"), double, Provider("triton", None), tensors, launch)
    assert audit.check().passed
    tensors["x"] = 2 * x
    audit(Range(layer=0, op="store"), double, Provider("triton", None), tensors, launch)
    assert not audit.check().passed


@pytest.mark.parametrize(
    ("geometry", "layers"),
    # ratio 0; a source and a reader of ratio 2; publisher, reader and consumer of candidates at ratio 1
    [(V41_FLASH_MINI, [0, 2, 3, 20, 21, 24]), (SMALL, [0, 1, 2, 4, 5])],
    ids=["mini", "small"],
)
def test_one_layer_of_each_kind_is_audited(geometry, layers):
    assert [kind.layer for kind in verify.first_of_each_kind(geometry)] == layers


# another batch in the same bucket


def batch(*lengths, bucket=None):
    return Batch(tuple(Request(i, prefix, extend) for i, (prefix, extend) in enumerate(lengths)), bucket=bucket)


@pytest.mark.parametrize(
    ("given", "other"),
    [
        (batch((60, 8), bucket=8), batch((61, 7), bucket=8)),
        (batch((3, 1), (5, 4), (7, 2), bucket=8), batch((3, 1), (6, 3), (7, 2), bucket=8)),
        (batch((3, 1), (5, 1), bucket=4), Batch((Request(1, 5, 1),), bucket=4)),
        (batch((9, 1), bucket=4), None),
        (Batch((Request(0, 0, 8),), bucket=8, idle=True), None),
    ],
    ids=["one token less", "of the first that has two", "one request less", "one row only", "idle"],
)
def test_another_batch_has_one_row_less_in_the_same_bucket(given, other):
    assert verify.other_batch(given) == other


def test_a_share_of_bytes_is_one_of_those_written():
    """Every byte written is wrong, and the pool around it is large: no share of the pool may hide that."""

    def reference(x, cache):
        cache[1, : len(x)] = x

    store = Kernel("store", None, reference, None, {"cache": Tolerance(share=0.999)}, ())
    cache = torch.zeros(100, 100, dtype=torch.uint8)
    x = torch.arange(1, 6, dtype=torch.uint8)
    audit = KernelAudit(SMALL)
    tensors = {"x": x, "cache": cache}
    audit(Range(layer=0, op="store"), store, Provider("triton", None), tensors, lambda: reference(x + 100, cache))
    assert not audit.check().passed


def test_a_byte_written_where_the_reference_writes_none_is_wrong():
    def reference(x, cache):
        cache[1, : len(x)] = x

    store = Kernel("store", None, reference, None, {"cache": Tolerance(share=0.9)}, ())
    cache = torch.zeros(9, 100, dtype=torch.uint8)
    x = torch.arange(1, 6, dtype=torch.uint8)

    def stray():
        reference(x, cache)
        cache[7, 50] = 9

    audit = KernelAudit(SMALL)
    audit(Range(layer=0, op="store"), store, Provider("triton", None), {"x": x, "cache": cache}, stray)
    assert not audit.check().passed


# missing work


@pytest.mark.parametrize("part", ["project", "compress"])
def test_a_cache_write_that_does_not_happen_shows(eager, part):
    """Earlier runs have left the right bytes in the caches; a run that writes none of them must not find them."""
    whole, _ = observe(eager, "on")
    step = eager.steps["on", ("fused", "torch")]

    def without(forward):
        run_pieces([piece for piece in step.pieces(forward.live) if piece.name != f"layer 4 {part}"])

    got, _ = observe(eager, "on", run=without)
    assert not verify.compare("replay", got, whole).passed
    assert verify.compare("again", observe(eager, "on")[0], whole).passed
