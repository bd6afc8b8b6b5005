"""Point the holes of sparse indices to a row of zeros, for a kernel that reads every index (specification 3.9).

    out[t, k] = indices[t, k] if indices[t, k] >= 0 else zero_row

`zero_row` is one of the rows of zeros that `gather_requant` appends: read instead of a hole, it needs no mask.

Shapes: indices i32 [T, K]; output out i32 [T, K], which may be `indices` itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import I32, expect_range, expect_tensor
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import tl, triton

PROGRAM_INDICES = 1024


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows of indices, indices of a row, and rows that they may name, the last one of zeros."""

    rows: int
    width: int
    sources: int = 1000


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make random indices, about a third of them holes."""
    size, device = (shape.rows, shape.width), generator.device
    indices = torch.randint(0, shape.sources - 1, size, generator=generator, device=device)
    holes = torch.rand(size, generator=generator, device=device) < 1 / 3
    return {
        "indices": indices.masked_fill(holes, -1).int(),
        "zero_row": shape.sources - 1,
        "out": torch.empty(size, dtype=torch.int32, device=device),
    }


def reference(indices: torch.Tensor, zero_row: int, out: torch.Tensor) -> None:
    """Replace every negative index."""
    out.copy_(torch.where(indices < 0, zero_row, indices))


def cost(tensors: Tensors) -> Cost:
    """Read each index and write it."""
    return Cost(0, tensors["indices"].numel() * 4, tensors["out"].numel() * 4)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride, or a row of zeros that cannot be."""
    expect_tensor("indices", tensors["indices"], I32, ("n", "k"))
    expect_tensor("out", tensors["out"], I32, tuple(tensors["indices"].shape))
    if not 0 <= tensors["zero_row"] < 2**31:
        raise ValueError(f"zero_row: {tensors['zero_row']}, expected 0 to {2**31 - 1}")


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for an index behind the row of zeros, which is the last."""
    expect_range("indices", tensors["indices"].clamp(min=0), 0, tensors["zero_row"] + 1)


@triton.jit
def _remap_holes(indices_ptr, zero_row, out_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(indices_ptr + at, mask=at < count, other=0)
    tl.store(out_ptr + at, tl.where(index < 0, zero_row, index), mask=at < count)


def build_triton(tensors: Tensors) -> Call:
    """Return the launch of the Triton kernel: 1024 indices a program."""
    indices, zero_row, out = tensors["indices"], tensors["zero_row"], tensors["out"]
    count = indices.numel()
    grid = (triton.cdiv(count, PROGRAM_INDICES),)

    def launch() -> None:
        if count:
            _remap_holes[grid](indices, zero_row, out, count, BLOCK=PROGRAM_INDICES)

    return launch


def bench_shape(rows: int, case: str) -> Shape:
    """Return the indices of sparse attention over 64 K keys, their width in the case: window and top-k, or window."""
    return Shape(rows, width=int(case.removeprefix("width ")), sources=65537)


KERNEL = Kernel(
    name="remap_holes",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"out": EXACT},
    examples=(Shape(9, 128), Shape(17, 640)),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(1024, 8192), cases=("width 640", "width 128")),
)
