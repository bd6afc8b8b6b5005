"""What source layers add: projections, compressor, index-K, index-Q, logits and top-k (specification 6.1, 6 to 9).

The ratio-2 compressor has two forms. `fused` is change G's: two launches, then the wk GEMM and one index-K launch.
`torch` is the path before it (3.6): pooling in plain torch operations, then norm, store, wk, k_norm, rotate, pack and
store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dsv4bench.kernels.layout import FULL_PAGE, HEAD_DIM
from dsv4bench.units import GIB
from dsv4bench.workloads.break_forms import publish, returned
from dsv4bench.workloads.geometry import LayerKind
from dsv4bench.workloads.pools import RING_ROWS

if TYPE_CHECKING:
    from dsv4bench.workloads.step import Step
    from dsv4bench.workloads.weights import SourceWeights

LOGITS_BYTES = GIB  # budget of one tile of logits (specification 6.5, torch path)


def source_step(step: Step, kind: LayerKind, _rows: int) -> None:
    """Run all that a source layer adds over the live rows, and over no others: no segment reads what it leaves."""
    live = step.forward.live
    if not live:
        return
    project(step, kind, live)
    if kind.owns_kv:
        compress(step, kind, live)
    if kind.owns_index:
        index_queries(step, kind, live)
        select(step, kind, live, captured=False)


def project(step: Step, kind: LayerKind, rows: int, copies: bool = False) -> None:
    """Run the source projections at the live row count and zero the rows past it (steps 6 and 9, the GEMMs).

    cuBLAS picks kernels by row count, so a padded GEMM would round otherwise than the eager one (6.6). With `copies`
    each is made apart and copied into its static buffer.
    """
    ops, buffers, weights, live = step.ops, step.buffers, step.weights[kind.layer], step.forward.live
    x, q_lora = buffers.x[:live], buffers.q_lora[:live]
    products: list[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]] = []
    if kind.owns_kv:
        products += _compress_products(step, kind, _source_weights(step, kind))
    if kind.owns_index:
        assert weights.index is not None
        queries = buffers.index_q_raw.flatten(1)
        products.append(("index_q_proj", q_lora, weights.index.query, queries))
        products.append(("index_weights_proj", x, weights.index.heads, buffers.index_weights_raw))
    for op, source, weight, out in products:
        if live:  # a GEMM of zero rows must not be launched
            made = returned(step, static := out[:live], copies)
            ops.matmul(kind, op, source, weight, made)
            publish(step, kind, made, static)
        if live < rows:
            with ops.within(kind, "zero_padding"):
                out[live:rows].zero_()


def _compress_products(
    step: Step, kind: LayerKind, weights: SourceWeights
) -> list[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]]:
    buffers, x = step.buffers, step.buffers.x[: step.forward.live]
    if kind.ratio == 1:
        return [("compress_proj", x, weights.compress, buffers.source_kv)]
    if step.variant.compressor == "fused":
        return [("compress_proj", x, weights.compress, buffers.kv_score)]
    return [  # the torch path wants contiguous halves, so it makes two products
        ("compress_proj", x, weights.compress[:, :HEAD_DIM], buffers.split_kv),
        ("compress_proj", x, weights.compress[:, HEAD_DIM:], buffers.split_score),
    ]


def compress(step: Step, kind: LayerKind, rows: int) -> None:
    """Compress the rows into the source's cache and index-K pool (steps 7 and 8)."""
    if kind.ratio == 1:
        _compress_1(step, kind, rows)
        _index_key(step, kind, rows)
    elif step.variant.compressor == "fused":
        _compress_2(step, kind, rows)
        _index_key(step, kind, rows)
    else:
        _compress_2_torch(step, kind, rows)


def _source_weights(step: Step, kind: LayerKind) -> SourceWeights:
    weights = step.weights[kind.layer].source
    assert weights is not None
    return weights


