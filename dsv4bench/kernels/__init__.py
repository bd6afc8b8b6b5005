"""The catalogue: every kernel by name, listed by hand, imported when it is asked for.

Nothing here imports torch: whoever needs a layout or a geometry only (a review of a trace) starts without it.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from dsv4bench.errors import nearest

if TYPE_CHECKING:
    from dsv4bench.kernels.contract import Kernel

CATALOGUE = {
    "rms_norm": "rms_norm",
    "rope": "rope",
    "norm_rope_store": "norm_rope_store",
    "store": "store",
    "compress_c1": "compress_c1",
    "compress_c2": "compress_c2",
    "compress_c2_decode": "compress_c2_decode",
    "compress_pool": "compress_pool",
    "compress_pool_decode": "compress_pool_decode",
    "compress_window": "compress_window",
    "compress_window_decode": "compress_window_decode",
    "compress_norm_rope_store": "compress_norm_rope_store",
    "plan_prefill": "plan_prefill",
    "plan_decode": "plan_decode",
    "page_table_positions": "page_table_positions",
    "low_ratio_metadata": "low_ratio_metadata",
    "fill_compressed_indices": "fill_compressed_indices",
    "mqa_schedule": "mqa_schedule",
    "extend_offsets": "extend_offsets",
    "chunk_windows": "chunk_windows",
    "chunk_gather": "chunk_gather",
    "fake_quant": "fake_quant",
    "index_key": "index_key",
    "index_pack": "index_pack",
    "index_store_fp8": "index_store_fp8",
    "index_query": "index_query",
    "index_logits": "index_logits",
    "index_topk": "index_topk",
    "index_candidates": "index_candidates",
    "combine": "combine",
    "window_slots": "window_slots",
    "compressed_slots": "compressed_slots",
    "dequant": "dequant",
    "gather_requant": "gather_requant",
    "remap_holes": "remap_holes",
    "sparse_attention": "sparse_attention",
    "paged_attention": "paged_attention",
    "mhc_pre": "mhc_pre",
    "mhc_stats": "mhc_stats",
    "mhc_mix": "mhc_mix",
    "mhc_post": "mhc_post",
}

SHORT_NAMES = {
    "attention": "sparse_attention",
    "c1": "compress_c1",
    "c2": "compress_c2",
    "c2_decode": "compress_c2_decode",
    "c4": "compress_window",
    "c4_decode": "compress_window_decode",
    "c128": "compress_window",
    "c128_decode": "compress_window_decode",
    "c2_decode_pool": "compress_pool_decode",
}


def kernel_name(word: str) -> str:
    """Return the catalogue's name for a name or a short name; KeyError names the nearest one."""
    name = SHORT_NAMES.get(word, word)
    if name not in CATALOGUE:
        raise KeyError(f"no kernel {word!r}{nearest(word, (*CATALOGUE, *SHORT_NAMES))}; known: {', '.join(CATALOGUE)}")
    return name


@cache
def kernel(name: str) -> Kernel:
    """Return the catalogue's kernel called `name`, installed packages among its providers; KeyError if unknown."""
    from dsv4bench.kernels import upstream

    found: Kernel = importlib.import_module(f"dsv4bench.kernels.{CATALOGUE[name]}").KERNEL
    return replace(found, providers=found.providers + upstream.providers(name))
