"""Adapters to DeepGEMM (the package sgl-deep-gemm): the schedule of paged index logits.

DeepGEMM scores fp4 rows on compute capability 10 only, so nothing else of it stands beside a kernel here.
"""

from __future__ import annotations

from dsv4bench.kernels.contract import Tensors
from dsv4bench.kernels.upstream_adapter import Adapter, Function, Results


def _mqa_schedule(t: Tensors, schedule: Function) -> Results:
    return schedule(t["lens"].view(-1, 1), t["page_size"], t["num_sm"])


ADAPTERS = (
    Adapter(
        "mqa_schedule",
        "deep_gemm",
        ("deep_gemm:get_paged_mqa_logits_metadata",),
        _mqa_schedule,
        "lens",
        deliver=lambda tensors, found: tensors["schedule"].copy_(found),
    ),
)
