"""Page tables and caches of a cell (specification 2.1, 3.5, 8.4)."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.workloads.geometry import V41_FLASH, V41_FLASH_MINI
from dsv4bench.workloads.pools import RING_ROWS, Extent, make_pools, make_tables, page_counts
from dsv4bench.workloads.variant import KV_PAIRS

CPU = torch.device("cpu")
EXTENTS = st.lists(
    st.tuples(st.integers(0, 700), st.integers(1, 400)).map(lambda pair: Extent(pair[0], sum(pair))),
    min_size=1,
    max_size=5,
)


def slots_of(tables, request: int, end: int) -> torch.Tensor:
    return tables.full_slots(torch.full((end,), request), torch.arange(end))


@given(EXTENTS, st.integers(0, 3))
def test_every_token_has_a_slot_of_its_own_and_slot_0_is_nobodys(extents, seed):
    tables = make_tables(extents, 128, CPU, seed)
    slots = torch.cat([slots_of(tables, i, e.end) for i, e in enumerate(extents)])
    assert slots.unique().numel() == slots.numel()
    assert slots.min() >= 256  # page 0 is reserved
    assert slots.max() < tables.full_pages * 256


@given(EXTENTS)
def test_tokens_of_a_page_are_neighbours(extents):
    tables = make_tables(extents, 128, CPU, 0)
    for i, extent in enumerate(extents):
        slots = slots_of(tables, i, extent.end)
        assert (slots % 256 == torch.arange(extent.end) % 256).all()


@given(EXTENTS)
def test_the_window_pool_holds_127_prefix_tokens_and_the_new_ones(extents):
    tables = make_tables(extents, 128, CPU, 0)
    held = []
    for i, extent in enumerate(extents):
        window = tables.full_to_swa[slots_of(tables, i, extent.end)]
        first = max(0, extent.prefix - 127)
        assert (window[:first] == 0).all()
        assert (window[first:] > 0).all()
        held.append(window[first:])
    slots = torch.cat(held)
    assert slots.unique().numel() == slots.numel()
    assert slots.max() < tables.swa_pages * 256
    assert int((tables.full_to_swa > 0).sum()) == slots.numel()


def test_page_counts_by_hand():
    # 700 + 1 tokens: 3 pages, window from token 573 in page 2: 1; 100 tokens without prefix: 1 page; reserved page 0
    assert page_counts([Extent(700, 701), Extent(0, 100)], 128) == (1 + 3 + 1, 1 + 1 + 1)


def test_pages_are_shuffled():
    tables = make_tables([Extent(0, 256 * 40)], 128, CPU, 0)
    assert sorted(tables.page_table[0].tolist()) == list(range(1, 41))
    assert tables.page_table[0].tolist() != list(range(1, 41))


def test_pools_of_a_cell():
    tables = make_tables([Extent(700, 701), Extent(0, 100)], 128, CPU, 0)
    pools = make_pools(V41_FLASH_MINI, KV_PAIRS["v41+fp4"], tables, CPU)
    assert len(pools.swa) == 40
    assert pools.swa[0].shape == (3, 135_168)
    assert {s: c.shape for s, c in pools.compressed.items()} == {
        2: (5, 36_864),
        8: (5, 36_864),
        14: (5, 36_864),
        20: (5, 73_728),
    }
    # 5 full pages are 1 280 slots at ratio 1 and 640 at ratio 2, in index pages of 64 slots of 68 bytes
    assert pools.index_k[20].shape == (20, 64 * 68)
    assert pools.index_k[2].shape == (10, 64 * 68)
    assert set(pools.rings) == {2, 8, 14}


def test_890_bytes_a_token():
    # specification 8.4: what one token costs in compressed KV and index K of v41-flash with FP4
    tables = make_tables([Extent(0, 256 * 64 - 256)], 128, CPU, 0)
    pools = make_pools(V41_FLASH, KV_PAIRS["v41+fp4"], tables, CPU)
    size = sum(cache.numel() for cache in (*pools.compressed.values(), *pools.index_k.values()))
    assert size / (64 * 256) == 890


def test_a_fresh_ring_is_empty_and_can_be_restored():
    tables = make_tables([Extent(3, 10)] * 3, 128, CPU, 0)
    ring = (pools := make_pools(V41_FLASH_MINI, KV_PAIRS["v4"], tables, CPU)).rings[2]
    assert ring.shape == (3 * RING_ROWS + RING_ROWS + 2, 1024)  # 33 rows, rounded up to an even number
    assert (ring[:, :512] == 0).all()
    assert ring[:, 512:].isneginf().all()
    ring[4] = 7.0
    pools.save_rings()
    ring.fill_(1.0)
    pools.restore_rings()
    assert (ring[4] == 7.0).all()
    assert ring[5, 512:].isneginf().all()
