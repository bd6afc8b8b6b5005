"""Adapters to FlashMLA (the package sgl-flash-mla): sparse attention over gathered rows.

The kernels for compute capability 9 are the package's legacy half, hence `use_legacy`. Each call allocates its result,
so that the provider's call copies it to `out`; the bare call does not.
"""

from __future__ import annotations

from dsv4bench.kernels.contract import Tensors
from dsv4bench.kernels.layout import HEAD_DIM
from dsv4bench.kernels.upstream_adapter import Adapter, Function, Results

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
)
