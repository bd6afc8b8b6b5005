"""Adapters to SGLang's kernels of the indexer: keys, queries, logits, selections, and the combined indices."""

from __future__ import annotations

from typing import Any

import torch

from dsv4bench.kernels.contract import Tensors
from dsv4bench.kernels.layout import FULL_PAGE, ROPE_DIM
from dsv4bench.kernels.upstream_adapter import (
    Adapter,
    Function,
    Results,
    ascending,
    complex_table,
    delivers,
    needs_dense,
)

DSV4 = "sglang.kernels.ops.attention.dsv4"
SGLANG = "sglang"
SMALL_COLUMNS, MOST_KEPT = 16384, 2048  # limits of the top-k kernels


# ---- keys and queries


def _index_key(t: Tensors, store: Function) -> None:
    store(*(t[name] for name in ("k", "weight", "eps", "freqs", "positions", "loc", "cache")), ratio=t["ratio"])


def _index_pack(t: Tensors, pack: Function, store_kernel: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the two kernels of `store_fp4_index_k_cache`, which keeps the packed rows to itself."""
    payload, scales = pack(t["x"], rne=True)
    payload, cache = payload.view(torch.uint8), t["cache"]
    store_kernel[(len(payload),)](payload, scales, cache, t["loc"], t["page_size"], cache.stride(0), BLOCK=64)
    return payload, scales


def _deliver_packed(t: Tensors, packed: tuple[torch.Tensor, torch.Tensor]) -> None:
    t["payload"].copy_(packed[0])
    t["scales"].copy_(packed[1].view(torch.uint8).view(-1, 4))


def _index_query(t: Tensors, rotated: Function) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the path of compute capability 9: rows in bf16, the weights' product a torch operation."""
    out = rotated(t["q"], complex_table(t["freqs"]), ROPE_DIM, positions=t["positions"])
    return out, t["weights_raw"] * t["scale"]


# ---- scores and selections


def _refuses_logits(t: Tensors) -> str | None:
    heads, columns = t["q"].shape[1], t["logits"].shape[1]
    if t["candidates"] is not None:
        return "scores whole rows behind a mask of candidates, not the candidates' columns side by side"
    if heads < 16 or heads & (heads - 1):
        return f"takes a power of two of heads, at least 16, not {heads}"
    if columns > t["page_table"].shape[1] * FULL_PAGE // t["ratio"]:
        return f"takes no more columns than the page table has positions, not {columns}"
    return None


def _prepare_logits(t: Tensors) -> dict[str, Any]:
    """Expand the table of full pages to one slot a token, which SGLang reads, and count what each row sees."""
    in_page = torch.arange(FULL_PAGE, dtype=torch.int32, device=t["page_table"].device)
    slots = t["page_table"][:, :, None] * FULL_PAGE + in_page
    return {"slots": slots.flatten(1), "seen": (t["positions"] + 1) // t["ratio"]}


def _index_logits(t: Tensors, score: Function) -> Results:
    rows = (t["q"], t["weights"], t["req"], t["slots"], t["seen"], t["cache"], t["page_size"])
    return score(*rows, t["logits"].shape[1], t["ratio"])


def _deliver_logits(t: Tensors, found: torch.Tensor) -> None:
    """Round f32 scores, which are bf16 values, and hide what upstream left unwritten."""
    column = torch.arange(found.shape[1], device=found.device)
    hidden = column >= ((t["positions"] + 1) // t["ratio"])[:, None]
    t["logits"].copy_(found.masked_fill(hidden, float("-inf")))


def _refuses_topk(t: Tensors) -> str | None:
    columns, stride, kept = t["logits"].shape[1], t["logits"].stride(0), t["topk"]
    if not 0 < kept <= MOST_KEPT:
        return f"keeps 1 to {MOST_KEPT} positions, not {kept}"
    if t["candidates"] is None:
        return f"takes columns in multiples of 4, not {columns}" if columns % 4 else None
    if columns > SMALL_COLUMNS:
        return f"takes at most {SMALL_COLUMNS} columns of candidates, not {columns}"
    return f"takes rows a multiple of 8 values apart, not {stride}" if stride % 8 else None


def _prepare_topk(t: Tensors) -> dict[str, Any]:
    """Count the visible columns, which are a row's first; prefill scores are f32 at SGLang."""
    logits = t["logits"]
    lengths = (logits > float("-inf")).sum(dim=1, dtype=torch.int32)
    if t["candidates"] is not None:
        return {"lengths": lengths}
    return {"lengths": lengths, "logits": logits.float(), "offsets": torch.zeros_like(lengths)}


def _index_topk(t: Tensors, of_rows: Function, of_candidates: Function) -> None:
    if t["candidates"] is None:
        of_rows(t["logits"], t["lengths"], out_offsets=t["offsets"], out_indices=t["raw"])
    else:
        of_candidates(t["logits"], t["lengths"], t["candidates"], t["raw"], t["candidate_block"])


def _refuses_candidates(t: Tensors) -> str | None:
    stride, kept, size = t["logits"].stride(0), t["blocks"].shape[1], t["candidate_block"]
    if size != 8:
        return f"takes blocks of 8 positions, not {size}"
    if kept > MOST_KEPT:
        return f"keeps at most {MOST_KEPT} blocks, not {kept}"
    return f"takes rows a multiple of 8 values apart, not {stride}" if stride % 8 else None


def _prepare_candidates(t: Tensors) -> dict[str, Any]:
    seen = ((t["positions"] + 1) // t["ratio"]).clamp(max=t["logits"].shape[1]).int()
    return {"seen": seen, "counts": (seen + 7) // 8}


def _index_candidates(t: Tensors, best_blocks: Function) -> Results:
    return best_blocks(t["logits"], t["seen"], t["counts"], t["blocks"].shape[1])


def _deliver_candidates(t: Tensors, found: torch.Tensor) -> None:
    t["blocks"].copy_(found)
    ascending(t["blocks"])


def _prepare_combine(t: Tensors) -> dict[str, Any]:
    """Narrow the positions to i32, as SGLang's chunk cache holds them; a layer without top-k passes an empty one."""
    positions = t["positions"].int()
    raw = positions.new_full((len(positions), 1), -1) if t["raw"] is None else t["raw"]
    return {"positions": positions, "raw": raw, "ratio": max(1, t["ratio"]), "topk": t["topk"] if t["ratio"] else 0}


def _combine(t: Tensors, combine: Function) -> None:
    lengths = (t["seq_lens"], t["gather_lens"], t["compressed_bases"], t["swa_bases"])
    sizes = (t["window"], t["ratio"], t["topk"])
    combine(t["raw"], t["query_start"], t["positions"], *lengths, *sizes, out_indices=t["indices"], out_lens=t["lens"])


ADAPTERS = (
    Adapter(
        "index_key",
        SGLANG,
        (f"{DSV4}.fp4_indexer_rope:index_k_norm_rope_pack_store",),
        _index_key,
        "k",
        refuses=needs_dense("k"),
    ),
    Adapter(
        "index_pack",
        SGLANG,
        (
            "sglang.kernels.ops.quantization.fp4_indexer_quant:quantize_fp4_indexer_tensor",
            "sglang.kernels.ops.kvcache.dsv4_fp4_index_k_cache:_store_fp4_index_k_cache_kernel",
        ),
        _index_pack,
        "x",
        deliver=_deliver_packed,
    ),
    Adapter(
        "index_query",
        SGLANG,
        (f"{DSV4}.fp4_rope_fake_quant:rope_tail_fake_quant_fp4",),
        _index_query,
        "q",
        deliver=delivers("out", "weights"),
    ),
    Adapter(
        "index_logits",
        SGLANG,
        (f"{DSV4}.fp4_indexer:fp4_index_logits_paged",),
        _index_logits,
        "q",
        _prepare_logits,
        _deliver_logits,
        _refuses_logits,
    ),
    Adapter(
        "index_topk",
        SGLANG,
        (f"{DSV4}.topk:topk_transform_ragged_v2", f"{DSV4}.topk:topk_transform_bf16_small"),
        _index_topk,
        "logits",
        _prepare_topk,
        lambda tensors, _: ascending(tensors["raw"]),
        _refuses_topk,
    ),
    Adapter(
        "index_candidates",
        SGLANG,
        (f"{DSV4}.candidate_blocks:amax_topk_blocks",),
        _index_candidates,
        "logits",
        _prepare_candidates,
        _deliver_candidates,
        _refuses_candidates,
    ),
    Adapter(
        "combine",
        SGLANG,
        (f"{DSV4}.sparse_prefill_kernels:combine_topk_swa_indices",),
        _combine,
        "positions",
        _prepare_combine,
    ),
)
