"""What each operation of a forward costs at least: FLOPs and bytes by (operation, kv_source), from lengths alone.

The names are those of the step's ranges, so that a cost meets the device time of the same operation. FLOPs are those of
products and attention; what else an operation computes is no work for tensor cores and is not counted. Everything here
is `modelled`, as in `model.py`, whose sums these are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dsv4bench.kernels.contract import Cost
from dsv4bench.kernels.layout import HEAD_DIM, INDEX_DIM, INDEX_K, ROPE_DIM
from dsv4bench.workloads.batch import Batch, Request
from dsv4bench.workloads.break_forms import BREAK_COPY, copied_row_bytes
from dsv4bench.workloads.cells import UNIFORM
from dsv4bench.workloads.geometry import GEOMETRIES, Geometry, LayerKind
from dsv4bench.workloads.late_layers import sparse_layers
from dsv4bench.workloads.mhc import mixing_costs
from dsv4bench.workloads.model import (
    BF16_BYTES,
    ROW_BYTES,
    attention_cost,
    compressed_rows,
    dequants,
    gemm_cost,
    index_costs,
    matrices,
    swa_rows,
    visible_keys,
)
from dsv4bench.workloads.moe_costs import moe_costs
from dsv4bench.workloads.variant import Variant, variant_of

F32_BYTES, INT_BYTES = 4, 4
STATE_BYTES = 2 * HEAD_DIM * F32_BYTES  # the pooling state of a row: KV and score (3.4)

Named = Iterator[tuple[str, Cost]]


def why_not_costed(geometry: Geometry, batch: Batch, variant: Variant) -> str | None:
    """Return one sentence saying why the operations of a forward have no costs here, or None if they have."""
    if variant.replay == "on":
        return "the late layers are replayed: their operations have no costs in the model"
    if len(sparse_layers(geometry, variant, batch)) < len(geometry.layers):
        return "layers attend packed caches: their operations have no costs in the model"
    return None


def operation_costs(geometry: Geometry, batch: Batch, variant: Variant) -> dict[tuple[str, int | None], Cost]:
    """Return the least work of every operation of a forward on one rank alone, summed over the layers of a kv_source.

    A batch in a graph's bucket is padded: what runs in segments runs over all its rows. ValueError where
    `why_not_costed` has a reason.
    """
    reason = why_not_costed(geometry, batch, variant)
    if reason is not None:
        raise ValueError(reason)
    filled = {kind.layer for kind in dequants(geometry, batch, variant)}
    found: dict[tuple[str, int | None], Cost] = {}
    for kind in geometry.layers:
        for op, cost in _layer(geometry, batch, variant, kind, kind.layer in filled):
            found[op, kind.kv_source] = _sum(found.get((op, kind.kv_source), Cost(0, 0, 0)), cost)
    return found


def _sum(one: Cost, other: Cost) -> Cost:
    return Cost(one.flops + other.flops, one.bytes_read + other.bytes_read, one.bytes_written + other.bytes_written)


def _layer(geometry: Geometry, batch: Batch, variant: Variant, kind: LayerKind, fills: bool) -> Named:
    if kind.layer == 0:
        yield "load_input", _each_way(batch.rows * geometry.hidden * BF16_BYTES)
    yield from mixing_costs(geometry, batch.rows, kind, variant)
    for op, inputs, outputs in matrices(geometry, kind):
        yield op, gemm_cost(batch.rows, inputs, outputs)
    yield from _rows(geometry, batch.rows, variant)
    if kind.owns_kv and kind.ratio == 2 and variant.compressor == "torch":
        yield from _torch_path(batch.rows, variant)
    elif kind.owns_kv:
        yield from _compressor(batch.rows, kind, variant)
    if kind.owns_index:
        yield from _index(geometry, batch, kind)
    yield from _core(geometry, batch, variant, kind, fills)
    yield from moe_costs(geometry, batch, variant, ())
    if batch.bucket is not None:
        copied = sum(copied_row_bytes(geometry, kind, variant))
        yield BREAK_COPY, _each_way(batch.live * copied)
        yield "zero_padding", Cost(0, 0, batch.pads * copied)


def _each_way(moved_bytes: int) -> Cost:
    return Cost(0, moved_bytes, moved_bytes)


def _rows(geometry: Geometry, rows: int, variant: Variant) -> Named:
    """Yield what every layer does to each row: norms, rotations, and the window's row stored (6.1)."""
    rotated = _each_way(rows * geometry.heads * ROPE_DIM * BF16_BYTES)
    yield "input_norm", _each_way(rows * geometry.hidden * BF16_BYTES)
    yield "q_norm", _each_way(rows * geometry.q_rank * BF16_BYTES)
    yield "q_rope", rotated
    yield "inverse_rope", rotated
    yield "norm_rope_store", Cost(0, rows * ROW_BYTES, rows * variant.kv.main.row_bytes)


