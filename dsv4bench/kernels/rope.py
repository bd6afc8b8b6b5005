"""RoPE of heads, in place: the last 64 channels of each head, as adjacent pairs (specification 1.1, 3.10).

A pair (a, b) of row t becomes (a c - b s, a s + b c) with (c, s) from row positions[t] of the table, in f32 and rounded
once to bf16; `inverse` turns back, as the output projection wants it. The order of the FMAs is pinned (3.2).

Shapes: x [T, H, D] bf16, strides of rows and heads free, channels contiguous; freqs f32 [M, 64], cosine and sine
interleaved; positions i64 [T].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels import codec
from dsv4bench.kernels.arguments import BF16, F32, I64, expect_range, expect_tensor
from dsv4bench.kernels.contract import TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, Tolerance, torch_provider
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import HEAD_DIM, ROPE_DIM
from dsv4bench.kernels.row_triton import rotate_tail

ROPE = tl.constexpr(ROPE_DIM)
CHUNK_VALUES = 1 << 22  # rotated values that the reference holds in f64 at once
HEADS_PER_PROGRAM = 32


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows, heads and channels of a head, and whether to turn back."""

    rows: int
    heads: int
    channels: int
    inverse: bool


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make unit normal heads and a table of random angles."""
    device, table_rows = generator.device, 4096
    angles = 7 * torch.rand(table_rows, ROPE_DIM // 2, generator=generator, device=device)
    size = (shape.rows, shape.heads, shape.channels)
    return {
        "x": torch.randn(size, generator=generator, device=device).bfloat16(),
        "freqs": torch.stack([angles.cos(), angles.sin()], -1).flatten(1),
        "positions": torch.randint(table_rows, (shape.rows,), generator=generator, device=device),
        "inverse": shape.inverse,
    }


def reference(x: torch.Tensor, freqs: torch.Tensor, positions: torch.Tensor, inverse: bool) -> None:
    """Rotate the tails in f32, in chunks of rows, and write them back as bf16."""
    tail = x[..., -ROPE_DIM:]
    chunk = max(1, CHUNK_VALUES // max(1, x.shape[1] * ROPE_DIM))
    for begin in range(0, x.shape[0], chunk):
        part = slice(begin, begin + chunk)
        tail[part] = codec.rotate_tail(tail[part], freqs, positions[part], inverse).bfloat16()


def cost(tensors: Tensors) -> Cost:
    """Count 3 operations a rotated value; tails read and written once, positions and named table rows read once."""
    rows, heads, _ = tensors["x"].shape
    values = rows * heads * ROPE_DIM
    named = tensors["positions"].unique().numel()
    return Cost(3 * values, bytes_read=2 * values + 8 * rows + 4 * ROPE_DIM * named, bytes_written=2 * values)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride."""
    expect_tensor("x", tensors["x"], BF16, ("rows", "heads", "channels"), free_strides=2)
    rows, _, channels = tensors["x"].shape
    if channels < ROPE_DIM:
        raise ValueError(f"x: {channels} channels, expected at least {ROPE_DIM}")
    expect_tensor("freqs", tensors["freqs"], F32, ("m", ROPE_DIM))
    expect_tensor("positions", tensors["positions"], I64, (rows,))


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a position outside the table."""
    expect_range("positions", tensors["positions"], 0, len(tensors["freqs"]))


@triton.jit
def _rope(
    x_ptr,
    row_stride,
    head_stride,
    count,
    freqs_ptr,
    positions_ptr,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    INVERSE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # of a head of a row
    live = index < count
    row = index // HEADS
    head_at = row.to(tl.int64) * row_stride + (index % HEADS) * head_stride + (CHANNELS - ROPE)
    at = x_ptr + head_at[:, None] + tl.arange(0, ROPE)[None, :]
    x = tl.load(at, mask=live[:, None], other=0.0).to(tl.float32)
    position = tl.load(positions_ptr + row, mask=live, other=0)
    turned = rotate_tail(x, freqs_ptr, position, live, INVERSE)
    tl.store(at, turned.to(tl.bfloat16), mask=live[:, None])


def build_triton(tensors: Tensors) -> Call:
    """Launch one program per 32 heads."""
    x = tensors["x"]
    rows, heads, channels = x.shape

    def call() -> None:
        if x.numel():
            _rope[(triton.cdiv(rows * heads, HEADS_PER_PROGRAM),)](
                x,
                *x.stride()[:2],
                rows * heads,
                tensors["freqs"],
                tensors["positions"],
                HEADS=heads,
                CHANNELS=channels,
                INVERSE=tensors["inverse"],
                BLOCK=HEADS_PER_PROGRAM,
                num_warps=4,
            )

    return call


KERNEL = Kernel(
    name="rope",
    inputs=inputs,
    reference=reference,
    cost=cost,
    # the interpreter's FMA rounds twice, which shows in one value of ten thousand (specification 9.1)
    outputs={"x": Tolerance(share=0.999, because="an FMA rounds once on a GPU and twice in the interpreter")},
    updates=("x",),
    examples=(Shape(5, 4, 512, False), Shape(2, 64, 512, True), Shape(1, 3, 64, False), Shape(3, 16, 128, True)),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(lambda rows, case: Shape(rows, 64, HEAD_DIM, False), rows=(1024, 8192)),
)
