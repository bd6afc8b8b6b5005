"""Spoils the cache slots that a forward is about to write, so that a write that does not happen shows.

A verified run follows other runs of the same forward, whose rows would otherwise still stand in the caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from dsv4bench.kernels import paged
from dsv4bench.kernels.layout import FULL_PAGE, INDEX_K, KVLayout
from dsv4bench.workloads.forward import Forward
from dsv4bench.workloads.geometry import Geometry
from dsv4bench.workloads.late_layers import early, late
from dsv4bench.workloads.pools import Pools
from dsv4bench.workloads.variant import Variant

POISON = 0xFF  # NaN as an e4m3 value, as an e4m3 scale and as a ue8m0 scale


@dataclass(frozen=True, slots=True)
class CacheRows:
    """The rows of one paged cache that a forward writes; `what` is "window", "compressed" or "index K"."""

    what: str
    layer: int
    cache: torch.Tensor  # [pages, page_bytes] u8
    slots: torch.Tensor  # [n] i64
    page_size: int
    layout: KVLayout

    def spoil(self) -> None:
        """Overwrite the rows."""
        data, scales = paged.paged(self.cache, self.page_size, self.layout)
        page, index = self.slots // self.page_size, self.slots % self.page_size
        data[page, index] = POISON
        scales[page, index] = POISON

    def read(self) -> torch.Tensor:
        """Return a copy of the rows, u8 [n, data and scale bytes]."""
        return torch.cat(paged.read_rows(self.cache, self.slots, self.page_size, self.layout), dim=1)

    def copy_to(self, other: torch.Tensor) -> None:
        """Write the rows to the same slots of another cache of this shape."""
        rows = paged.read_rows(self.cache, self.slots, self.page_size, self.layout)
        paged.write_rows(other, self.slots, rows, self.page_size, self.layout)


def poison_slots(geometry: Geometry, variant: Variant, pools: Pools, forward: Forward) -> None:
    """Overwrite the window, compressed and index-K slots of the forward's live rows; all others stay as they are."""
    for rows in rows_to_write(geometry, variant, pools, forward):
        rows.spoil()


def rows_to_write(geometry: Geometry, variant: Variant, pools: Pools, forward: Forward) -> Iterator[CacheRows]:
    """Yield what a forward is to write of every cache; late layers write the windows of their tail only."""
    for kind in early(geometry, variant):
        yield _window_rows(pools, kind.layer, forward)
    for kind in late(geometry, variant):
        assert forward.tail is not None
        yield _window_rows(pools, kind.layer, forward.tail)
    for source in pools.compressed:
        yield from source_rows(geometry, pools, source, forward)


def source_rows(geometry: Geometry, pools: Pools, source: int, forward: Forward) -> tuple[CacheRows, CacheRows]:
    """Return what a forward is to write of a source's compressed cache and of its index-K pool."""
    ratio, live = geometry.ratios[source], forward.live
    pairs = forward.inputs.pair_loc[:live]
    slots = forward.inputs.loc[:live] if ratio == 1 else pairs[pairs >= 0]
    return (
        CacheRows("compressed", source, pools.compressed[source], slots, FULL_PAGE // ratio, pools.compressed_layout),
        CacheRows("index K", source, pools.index_k[source], slots, pools.index_page, INDEX_K),
    )


def _window_rows(pools: Pools, layer: int, forward: Forward) -> CacheRows:
    slots = forward.inputs.swa_loc[: forward.live].long()
    return CacheRows("window", layer, pools.swa[layer], slots, FULL_PAGE, pools.swa_layout)
