"""The residual streams around attention: attention is the same without them, and they do what the definition says."""

from collections import Counter

import pytest
import torch

from dsv4bench.kernels import kernel
from dsv4bench.kernels.mhc_mix import Shape
from dsv4bench.workloads.break_forms import EAGER, Form
from dsv4bench.workloads.cells import Cell, Load
from dsv4bench.workloads.expected_calls import expected_calls
from dsv4bench.workloads.geometry import V41_FLASH_MINI
from dsv4bench.workloads.memory import META, estimate
from dsv4bench.workloads.mhc import make_mix_weights, mixing_costs
from tests.kernels.test_mhc import mixed
from tests.workloads.stacks import CPU, SHORT, batch, bits, cell, hear, same, variant, written

RAGGED = ((13, 5), (0, 3))
AROUND = ("mhc_pre", "mhc_stats", "mhc_mix", "mhc_post")


def outcome(made, form=EAGER, **switches):
    """Run a forward over poisoned buffers; return the bits of its output, of caches and rings, and the step."""
    step, forward = made.step(variant(**switches)), made.forwards[0][0]
    made.pools.restore_rings()
    step.poison()
    step.load(forward)
    pieces = step.padded_pieces(forward, form)
    for piece in pieces:
        piece.run()
    return [bits(step.result(forward)), *written(made.pools)], step


@pytest.mark.parametrize(
    ("bucket", "form", "switches"),
    [
        (None, EAGER, {}),
        (12, Form("sm100", copies=True), {}),
        (12, Form("hopper"), {"reuse": "off", "compressor": "torch"}),
        (None, EAGER, {"replay": "on"}),
    ],
    ids=["eager", "graph", "hopper", "replayed tail"],
)
def test_attention_is_the_same_to_the_bit(bucket, form, switches):
    made = [
        cell(SHORT, batch(*RAGGED, bucket=bucket), torch_path=True, break_copies=True, mhc=mhc, **switches)
        for mhc in ("off", "on")
    ]
    without, with_streams = (
        outcome(one, form, mhc=mhc, **switches) for one, mhc in zip(made, ("off", "on"), strict=True)
    )
    assert same(without[0], with_streams[0])
    assert without[1].buffers.streams.numel() == 0
    assert with_streams[1].buffers.streams.float().isfinite().all()


def wanted_mixes(streams, weights, hidden):
    """Return the mixes of rows of streams from the definition, in float64 and plain loops."""
    flat = streams.double().flatten(1)
    z = flat @ weights.projection.double().T / (flat.square().mean(dim=1, keepdim=True) + 1e-20).sqrt()
    found = [mixed(row, weights.scale.tolist(), weights.base.tolist()) for row in z.tolist()]
    return torch.tensor(found, dtype=torch.float64)


def test_every_layer_mixes_as_the_definition_says():
    """Pre takes the numbers that the layer before made, post those of this layer's own input."""
    made = cell(SHORT, batch(*RAGGED), mhc="on")
    step, forward = made.step(variant(mhc="on")), made.forwards[0][0]
    step.poison()
    step.load(forward)
    buffers, weights = step.buffers, made.mix_weights
    streams = forward.inputs.hidden[:, None].expand(-1, 4, -1).double()
    mixes = wanted_mixes(streams, weights, SHORT.hidden)
    seen = []
    for piece in step.pieces(8):
        piece.run()
        if piece.part in ("mhc pre", "mhc collapse"):
            want = (mixes[:, :4, None] * streams).sum(dim=1)
            torch.testing.assert_close(buffers.collapsed.double(), want, rtol=0.02, atol=0.02)
            mixes = wanted_mixes(streams, weights, SHORT.hidden)
            torch.testing.assert_close(buffers.mixes.double(), mixes, rtol=1e-3, atol=1e-4)
        if piece.part == "mhc post":
            result = mixes[:, 4:8, None] * buffers.residual.double()[:, None]
            want = result + torch.einsum("tij,tih->tjh", mixes[:, 8:].reshape(-1, 4, 4), streams)
            torch.testing.assert_close(buffers.streams.double(), want, rtol=0.01, atol=0.01)
            streams = buffers.streams.double()
            seen.append(piece.layer)
    assert seen == [kind.layer for kind in SHORT.layers]


