"""Pools at a fraction of device memory (specification 8.4): by hand for an H200, and as a rule for any device."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.errors import UsageError
from dsv4bench.units import MIB
from dsv4bench.workloads.batch import Request
from dsv4bench.workloads.geometry import V41_FLASH, V41_FLASH_MINI
from dsv4bench.workloads.pool_size import (
    MemoryPlan,
    fixed_bytes,
    full_page_bytes,
    most_of_batches,
    pool_size,
    refuse_small_pool,
)
from dsv4bench.workloads.pools import Extent, make_pools, make_tables
from dsv4bench.workloads.rank_weights import rank_weights
from dsv4bench.workloads.variant import KV_PAIRS

H200 = 143_771 * MIB
FP4 = KV_PAIRS["v41+fp4"]
# 32 requests of 8192 + 128 tokens on a rank: 33 pages each, of which the window pool holds the last 2
DEP4 = MemoryPlan(fraction=0.7, ranks=4, requests=32, window_pages=1 + 32 * 2, recipe="dep4")
WORDS = "--mem-fraction 0.7 --recipe dep4"


def refuse(plan, requests, free_bytes, asked="--batch 64"):
    refuse_small_pool(pool_size(plan, V41_FLASH, FP4, free_bytes), plan, V41_FLASH, requests, asked)


def batch(count=32, prefix=8192, extend=128):
    return tuple(Request(index, prefix, extend) for index in range(count))


@pytest.mark.parametrize(("kv", "token_bytes"), [("v41+fp4", 890), ("v41", 1490), ("v4", 1632.5)])
def test_bytes_of_a_full_token_are_those_of_the_specification(kv, token_bytes):
    assert full_page_bytes(V41_FLASH, KV_PAIRS[kv]) == 256 * token_bytes


@pytest.mark.parametrize(("kv", "slot_bytes"), [("v41+fp4", 21_120), ("v4", 23_400)])
def test_bytes_of_a_window_slot_and_of_the_state(kv, slot_bytes):
    pages = fixed_bytes(V41_FLASH, KV_PAIRS[kv], 2, 32) - fixed_bytes(V41_FLASH, KV_PAIRS[kv], 1, 32)
    assert pages == 256 * slot_bytes
    # 32 requests, rows rounded up to an even number: 32 * 8 + 8 + 1 + 1
    assert fixed_bytes(V41_FLASH, KV_PAIRS[kv], 0, 32) == 266 * 4096 * 3


def test_an_h200_of_dep4_by_hand():
    found = pool_size(DEP4, V41_FLASH, FP4, H200)
    # tails: 32 * (128 + 256) tokens are 48 pages more
    windows, state = 40 * (65 + 48) * 135_168, 266 * 4096 * 3
    assert found.room.window_pages == 113
    assert found.fixed_bytes == windows + state == 614_227_968
    budget = 105_528_374_067 - 81_547_852_800 - 614_227_968  # 0.7 of 150 754 820 096 bytes, less weights
    assert found.room.full_pages == budget // (890 * 256) == 102_555
    assert found.full_tokens == 102_554 * 256  # page 0 is reserved
    assert found.window_tokens == 112 * 256


def test_an_h200_does_not_hold_a_rank_of_dep2():
    two = MemoryPlan(fraction=0.92, ranks=2, requests=32, window_pages=65)
    over = 153_742_310_400 - 150_754_820_096
    with pytest.raises(UsageError) as caught:
        refuse(two, batch(), H200)
    assert str(caught.value) == (
        "--mem-fraction 0.92: the weights of v41-flash on a rank of 2 take 143.2 GiB (modelled),"
        f" {over / 2**30:.1f} GiB more than the 140.4 GiB that are free; expected the experts on 4 ranks or more"
    )


def test_a_geometry_that_no_number_of_ranks_fits():
    with pytest.raises(UsageError, match="expected a smaller geometry"):
        refuse(DEP4, batch(), 2**30)


def test_a_batch_that_the_pool_does_not_hold():
    long = batch(prefix=1_000_000)  # 3907 pages each
    pages = 32 * 3907
    refuse(DEP4, batch(), H200)
    needed = 81_547_852_800 + 614_227_968 + (1 + pages) * 890 * 256
    enough = -(-needed * 1000 // H200) / 1000
    with pytest.raises(UsageError) as caught:
        refuse(DEP4, long, H200, "--batch 64 --prefix 1000000")
    assert str(caught.value) == (
        f"{WORDS}: --batch 64 --prefix 1000000 takes {pages * 256} tokens of the full pool on a rank, which would hold"
        f" {102_554 * 256}; expected at least --mem-fraction {enough:g}"
    )
    refuse(replace(DEP4, fraction=enough), long, H200)


def test_no_fraction_would_do():
    with pytest.raises(UsageError, match="which would hold 26253824; no fraction would do"):
        refuse(DEP4, batch(400, prefix=1_000_000), H200)


PLANS = st.builds(
    MemoryPlan,
    fraction=st.floats(0.01, 0.99),
    ranks=st.sampled_from([1, 2, 4, 8]),
    requests=st.integers(1, 64),
    window_pages=st.integers(2, 300),
)


@given(PLANS, st.sampled_from(list(KV_PAIRS.values())), st.integers(2**28, 2**36))
def test_pools_are_whole_pages_within_the_budget_and_the_next_page_is_over(plan, kv, free_bytes):
    found = pool_size(plan, V41_FLASH_MINI, kv, free_bytes)
    held, budget = found.weights_bytes + found.pool_bytes, free_bytes * plan.fraction
    assert found.full_tokens % 256 == found.window_tokens % 256 == 0
    assert held <= budget or found.room.full_pages == 0
    assert held + found.full_page_bytes > budget - 1
    assert found.window_tokens >= (plan.window_pages - 1) * 256 + plan.requests * 384


@pytest.mark.parametrize("kv", ["v4", "v41+fp4"])
def test_pools_are_allocated_at_that_size_and_a_cell_sees_its_own_pages(kv):
    plan = MemoryPlan(fraction=0.5, ranks=4, requests=3, window_pages=4)
    found = pool_size(plan, V41_FLASH_MINI, KV_PAIRS[kv], 2**30)
    tables = make_tables([Extent(300, 310)], 128, torch.device("cpu"), seed=0)
    meta = torch.device("meta")
    pools = make_pools(V41_FLASH_MINI, KV_PAIRS[kv], tables, meta, found.room)
    assert found.room.full_pages > tables.full_pages
    assert pools.bytes == found.pool_bytes
    own = make_pools(V41_FLASH_MINI, KV_PAIRS[kv], tables, meta)
    assert [t.shape for t in pools.caches()] == [t.shape for t in own.caches()]
    assert {s: ring.shape for s, ring in pools.rings.items()} == {s: ring.shape for s, ring in own.rings.items()}


def test_weights_that_the_cell_holds_count_where_they_are_more_than_the_models():
    plan = MemoryPlan(fraction=0.5, ranks=4, requests=3, window_pages=4)
    model = rank_weights(V41_FLASH_MINI, 4).total_bytes
    for own_bytes, counted in ((model - 1, model), (model + 1, model + 1)):
        assert pool_size(plan, V41_FLASH_MINI, FP4, 2**30, own_bytes).weights_bytes == counted


def test_most_of_batches_are_of_different_ones():
    many, long = [Request(i, 0, 1) for i in range(3)], [Request(0, 0, 2560)]
    assert most_of_batches([many, long], 128) == (3, 1 + 10)
