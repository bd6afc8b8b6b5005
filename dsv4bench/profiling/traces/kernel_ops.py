"""Which operation of the attention stack a kernel is, by its name: our kernels and those of SGLang, FlashMLA, DeepGEMM.

One kernel may serve several operations ("rms_norm" is the input norm and the q norm, "dequant" fills the window or the
head); the place in its layer tells which (`infer_layers.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dsv4bench.profiling.traces.columns import KERNEL, NO_ID, Trace
from dsv4bench.profiling.traces.ranges_of import classes
from dsv4bench.results.ledger_table import kernel_name

# operations by the kernels' names without return type, template arguments and parameters; the first that fits decides
_NAMES = (
    ("sparse_attention", r"_?sparse_attention|sparse_attn_fwd_kernel|_sparse_attn_v4\w*"),
    ("sparse_attention", r"fused_norm_rope_attn_rope_cast_fwd::core_attn::fwd_kernel"),
    ("paged_attention", r"_paged_attention|flash_fwd_splitkv_mla\w*|_fused_gather_attn_dsv4\w*"),
    ("attention_merge", r"flash_fwd_mla_combine\w*|_combine_splitk_kernel\w*"),
    ("combine", r"_combine|_combine_topk_swa_indices_kernel"),
    ("dequant_compressed", r"_dequantize_k_cache_paged_v41_fp4_kernel"),  # FP4 is only ever an extra cache (8.4)
    ("dequant", r"_dequant|_dequantize_k_cache_paged\w*"),
    ("compress_c1", r"_compress_c1|flash_c1_\w+"),
    ("compress_c2", r"_compress_c2\w*|flash_c2_\w+|c2_prefill\w*"),
    ("compress_pool", r"_pool_decode|_c2_decode_pool_kernel"),
    ("index_key", r"_index_key|index_k_kernel|_index_k_rope_pack_kernel"),
    ("index_query", r"_index_query|index_q_kernel|_index_q_\w+kernel|fused_q_indexer_rope\w*"),
    ("index_logits", r"_index_logits|_?fp4_index_logits\w*|\w*mqa_logits\w*"),
    (
        "index_candidates",
        r"_index_candidates|_candidate_\w+kernel|sort_blocks_transform|_gather_candidate_blocks\w*",
    ),
    ("index_topk", r"_index_topk|topk_(?:bf16|transform|ragged|packed|main|persistent|small|split|plan)\w*"),
    ("norm_rope_store", r"_norm_rope_store|fused_k_norm_rope_flashmla\w*|_kv_norm_rope_fp8_store"),
    ("index_pack", r"_pack|_store_fp4_index\w*"),
    ("fake_quant", r"_fake_quant|_rope_tail_fake_quant_fp4_kernel"),
    ("store", r"_store|fused_store_flashmla_cache\w*"),
    ("window_slots", r"_window_slots|_causal_swa_page_indices_kernel"),
    ("compressed_slots", r"_compressed_slots"),
    ("rope", r"_rope|fused_rope\w*|deepseek_rope\w*|fused_q_norm_rope|inverse_rope_tail"),
    ("rms_norm", r"_rms_norm|\w*rms_?norm\w*|RMSNorm\w*"),
    ("gemm_part", r"\w*splitK_?reduce\w*"),  # of the GEMM before it
)
KERNELS: tuple[tuple[str, re.Pattern[str]], ...] = (
    *((op, re.compile(rf"(?:^|::)(?:{names})$")) for op, names in _NAMES),
    ("gemm", re.compile(r"gemm|nvjet|gemv|cutlass::(?:device_kernel|Kernel2?$)|xmma", re.IGNORECASE)),
)
_FILL = "FillFunctor"
OPS = (*dict.fromkeys(op for op, _ in KERNELS), "fill", "dequant_swa")
CODES = {op: code for code, op in enumerate(OPS)}
ATTENTION = ("sparse_attention", "paged_attention")  # one of them runs once a layer


@cache
def op_of(name: str) -> str | None:
    """Return the operation of a kernel of this name, None for one that is not known."""
    plain = kernel_name(name)
    if _FILL in name:  # a template argument, which the plain name has no more
        return "fill"
    return next((op for op, pattern in KERNELS if pattern.search(plain)), None)


def kernel_codes(trace: Trace, of_name: Callable[[str], str | None] = op_of) -> npt.NDArray[Any]:
    """Return for each operation of a trace the index in `OPS` of what its kernel is, NO_ID where that is not known.

    Of the dequants before an attention the last fills the window and those before it the head (specification 6.1).
    """
    names, kinds = trace.operations["name"].to_numpy(), classes(trace)
    used, inverse = np.unique(names, return_inverse=True)
    codes = [NO_ID if code == NO_ID else CODES.get(of_name(trace.strings[code]) or "", NO_ID) for code in used]
    found = np.where(kinds == KERNEL, np.array(codes, dtype=np.int32)[inverse] if len(used) else NO_ID, NO_ID)
    core = [CODES[op] for op in ("dequant", "dequant_compressed", "sparse_attention")]
    order = np.lexsort((trace.operations["start_ns"], *(trace.operations[c] for c in ("stream", "device", "process"))))
    order = order[np.isin(found[order], core)]
    streams = trace.operations[["process", "device", "stream"]].to_numpy()[order]
    here, following = order[:-1], order[1:]
    same = (streams[:-1] == streams[1:]).all(axis=1)
    plain = same & (found[here] == CODES["dequant"])
    attends = found[following] == CODES["sparse_attention"]
    found[here[plain & attends]] = CODES["dequant_swa"]
    found[here[plain & ~attends]] = CODES["dequant_compressed"]
    return found
