"""The input of a sublayer: the four residual streams of a row, mixed into one (specification 1.1 and 6.1).

out[t] = sum over i of mixes[t, i] * streams[t, i], in f32 and rounded once to bf16. In V4.1 these four numbers are
those that the sublayer before computed from its own input.

Shapes: streams [T, 4, hidden] bf16; mixes [T, 24] f32, whose first four are read; out [T, hidden] bf16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import BF16, F32, expect_tensor
from dsv4bench.kernels.contract import TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, Tolerance, torch_provider
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.mhc import MIXES, PRE, STREAMS

CHANNELS_PER_PROGRAM = 1024
ROW_MIXES = tl.constexpr(MIXES)


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows, and the channels of a stream."""

    rows: int
    hidden: int


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make unit normal streams, and mixes between 0 and 1."""
    device, rows, hidden = generator.device, shape.rows, shape.hidden
    return {
        "streams": torch.randn(rows, STREAMS, hidden, generator=generator, device=device).bfloat16(),
        "mixes": torch.rand(rows, MIXES, generator=generator, device=device),
        "out": torch.empty(rows, hidden, dtype=torch.bfloat16, device=device),
    }


def reference(streams: torch.Tensor, mixes: torch.Tensor, out: torch.Tensor) -> None:
    """Add the weighted streams in f32 and round once."""
    out.copy_((mixes[:, PRE, None] * streams.float()).sum(dim=1))


def cost(tensors: Tensors) -> Cost:
    """Count two operations a value; streams and four mixes a row read once, the row written once."""
    values, rows, out = tensors["streams"].numel(), tensors["streams"].shape[0], tensors["out"].numel()
    return Cost(2 * values, bytes_read=2 * values + 4 * STREAMS * rows, bytes_written=2 * out)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride."""
    expect_tensor("streams", tensors["streams"], BF16, ("rows", STREAMS, "hidden"))
    rows, _, hidden = tensors["streams"].shape
    expect_tensor("mixes", tensors["mixes"], F32, (rows, MIXES))
    expect_tensor("out", tensors["out"], BF16, (rows, hidden))


@triton.jit
def _mhc_pre(streams_ptr, mixes_ptr, out_ptr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = channel < HIDDEN
    mixed = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(4):
        stream = tl.load(streams_ptr + (row * 4 + i) * HIDDEN + channel, mask=live, other=0.0)
        mixed += tl.load(mixes_ptr + row * ROW_MIXES + i) * stream.to(tl.float32)
    tl.store(out_ptr + row * HIDDEN + channel, mixed.to(tl.bfloat16), mask=live)


def build_triton(tensors: Tensors) -> Call:
    """Launch one program per row and 1024 channels."""
    streams, mixes, out = tensors["streams"], tensors["mixes"], tensors["out"]
    rows, _, hidden = streams.shape
    grid = (rows, triton.cdiv(hidden, CHANNELS_PER_PROGRAM))

    def call() -> None:
        if rows:
            _mhc_pre[grid](streams, mixes, out, HIDDEN=hidden, BLOCK=CHANNELS_PER_PROGRAM, num_warps=4)

    return call


KERNEL = Kernel(
    name="mhc_pre",
    inputs=inputs,
    reference=reference,
    cost=cost,
    # one bf16 step of a sum whose terms are of order one
    outputs={"out": Tolerance(rtol=2**-7, atol=1e-5, because="the order of four sums")},
    examples=(Shape(3, 64), Shape(1, 5120), Shape(2, 1028)),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    bench=Bench(lambda rows, case: Shape(rows, 5120), rows=(1024, 8192)),
)
