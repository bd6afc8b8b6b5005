"""What the mixes of a row are made of: its four residual streams against a projection, and their squares, by slices.

stats[t, s, n] = streams[t] . projection[n] over slice s of the 4 * hidden channels for n < 24, and stats[t, s, 24] is
the sum of that slice's squares, in f32. Slices let few rows fill a device; `mhc_mix` adds them up, in their order.

Shapes: streams [T, 4, hidden] bf16; projection [24, 4 * hidden] f32; stats [T, 16, 25] f32; `hidden` a multiple of 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import BF16, F32, expect_tensor
from dsv4bench.kernels.contract import TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, Tolerance, torch_provider
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.mhc import MIXES, SLICES, STATS, STREAMS, slice_width

FEW_ROWS, ROWS_PER_PROGRAM, CHANNELS_AT_ONCE = 16, 64, 128
ROW_MIXES, ROW_STATS, ROW_SLICES = tl.constexpr(MIXES), tl.constexpr(STATS), tl.constexpr(SLICES)


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows, and the channels of a stream."""

    rows: int
    hidden: int


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make unit normal streams, and a projection that keeps the variance of a row."""
    device, rows, channels = generator.device, shape.rows, STREAMS * shape.hidden
    return {
        "streams": torch.randn(rows, STREAMS, shape.hidden, generator=generator, device=device).bfloat16(),
        "projection": torch.randn(MIXES, channels, generator=generator, device=device) * channels**-0.5,
        "stats": torch.empty(rows, SLICES, STATS, device=device),
    }


def reference(streams: torch.Tensor, projection: torch.Tensor, stats: torch.Tensor) -> None:
    """Sum every slice in f32."""
    parts = streams.float().reshape(len(streams), SLICES, -1)
    weights = projection.unflatten(1, (SLICES, -1))
    stats[..., :MIXES] = torch.einsum("tsk,nsk->tsn", parts, weights)
    stats[..., MIXES] = parts.square().sum(dim=-1)


def cost(tensors: Tensors) -> Cost:
    """Count the products and the squares; streams and projection read once, the sums written once."""
    values = tensors["streams"].numel()
    read = 2 * values + 4 * tensors["projection"].numel()
    return Cost(2 * STATS * values, bytes_read=read, bytes_written=4 * tensors["stats"].numel())


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride."""
    expect_tensor("streams", tensors["streams"], BF16, ("rows", STREAMS, "hidden"))
    rows, _, hidden = tensors["streams"].shape
    slice_width(hidden)
    expect_tensor("projection", tensors["projection"], F32, (MIXES, STREAMS * hidden))
    expect_tensor("stats", tensors["stats"], F32, (rows, SLICES, STATS))


@triton.jit
def _mhc_stats(
    streams_ptr, projection_ptr, stats_ptr, rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    part = tl.program_id(1)
    live = row < rows
    number = tl.arange(0, 32)  # of the mix; the one after the last holds the squares
    channels = WIDTH * ROW_SLICES
    dots = tl.zeros((ROWS, 32), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    for begin in range(0, WIDTH, BLOCK):
        inside = begin + tl.arange(0, BLOCK)
        channel = part * WIDTH + inside
        mask = live[:, None] & (inside < WIDTH)[None, :]
        x = tl.load(streams_ptr + row[:, None] * channels + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        known = (number < ROW_MIXES)[:, None] & (inside < WIDTH)[None, :]
        weight = tl.load(projection_ptr + number[:, None] * channels + channel[None, :], mask=known, other=0.0)
        dots += tl.dot(x, tl.trans(weight), input_precision="tf32")
        squares += tl.sum(x * x, axis=1)
    made = tl.where((number == ROW_MIXES)[None, :], squares[:, None], dots)
    at = (row[:, None] * ROW_SLICES + part) * ROW_STATS + number[None, :]
    tl.store(stats_ptr + at, made, mask=live[:, None] & (number < ROW_STATS)[None, :])


def build_triton(tensors: Tensors) -> Call:
    """Launch one program per slice of 64 rows, or of 16 where there are no more than 64."""
    streams = tensors["streams"]
    rows, _, hidden = streams.shape
    block = ROWS_PER_PROGRAM if rows > ROWS_PER_PROGRAM else FEW_ROWS
    arguments = (streams, tensors["projection"], tensors["stats"], rows)

    def call() -> None:
        if rows:
            _mhc_stats[(triton.cdiv(rows, block), SLICES)](
                *arguments, WIDTH=slice_width(hidden), ROWS=block, BLOCK=CHANNELS_AT_ONCE, num_warps=4, num_stages=3
            )

    return call


KERNEL = Kernel(
    name="mhc_stats",
    inputs=inputs,
    reference=reference,
    cost=cost,
    # the projection is rounded to tf32 (10 bits) on a tensor core, as upstream's is; the rows are exact in it
    outputs={"stats": Tolerance(rtol=2**-10, atol=2e-3, because="tf32 products, and the order of their sums")},
    examples=(Shape(3, 64), Shape(70, 8), Shape(1, 5120), Shape(17, 1284)),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    bench=Bench(lambda rows, case: Shape(rows, 5120), rows=(1024, 8192)),
)
