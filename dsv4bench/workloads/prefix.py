"""Writes the cached prefix of every request once per cell, through the catalogue's own writers, from seeded latents.

This is neither timed nor counted. Positions of one request come in order, so that an odd prefix leaves its last even
row parked in the ratio-2 ring, as a chunked prompt would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.layout import FULL_PAGE, HEAD_DIM, INDEX_DIM
from dsv4bench.workloads.geometry import LayerKind
from dsv4bench.workloads.ops import Ops
from dsv4bench.workloads.pools import RING_ROWS, Extent, Pools
from dsv4bench.workloads.weights import Model, SourceWeights

CHUNK_ROWS = 16_384  # rows written by one call


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive positions of one request."""

    request: int
    first: int
    rows: int


@dataclass(frozen=True, slots=True)
class PrefixRows:
    """The rows of one call."""

    positions: torch.Tensor  # [rows] i64
    req: torch.Tensor  # [rows] i64
    loc: torch.Tensor  # [rows] i64: full slots
    starts: torch.Tensor  # [requests of the call] i32
    lens: torch.Tensor  # [requests of the call] i32


def pack_spans(spans: list[Span], chunk_rows: int) -> Iterator[list[Span]]:
    """Yield groups of at most `chunk_rows` rows in order, cutting a span that does not fit."""
    group: list[Span] = []
    room = chunk_rows
    for span in spans:
        first, left = span.first, span.rows
        while left:
            take = min(left, room)
            group.append(Span(span.request, first, take))
            first, left, room = first + take, left - take, room - take
            if room == 0:
                yield group
                group, room = [], chunk_rows
    if group:
        yield group


def write_prefix(model: Model, pools: Pools, freqs: dict[int, torch.Tensor], provider: str) -> None:
    """Fill compressed caches, index-K pools, rings and window caches with every request's prefix; save the rings."""
    window = model.geometry.window
    extents = pools.tables.extents
    compressed = [Span(i, 0, e.prefix) for i, e in enumerate(extents)]
    newest = [_window_span(i, e, window) for i, e in enumerate(extents)]
    for kind in model.geometry.layers:
        writer = _Writer(model, pools, freqs[kind.ratio], kind, Ops(provider, model.device.type))
        for group in pack_spans(newest, CHUNK_ROWS):
            writer.window(_rows(pools, group))
        if kind.owns_kv:
            for group in pack_spans(compressed, CHUNK_ROWS):
                writer.compressed(_rows(pools, group))
    pools.save_rings()


def _window_span(request: int, extent: Extent, window: int) -> Span:
    first = max(0, extent.prefix - (window - 1))
    return Span(request, first, extent.prefix - first)


def _rows(pools: Pools, group: list[Span]) -> PrefixRows:
    device = pools.tables.page_table.device
    counts = torch.tensor([span.rows for span in group], dtype=torch.int64)
    starts = counts.cumsum(0) - counts
    which = torch.repeat_interleave(torch.arange(len(group)), counts)
    first = torch.tensor([span.first for span in group], dtype=torch.int64)
    request = torch.tensor([span.request for span in group], dtype=torch.int64)
    positions = (torch.arange(len(which)) - starts[which] + first[which]).to(device)
    req = request[which].to(device)
    return PrefixRows(
        positions=positions,
        req=req,
        loc=pools.tables.full_slots(req, positions),
        starts=starts.int().to(device),
        lens=counts.int().to(device),
    )


class _Writer:
    """Writes rows of one layer, each drawn from the layer's own seeded generator."""

    def __init__(self, model: Model, pools: Pools, freqs: torch.Tensor, kind: LayerKind, ops: Ops) -> None:
        self._weights = model.weights[kind.layer]
        self._eps = model.geometry.eps
        self._pools = pools
        self._freqs = freqs
        self._kind = kind
        self._ops = ops
        self._generator = torch.Generator(device=model.device).manual_seed(model.seed * 1_000 + kind.layer)

    def _normal(self, rows: PrefixRows, width: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        drawn = torch.empty(len(rows.req), width, dtype=dtype, device=rows.req.device)
        return drawn.normal_(generator=self._generator)

    def window(self, rows: PrefixRows) -> None:
        """Write the window cache."""
        self._ops.run(
            self._kind,
            "norm_rope_store",
            "norm_rope_store",
            kv=self._normal(rows, HEAD_DIM),
            weight=self._weights.kv_norm,
            eps=self._eps,
            freqs=self._freqs,
            positions=rows.positions,
            loc=self._pools.tables.full_to_swa[rows.loc].int(),
            cache=self._pools.swa[self._kind.layer],
            page_size=FULL_PAGE,
            layout=self._pools.swa_layout,
        )

    def compressed(self, rows: PrefixRows) -> None:
        """Write the compressed cache, the ring and the index-K pool of a source."""
        assert self._weights.source is not None
        if self._kind.ratio == 1:
            kv = self._normal(rows, HEAD_DIM)
            self._ops.run(self._kind, "compress_c1", "compress_c1", kv=kv, **self._common(rows, self._weights.source))
        else:
            self._ops.run(
                self._kind,
                "compress_c2",
                "compress_c2",
                kv_score=self._normal(rows, 2 * HEAD_DIM, torch.float32),
                ring=self._pools.rings[self._kind.layer],
                req=rows.req,
                starts=rows.starts,
                lens=rows.lens,
                ring_size=RING_ROWS,
                **self._common(rows, self._weights.source),
            )
        self._index_key(rows, self._weights.source)

    def _common(self, rows: PrefixRows, weights: SourceWeights) -> dict[str, Any]:
        return {
            "weight": weights.norm,
            "eps": self._eps,
            "freqs": self._freqs,
            "positions": rows.positions,
            "loc": rows.loc,
            "cache": self._pools.compressed[self._kind.layer],
            "page_size": FULL_PAGE // self._kind.ratio,
            "layout": self._pools.compressed_layout,
            "latent": torch.zeros(len(rows.req), HEAD_DIM, dtype=torch.bfloat16, device=rows.req.device),
        }

    def _index_key(self, rows: PrefixRows, weights: SourceWeights) -> None:
        ratio = self._kind.ratio
        self._ops.run(
            self._kind,
            "index_key",
            "index_key",
            k=self._normal(rows, INDEX_DIM),
            weight=weights.index_k_norm,
            eps=self._eps,
            freqs=self._freqs,
            positions=rows.positions,
            loc=rows.loc if ratio == 1 else torch.where(rows.positions % 2 == 1, rows.loc // 2, -1),
            ratio=ratio,
            cache=self._pools.index_k[self._kind.layer],
            page_size=self._pools.index_page,
        )
