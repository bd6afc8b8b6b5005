"""What of a layer is in a step: the words, and the shares of one row by hand."""

import pytest

from dsv4bench.workloads.batch import Batch, Request
from dsv4bench.workloads.geometry import V41_FLASH
from dsv4bench.workloads.model import forward_work
from dsv4bench.workloads.step_scope import in_words, layer_shares, what_is_in_the_step
from tests.workloads.stacks import variant

ROW = Batch((Request(0, 0, 1),))
BIG = Batch((Request(0, 8192, 8192),))
EVERYTHING = {"mhc": "on", "moe": "experts"}

WORDS = [
    ({}, "attention stack only"),
    ({"mhc": "on"}, "attention stack and residual streams"),
    ({"moe": "collectives"}, "attention stack and the exchange of a MoE"),
    ({"moe": "experts"}, "attention stack and a MoE"),
    (EVERYTHING, "attention stack, residual streams and a MoE"),
]


@pytest.mark.parametrize(("switches", "words"), WORDS, ids=[words for _, words in WORDS])
def test_words(switches, words):
    assert in_words(variant(**switches)) == words


def work(**switches):
    """Return FLOPs and bytes of a row's stack, streams among them where they are in the step."""
    costs = forward_work(V41_FLASH, ROW, variant(**switches)).values()
    return sum(cost.flops for cost in costs), sum(cost.bytes_moved for cost in costs)


def moe_by_hand(experts):
    """Return FLOPs and bytes of 40 MoEs of v41-flash where a row goes through so many experts of a rank, one shared.

    An expert reads a row, writes gate and up, reads both and writes one, reads that and writes a row. The router's 384
    logits are f32. The experts' rows are read again and written as two sums, of the routed and with the shared one.
    """
    weights = experts * 3 * 5120 * 2304 + 5120 * 384
    values = experts * (5120 + 2 * 2304 + 2 * 2304 + 2304 + 2304 + 5120) + 5120 + 2 * 384 + (experts + 2) * 5120
    return [40 * 2 * 5120 * (experts * 3 * 2304 + 384), 40 * 2 * (weights + values)]


@pytest.mark.parametrize("idle", [Batch((), 1), Batch((), 1).padded(1)], ids=["sits out", "idle in a graph"])
def test_a_rank_shares_its_rows_with_one_that_has_none(idle):
    """Of the row's 6 experts each of two ranks holds 3; the shared one runs where the row is."""
    router = 1 if idle.bucket is None else 2  # the rows that the router runs over, padding included
    layer = moe_by_hand(experts=4)
    layer[0] += 40 * 2 * 5120 * 384 * (router - 1)
    layer[1] += 40 * 2 * (5120 + 2 * 384 + 5120) * (router - 1)  # read, its logits, and a sum of no expert
    streams = [more - less for more, less in zip(work(mhc="on", moe="collectives"), work(), strict=True)]
    want = [work()[i] / (work()[i] + streams[i] + layer[i]) for i in (0, 1)]
    assert layer_shares([ROW, idle], variant()) == pytest.approx(want, rel=1e-12)
    assert layer_shares([idle, ROW], variant()) == layer_shares([ROW, idle], variant())
    assert layer_shares([ROW], variant())[0] < want[0]
    assert "bytes of v41-flash's layers on the rank with the most rows (modelled)" in what_is_in_the_step(
        [ROW, idle], variant()
    )


def test_shares_of_a_row():
    """A row reaches 6 of 384 experts and the shared one: 7 x 3 matrices of 5120 x 2304, and a router of 384 columns."""
    layer = moe_by_hand(experts=7)
    streams = [more - less for more, less in zip(work(mhc="on", moe="collectives"), work(), strict=True)]
    assert streams[0] == 40 * 2 * 2 * 24 * 4 * 5120
    for switches, parts in [
        ({}, [work()]),
        ({"mhc": "on"}, [work(mhc="on")]),
        ({"moe": "collectives"}, [work()]),
        ({"moe": "experts"}, [work(), layer]),
        (EVERYTHING, [work(), streams, layer]),
    ]:
        want = [sum(part[i] for part in parts) / (work()[i] + streams[i] + layer[i]) for i in (0, 1)]
        assert layer_shares([ROW], variant(**switches)) == pytest.approx(want), switches


def test_ranks_share_the_experts():
    """8 192 rows reach all 384 experts, of which each of four ranks holds 96: fewer bytes, and all ranks' router."""
    one, four = (layer_shares([BIG] * ranks, variant()) for ranks in (1, 4))
    router = 3 * 40 * 2 * 8192 * 5120 * 384  # of the other ranks' rows
    stack = sum(cost.flops for cost in forward_work(V41_FLASH, BIG, variant()).values())
    assert 1 / four[0] - 1 / one[0] == pytest.approx(router / stack)
    assert four[1] > one[1]


def test_everything_is_all_of_it():
    assert layer_shares([BIG], variant(**EVERYTHING)) == (1.0, 1.0)
    assert 0.35 < layer_shares([BIG], variant())[0] < 0.45  # "about 40 %"


def test_the_line():
    text = what_is_in_the_step([BIG], variant(**EVERYTHING))
    assert text == (
        "attention stack, residual streams and a MoE: about 100% of the FLOPs and 100% of the bytes of v41-flash's"
        " layers (modelled)"
    )
