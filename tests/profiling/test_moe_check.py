"""The check of the stand-in of the MoE: right steps pass on every rank, and each kind of wrong one is named."""

import pytest
import torch

from dsv4bench.profiling.capture import run_pieces
from dsv4bench.profiling.moe_check import check_moe
from dsv4bench.profiling.peers import exchange
from dsv4bench.workloads.moe import stand_in
from dsv4bench.workloads.variant import Variant
from tests.profiling.small_groups import TINY, model
from tests.profiling.thread_peers import ThreadPeers, on_ranks
from tests.workloads.stacks import batch, cell

BATCHES = batch((60, 5), bucket=8), batch((3, 4), (10, 3), bucket=8)


def checked(moe, padded, spoil=lambda _: None, batches=BATCHES):
    """What the check says on each rank, once a step has run and `spoil(moe)` has been at rank 1's buffers."""

    def work(peers):
        own, variant = batches[peers.rank], Variant(moe=moe)
        prepared = cell(TINY, own)
        with torch.no_grad():
            step = prepared.step(variant)
            step.moe = stand_in(model(TINY), variant, peers, tuple((one,) for one in batches))
            forward = next(prepared.all_forwards())
            step.poison()
            step.load(forward)
            run_pieces(step.padded_pieces(forward) if padded else step.live_pieces(forward))
            if peers.rank == 1:
                spoil(step.moe)
            return check_moe(step, step.moe, forward.batch.rows if padded else None)

    found = on_ranks(len(batches), work)
    assert not [one for one in found if isinstance(one, BaseException)], found
    return [(one.passed, one.detail) for one in found]


@pytest.mark.parametrize("padded", [False, True], ids=["live rows", "padded rows"])
@pytest.mark.parametrize(
    ("moe", "said"),
    [("collectives", "rows of 2 ranks arrive and return"), ("experts", "experts over 2 ranks equal an oracle")],
)
def test_a_right_step_passes(moe, said, padded):
    assert checked(moe, padded) == [(True, said)] * 2


def gathered(moe):
    moe.gathered[2, 0] += 1


def returned(moe):
    moe.returned[6] *= 1.5


def added(moe):
    moe.added[0] += 1


def assigned(moe):
    moe.routing.ends[-1] += 1


def chosen(moe):
    first = 8 if moe.routing.ids[5, 0] < 0 else 5  # rank 1's first row, padded or not
    worst = moe.routing.logits[first].argmin()
    moe.routing.ids[first, -1] = worst


@pytest.mark.parametrize(
    ("moe", "padded", "spoil", "said"),
    [
        ("collectives", True, gathered, "rows of rank 0 differ on rank 1"),
        ("experts", False, gathered, "rows of rank 0 differ on rank 1"),
        ("collectives", True, returned, "what returned to rank 1 is not 2 times its rows"),
        ("collectives", False, returned, "what returned to rank 1 is not 2 times its rows"),
        ("experts", True, added, "a row differs from the oracle by "),
        ("experts", True, assigned, "73 rows of experts for 12 live rows, expected 6 each"),
        ("experts", False, chosen, "a row differs from the oracle by "),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_step_is_named(moe, padded, spoil, said):
    passed, detail = checked(moe, padded, spoil)[1]
    assert not passed
    assert detail.startswith(said)


@pytest.mark.parametrize(
    ("name", "padded"),
    [("all_gather_rows", True), ("reduce_scatter_rows", True), ("all_reduce", False)],
)
def test_a_collective_that_does_nothing_is_found(monkeypatch, name, padded):
    monkeypatch.setattr(ThreadPeers, name, lambda *_: None)
    assert [passed for passed, _ in checked("experts", padded)] == [False, False]


def sum_in_turn(first):
    """An all-reduce that rounds after each rank, as a ring of GPUs does, from rank `first` on."""

    def all_reduce(self, rows):
        found = exchange(self, "collective", rows.clone())[first:]
        rows.copy_(sum(found[1:], found[0]))

    return all_reduce


@pytest.mark.parametrize("size", [3, 4, 8])
def test_sums_over_ranks_may_round_but_miss_no_rank(monkeypatch, size):
    batches = [BATCHES[1]] * size
    monkeypatch.setattr(ThreadPeers, "all_reduce", sum_in_turn(0))
    assert checked("collectives", False, batches=batches) == [(True, f"rows of {size} ranks arrive and return")] * size
    monkeypatch.setattr(ThreadPeers, "all_reduce", sum_in_turn(1))
    assert [passed for passed, _ in checked("collectives", False, batches=batches)] == [False] * size


def test_experts_that_are_not_the_best_are_found(monkeypatch):
    """Their rows are right: it is the choice that is wrong."""

    def choose_worst(routing, live):
        assert live is None
        scores = torch.nn.functional.softplus(routing.logits).sqrt()
        weights, ids = scores.topk(routing.ids.shape[1], largest=False)
        routing.ids.copy_(ids)
        routing.weights.copy_(1.5 * weights / weights.sum(dim=1, keepdim=True))

    monkeypatch.setattr("dsv4bench.workloads.moe.choose", choose_worst)
    assert checked("experts", False) == [(False, "a row was routed to experts of lower scores than others")] * 2
