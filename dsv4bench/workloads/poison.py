"""Spoils the cache slots that a forward is about to write, so that a write that does not happen shows.

A verified run follows other runs of the same forward, whose rows would otherwise still stand in the caches.
"""

from __future__ import annotations

import torch

from dsv4bench.kernels import paged
from dsv4bench.kernels.layout import FULL_PAGE, INDEX_K, KVLayout
from dsv4bench.workloads.forward import Forward
from dsv4bench.workloads.geometry import Geometry
from dsv4bench.workloads.late_layers import early, late
from dsv4bench.workloads.pools import Pools
from dsv4bench.workloads.variant import Variant

POISON = 0xFF  # NaN as an e4m3 value, as an e4m3 scale and as a ue8m0 scale


def poison_slots(geometry: Geometry, variant: Variant, pools: Pools, forward: Forward) -> None:
    """Overwrite the window, compressed and index-K slots of the forward's live rows; all others stay as they are.

    Late layers write the windows of their tail only.
    """
    inputs, live = forward.inputs, forward.live
    for kind in early(geometry, variant):
        _spoil(pools.swa[kind.layer], inputs.swa_loc[:live].long(), FULL_PAGE, pools.swa_layout)
    for kind in late(geometry, variant):
        assert forward.tail is not None
        slots = forward.tail.inputs.swa_loc[: forward.tail.live].long()
        _spoil(pools.swa[kind.layer], slots, FULL_PAGE, pools.swa_layout)
    pairs = inputs.pair_loc[:live]
    for source, cache in pools.compressed.items():
        ratio = geometry.ratios[source]
        slots = inputs.loc[:live] if ratio == 1 else pairs[pairs >= 0]
        _spoil(cache, slots, FULL_PAGE // ratio, pools.compressed_layout)
        _spoil(pools.index_k[source], slots, pools.index_page, INDEX_K)


def _spoil(cache: torch.Tensor, slots: torch.Tensor, page_size: int, layout: KVLayout) -> None:
    data, scales = paged.paged(cache, page_size, layout)
    page, index = slots // page_size, slots % page_size
    data[page, index] = POISON
    scales[page, index] = POISON
