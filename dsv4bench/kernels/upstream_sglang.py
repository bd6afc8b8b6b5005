"""Adapters to SGLang's kernels that write and read rows: norm, rotation, stores, compressors, dequantiser.

Where SGLang's wrapper asks for compute capability 10 without a reason in the maths (the V4.1 dequantiser, specification
3.9), its Triton kernel is launched directly, with the wrapper's grid. The compressors have no such check of their own.
"""

from __future__ import annotations

from typing import Any

import torch

from dsv4bench.kernels.contract import Tensors
from dsv4bench.kernels.layout import HEAD_DIM, ROPE_DIM, UNIFORM_FP8, V4, KVLayout
from dsv4bench.kernels.upstream_adapter import (
    Adapter,
    Function,
    Results,
    complex_table,
    delivers,
    first_of,
    needs_dense,
)

DSV4 = "sglang.kernels.ops.attention.dsv4"
QUANTIZATION = "sglang.kernels.ops.quantization"
SGLANG = "sglang"
NAMES = {"fp4": "v41_fp4", "fp4_new": "v41_fp4_new", "uniform": "uniform_fp8"}  # layouts that SGLang calls otherwise


def layout_name(layout: KVLayout) -> str:
    """Return what SGLang calls a layout."""
    return NAMES.get(layout.name, layout.name)


# ---- norm, rotation, writers, readers


def _refuses_width(t: Tensors) -> str | None:
    width = t["x"].shape[1]
    if width in (64, 128, 256) or (width % 256 == 0 and width <= 8192) or (width % 512 == 0 and width <= 16384):
        return None
    return f"takes rows of 64, 128, or a multiple of 256 up to 8192 (512 up to 16384), not {width}"


def _rms_norm(t: Tensors, rms_norm: Function) -> None:
    rms_norm(t["x"], t["weight"], t["out"], t["eps"])


def _rope(t: Tensors, rope: Function) -> None:
    rope(t["x"][..., -ROPE_DIM:], None, complex_table(t["freqs"]), t["positions"], t["inverse"])


def _norm_rope_store(t: Tensors, store: Function) -> None:
    rows = (t["kv"], t["weight"], t["eps"], complex_table(t["freqs"]), t["positions"], t["loc"])
    store(*rows, t["cache"], t["page_size"], layout_name(t["layout"]))


def _refuses_uniform_window(t: Tensors) -> str | None:
    return "its writer of uniform rows skips none" if t["layout"] == UNIFORM_FP8 else None


def _refuses_rotated_v4(t: Tensors) -> str | None:
    rotated = t["freqs"] is not None and t["layout"] == V4
    return "the V4 store takes rows that are rotated already" if rotated else None


def _store(t: Tensors, store: Function) -> None:
    """Gather each row's rotation first, as SGLang's callers do: it takes one a row, not a table and positions."""
    freqs = None if t["freqs"] is None else t["freqs"][t["positions"]]
    options = {"page_size": t["page_size"], "layout": layout_name(t["layout"])}
    store(t["x"], t["cache"], t["loc"], type="flashmla", freqs_cis=freqs, **options)


def _index_store_fp8(t: Tensors, store: Function) -> None:
    store(t["x"], t["cache"], t["loc"], type="indexer", page_size=t["page_size"])


def _gather_requant(t: Tensors, gather: Function) -> None:
    gather(t["cache"], t["ids"], t["page_size"], extra_rows=len(t["out"]) - len(t["ids"]), out=t["out"])


def _fake_quant(t: Tensors, rotated: Function, of_keys: Function, of_rows: Function) -> Results:
    """Run one Triton kernel where rows are rotated; else SGLang has plain torch, a dozen launches."""
    x, block = t["x"], t["block"]
    if t["freqs"] is None:
        return of_rows(x) if block == 16 else of_keys(x, block)
    return rotated(
        x,
        complex_table(t["freqs"]),
        ROPE_DIM,
        block_size=block,
        compressed_kv=block == 16,
        positions=t["positions"],
    )


def _refuses_uniform(t: Tensors) -> str | None:
    return "has no dequantiser of uniform rows" if t["layout"] == UNIFORM_FP8 else None


def _dequant(t: Tensors, of_v4: Function, fp8_kernel: Any, fp4_kernel: Any) -> None:
    cache, ids, page_size, layout, out = (t[name] for name in ("cache", "ids", "page_size", "layout", "out"))
    if layout == V4:
        of_v4(cache, ids, page_size, out=out)
        return
    data_stride, scale_base, scale_stride = layout.strides(page_size)
    kernel = fp4_kernel if layout.encoding == "fp4" else fp8_kernel
    kernel[(ids.shape[0],)](
        out,
        cache.view(torch.float8_e4m3fn).view(-1),
        cache.view(-1),
        ids,
        out.stride(0),
        BYTES_PER_PAGE=cache.shape[1],
        PAGE_SIZE=page_size,
        DATA_BYTES=layout.data_bytes,
        SCALE_BYTES=layout.scale_bytes,
        TILE_SIZE=layout.values_per_scale,
        DATA_STRIDE=data_stride,
        SCALE_BASE=scale_base,
        SCALE_STRIDE=scale_stride,
        IS_HIP=False,
    )


