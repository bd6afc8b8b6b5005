"""What padding may do to live rows: round otherwise where a GEMM runs over it, and nothing to what a source writes."""

import pytest
import torch

from dsv4bench.profiling.live_rows import compare_live_rows
from dsv4bench.workloads.break_forms import EAGER, Form
from dsv4bench.workloads.step import Piece
from tests.profiling.small_groups import allocated


@pytest.fixture(scope="module")
def padded():
    """One batch of 7 rows in a bucket of 8."""
    return allocated(graph=True, extend="7", compressor="both")


def compared(run, compressor="fused", form=EAGER):
    (forward,) = run.prefill.all_forwards()
    with torch.no_grad():
        return compare_live_rows(run.steps["off", (compressor, "torch")], forward, form)


@pytest.mark.parametrize("compressor", ["fused", "torch"])
@pytest.mark.parametrize("breaks", ["sm100", "hopper"])
def test_padding_leaves_live_rows_alone(padded, compressor, breaks):
    check = compared(padded, compressor, Form(breaks))
    assert check.name == "padded rows against live rows"
    assert check.passed, check.detail


def test_bytes_that_no_run_writes_are_not_compared():
    run = allocated(graph=True, extend="7", kv="v4")
    for cache in run.prefill.pools.caches():
        cache.fill_(3)  # among them the pad byte of every V4 row
    assert compared(run).passed


def with_a_leak(step, monkeypatch, leak, name):
    """After the pieces called `name`, `leak` runs in a padded run and not in a live one."""
    honest = step.layer

    def layer(kind, rows, form):
        found = honest(kind, rows, form)
        if rows == 8:
            place = next((i for i, piece in enumerate(found) if piece.name.endswith(name)), None)
            if place is not None:
                found.insert(place + 1, Piece("leak", "segment", leak))
        return found

    monkeypatch.setattr(step, "layer", layer)


@pytest.mark.parametrize(
    ("size", "differ"), [(1.5, "0.33"), (1.02, "0.02"), (float("nan"), "inf")], ids=["half", "2 %", "not a number"]
)
def test_padding_that_changes_an_attention_output_is_seen(padded, monkeypatch, size, differ):
    step = padded.steps["off", ("fused", "torch")]
    with_a_leak(step, monkeypatch, lambda: step.buffers.attention[:7].mul_(size), "layer 5 attention")
    check = compared(padded)
    assert f"attention outputs differ by {differ} of their norm at most (layer 5)" in check.detail
    assert check.passed == (size == 1.02)


def test_padding_that_changes_the_choice_of_top_k_is_seen(padded, monkeypatch):
    step = padded.steps["off", ("fused", "torch")]

    def choose_others():
        for raw in (step.buffers.raw_1, step.buffers.raw_2):
            raw[:7].copy_(raw[:7].roll(1, dims=0))
            raw[:7, ::2] = 0

    with_a_leak(step, monkeypatch, choose_others, "top-k")
    check = compared(padded)
    assert not check.passed
    assert "top-k agrees to 0." in check.detail


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (lambda step: step.buffers.latent[6, 3].add_(0.125), "latents of layer 4"),
        (lambda step: _flip(step.pools.compressed[4], step.inputs.loc[6], 256), "compressed rows of layer 4"),
        (lambda step: step.pools.rings[1][61 % 8, 5].add_(1e-3), "ring of layer 1"),
    ],
    ids=["latents", "compressed rows", "ring"],
)
def test_one_bit_of_what_a_source_writes_is_seen(padded, monkeypatch, spoil, name):
    step = padded.steps["off", ("fused", "torch")]
    layer = name[-1]
    with_a_leak(step, monkeypatch, lambda: spoil(step), f"layer {layer} compress")
    check = compared(padded)
    assert not check.passed
    assert check.detail.endswith(f"byte-equal but for {name}")


def _flip(cache, slot, page_size):
    """Flip the last bit of the first data byte of an FP4 slot: rows of 256 bytes lie in front of their scales."""
    cache[slot // page_size, slot % page_size * 256] ^= 1