def _compress_1(step: Step, kind: LayerKind, rows: int) -> None:
    step.ops.run(
        kind,
        "compress_c1",
        "compress_c1",
        kv=step.buffers.source_kv[:rows],
        weight=_source_weights(step, kind).norm,
        eps=step.geometry.eps,
        freqs=step.freqs[kind.ratio],
        positions=step.inputs.positions[:rows],
        loc=step.inputs.loc[:rows],
        cache=step.pools.compressed[kind.layer],
        page_size=FULL_PAGE,
        layout=step.pools.compressed_layout,
        latent=step.buffers.latent[:rows],
    )


def _compress_2(step: Step, kind: LayerKind, rows: int) -> None:
    inputs = step.inputs
    step.ops.run(
        kind,
        "compress_c2",
        "compress_c2",
        kv_score=step.buffers.kv_score[:rows],
        ring=step.pools.rings[kind.layer],
        weight=_source_weights(step, kind).norm,
        eps=step.geometry.eps,
        freqs=step.freqs[kind.ratio],
        positions=inputs.positions[:rows],
        req=inputs.req[:rows],
        loc=inputs.loc[:rows],
        starts=inputs.starts,
        lens=inputs.lens,
        ring_size=RING_ROWS,
        cache=step.pools.compressed[kind.layer],
        page_size=FULL_PAGE // 2,
        layout=step.pools.compressed_layout,
        latent=step.buffers.latent[:rows],
    )


def _index_key(step: Step, kind: LayerKind, rows: int) -> None:
    """Project the latents to index keys and store them, in one launch after the GEMM."""
    weights, inputs, buffers = _source_weights(step, kind), step.inputs, step.buffers
    step.ops.matmul(kind, "index_k_proj", buffers.latent[:rows], weights.index_k, buffers.index_k[:rows])
    step.ops.run(
        kind,
        "index_key",
        "index_key",
        k=buffers.index_k[:rows],
        weight=weights.index_k_norm,
        eps=step.geometry.eps,
        freqs=step.freqs[kind.ratio],
        positions=inputs.positions[:rows],
        loc=(inputs.loc if kind.ratio == 1 else inputs.pair_loc)[:rows],
        ratio=kind.ratio,
        cache=step.pools.index_k[kind.layer],
        page_size=step.pools.index_page,
    )


def _compress_2_torch(step: Step, kind: LayerKind, rows: int) -> None:
    """The torch path: pool, norm, store; then wk, k_norm, rotate, pack and store (3.6)."""
    ops, buffers, inputs, weights = step.ops, step.buffers, step.inputs, _source_weights(step, kind)
    pooled, latent, eps = buffers.pooled[:rows], buffers.latent[:rows], step.geometry.eps
    positions, slots, freqs = buffers.group_positions[:rows], buffers.slots[:rows], step.freqs[kind.ratio]
    ops.run(
        kind,
        "compress_pool",
        "compress_pool",
        kv=buffers.split_kv[:rows],
        score=buffers.split_score[:rows],
        ring=step.pools.rings[kind.layer],
        positions=inputs.positions[:rows],
        req=inputs.req[:rows],
        loc=inputs.loc[:rows],
        ring_size=RING_ROWS,
        pooled=pooled,
        group_positions=positions,
        slots=slots,
    )
    ops.run(kind, "latent_norm", "rms_norm", x=pooled, weight=weights.norm, eps=eps, out=latent)
    _store_torch(step, kind, rows)
    keys, normed, rotated = buffers.index_k[:rows], buffers.index_k_normed[:rows], buffers.index_k_rotated[:rows]
    ops.matmul(kind, "index_k_proj", latent, weights.index_k, keys)
    ops.run(kind, "index_k_norm", "rms_norm", x=keys, weight=weights.index_k_norm, eps=eps, out=normed)
    ops.run(kind, "fake_quant", "fake_quant", x=normed, freqs=freqs, positions=positions, block=32, out=rotated)
    ops.run(
        kind,
        "index_pack",
        "index_pack",
        x=rotated,
        loc=slots,
        payload=buffers.payload[:rows],
        scales=buffers.scales[:rows],
        cache=step.pools.index_k[kind.layer],
        page_size=step.pools.index_page,
    )


