"""The four residual streams around each sublayer, as a stand-in: what they cost, without a say in what attention reads.

In V4.1 (specification 1.1 and 6.1) a sublayer's input is a mix of four streams, whose four numbers the sublayer before
made; its own input makes the numbers of its post mixing and of the next pre mixing; and its result is spread over the
streams, which are mixed with each other. Here the streams are [rows, 4, hidden] bf16 of their own, filled from the
hidden states: `mhc_pre`, `mhc_stats` and `mhc_mix` run before attention and before what stands in for the MoE,
`mhc_post` behind them, with the residual stream in place of a sublayer's result. Nothing reads the row that `mhc_pre`
makes, so attention is the same without them.

One sublayer's weights serve all. The first sublayer, which has none before it, takes in the mix that it makes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dsv4bench.kernels.contract import Cost
from dsv4bench.kernels.mhc import MIXES, SLICES, STATS, STREAMS
from dsv4bench.workloads.geometry import Geometry, LayerKind
from dsv4bench.workloads.variant import Variant

if TYPE_CHECKING:
    from dsv4bench.workloads.step import Step

MHC_PRE = "mhc pre"
MHC_COLLAPSE = "mhc collapse"  # the first operation of the part above, alone
MHC_POST = "mhc post"


@dataclass(frozen=True, slots=True)
class MixWeights:
    """What the mixes of a row are made with; all f32."""

    projection: torch.Tensor  # [24, 4 * hidden]
    scale: torch.Tensor  # [3]
    base: torch.Tensor  # [24]

    @property
    def bytes(self) -> int:
        """Bytes of all three."""
        return sum(t.numel() * t.element_size() for t in (self.projection, self.scale, self.base))


def make_mix_weights(geometry: Geometry, device: torch.device, seed: int) -> MixWeights:
    """Draw the weights of a sublayer, scaled so that mixes differ from row to row and from stream to stream."""
    channels = STREAMS * geometry.hidden
    if device.type == "meta":
        drawn = torch.empty(MIXES, channels + 1, device=device)
    else:
        generator = torch.Generator(device=device).manual_seed(seed + 104_729)  # not the stack's own
        drawn = torch.randn(MIXES, channels + 1, generator=generator, device=device)
    return MixWeights(
        projection=drawn[:, :channels].contiguous().mul_(channels**-0.5),
        scale=torch.ones(3, device=device),
        base=drawn[:, channels].contiguous().mul_(0.3),
    )


def mixing_costs(geometry: Geometry, rows: int, kind: LayerKind, variant: Variant) -> Iterator[tuple[str, Cost]]:
    """Yield what each operation around the sublayers of a layer costs at least; layer 0 fills the streams first.

    The MoE is a sublayer where something stands in for it. FLOPs are those of the projection; what else the kernels
    compute is no work for tensor cores. Modelled.
    """
    row_bytes, sums_bytes, mixes_bytes = 2 * geometry.hidden, 4 * SLICES * STATS, 4 * MIXES
    streams_bytes, channels = STREAMS * row_bytes, STREAMS * geometry.hidden
    stats = Cost(2 * rows * channels * MIXES, rows * streams_bytes + MIXES * channels * 4, rows * sums_bytes)
    mix = Cost(0, rows * sums_bytes + mixes_bytes + 12, rows * mixes_bytes)
    if variant.mhc == "off":
        return
    if kind.layer == 0:
        yield "mhc_enter", Cost(0, rows * row_bytes, rows * streams_bytes)
    pre = Cost(0, rows * (streams_bytes + 4 * STREAMS), rows * row_bytes)
    post = Cost(0, rows * (streams_bytes + row_bytes + mixes_bytes - 4 * STREAMS), rows * streams_bytes)
    for _ in range(1 if variant.moe == "off" else 2):
        yield from (("mhc_pre", pre), ("mhc_stats", stats), ("mhc_mix", mix), ("mhc_post", post))


def enter(step: Step, kind: LayerKind, rows: int) -> None:
    """Fill the streams with the hidden states, and make the first mixes of all."""
    streams = step.buffers.streams[:rows]
    with step.ops.within(kind, "mhc_enter"):
        streams.copy_(step.inputs.hidden[:rows, None].expand_as(streams))
    _mixes(step, kind, rows)


def enter_tail(step: Step, tail: Step, kind: LayerKind, chosen: torch.Tensor) -> None:
    """Take the tail's rows out of streams and mixes; `chosen` are their places, [tail rows]."""
    with step.ops.within(kind, "mhc_enter"):
        for whole, part in ((step.buffers.streams, tail.buffers.streams), (step.buffers.mixes, tail.buffers.mixes)):
            torch.index_select(whole, 0, chosen, out=part[: len(chosen)])


def pre(step: Step, kind: LayerKind, rows: int) -> None:
    """Mix the streams into a row by the numbers that are there, and make those of post and of the next pre."""
    collapse(step, kind, rows)
    _mixes(step, kind, rows)


def collapse(step: Step, kind: LayerKind, rows: int) -> None:
    """Mix the streams into a row."""
    buffers = step.buffers
    streams, mixes = buffers.streams[:rows], buffers.mixes[:rows]
    step.ops.run(kind, "mhc_pre", "mhc_pre", streams=streams, mixes=mixes, out=buffers.collapsed[:rows])


def post(step: Step, kind: LayerKind, rows: int) -> None:
    """Spread the residual stream over the streams, mixed with each other."""
    buffers = step.buffers
    streams, mixes = buffers.streams[:rows], buffers.mixes[:rows]
    step.ops.run(kind, "mhc_post", "mhc_post", streams=streams, mixes=mixes, y=buffers.residual[:rows])


def _mixes(step: Step, kind: LayerKind, rows: int) -> None:
    weights, buffers = step.mix_weights, step.buffers
    assert weights is not None, "a step with mHC needs its weights"
    stats = buffers.mix_stats[:rows]
    projection = weights.projection
    step.ops.run(kind, "mhc_stats", "mhc_stats", streams=buffers.streams[:rows], projection=projection, stats=stats)
    step.ops.run(
        kind,
        "mhc_mix",
        "mhc_mix",
        stats=stats,
        scale=weights.scale,
        base=weights.base,
        hidden=step.geometry.hidden,
        eps=step.geometry.eps,
        mixes=buffers.mixes[:rows],
    )


PARTS: dict[str, Callable[[Step, LayerKind, int], None]] = {MHC_PRE: pre, MHC_COLLAPSE: collapse, MHC_POST: post}
