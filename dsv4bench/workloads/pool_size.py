"""The pools of `--mem-fraction`: as many pages as a fraction of a device holds beside the weights (specification 8.4).

The budget is what is free before anything is loaded, times the fraction, less the weights. The window pool comes first
("cap" mode), then the state of the ratio-2 compressors, and all that is left is the full pool.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsv4bench.errors import UsageError
from dsv4bench.kernels.layout import FULL_PAGE, HEAD_DIM, INDEX_K
from dsv4bench.units import GIB, format_bytes
from dsv4bench.workloads.batch import Request
from dsv4bench.workloads.geometry import Geometry
from dsv4bench.workloads.pools import Extent, Room, page_counts, ring_rows
from dsv4bench.workloads.rank_weights import rank_weights
from dsv4bench.workloads.variant import KVPair

TAIL_TOKENS = 128 + 256  # of the window pool for each cached tail of a prefix (8.4)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a sweep asks of memory, on every rank: `ranks` share the routed experts.

    `requests` are the most of any batch on a rank, and `window_pages` the most that they take of the window pool, the
    reserved page included; 0: the batches are not known yet. `device_bytes` is a given size of device memory; None:
    that of the device.
    """

    fraction: float
    ranks: int
    requests: int = 0
    window_pages: int = 0
    recipe: str = ""
    device_bytes: int | None = None

    def switches(self) -> dict[str, float | str]:
        """Return what a record says of it among its switches: what was given."""
        recipe = {"recipe": self.recipe} if self.recipe else {}
        device = {"device-memory": f"{self.device_bytes / GIB:g}GiB"} if self.device_bytes else {}
        return {"mem-fraction": self.fraction, **recipe, **device}

    @property
    def words(self) -> str:
        """The options that ask for it."""
        return f"--mem-fraction {self.fraction:g}" + (f" --recipe {self.recipe}" if self.recipe else "")


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The pools of one rank, and the bytes that they come from; `fixed_bytes` are the window pool's and the rings'.

    `device_bytes` are what was free before weights were loaded.
    """

    room: Room
    device_bytes: int
    weights_bytes: int
    fixed_bytes: int
    full_page_bytes: int

    @property
    def full_tokens(self) -> int:
        """Tokens that the full pool holds."""
        return max(0, self.room.full_pages - 1) * FULL_PAGE

    @property
    def window_tokens(self) -> int:
        """Tokens that the window pool holds."""
        return (self.room.window_pages - 1) * FULL_PAGE

    @property
    def pool_bytes(self) -> int:
        """All caches and rings."""
        return self.fixed_bytes + self.room.full_pages * self.full_page_bytes


def full_page_bytes(geometry: Geometry, kv: KVPair) -> int:
    """Return the bytes of one page of the full pool in all sources, compressed rows and index K (8.4)."""
    rows = [FULL_PAGE // kind.ratio for kind in geometry.layers if kind.owns_kv]
    return sum(kv.extra.page_bytes(count) + count * INDEX_K.row_bytes for count in rows)


def fixed_bytes(geometry: Geometry, kv: KVPair, window_pages: int, requests: int) -> int:
    """Return the bytes of the window pool of every layer and of the ratio-2 rings (8.4)."""
    windows = len(geometry.layers) * window_pages * kv.main.page_bytes(FULL_PAGE)
    rings = sum(1 for kind in geometry.layers if kind.owns_kv and kind.ratio == 2)
    return windows + rings * ring_rows(requests) * 2 * HEAD_DIM * 4


def pool_size(
    plan: MemoryPlan, geometry: Geometry, kv: KVPair, free_bytes: int, own_weights_bytes: int = 0
) -> PoolSize:
    """Return the pools of a rank with `free_bytes` free before weights; 0 full pages where nothing is left for them.

    Weights are the model's, or what the cell holds itself where that is more: the stack's are bf16. The window pool
    holds what the largest batch takes, rounded up with a tail for each request to whole pages.
    """
    window_pages = plan.window_pages + -(-plan.requests * TAIL_TOKENS // FULL_PAGE)
    fixed = fixed_bytes(geometry, kv, window_pages, plan.requests)
    weights = max(rank_weights(geometry, plan.ranks).total_bytes, own_weights_bytes)
    page = full_page_bytes(geometry, kv)
    left = math.floor(free_bytes * plan.fraction) - weights - fixed
    return PoolSize(Room(max(0, left // page), window_pages, plan.requests), free_bytes, weights, fixed, page)


def most_of_batches(batches: Iterable[Sequence[Request]], window: int) -> tuple[int, int]:
    """Return (the most requests of any batch, the most pages that one takes of the window pool, page 0 included)."""
    every = list(batches)
    pages = (page_counts(extents_of(batch), window)[1] for batch in every)
    return max(map(len, every)), max(pages)


def extents_of(requests: Sequence[Request]) -> tuple[Extent, ...]:
    """Return what whole requests hold of the pools."""
    return tuple(Extent(request.prefix, request.seq) for request in requests)


def refuse_small_pool(
    size: PoolSize, plan: MemoryPlan, geometry: Geometry, batch: Sequence[Request], asked: str
) -> None:
    """Raise UsageError where the weights of a rank do not fit into the device, or a batch not into the full pool.

    `asked` is how the user called the batch, whose requests on one rank are given.
    """
    free_bytes = size.device_bytes
    if size.weights_bytes > free_bytes:
        over = (size.weights_bytes - free_bytes) / GIB
        raise UsageError(
            f"{plan.words}: the weights of {geometry.name} on a rank of {plan.ranks} take"
            f" {format_bytes(size.weights_bytes)} (modelled), {over:.1f} GiB more than the {format_bytes(free_bytes)}"
            f" that are free; {_ranks_that_fit(plan.ranks, geometry, free_bytes)}"
        )
    pages = page_counts(extents_of(batch), geometry.window)[0]
    if pages <= size.room.full_pages:
        return
    needed = size.weights_bytes + size.fixed_bytes + pages * size.full_page_bytes
    enough = math.ceil(needed / free_bytes * 1000) / 1000
    would_do = f"expected at least --mem-fraction {enough:g}" if enough < 1 else "no fraction would do"
    raise UsageError(
        f"{plan.words}: {asked} takes {(pages - 1) * FULL_PAGE} tokens of the full pool on a rank, which would hold"
        f" {size.full_tokens}; {would_do}"
    )


def _ranks_that_fit(ranks: int, geometry: Geometry, free_bytes: int) -> str:
    more = (ranks * 2**doubled for doubled in range(1, 6))
    fitting = next((count for count in more if rank_weights(geometry, count).total_bytes <= free_bytes), None)
    return "expected a smaller geometry" if fitting is None else f"expected the experts on {fitting} ranks or more"