def test_operations_are_those_that_the_layers_ask_for():
    made = cell(SHORT, batch(*RAGGED), mhc="on")
    forward = made.forwards[0][0]
    heard = hear(made.step(variant(mhc="on")), forward)
    found = Counter((rng.op, rng.kv_source) for rng in heard.ranges)
    assert found == expected_calls(SHORT, forward.batch, variant(mhc="on"))


def test_the_tail_takes_its_rows_of_streams_and_mixes():
    made = cell(SHORT, batch((200, 140)), mhc="on", replay="on")
    step, forward = made.step(variant(mhc="on", replay="on")), made.forwards[0][0]
    step.poison()
    step.load(forward)
    pieces = step.live_pieces(forward)
    entered = next(place for place, piece in enumerate(pieces) if piece.part == "enter tail")
    for piece in pieces[: entered + 1]:
        piece.run()
    assert [piece.part for piece in pieces if piece.layer == 5][:2] == ["mhc collapse", "source norm"]
    rows = forward.tail_rows[:128]
    assert forward.tail.live == 128
    assert torch.equal(step.tail.buffers.streams[:128], step.buffers.streams[rows])
    assert torch.equal(step.tail.buffers.mixes[:128], step.buffers.mixes[rows])


def test_costs_are_those_of_the_kernels():
    generator = torch.Generator().manual_seed(1)
    want = {name: kernel(name).cost(kernel(name).inputs(Shape(3, 64), generator)) for name in AROUND}
    found = dict(mixing_costs(SHORT, 3, SHORT.layers[1], variant(mhc="on")))
    assert {name: (one.bytes_read, one.bytes_written) for name, one in found.items()} == {
        name: (one.bytes_read, one.bytes_written) for name, one in want.items()
    }
    assert {name: one.flops for name, one in found.items() if one.flops} == {"mhc_stats": 2 * 3 * 256 * 24}


def test_layer_0_fills_the_streams_first():
    found = list(mixing_costs(SHORT, 3, SHORT.layers[0], variant(mhc="on")))
    assert [name for name, _ in found] == ["mhc_enter", *AROUND]
    enter = dict(found)["mhc_enter"]
    assert (enter.bytes_read, enter.bytes_written) == (3 * 64 * 2, 3 * 4 * 64 * 2)


def test_a_moe_is_a_sublayer_too():
    found = mixing_costs(SHORT, 3, SHORT.layers[1], variant(mhc="on", moe="experts"))
    assert [name for name, _ in found] == [*AROUND, *AROUND]
    assert list(mixing_costs(SHORT, 3, SHORT.layers[1], variant(moe="experts"))) == []


@pytest.mark.parametrize("replay", ["off", "on"])
def test_the_estimate_counts_weights_and_buffers(replay):
    load = Load(batch((200, 140)).requests)
    off, on = (estimate((Cell(V41_FLASH_MINI, load, 8192, variant(mhc=mhc, replay=replay)),)) for mhc in ("off", "on"))
    rows, hidden = 140 + (128 if replay == "on" else 0), V41_FLASH_MINI.hidden
    assert on.buffer_bytes - off.buffer_bytes == rows * (2 * 4 * hidden + 2 * hidden + 16 * 25 * 4 + 24 * 4)
    assert on.weights_bytes - off.weights_bytes == 4 * (24 * 4 * hidden + 3 + 24)


def test_weights_of_a_seed_are_the_same_and_others_are_not():
    one, again, other = (make_mix_weights(SHORT, CPU, seed) for seed in (3, 3, 4))
    assert torch.equal(one.projection, again.projection)
    assert torch.equal(one.base, again.base)
    assert not torch.equal(one.projection, other.projection)
    assert make_mix_weights(SHORT, META, 3).bytes == one.bytes
