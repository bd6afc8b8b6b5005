"""Adapters to FlashMLA (the package sgl-flash-mla): sparse attention over gathered rows and over packed caches.

The kernels for compute capability 9 are the package's legacy half, hence `use_legacy`. Each call allocates its result,
so that the provider's call copies it to `out`; the bare call does not.
"""

from __future__ import annotations

from typing import Any

from dsv4bench.kernels.contract import Tensors
from dsv4bench.kernels.layout import HEAD_DIM, V4
from dsv4bench.kernels.upstream_adapter import Adapter, Function, Results, imported

SCHEDULE = "flash_mla:get_mla_metadata"
PAGED_COLUMNS = 64  # of which the table of slots must be a multiple
BLOCK_OF_HEADS = {64: 64, 128: 128}  # columns of a step, of which the index table must be a multiple (6.4)


def _refuses_heads(tensors: Tensors) -> str | None:
    heads, columns = tensors["q"].shape[1], tensors["indices"].shape[1]
    block = BLOCK_OF_HEADS.get(heads)
    if block is None:
        return f"takes 64 or 128 heads, not {heads}"
    return f"takes a multiple of {block} columns, not {columns}" if columns % block else None


def _sparse_attention(t: Tensors, sparse: Function) -> Results:
    return sparse(
        t["q"],
        t["kv"],
        t["indices"].unsqueeze(1),
        t["scale"],
        HEAD_DIM,
        attn_sink=t["sink"],
        topk_length=t["lens"],
        use_legacy=True,
        return_log2_lse=False,  # no statistics: nobody reads them here
    )[0]


def _refuses_paged(t: Tensors) -> str | None:
    heads = t["q"].shape[1]
    if heads not in BLOCK_OF_HEADS:
        return f"takes 64 or 128 heads, not {heads}"
    for part in _parts(t):
        layout, columns = t[f"{part}_layout"], t[f"{part}_slots"].shape[1]
        if layout != V4:
            return f"reads V4 caches on compute capability 9, and {part} is {layout.name}"
        if columns % PAGED_COLUMNS:
            return f"takes a multiple of {PAGED_COLUMNS} columns of {part}, not {columns}"
    return None


def _parts(t: Tensors) -> tuple[str, ...]:
    return ("main",) if t["extra"] is None else ("main", "extra")


def _prepare_paged(t: Tensors) -> dict[str, Any]:
    """View pages as slots, without their padding, and lengths as at least 1; make an empty schedule.

    The kernel fills the schedule at its first call, so that the bare call pays for it once, as SGLang does in a forward
    of many layers. A row of length 0 must have -1 in its first column, as the builders of slots write it.
    """
    made: dict[str, Any] = {"schedule": imported(SCHEDULE)()[0]}
    for part in _parts(t):
        cache, size = t[part], t[f"{part}_page_size"]
        width = t[f"{part}_layout"].row_bytes
        made[part] = cache[:, : size * width].view(len(cache), size, 1, width)
        made[f"{part}_slots"] = t[f"{part}_slots"].unsqueeze(1)
        made[f"{part}_lens"] = t[f"{part}_lens"].clamp(min=1)
    return made


def _paged_attention(t: Tensors, attend: Function, _: Function) -> Results:
    return attend(
        t["q"].unsqueeze(1),
        t["main"],
        None,
        None,
        HEAD_DIM,
        t["schedule"],
        softmax_scale=t["scale"],
        is_fp8_kvcache=True,
        indices=t["main_slots"],
        attn_sink=t["sink"],
        extra_k_cache=t["extra"],
        extra_indices_in_kvcache=t["extra_slots"],
        topk_length=t["main_lens"],
        extra_topk_length=t["extra_lens"],
        use_legacy=True,
    )[0].squeeze(1)


ADAPTERS = (
    Adapter(
        "sparse_attention",
        "flash_mla",
        ("flash_mla:flash_mla_sparse_fwd",),
        _sparse_attention,
        "q",
        deliver=lambda tensors, out: tensors["out"].copy_(out),
        refuses=_refuses_heads,
    ),
    Adapter(
        "paged_attention",
        "flash_mla",
        ("flash_mla:flash_mla_with_kvcache", SCHEDULE),
        _paged_attention,
        "q",
        _prepare_paged,
        lambda tensors, out: tensors["out"].copy_(out),
        _refuses_paged,
    ),
)
