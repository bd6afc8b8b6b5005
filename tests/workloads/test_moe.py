"""The stand-in of the MoE on one rank: attention does not see it, padding does not reach it, a tape replays it."""

import pytest
import torch

from dsv4bench.profiling.capture import run_pieces, tape_breakable
from dsv4bench.profiling.verify import observe
from dsv4bench.workloads.moe import MOE, Alone, make_moe, stand_in
from dsv4bench.workloads.variant import Variant
from tests.workloads.stacks import CPU, SHORT, Heard, batch, cell

TWO = batch((60, 5), (3, 4))
OPS = ["moe_norm", "moe_router_proj", "moe_route", "moe_experts", "moe_add", "moe_shared_proj"]


def step_of(moe, of=TWO):
    prepared, variant = cell(SHORT, of), Variant(moe=moe)
    step = prepared.step(variant)
    step.moe = stand_in(prepared.model, variant, Alone(), ((of,),))
    return step, next(prepared.all_forwards())


@pytest.fixture(scope="module")
def both():
    """A step without the stand-in and one with experts, each observed once over live rows."""
    with torch.no_grad():
        found = [step_of(moe) for moe in ("off", "experts")]
        return [(step, *observe(step, [one], lambda f, s=step: run_pieces(s.live_pieces(f)))) for step, one in found]


def test_attention_is_the_same_bytes_with_and_without(both):
    (_, off, _), (step, on, _) = both
    assert on == off
    assert step.moe is not None
    assert not torch.equal(step.moe.added[:9], step.buffers.residual[:9])


def test_every_layer_has_its_operations_behind_its_output(both):
    (off, _, _), (step, _, _) = both
    forward = step.forward
    step.ops.mark = heard = Heard()
    with torch.no_grad():
        run_pieces(step.live_pieces(forward))
    for layer in range(len(SHORT.ratios)):
        assert heard.ops(layer)[-len(OPS) - 1 :] == ["o_proj_b", *OPS]
    assert off.moe is None
    assert [piece.part for piece in off.live_pieces(forward) if piece.part == MOE] == []
    parts = [(piece.name, piece.kind) for piece in step.live_pieces(forward) if piece.part == MOE]
    assert parts == [(f"layer {layer} moe", "segment") for layer in range(len(SHORT.ratios))]


def test_padded_rows_have_no_expert_and_live_rows_the_same():
    with torch.no_grad():
        step, forward = step_of("experts", batch((60, 5), (3, 4), bucket=16))
        step.poison()
        step.load(forward)
        run_pieces(step.padded_pieces(forward))
        ids = step.moe.routing.ids.clone()
        assert (ids[:9] >= 0).all()
        assert (ids[9:16] == -1).all()
        assert int(step.moe.routing.ends[-1]) == 9 * SHORT.experts_per_token
        assert step.moe.added[:9].isfinite().all()
        kept = step.moe.added[:9].clone()
        captured = tape_breakable(step.padded_pieces(forward), step.ops)
        step.pools.restore_rings()
        step.poison()
        step.load(forward)
        captured.replay()
    assert torch.equal(step.moe.added[:9], kept)


def test_off_has_no_buffers_and_no_exchange_has_no_experts():
    assert make_moe(SHORT, Variant(), Alone(), 16, CPU) is None
    made = make_moe(SHORT, Variant(moe="collectives"), Alone(2), 16, CPU)
    assert made.experts is None
    row = 2 * SHORT.hidden
    # own rows, those of two ranks, what returned, and the sum with the residual
    assert made.bytes == (16 + 32 + 16 + 16) * row