def _compressor(rows: int, kind: LayerKind, variant: Variant) -> Named:
    """Yield the fused compressor of a source and its index keys (3.5, 3.6)."""
    made = rows // kind.ratio
    read = rows * (STATE_BYTES if kind.ratio == 2 else ROW_BYTES)
    yield f"compress_c{kind.ratio}", Cost(0, read, made * (ROW_BYTES + variant.kv.extra.row_bytes))
    yield "index_key", Cost(0, made * INDEX_DIM * BF16_BYTES, made * INDEX_K.row_bytes)


def _torch_path(rows: int, variant: Variant) -> Named:
    """Yield the ratio-2 compressor in plain torch, over every row: no row knows yet whether it ends a pair (3.6)."""
    key_bytes, extra = INDEX_DIM * BF16_BYTES, variant.kv.extra
    yield "compress_pool", Cost(0, rows * 2 * STATE_BYTES, rows * ROW_BYTES)
    yield "latent_norm", _each_way(rows * ROW_BYTES)
    rotated_bytes = key_bytes if extra.encoding == "fp4" else key_bytes + ROW_BYTES
    yield "fake_quant", _each_way(rows * rotated_bytes)
    yield "store", Cost(0, rows * ROW_BYTES, rows * extra.row_bytes)
    yield "index_k_norm", _each_way(rows * key_bytes)
    yield "index_pack", Cost(0, rows * (key_bytes + INDEX_K.row_bytes), rows * 2 * INDEX_K.row_bytes)


def _index(geometry: Geometry, batch: Batch, kind: LayerKind) -> Named:
    """Yield the index of a source: queries, logits, top-k, and the candidate blocks where they are published (6.5)."""
    logits, topk = index_costs(geometry, kind, batch)
    yield "index_query", _each_way(batch.rows * geometry.index_heads * (INDEX_DIM + 1) * BF16_BYTES)
    yield "index_logits", logits
    yield "index_topk", topk
    if kind.candidates == "publish":
        seen_bytes = visible_keys(batch, kind.ratio, batch.context) * BF16_BYTES
        yield "index_candidates", Cost(0, seen_bytes, batch.live * geometry.candidate_blocks * INT_BYTES)


def _core(geometry: Geometry, batch: Batch, variant: Variant, kind: LayerKind, fills: bool) -> Named:
    """Yield the attention core: indices combined, the workspace filled, attention (6.2 to 6.4)."""
    topk = geometry.index_topk if kind.ratio else 0
    if kind.ratio or kind.layer == geometry.ratios.index(0):
        written = batch.live * (topk + geometry.window) * INT_BYTES
        yield "combine", Cost(0, batch.live * topk * INT_BYTES, written)
    if fills:
        rows = compressed_rows(batch, kind.ratio)
        yield "dequant_compressed", Cost(0, rows * variant.kv.extra.row_bytes, rows * ROW_BYTES)
    windows = swa_rows(batch, geometry.window)
    yield "dequant_swa", Cost(0, windows * variant.kv.main.row_bytes, windows * ROW_BYTES)
    yield "sparse_attention", attention_cost(geometry, kind, batch, None)


def recorded_costs(
    name: str, batch: Mapping[str, Any], switches: Mapping[str, Any], ranks: int
) -> dict[tuple[str, int | None], tuple[int, int]]:
    """Return FLOPs and bytes of every operation of a recorded cell, from its geometry, batch and variant.

    ValueError, one sentence, where the record does not hold what they follow from.
    """
    if name not in GEOMETRIES:
        raise ValueError(f"the widths of geometry {name} are not in the record; known: {', '.join(GEOMETRIES)}")
    if batch.get("source") != UNIFORM:
        raise ValueError("the lengths of recorded requests are not in the record")
    if ranks != 1 or batch.get("forwards") != 1:
        raise ValueError("more than one rank or forward: only one forward of one rank is modelled")
    variant = variant_of(switches)
    forward = Batch(tuple(Request(i, batch["prefix"], batch["extend"]) for i in range(batch["requests"])))
    if variant.breakable:
        forward = forward.padded(batch["padded_rows"])
    found = operation_costs(GEOMETRIES[name], forward, variant)
    return {place: (cost.flops, cost.bytes_moved) for place, cost in found.items()}
