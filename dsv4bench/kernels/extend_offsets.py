"""First row and rows of each request, in place, for a captured ring write-back (`low_ratio_extend_offsets`, 5.3).

    offsets[0, i] = starts[i], offsets[1, i] = lens[i]      for the R requests of `starts`
    offsets[:, i] = 0                                       for the other columns: no row, so the write-back skips them

Data-parallel padding appends entries to `lens` but not to `starts`; R is the length of `starts`, so they are dropped.
The captured tensor keeps its address: every column is written, whatever a replay before left there.

Shapes: starts i32/i64 [R], lens i32/i64 [at least R]; output offsets i32 [2, S], S = min(request slots, rows of the
bucket), at least R.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import I32, IDS, expect_at_most, expect_range, expect_tensor
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import tl, triton

COLUMNS_PER_PROGRAM = 256


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows of each request, entries that data-parallel padding appends, columns, and the dtype of the offsets."""

    lengths: tuple[int, ...]
    padding: int
    slots: int
    ids: torch.dtype = torch.int32


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make the offsets of a packed batch; the padding entries hold what must not show."""
    device = generator.device
    lens = torch.tensor(shape.lengths, dtype=torch.int64, device=device)
    padding = torch.randint(1, 99, (shape.padding,), generator=generator, device=device)
    return {
        "starts": (lens.cumsum(0) - lens).to(shape.ids),
        "lens": torch.cat([lens, padding]).to(shape.ids),
        "offsets": torch.empty(2, shape.slots, dtype=torch.int32, device=device),
    }


def reference(starts: torch.Tensor, lens: torch.Tensor, offsets: torch.Tensor) -> None:
    """Write the real requests into columns that are otherwise zero."""
    requests = len(starts)
    offsets.zero_()
    offsets[0, :requests] = starts
    offsets[1, :requests] = lens[:requests]


def cost(tensors: Tensors) -> Cost:
    """Count two numbers read a request, every column written."""
    starts, lens = tensors["starts"], tensors["lens"]
    read = len(starts) * (starts.element_size() + lens.element_size())
    return Cost(flops=0, bytes_read=read, bytes_written=4 * tensors["offsets"].numel())


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride."""
    starts, lens, offsets = tensors["starts"], tensors["lens"], tensors["offsets"]
    expect_tensor("starts", starts, IDS, ("requests",))
    expect_tensor("lens", lens, IDS, ("requests",))
    expect_tensor("offsets", offsets, I32, (2, "slots"))
    expect_at_most("starts", len(starts), len(lens), "each request has a length")
    expect_at_most("starts", len(starts), offsets.shape[1], "each request has a column of offsets")


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a negative first row or length of a real request."""
    expect_range("starts", tensors["starts"].long(), 0, 2**31)
    expect_range("lens", tensors["lens"][: len(tensors["starts"])].long(), 0, 2**31)


@triton.jit
def _extend_offsets(starts_ptr, lens_ptr, offsets_ptr, requests, slots, BLOCK: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = column < requests
    inside = column < slots
    start = tl.load(starts_ptr + column, mask=live, other=0).to(tl.int32)
    length = tl.load(lens_ptr + column, mask=live, other=0).to(tl.int32)
    tl.store(offsets_ptr + column, start, mask=inside)
    tl.store(offsets_ptr + slots + column, length, mask=inside)


def build_triton(tensors: Tensors) -> Call:
    """Launch one program per 256 columns."""
    starts, offsets = tensors["starts"], tensors["offsets"]
    slots = offsets.shape[1]

    def call() -> None:
        if slots:
            _extend_offsets[(triton.cdiv(slots, COLUMNS_PER_PROGRAM),)](
                starts, tensors["lens"], offsets, len(starts), slots, BLOCK=COLUMNS_PER_PROGRAM, num_warps=2
            )

    return call


def bench_shape(rows: int, case: str) -> Shape:
    """Return 64 K tokens of one request, or of as many as there are columns; the rows are the columns."""
    requests = {"1 request": 1, "full": rows}[case]
    return Shape((65536 // requests,) * requests, padding=0, slots=rows)


KERNEL = Kernel(
    name="extend_offsets",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"offsets": EXACT},
    examples=(Shape((100, 1, 90), padding=5, slots=6), Shape((7,) * 300, padding=0, slots=300, ids=torch.int64)),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(64, 1024, 8192), cases=("1 request", "full")),
)
