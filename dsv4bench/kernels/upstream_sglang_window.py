"""Adapters to SGLang's compressors of ratio 4 and 128, and to the writer of what they pool (specification 3.3, 3.8)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from dsv4bench.kernels.contract import Tensors
from dsv4bench.kernels.layout import INDEX_K, INDEX_K_FP8, UNIFORM_FP8
from dsv4bench.kernels.upstream_adapter import Adapter, Function, complex_table, first_of
from dsv4bench.kernels.upstream_sglang import layout_name

COMPRESS = "sglang.kernels.ops.attention.dsv4.compress"
SGLANG = "sglang"


class PrefillPlan(NamedTuple):
    """A plan as SGLang's functions take it: those that write what was pooled look at the second field alone."""

    compress_ratio: int
    plan_c: torch.Tensor
    plan_w: torch.Tensor | None = None

    @property
    def is_decode(self) -> bool:
        """Whether the records are those of a decode."""
        return False


class DecodePlan(NamedTuple):
    """A plan of a decode as SGLang's functions take it."""

    compress_ratio: int
    plan_d: torch.Tensor

    @property
    def is_decode(self) -> bool:
        """Whether the records are those of a decode."""
        return True


def _prepare_prefill(t: Tensors) -> dict[str, Any]:
    return {"plan": PrefillPlan(t["ratio"], t["plan_c"], t["plan_w"])}


def _prepare_decode(t: Tensors) -> dict[str, Any]:
    return {"plan": DecodePlan(t["ratio"], t["plan_d"])}


def _compress(t: Tensors, compress: Function) -> None:
    sizes = {"head_dim": t["ape"].shape[1], "compress_ratio": t["ratio"]}
    compress(t["pool"], t["x"], t["ape"], t["plan"], **sizes, out=t["out"])


def _refuses_uniform(t: Tensors) -> str | None:
    return "has two kernels of its own for uniform rows" if t["layout"] == UNIFORM_FP8 else None


def _refuses_f32(t: Tensors) -> str | None:
    rounded = t["layout"].encoding in ("v41", "fp4") and t["kv"].dtype == torch.float32
    return f"rounds rows to their own dtype, which for {t['layout'].name} must be bfloat16" if rounded else None


def _prepare_store(t: Tensors) -> dict[str, Any]:
    return {"plan": (DecodePlan if t["decode"] else PrefillPlan)(t["ratio"], t["plan"])}


def _norm_rope_store(t: Tensors, store: Function) -> None:
    layout = t["layout"]
    norm = {"norm_weight": t["weight"], "norm_eps": t["eps"], "freq_cis": complex_table(t["freqs"])}
    place = {"out_loc": t["out_loc"], "kvcache": t["cache"], "page_size": t["page_size"]}
    form = {"use_fp4": layout == INDEX_K} if layout in (INDEX_K, INDEX_K_FP8) else {"layout": layout_name(layout)}
    store(t["kv"], t["plan"], **norm, **place, **form)


ADAPTERS = (
    Adapter("compress_window", SGLANG, (f"{COMPRESS}:compress_forward",), _compress, "x", _prepare_prefill),
    Adapter("compress_window_decode", SGLANG, (f"{COMPRESS}:compress_forward",), _compress, "x", _prepare_decode),
    Adapter(
        "compress_norm_rope_store",
        SGLANG,
        (f"{COMPRESS}:compress_norm_rope_store",),
        _norm_rope_store,
        "kv",
        _prepare_store,
        refuses=first_of(_refuses_uniform, _refuses_f32),
    ),
)
