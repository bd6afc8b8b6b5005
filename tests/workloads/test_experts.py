"""Experts against a loop over rows: routing, what a share adds, and what padding and experts elsewhere do not."""

import math
from dataclasses import replace

import pytest
import torch

from dsv4bench.workloads.experts import (
    allocate_experts,
    choose,
    draw_experts,
    make_routing,
    run_experts,
    sort_assignments,
    swiglu,
)
from dsv4bench.workloads.geometry import V41_FLASH, V41_FLASH_MINI

CPU = torch.device("cpu")
SMALL = replace(V41_FLASH_MINI, hidden=32, routed_experts=12, experts_per_token=3, expert_width=16)


def drawn(rank=0, ranks=1, seed=0):
    weights = allocate_experts(SMALL, rank, ranks, CPU)
    draw_experts(weights, seed)
    return weights


def rows(count, seed=1):
    return torch.randn(count, 32, generator=torch.Generator().manual_seed(seed)).bfloat16()


def routed(x, weights, live=None):
    """What one rank adds to the rows, with its routing."""
    routing = make_routing(SMALL, len(x), weights.held, CPU)
    for tensor in routing.tensors():
        tensor.fill_(7)
    routing.logits.copy_(x.float() @ weights.router.float())
    choose(routing, live)
    found = sort_assignments(routing, weights, torch.arange(weights.held, dtype=torch.int32))
    return run_experts(x, found, routing.ends, weights), routing


def by_hand(x, weights):
    """What all experts add to one row, in Python floats."""
    logits = [sum(a * b for a, b in zip(x, column, strict=True)) for column in weights.router.float().T.tolist()]
    scores = [math.sqrt(math.log1p(math.exp(one))) for one in logits]
    best = sorted(range(12), key=lambda number: -scores[number])[:3]
    total = torch.zeros(32)
    for number in best:
        hidden = torch.tensor(x) @ weights.gate_up[number].float()
        gate, up = hidden[:16].clamp(max=10), hidden[16:].clamp(-10, 10)
        weight = 1.5 * scores[number] / sum(scores[other] for other in best)
        total += weight * ((gate * torch.sigmoid(gate) * up) @ weights.down[number].float())
    return best, total


def test_the_published_widths():
    assert (V41_FLASH.routed_experts, V41_FLASH.experts_per_token, V41_FLASH.expert_width) == (384, 6, 2304)
    weights = allocate_experts(V41_FLASH, 1, 4, torch.device("meta"))
    assert (weights.first, weights.held, tuple(weights.gate_up.shape)) == (96, 96, (96, 5120, 4608))
    assert (tuple(weights.down.shape), tuple(weights.shared_down.shape)) == ((96, 2304, 5120), (2304, 5120))


def test_rows_get_what_their_best_experts_make_of_them():
    x, weights = rows(9), drawn()
    added, routing = routed(x, weights)
    for row in range(9):
        best, wanted = by_hand(x[row].tolist(), weights)
        assert routing.ids[row].tolist() == best
        assert float((added[row].float() - wanted).norm() / wanted.norm()) < 0.02
    assert routing.weights.sum(1).tolist() == pytest.approx([1.5] * 9)
    assert routing.ends.tolist() == torch.bincount(routing.ids.flatten(), minlength=12).cumsum(0).tolist()


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_hold_the_same_experts_and_add_up_to_all_of_them(ranks):
    x, whole = rows(7), drawn()
    shares = [drawn(rank, ranks) for rank in range(ranks)]
    assert torch.equal(torch.cat([share.gate_up for share in shares]), whole.gate_up)
    assert all(torch.equal(share.router, whole.router) for share in shares)
    parts = [routed(x, share) for share in shares]
    assert sum(int(routing.ends[-1]) for _, routing in parts) == 7 * 3
    total, wanted = sum(part.float() for part, _ in parts), routed(x, whole)[0].float()
    assert torch.allclose(total, wanted, atol=0.02)


def test_padding_and_rows_of_other_ranks_add_nothing_and_spoil_nothing():
    x, weights = rows(8), drawn(1, 2)
    plain, _ = routed(x[:3], weights)
    x[3:] = float("nan")
    live = torch.arange(8) < 3
    padded, routing = routed(x, weights, live)
    assert torch.equal(padded[:3], plain)
    assert padded[3:].abs().max() == 0
    assert routing.ids[3:].unique().tolist() == [-1]
    assert int(routing.ends[-1]) == int(((routing.ids[:3] >= 6) & (routing.ids[:3] < 12)).sum())
    nothing, routing = routed(x, weights, torch.zeros(8, dtype=torch.bool))
    assert (float(nothing.abs().max()), int(routing.ends[-1])) == (0, 0)


def test_swiglu_is_clamped():
    gate_up = torch.tensor([[20.0, -20.0, 1.0, 30.0, -30.0, 2.0]])
    silu = [value / (1 + math.exp(-value)) for value in (10.0, -20.0, 1.0)]
    assert swiglu(gate_up).tolist()[0] == pytest.approx([silu[0] * 10, silu[1] * -10, silu[2] * 2])


def test_another_seed_gives_other_experts():
    assert not torch.equal(drawn(seed=1).down, drawn().down)
    assert not torch.equal(drawn().down[0], drawn().down[1])
