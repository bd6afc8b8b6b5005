"""The 24 mixes of a row from its sums: 4 of pre, 4 of post, and 16 that Sinkhorn makes doubly stochastic (1.1).

With z = (sum of slices of stats[t, :, :24]) / sqrt(mean square + eps): pre = sigmoid(scale[0] z + base) + 1e-6, post =
2 sigmoid(scale[1] z + base), and combine is the softmax over the last dimension of scale[2] z + base, [from, to], plus
1e-6, whose columns and rows are then divided by their sums in turn, 20 times each but for the first rows, which the
softmax did. Every sum has 1e-6 added before it divides.

Shapes: stats [T, 16, 25] f32 as `mhc_stats` writes it; scale [3] f32; base [24] f32; mixes [T, 24] f32. `hidden` is the
channels of a stream, `eps` that of the model's norms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import F32, expect_tensor
from dsv4bench.kernels.contract import TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, Tolerance, torch_provider
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.mhc import (
    COMBINE,
    MIX_EPS,
    MIXES,
    POST,
    PRE,
    SINKHORN_ITERATIONS,
    SLICES,
    STATS,
    STREAMS,
)

ROWS_PER_PROGRAM = 32
ROW_MIXES, ROW_STATS, ROW_SLICES = tl.constexpr(MIXES), tl.constexpr(STATS), tl.constexpr(SLICES)
ITERATIONS, TINY = tl.constexpr(SINKHORN_ITERATIONS), tl.constexpr(MIX_EPS)


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows, and the channels of a stream, which the mean square is over."""

    rows: int
    hidden: int


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make sums such as unit normal streams have, and weights that spread the mixes."""
    device, rows = generator.device, shape.rows
    stats = torch.randn(rows, SLICES, STATS, generator=generator, device=device) / SLICES**0.5
    stats[..., MIXES] = STREAMS * shape.hidden / SLICES * (1 + 0.1 * stats[..., MIXES])
    return {
        "stats": stats,
        "scale": 0.5 + torch.rand(3, generator=generator, device=device),
        "base": 0.3 * torch.randn(MIXES, generator=generator, device=device),
        "hidden": shape.hidden,
        "eps": 1e-20,
        "mixes": torch.empty(rows, MIXES, device=device),
    }


def reference(
    stats: torch.Tensor, scale: torch.Tensor, base: torch.Tensor, hidden: int, eps: float, mixes: torch.Tensor
) -> None:
    """Add the slices, scale by the row's norm, and give each part its form."""
    sums = stats.sum(dim=1)
    z = sums[:, :MIXES] * torch.rsqrt(sums[:, MIXES:] / (STREAMS * hidden) + eps)
    mixes[:, PRE] = torch.sigmoid(scale[0] * z[:, PRE] + base[PRE]) + MIX_EPS
    mixes[:, POST] = 2 * torch.sigmoid(scale[1] * z[:, POST] + base[POST])
    logits = (scale[2] * z[:, COMBINE] + base[COMBINE]).unflatten(1, (STREAMS, STREAMS))
    combine = torch.softmax(logits, dim=2) + MIX_EPS
    for step in range(2 * SINKHORN_ITERATIONS - 1):
        combine = combine / (combine.sum(dim=1 + step % 2, keepdim=True) + MIX_EPS)
    mixes[:, COMBINE] = combine.flatten(1)


def cost(tensors: Tensors) -> Cost:
    """Count three operations a number in each of 40 divisions by a sum; sums read once, mixes written once."""
    rows = len(tensors["stats"])
    read = 4 * (tensors["stats"].numel() + 3 + MIXES)
    flops = rows * (STREAMS * STREAMS * 3 * 2 * SINKHORN_ITERATIONS + SLICES * STATS)
    return Cost(flops, bytes_read=read, bytes_written=4 * rows * MIXES)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride, or a row without channels."""
    expect_tensor("stats", tensors["stats"], F32, ("rows", SLICES, STATS))
    expect_tensor("scale", tensors["scale"], F32, (3,))
    expect_tensor("base", tensors["base"], F32, (MIXES,))
    expect_tensor("mixes", tensors["mixes"], F32, (len(tensors["stats"]), MIXES))
    if tensors["hidden"] < 1:
        raise ValueError(f"hidden: {tensors['hidden']}, expected at least 1")


@triton.jit
def _mhc_mix(stats_ptr, scale_ptr, base_ptr, mixes_ptr, rows, channels, eps, ROWS: tl.constexpr):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    live = row < rows
    at = row * ROW_SLICES * ROW_STATS
    four = tl.arange(0, 4)
    number = 8 + 4 * four[:, None] + four[None, :]  # of the mix that goes from one stream to another
    pre = tl.zeros((ROWS, 4), tl.float32)
    post = tl.zeros((ROWS, 4), tl.float32)
    combine = tl.zeros((ROWS, 4, 4), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    for _ in range(ROW_SLICES):
        pre += tl.load(stats_ptr + at[:, None] + four[None, :], mask=live[:, None], other=0.0)
        post += tl.load(stats_ptr + at[:, None] + 4 + four[None, :], mask=live[:, None], other=0.0)
        combine += tl.load(stats_ptr + at[:, None, None] + number[None], mask=live[:, None, None], other=0.0)
        squares += tl.load(stats_ptr + at + ROW_MIXES, mask=live, other=0.0)
        at += ROW_STATS
    norm = tl.rsqrt(squares / channels + eps)
    pre = pre * norm[:, None] * tl.load(scale_ptr) + tl.load(base_ptr + four)[None, :]
    post = post * norm[:, None] * tl.load(scale_ptr + 1) + tl.load(base_ptr + 4 + four)[None, :]
    combine = combine * norm[:, None, None] * tl.load(scale_ptr + 2) + tl.load(base_ptr + number)[None]
    combine = tl.exp(combine - tl.max(combine, axis=2, keep_dims=True))
    combine = combine / tl.sum(combine, axis=2, keep_dims=True) + TINY
    combine = combine / (tl.sum(combine, axis=1, keep_dims=True) + TINY)
    for _ in range(ITERATIONS - 1):
        combine = combine / (tl.sum(combine, axis=2, keep_dims=True) + TINY)
        combine = combine / (tl.sum(combine, axis=1, keep_dims=True) + TINY)
    out = mixes_ptr + row * ROW_MIXES
    tl.store(out[:, None] + four[None, :], tl.sigmoid(pre) + TINY, mask=live[:, None])
    tl.store(out[:, None] + 4 + four[None, :], 2 * tl.sigmoid(post), mask=live[:, None])
    tl.store(out[:, None, None] + number[None], combine, mask=live[:, None, None])


def build_triton(tensors: Tensors) -> Call:
    """Launch one program per 32 rows."""
    rows, channels = len(tensors["stats"]), STREAMS * tensors["hidden"]
    arguments = (tensors["stats"], tensors["scale"], tensors["base"], tensors["mixes"], rows, channels, tensors["eps"])

    def call() -> None:
        if rows:
            _mhc_mix[(triton.cdiv(rows, ROWS_PER_PROGRAM),)](*arguments, ROWS=ROWS_PER_PROGRAM, num_warps=1)

    return call


KERNEL = Kernel(
    name="mhc_mix",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"mixes": Tolerance(rtol=1e-4, atol=1e-6, because="exp, rsqrt and the order of sums")},
    examples=(Shape(3, 64), Shape(33, 5120), Shape(1, 16)),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    bench=Bench(lambda rows, case: Shape(rows, 5120), rows=(1024, 8192)),
)
