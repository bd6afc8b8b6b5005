"""Paged pools of one cell: page tables, KV caches, index-K caches and the state rings (specification 2.1, 3.5, 8.4).

Pages of the full pool are handed out shuffled, so that no kernel profits from neighbouring requests; page 0 is
reserved, and slot 0 means "padded row" everywhere. The sliding-window pool holds the last 127 prefix tokens of each
request and its new ones; every other full slot maps to window slot 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from dsv4bench.kernels.layout import FULL_PAGE, HEAD_DIM, INDEX_K, KVLayout
from dsv4bench.workloads.geometry import Geometry
from dsv4bench.workloads.variant import KVPair

RING_ROWS = 8  # state rows of one request: enough for up to 6 drafted tokens (specification 3.5)


@dataclass(frozen=True, slots=True)
class Extent:
    """What a cell does with one request: tokens cached before it starts, and tokens at its end."""

    prefix: int
    end: int


@dataclass(frozen=True, slots=True)
class PageTables:
    """Where each token lives, on the device."""

    page_table: torch.Tensor  # [requests, pages] i32: page of the full pool
    full_to_swa: torch.Tensor  # [full slots] i64: slot of the window pool, 0 where the token has none
    full_pages: int
    swa_pages: int
    extents: tuple[Extent, ...]

    def full_slots(self, request: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Return the full slots (i64) of tokens given by request and position (i64 tensors of one shape)."""
        return self.page_table[request, position // FULL_PAGE].long() * FULL_PAGE + position % FULL_PAGE


@dataclass(frozen=True, slots=True)
class Room:
    """What pools are allocated for where that is more than a cell uses; both counts include the reserved page 0."""

    full_pages: int
    window_pages: int
    requests: int


@dataclass(frozen=True, slots=True)
class Pools:
    """Every cache of one cell, as uint8 [pages, page_bytes], and the ratio-2 rings."""

    tables: PageTables
    swa_layout: KVLayout
    compressed_layout: KVLayout
    index_page: int
    swa: tuple[torch.Tensor, ...]  # one per layer
    compressed: dict[int, torch.Tensor]  # kv_source -> cache
    index_k: dict[int, torch.Tensor]  # kv_source -> cache
    rings: dict[int, torch.Tensor]  # kv_source of ratio 2 -> f32 [rows, 1024]
    saved_rings: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes of all caches and rings as they are allocated: those of `Room` are larger than what a cell uses."""
        return sum(t.untyped_storage().nbytes() for t in (*self.caches(), *self.rings.values()))

    def written(self) -> list[torch.Tensor]:
        """Return every cache and ring without the reserved page 0, whose slot 0 takes what padding writes (3.6)."""
        return [*(cache[1:] for cache in self.caches()), *self.rings.values()]

    def caches(self) -> list[torch.Tensor]:
        """Return every cache."""
        return [*self.swa, *self.compressed.values(), *self.index_k.values()]

    def save_rings(self) -> None:
        """Remember the rings as they are now; a step overwrites them."""
        self.saved_rings.update({source: ring.clone() for source, ring in self.rings.items()})

    def restore_rings(self) -> None:
        """Put the rings back as they were when saved."""
        for source, ring in self.saved_rings.items():
            self.rings[source].copy_(ring)


def swa_first_page(extent: Extent, window: int) -> int:
    """Return the first page of a request that the window pool must hold."""
    return max(0, extent.prefix - (window - 1)) // FULL_PAGE


def page_counts(extents: Sequence[Extent], window: int) -> tuple[int, int]:
    """Return (pages of the full pool, pages of the window pool), the reserved page 0 of each included."""
    full = 1 + sum(-(-e.end // FULL_PAGE) for e in extents)
    swa = 1 + sum(-(-e.end // FULL_PAGE) - swa_first_page(e, window) for e in extents)
    return full, swa


def make_tables(extents: Sequence[Extent], window: int, device: torch.device, seed: int) -> PageTables:
    """Deal shuffled pages to every request, ragged last pages and reserved page 0 included."""
    full_pages, swa_pages = page_counts(extents, window)
    generator = torch.Generator().manual_seed(seed)
    full_order = (torch.randperm(full_pages - 1, generator=generator) + 1).tolist()
    swa_order = (torch.randperm(swa_pages - 1, generator=generator) + 1).tolist()
    width = max(-(-e.end // FULL_PAGE) for e in extents)
    table = torch.zeros(len(extents), width, dtype=torch.int32)
    page_to_swa = torch.zeros(full_pages, dtype=torch.int64)
    for row, extent in enumerate(extents):
        pages = -(-extent.end // FULL_PAGE)
        mine = [full_order.pop() for _ in range(pages)]
        table[row, :pages] = torch.tensor(mine, dtype=torch.int32)
        for page in mine[swa_first_page(extent, window) :]:
            page_to_swa[page] = swa_order.pop()
    full_to_swa = _slot_map(page_to_swa, table, extents, window)
    return PageTables(table.to(device), full_to_swa.to(device), full_pages, swa_pages, tuple(extents))


def _slot_map(page_to_swa: torch.Tensor, table: torch.Tensor, extents: Sequence[Extent], window: int) -> torch.Tensor:
    """Return the map [full slots] to window slots: the last `window - 1` prefix tokens and all new ones, else 0."""
    offsets = torch.arange(FULL_PAGE)
    slots = page_to_swa[:, None] * FULL_PAGE + offsets
    slots[page_to_swa == 0] = 0
    for row, extent in enumerate(extents):
        first = max(0, extent.prefix - (window - 1))
        slots[int(table[row, first // FULL_PAGE]), : first % FULL_PAGE] = 0
        if extent.end % FULL_PAGE:
            slots[int(table[row, extent.end // FULL_PAGE]), extent.end % FULL_PAGE :] = 0
    return slots.reshape(-1)


def make_pools(
    geometry: Geometry, kv: KVPair, tables: PageTables, device: torch.device, room: Room | None = None
) -> Pools:
    """Allocate every cache of the stack, zeroed; a fresh ring holds kv 0 and score minus infinity (3.5).

    With `room` all are allocated for that, and the first pages, which the tables deal out, are what is seen of them.
    """
    full_pages, requests = tables.full_pages, len(tables.extents)
    room = room or Room(full_pages, tables.swa_pages, requests)

    def cache(layout: KVLayout, pages: int, page_size: int, allocated: int) -> torch.Tensor:
        return torch.empty(allocated, layout.page_bytes(page_size), dtype=torch.uint8, device=device)[:pages].zero_()

    def index_pages(ratio: int, pages: int) -> int:
        return -(-pages * (FULL_PAGE // ratio) // geometry.index_page)

    sources = {kind.layer: kind.ratio for kind in geometry.layers if kind.owns_kv}
    return Pools(
        tables=tables,
        swa_layout=kv.main,
        compressed_layout=kv.extra,
        index_page=geometry.index_page,
        swa=tuple(cache(kv.main, tables.swa_pages, FULL_PAGE, room.window_pages) for _ in geometry.layers),
        compressed={s: cache(kv.extra, full_pages, FULL_PAGE // r, room.full_pages) for s, r in sources.items()},
        index_k={
            s: cache(INDEX_K, index_pages(r, full_pages), geometry.index_page, index_pages(r, room.full_pages))
            for s, r in sources.items()
        },
        rings={s: _fresh_ring(room.requests, device)[: ring_rows(requests)] for s, r in sources.items() if r == 2},
    )


def ring_rows(requests: int) -> int:
    """Return the state rows of so many requests: a ring of each, one for padding and a row more, even (3.5, 8.4)."""
    rows = requests * RING_ROWS + RING_ROWS + 1
    return rows + rows % 2


def _fresh_ring(requests: int, device: torch.device) -> torch.Tensor:
    ring = torch.zeros(ring_rows(requests), 2 * HEAD_DIM, device=device)
    ring[:, HEAD_DIM:] = float("-inf")
    return ring