def _store_torch(step: Step, kind: LayerKind, rows: int) -> None:
    """Store the latents: FP4 rotates in the store; fp8 formats are rotated and fake-quantised first (3.10)."""
    buffers, layout = step.buffers, step.pools.compressed_layout
    latent, rotated = buffers.latent[:rows], buffers.rotated[:rows]
    positions, freqs = buffers.group_positions[:rows], step.freqs[kind.ratio]
    in_kernel = layout.encoding == "fp4"
    if not in_kernel:
        step.ops.run(
            kind, "fake_quant", "fake_quant", x=latent, freqs=freqs, positions=positions, block=16, out=rotated
        )
    step.ops.run(
        kind,
        "store",
        "store",
        x=latent if in_kernel else rotated,
        loc=buffers.slots[:rows],
        freqs=freqs if in_kernel else None,
        positions=positions if in_kernel else None,
        cache=step.pools.compressed[kind.layer],
        page_size=FULL_PAGE // 2,
        layout=layout,
    )


def index_queries(step: Step, kind: LayerKind, rows: int) -> None:
    """Rotate and fake-quantise the index queries, and scale the head weights (step 9)."""
    buffers = step.buffers
    step.ops.run(
        kind,
        "index_query",
        "index_query",
        q=buffers.index_q_raw[:rows],
        freqs=step.freqs[kind.ratio],
        positions=step.inputs.positions[:rows],
        weights_raw=buffers.index_weights_raw[:rows],
        scale=step.geometry.index_weight_scale,
        out=buffers.index_q[:rows],
        weights=buffers.index_weights[:rows],
    )


def select(step: Step, kind: LayerKind, rows: int, captured: bool = True) -> None:
    """Score the visible positions and keep each row's top-k, tile by tile of the logits budget (step 9).

    A full layer runs at the live rows and its forward's longest request; a candidate consumer, which may be `captured`,
    over all rows and the capacity. Where the published blocks cover every position, filtering would change nothing and
    is skipped.
    """
    consumer = kind.candidates == "consume"
    fixed = consumer and captured
    live = rows if fixed else step.forward.live
    blocks, block = step.geometry.candidate_blocks, step.geometry.candidate_block
    columns = step.capacity[kind.ratio] if fixed else step.forward.visible[kind.ratio]
    filtered = consumer and columns > blocks * block
    columns = blocks * block if filtered else max(-(-columns // 64) * 64, 64)
    tile = max(1, LOGITS_BYTES // (2 * columns))
    for start in range(0, live, tile):
        _select_tile(step, kind, slice(start, min(start + tile, live)), columns, filtered)
    if kind.candidates == "publish" and live < rows:
        with step.ops.within(kind, "zero_padding"):
            step.buffers.candidates[live:rows].fill_(-1)


def _select_tile(step: Step, kind: LayerKind, tile: slice, columns: int, filtered: bool) -> None:
    ops, buffers, inputs, geometry = step.ops, step.buffers, step.inputs, step.geometry
    assert kind.kv_source is not None
    positions = inputs.positions[tile]
    candidates = buffers.candidates[tile] if filtered else None
    logits = torch.empty(positions.shape[0], columns, dtype=torch.bfloat16, device=positions.device)
    block = geometry.candidate_block
    ops.run(
        kind,
        "index_logits",
        "index_logits",
        q=buffers.index_q[tile],
        weights=buffers.index_weights[tile],
        cache=step.pools.index_k[kind.kv_source],
        page_size=step.pools.index_page,
        page_table=step.pools.tables.page_table,
        req=inputs.req[tile],
        positions=positions,
        ratio=kind.ratio,
        candidates=candidates,
        candidate_block=block,
        logits=logits,
    )
    raw = (buffers.raw_1 if kind.ratio == 1 else buffers.raw_2)[tile]
    topk = geometry.index_topk
    select = {"candidates": candidates, "candidate_block": block, "topk": topk, "raw": raw}
    ops.run(kind, "index_topk", "index_topk", logits=logits, **select)
    if kind.candidates == "publish":
        ops.run(
            kind,
            "index_candidates",
            "index_candidates",
            logits=logits,
            positions=positions,
            ratio=kind.ratio,
            candidate_block=block,
            blocks=buffers.candidates[tile],
        )
