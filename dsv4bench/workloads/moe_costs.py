"""What the MoE's stand-in costs at least on one rank of several: `moe.py` runs it. Everything here is `modelled`.

Experts are dealt evenly and rows are taken to choose different ones, so that a rank runs its share of the rows of all
ranks (specification 8.1) over as many of its experts as they can reach. What crosses the link between ranks is told in
bytes alone: no time of it is modelled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsv4bench.kernels.contract import Cost
from dsv4bench.workloads.batch import Batch
from dsv4bench.workloads.geometry import Geometry
from dsv4bench.workloads.variant import Variant

BF16_BYTES, F32_BYTES, INT64_BYTES = 2, 4, 8
TENSOR_CORES = ("moe_router_proj", "moe_experts", "moe_shared_proj")
# launches behind a layer, as one eager step on an H200 counted them (results/h200-dep2-experts)
AROUND = {"moe_norm": 1, "moe_add": 1}
OF_EXPERTS = {"moe_router_proj": 1, "moe_route": 39, "moe_experts": 13, "moe_shared_proj": 6}
OF_EXCHANGE = {"padded": 2, "eager": 5}  # of both ways together


def moe_costs(
    geometry: Geometry, batch: Batch, variant: Variant, others: Sequence[Batch]
) -> Iterator[tuple[str, Cost]]:
    """Yield what each operation behind a layer costs on the rank of `batch`; `others` are the other ranks' batches.

    The exchange is none of them. An expert's rows are read and written by each of its kernels: two matrices in, SwiGLU,
    one matrix out, and the sum.
    """
    if variant.moe == "off":
        return
    hidden, rows = geometry.hidden, batch.rows
    each_way = rows * hidden * BF16_BYTES
    yield "moe_norm", Cost(0, each_way, each_way)
    yield "moe_add", Cost(0, 2 * each_way, each_way)
    if variant.moe == "experts":
        yield from _experts(geometry, batch, others)


def _experts(geometry: Geometry, batch: Batch, others: Sequence[Batch]) -> Iterator[tuple[str, Cost]]:
    hidden, routed, top = geometry.hidden, geometry.routed_experts, geometry.experts_per_token
    ranks, whole = 1 + len(others), batch.rows + sum(one.rows for one in others)
    assigned = top * (batch.live + sum(one.live for one in others))
    logits_bytes = whole * routed * F32_BYTES
    read_bytes = (hidden * routed + whole * hidden) * BF16_BYTES
    yield "moe_router_proj", Cost(2 * whole * hidden * routed, read_bytes, logits_bytes)
    yield "moe_route", Cost(0, logits_bytes, whole * top * (F32_BYTES + INT64_BYTES))
    yield "moe_experts", _mlp(geometry, assigned / ranks, min(routed, assigned) / ranks, whole)
    yield "moe_shared_proj", _mlp(geometry, batch.rows * geometry.shared_experts, geometry.shared_experts, batch.rows)


def _mlp(geometry: Geometry, passes: float, experts: float, results: int) -> Cost:
    """Return the work of `passes` rows through as many `experts` as they reach, added up to `results` rows."""
    hidden, width = geometry.hidden, geometry.expert_width
    read = experts * 3 * hidden * width + passes * (hidden + 3 * width) + passes * hidden
    written = passes * (3 * width + hidden) + results * hidden
    return Cost(round(2 * 3 * hidden * width * passes), round(read) * BF16_BYTES, round(written) * BF16_BYTES)


def moe_launches(variant: Variant, ranks: int, padded: bool) -> int:
    """Return about how many launches the stand-in behind one layer makes."""
    if variant.moe == "off":
        return 0
    exchange = OF_EXCHANGE["padded" if padded else "eager"] if ranks > 1 else 0
    return sum(AROUND.values()) + exchange + (sum(OF_EXPERTS.values()) if variant.moe == "experts" else 0)


def exchanged_bytes(geometry: Geometry, forward: Sequence[Batch], variant: Variant) -> dict[str, int]:
    """Return the bytes of the buffers that each collective of a forward works on, the rows of all ranks (8.2, 8.3)."""
    if variant.moe == "off" or len(forward) == 1:
        return {}
    whole_bytes = sum(one.rows for one in forward) * geometry.hidden * BF16_BYTES * len(geometry.layers)
    if forward[0].bucket is None:
        return {"all-reduce": 2 * whole_bytes}
    return {"all-gather": whole_bytes, "reduce-scatter": whole_bytes}