# ---- compressors


def _compress_c1(t: Tensors, compress: Function) -> None:
    rows = (t["kv"], t["weight"], t["positions"], t["loc"], t["eps"], t["freqs"], t["cache"])
    compress(*rows, page_size=t["page_size"], layout=layout_name(t["layout"]), out=t["latent"])


def _compress_c2(t: Tensors, compress: Function) -> None:
    rows = (t["kv_score"], t["ring"], t["weight"], t["positions"], t["req"], t["loc"], t["eps"], t["freqs"])
    options = {"page_size": t["page_size"], "ring_size": t["ring_size"], "layout": layout_name(t["layout"])}
    compress(*rows, t["cache"], t["starts"], t["lens"], out=t["latent"], **options)


def _compress_c2_decode(t: Tensors, compress: Function) -> None:
    rows = (t["kv_score"], t["ring"], t["weight"], t["positions"], t["req"], t["loc"], t["eps"], t["freqs"])
    options = {name: t[name] for name in ("page_size", "ring_size", "draft_len")}
    compress(*rows, t["cache"], layout=layout_name(t["layout"]), out=t["latent"], **options)


def _compress_pool_decode(t: Tensors, pool: Function) -> Results:
    ring, ids = t["ring"], (t["positions"], t["loc"], t["pair_loc"], t["req"])
    kv, score = ring[:, :HEAD_DIM], ring[:, HEAD_DIM:]
    return pool(t["kv"], t["score"], *ids, kv, score, ring.shape[0] - 1, ring_size=t["ring_size"])


ADAPTERS = (
    Adapter("rms_norm", SGLANG, ("sglang.kernels.ops.layernorm.norm:rmsnorm",), _rms_norm, "x", refuses=_refuses_width),
    Adapter("rope", SGLANG, (f"{DSV4}.norm_rope:fused_rope_inplace",), _rope, "x"),
    Adapter(
        "norm_rope_store",
        SGLANG,
        (f"{DSV4}.norm_rope:fused_k_norm_rope_flashmla",),
        _norm_rope_store,
        "kv",
        refuses=_refuses_uniform_window,
    ),
    Adapter(
        "store",
        SGLANG,
        (f"{DSV4}.attn:fused_store_cache",),
        _store,
        "x",
        refuses=first_of(_refuses_rotated_v4, needs_dense("x")),
    ),
    Adapter(
        "index_store_fp8",
        SGLANG,
        (f"{DSV4}.attn:fused_store_cache",),
        _index_store_fp8,
        "x",
        refuses=needs_dense("x"),
    ),
    Adapter(
        "gather_requant",
        SGLANG,
        (f"{DSV4}.dequant_k_cache:gather_dequant_requant_fp8_paged_dsv4",),
        _gather_requant,
        "out",
    ),
    Adapter(
        "fake_quant",
        SGLANG,
        (
            f"{DSV4}.fp4_rope_fake_quant:rope_tail_fake_quant_fp4",
            f"{QUANTIZATION}.fp4_fake_quant:fake_quant_fp4",
            f"{QUANTIZATION}.fp4_fake_quant:fake_quant_compressed_kv",
        ),
        _fake_quant,
        "x",
        deliver=lambda tensors, out: tensors["out"].copy_(out),
    ),
    Adapter(
        "dequant",
        SGLANG,
        (
            f"{DSV4}.dequant_k_cache:dequantize_k_cache_paged_dsv4",
            f"{DSV4}.dequant_k_cache:_dequantize_k_cache_paged_v41_fp8_kernel",
            f"{DSV4}.dequant_k_cache:_dequantize_k_cache_paged_v41_fp4_kernel",
        ),
        _dequant,
        "ids",
        refuses=_refuses_uniform,
    ),
    Adapter(
        "compress_c1",
        SGLANG,
        (f"{DSV4}.low_ratio_compress:c1_decode_norm_rope_store",),
        _compress_c1,
        "kv",
        refuses=needs_dense("kv"),
    ),
    Adapter(
        "compress_c2",
        SGLANG,
        (f"{DSV4}.low_ratio_compress:c2_prefill_norm_rope_store",),
        _compress_c2,
        "kv_score",
        refuses=needs_dense("kv_score"),
    ),
    Adapter(
        "compress_c2_decode",
        SGLANG,
        (f"{DSV4}.low_ratio_compress:c2_decode_norm_rope_store",),
        _compress_c2_decode,
        "kv_score",
        refuses=needs_dense("kv_score"),
    ),
    Adapter(
        "compress_pool_decode",
        SGLANG,
        (f"{DSV4}.c2_decode_pool:c2_decode_pool",),
        _compress_pool_decode,
        "kv",
        deliver=delivers("pooled", "group_positions", "slots"),
    ),
)
