"""The check of the stand-in of the MoE: right steps pass on every rank, and each kind of wrong one is named."""

import pytest
import torch

from dsv4bench.profiling.capture import run_pieces
from dsv4bench.profiling.moe_check import check_moe
from dsv4bench.workloads.moe import stand_in
from dsv4bench.workloads.variant import Variant
from tests.profiling.small_groups import TINY, model
from tests.profiling.thread_peers import ThreadPeers, on_ranks
from tests.workloads.stacks import batch, cell

BATCHES = batch((60, 5), bucket=8), batch((3, 4), (10, 3), bucket=8)


def checked(moe, padded, spoil=lambda _: None):
    """What the check of two ranks says on each, once a step has run and `spoil(moe)` has been at rank 1's buffers."""

    def work(peers):
        own, variant = BATCHES[peers.rank], Variant(moe=moe)
        prepared = cell(TINY, own)
        with torch.no_grad():
            step = prepared.step(variant)
            step.moe = stand_in(model(TINY), variant, peers, tuple((one,) for one in BATCHES))
            forward = next(prepared.all_forwards())
            step.poison()
            step.load(forward)
            run_pieces(step.padded_pieces(forward) if padded else step.live_pieces(forward))
            if peers.rank == 1:
                spoil(step.moe)
            return check_moe(step, step.moe, forward.batch.rows if padded else None)

    found = on_ranks(2, work)
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
