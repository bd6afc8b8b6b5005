"""What of a layer is in a step, and its share of a layer's work: a saving of 1 % of a step is less of a model's.

A layer of v41-flash (specification 1.1) is attention, the residual streams around attention and MoE, and the MoE; the
bytes are of bf16 weights, as stand-ins have them, and of the experts that rows reach. Everything here is `modelled`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dsv4bench.units import format_share
from dsv4bench.workloads.batch import Batch
from dsv4bench.workloads.geometry import V41_FLASH, Geometry
from dsv4bench.workloads.model import BF16_BYTES, forward_work, own_rows
from dsv4bench.workloads.variant import Variant

MOE_WORDS = {"off": "", "collectives": "the exchange of a MoE", "experts": "a MoE"}


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs of tensor cores, and bytes read and written."""

    flops: int
    bytes: int

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)


def what_is_in_the_step(batch: Batch, variant: Variant, ranks: int = 1) -> str:
    """Return the line that every table of a step shows: what is in it, and its shares of a layer of v41-flash."""
    flops, moved = map(format_share, layer_shares(batch, variant, ranks))
    shares = f"about {flops} of the FLOPs and {moved} of the bytes of {V41_FLASH.name}'s layers (modelled)"
    return f"{in_words(variant)}: {shares}"


def in_words(variant: Variant) -> str:
    """Return what is in a step, e.g. "attention stack only" or "attention stack, residual streams and a MoE"."""
    more = [*(["residual streams"] if variant.mhc == "on" else []), *filter(None, [MOE_WORDS[variant.moe]])]
    if not more:
        return "attention stack only"
    return " and ".join([", ".join(["attention stack", *more[:-1]]), more[-1]])


def layer_shares(batch: Batch, variant: Variant, ranks: int = 1) -> tuple[float, float]:
    """Return the shares of FLOPs and of bytes of v41-flash's layers that a step of `variant` has on one of the ranks.

    What ranks exchange is no work of a device's memory and is not counted.
    """
    moe = _moe(V41_FLASH, batch, variant, ranks)
    whole = _stack(batch, replace(variant, mhc="on", moe="experts")) + moe
    found = _stack(batch, variant) + (moe if variant.moe == "experts" else Work(0, 0))
    return found.flops / whole.flops, found.bytes / whole.bytes


def _stack(batch: Batch, variant: Variant) -> Work:
    costs = forward_work(V41_FLASH, batch, variant).values()
    return Work(sum(cost.flops for cost in costs), sum(cost.bytes_moved for cost in costs))


def _moe(geometry: Geometry, batch: Batch, variant: Variant, ranks: int) -> Work:
    """Return the work of the MoE of all layers on one of `ranks` with as many rows each, experts dealt evenly (8.1).

    A router, and of each expert two matrices in and one out with SwiGLU between them; their rows are added up.
    """
    hidden, width, routed = geometry.hidden, geometry.expert_width, geometry.routed_experts
    found = Work(0, 0)
    for _, part in own_rows(geometry, batch, variant):
        rows, chosen = part.live, geometry.experts_per_token
        each = chosen + geometry.shared_experts
        reached = min(routed, chosen * rows * ranks) / ranks + geometry.shared_experts
        weights = int(reached * 3 * hidden * width) + hidden * routed
        values = rows * (each * (2 * hidden + 6 * width) + hidden + routed + (each + 1) * hidden)
        flops = 2 * hidden * rows * (3 * each * width + routed)
        found += Work(flops, (weights + values) * BF16_BYTES)
    return found
