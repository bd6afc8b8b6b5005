"""RMSNorm of rows: out = x * rsqrt(mean(x^2) + eps) * weight, in f32, rounded once to bf16.

Shapes: x [rows, width] bf16 (row stride free), weight [width] bf16, out [rows, width] bf16. `eps` is an f32 number:
V4.1 uses 1e-20 (specification 1.1), so a zero row stays zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import BF16, expect_tensor
from dsv4bench.kernels.contract import TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, Tolerance, torch_provider
from dsv4bench.kernels.jit import tl, triton


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows and width of the input, and the stride between its rows."""

    rows: int
    width: int
    row_stride: int


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make unit normal rows, cut from a wider buffer when the stride is wider than the row."""
    device = generator.device
    wide = torch.randn(shape.rows, shape.row_stride, generator=generator, device=device)
    weight = 1 + 0.1 * torch.randn(shape.width, generator=generator, device=device)
    return {
        "x": wide.to(torch.bfloat16)[:, : shape.width],
        "weight": weight.to(torch.bfloat16),
        "eps": 1e-20,
        "out": torch.empty(shape.rows, shape.width, dtype=torch.bfloat16, device=device),
    }


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    """Normalise each row in f32 and round once."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    out.copy_(wide * scale * weight.float())


def cost(tensors: Tensors) -> Cost:
    """Count each row read and written once, and the weight read once; about four operations a value."""
    values = tensors["x"].numel()
    return Cost(flops=4 * values, bytes_read=2 * (values + tensors["weight"].numel()), bytes_written=2 * values)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride."""
    expect_tensor("x", tensors["x"], BF16, ("rows", "width"), free_strides=1)
    rows, width = tensors["x"].shape
    expect_tensor("weight", tensors["weight"], BF16, (width,))
    expect_tensor("out", tensors["out"], BF16, (rows, width), free_strides=1)


@triton.jit
def _rms_norm(x_ptr, x_stride, weight_ptr, out_ptr, out_stride, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    live = column < WIDTH
    x = tl.load(x_ptr + row * x_stride + column, mask=live, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=live, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x) / WIDTH + eps)
    tl.store(out_ptr + row * out_stride + column, (x * scale * weight).to(tl.bfloat16), mask=live)


def build_triton(tensors: Tensors) -> Call:
    """Launch one program a row."""
    x, weight, out = tensors["x"], tensors["weight"], tensors["out"]
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    warps = min(8, max(1, block // 512))
    arguments = (x, x.stride(0), weight, out, out.stride(0), tensors["eps"])

    def call() -> None:
        if rows:
            _rms_norm[(rows,)](*arguments, WIDTH=width, BLOCK=block, num_warps=warps)

    return call


def bench_shape(rows: int, case: str) -> Shape:
    """Return rows of the model's hidden width or of the KV row within its projection."""
    return Shape(rows, 512, 1792) if case == "width 512" else Shape(rows, 5120, 5120)


KERNEL = Kernel(
    name="rms_norm",
    inputs=inputs,
    reference=reference,
    cost=cost,
    # reduction order and rsqrt differ: at most one bf16 step, 2^-7 relative (specification 9.1)
    outputs={"out": Tolerance(rtol=2**-7, atol=1e-30, because="reduction order and rsqrt")},
    examples=(Shape(3, 512, 512), Shape(5, 64, 576), Shape(2, 1280, 1792), Shape(1, 5120, 5120)),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    bench=Bench(bench_shape, rows=(1024, 8192), cases=("width 512", "width 5120")),
)
