"""The result of a sublayer spread over the four residual streams, which are mixed with each other, in place (1.1).

streams[t, i] = post[t, i] * y[t] + sum over j of combine[t, j, i] * streams[t, j], in f32 and rounded once to bf16.

Shapes: streams [T, 4, hidden] bf16; mixes [T, 24] f32, whose numbers 4 to 7 are `post` and the last 16 `combine`; y
[T, hidden] bf16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import BF16, F32, expect_tensor
from dsv4bench.kernels.contract import TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, Tolerance, torch_provider
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.mhc import COMBINE, MIXES, POST, STREAMS

CHANNELS_PER_PROGRAM = 1024
ROW_MIXES = tl.constexpr(MIXES)


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows, and the channels of a stream."""

    rows: int
    hidden: int


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make unit normal streams and results, and mixes between 0 and 1."""
    device, rows, hidden = generator.device, shape.rows, shape.hidden
    return {
        "streams": torch.randn(rows, STREAMS, hidden, generator=generator, device=device).bfloat16(),
        "mixes": torch.rand(rows, MIXES, generator=generator, device=device),
        "y": torch.randn(rows, hidden, generator=generator, device=device).bfloat16(),
    }


def reference(streams: torch.Tensor, mixes: torch.Tensor, y: torch.Tensor) -> None:
    """Mix the streams in f32, add the result's share of each, and round once."""
    combine = mixes[:, COMBINE].unflatten(1, (STREAMS, STREAMS))
    mixed = (combine[..., None] * streams.float()[:, :, None]).sum(dim=1)
    streams.copy_(mixes[:, POST, None] * y.float()[:, None] + mixed)


def cost(tensors: Tensors) -> Cost:
    """Count ten operations a value; streams read and written once, the result and 20 mixes a row read once."""
    values, y = tensors["streams"].numel(), tensors["y"]
    read = 2 * (values + y.numel()) + 4 * (MIXES - STREAMS) * y.shape[0]
    return Cost(2 * (STREAMS + 1) * values, bytes_read=read, bytes_written=2 * values)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride."""
    expect_tensor("streams", tensors["streams"], BF16, ("rows", STREAMS, "hidden"))
    rows, _, hidden = tensors["streams"].shape
    expect_tensor("mixes", tensors["mixes"], F32, (rows, MIXES))
    expect_tensor("y", tensors["y"], BF16, (rows, hidden))


@triton.jit
def _mhc_post(streams_ptr, mixes_ptr, y_ptr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = channel < HIDDEN
    y = tl.load(y_ptr + row * HIDDEN + channel, mask=live, other=0.0).to(tl.float32)
    at = streams_ptr + row * 4 * HIDDEN + channel
    # all four are read before one is written
    first = tl.load(at, mask=live, other=0.0).to(tl.float32)
    second = tl.load(at + HIDDEN, mask=live, other=0.0).to(tl.float32)
    third = tl.load(at + 2 * HIDDEN, mask=live, other=0.0).to(tl.float32)
    fourth = tl.load(at + 3 * HIDDEN, mask=live, other=0.0).to(tl.float32)
    for i in tl.static_range(4):
        post = mixes_ptr + row * ROW_MIXES + 4 + i
        combine = post + 4
        mixed = tl.load(combine) * first + tl.load(combine + 4) * second
        mixed += tl.load(combine + 8) * third + tl.load(combine + 12) * fourth
        mixed += tl.load(post) * y
        tl.store(at + i * HIDDEN, mixed.to(tl.bfloat16), mask=live)


def build_triton(tensors: Tensors) -> Call:
    """Launch one program per row and 1024 channels."""
    streams, mixes, y = tensors["streams"], tensors["mixes"], tensors["y"]
    rows, _, hidden = streams.shape
    grid = (rows, triton.cdiv(hidden, CHANNELS_PER_PROGRAM))

    def call() -> None:
        if rows:
            _mhc_post[grid](streams, mixes, y, HIDDEN=hidden, BLOCK=CHANNELS_PER_PROGRAM, num_warps=4)

    return call


KERNEL = Kernel(
    name="mhc_post",
    inputs=inputs,
    reference=reference,
    cost=cost,
    # one bf16 step of a sum whose terms are of order one
    outputs={"streams": Tolerance(rtol=2**-7, atol=1e-5, because="the order of five sums")},
    updates=("streams",),
    examples=(Shape(3, 64), Shape(1, 5120), Shape(2, 1028)),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    bench=Bench(lambda rows, case: Shape(rows, 5120), rows=(1024, 8192)),
)
