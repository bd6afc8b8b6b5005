"""What of a layer is in a step, and its share of a layer's work: a saving of 1 % of a step is less of a model's.

A layer of v41-flash (specification 1.1) is attention, the residual streams around attention and MoE, and the MoE; the
bytes are of bf16 weights, as stand-ins have them, and of the experts that rows reach. Everything here is `modelled`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dsv4bench.units import format_share
from dsv4bench.workloads.batch import Batch
from dsv4bench.workloads.geometry import V41_FLASH
from dsv4bench.workloads.model import forward_work
from dsv4bench.workloads.variant import Variant

MOE_WORDS = {"off": "", "collectives": "the exchange of a MoE", "experts": "a MoE"}


def what_is_in_the_step(forward: Sequence[Batch], variant: Variant) -> str:
    """Return the line that every table of a step shows: what is in it, and its shares of a layer of v41-flash.

    `forward` holds the batch of every rank.
    """
    flops, moved = map(format_share, layer_shares(forward, variant))
    shares = f"about {flops} of the FLOPs and {moved} of the bytes of {V41_FLASH.name}'s layers"
    uneven = len({batch.live for batch in forward}) > 1
    return f"{in_words(variant)}: {shares}{' on the rank with the most rows' if uneven else ''} (modelled)"


def in_words(variant: Variant) -> str:
    """Return what is in a step, e.g. "attention stack only" or "attention stack, residual streams and a MoE"."""
    more = [*(["residual streams"] if variant.mhc == "on" else []), *filter(None, [MOE_WORDS[variant.moe]])]
    if not more:
        return "attention stack only"
    return " and ".join([", ".join(["attention stack", *more[:-1]]), more[-1]])


def layer_shares(forward: Sequence[Batch], variant: Variant) -> tuple[float, float]:
    """Return the shares of FLOPs and of bytes of v41-flash's layers that a step of `variant` has on a rank.

    `forward` holds the batch of every rank; the shares are those of the rank with the most rows, whose experts run
    their part of all ranks' rows. What ranks exchange is no work of a device's memory and is not counted.
    """
    most, *others = sorted(forward, key=lambda batch: batch.live, reverse=True)
    whole = _work(most, replace(variant, mhc="on", moe="experts"), others)
    found = _work(most, variant, others)
    return found[0] / whole[0], found[1] / whole[1]


def _work(batch: Batch, variant: Variant, others: Sequence[Batch]) -> tuple[int, int]:
    """Return FLOPs of tensor cores, and bytes read and written."""
    costs = forward_work(V41_FLASH, batch, variant, others).values()
    return sum(cost.flops for cost in costs), sum(cost.bytes_moved for cost in costs)
