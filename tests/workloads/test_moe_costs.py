"""The MoE's costs by hand, how ranks share its rows, its launches as they were counted, and what ranks exchange."""

import pytest

from dsv4bench.kernels.contract import Cost
from dsv4bench.results.store import read_records
from dsv4bench.workloads.batch import Batch, Request
from dsv4bench.workloads.geometry import V41_FLASH, V41_FLASH_MINI
from dsv4bench.workloads.moe_costs import exchanged_bytes, moe_costs, moe_launches
from tests.source_tree import ROOT
from tests.workloads.stacks import variant

TEN, SIX, NONE = Batch((Request(0, 0, 10),)), Batch((Request(1, 0, 6),), 1), Batch((), 2)
EXPERTS, COLLECTIVES = variant(moe="experts"), variant(moe="collectives")
ROW = 2 * 5120  # bytes
EXPERT = 3 * 5120 * 2304  # weights

# ten rows alone reach 60 of 384 experts, one each
ALONE = {
    "moe_norm": Cost(0, 10 * ROW, 10 * ROW),
    "moe_add": Cost(0, 2 * 10 * ROW, 10 * ROW),
    "moe_router_proj": Cost(2 * 10 * 5120 * 384, 2 * 5120 * 384 + 10 * ROW, 10 * 384 * 4),
    "moe_route": Cost(0, 10 * 384 * 4, 10 * 6 * (4 + 8)),
    "moe_experts": Cost(
        60 * 2 * EXPERT, 60 * 2 * EXPERT + 60 * (2 * ROW + 2 * 3 * 2304), 60 * (ROW + 2 * 3 * 2304) + 10 * ROW
    ),
    "moe_shared_proj": Cost(
        10 * 2 * EXPERT, 2 * EXPERT + 10 * (2 * ROW + 2 * 3 * 2304), 10 * (ROW + 2 * 3 * 2304) + 10 * ROW
    ),
}


def costs(batch, chosen, *others):
    return dict(moe_costs(V41_FLASH, batch, chosen, others))


def test_by_hand():
    assert costs(TEN, EXPERTS) == ALONE
    assert costs(TEN, COLLECTIVES) == {name: ALONE[name] for name in ("moe_norm", "moe_add")}
    assert costs(TEN, variant()) == {}


def test_ranks_run_equal_parts_of_all_rows():
    """Of 16 rows, 96 of them through experts, each of three ranks runs 32 through as many experts."""
    found = [costs(TEN, EXPERTS, SIX, NONE), costs(SIX, EXPERTS, TEN, NONE), costs(NONE, EXPERTS, TEN, SIX)]
    for one in found:
        assert one["moe_experts"].flops == 32 * 2 * EXPERT
        assert one["moe_experts"].bytes_written == 32 * (ROW + 2 * 3 * 2304) + 16 * ROW
        assert one["moe_router_proj"].flops == 2 * 16 * 5120 * 384
    assert [one["moe_shared_proj"].flops for one in found] == [rows * 2 * EXPERT for rows in (10, 6, 0)]
    assert [one["moe_norm"].bytes_read for one in found] == [rows * ROW for rows in (10, 6, 0)]


def test_padding_passes_the_router_and_the_shared_expert_alone():
    padded = costs(TEN.padded(64), EXPERTS)
    assert padded["moe_experts"].flops == ALONE["moe_experts"].flops
    assert padded["moe_router_proj"].flops == 6.4 * ALONE["moe_router_proj"].flops
    assert padded["moe_shared_proj"].flops == 6.4 * ALONE["moe_shared_proj"].flops


def test_many_rows_reach_every_expert_once():
    many = costs(Batch((Request(0, 0, 8192),)), EXPERTS, Batch((Request(1, 0, 8192),), 1))["moe_experts"]
    assert many.bytes_read == 192 * 2 * EXPERT + 6 * 8192 * (2 * ROW + 2 * 3 * 2304)


def test_launches_are_those_that_a_gpu_counted():
    records = read_records(ROOT / "results" / "h200-dep2-experts").records
    eager, graph = (
        next(one for one in records if one.variant["graph"] is way and one.variant["reuse"] == "on")
        for way in (False, True)
    )
    for one, padded in ((eager, False), (graph, True)):
        rows = [row for row in one.counts if row["op"].startswith("moe_")]
        counted = sum(row[name] for row in rows for name in ("kernels", "copies", "sets")) / 40
        assert moe_launches(EXPERTS, 2, padded) == pytest.approx(counted, rel=0.05)
    assert moe_launches(EXPERTS, 1, padded=False) == moe_launches(EXPERTS, 2, padded=False) - 5
    assert (moe_launches(COLLECTIVES, 2, padded=True), moe_launches(variant(), 2, padded=True)) == (4, 0)


def test_what_ranks_exchange():
    """40 layers: two all-reduces of 16 rows in an eager step, and in a graph 3 x 64 rows each way."""
    eager, padded = [TEN, SIX, NONE], [one.padded(64) for one in (TEN, SIX, NONE)]
    assert exchanged_bytes(V41_FLASH, eager, EXPERTS) == {"all-reduce": 40 * 2 * 16 * ROW}
    each = 40 * 3 * 64 * ROW
    assert exchanged_bytes(V41_FLASH, padded, COLLECTIVES) == {"all-gather": each, "reduce-scatter": each}
    assert exchanged_bytes(V41_FLASH_MINI, [TEN], EXPERTS) == exchanged_bytes(V41_FLASH, eager, variant()) == {}
