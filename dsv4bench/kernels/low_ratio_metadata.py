"""Slots and lengths of each row's compressed caches, ratios 1 and 2 (`build_low_ratio_metadata`, specification 5.1).

For ratio r, with the length n of a row (its position + 1):

    r1_loc = loc                                      r2_loc = loc / 2 where n is even, else -1: no group ends here
    r1_lens = max(n, 1)                               r2_lens = max(n / 2, 1)
    sparse_lens = min(lens, topk)                     pages = -1 everywhere

Lengths are at least 1, because attention asks for one key; the page index of that key is then -1. Both ratios are one
launch.

Shapes: seq_lens i32/i64 [T], loc i32/i64 [T] (full slots, 0 on padding); outputs of each ratio: loc i64 [T], lens and
sparse_lens i32 [T], pages i32 [T, W] with W = topk rounded up to 64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import I32, I64, IDS, expect_range, expect_tensor
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import tl, triton

COLUMNS = 64  # the width of a page-index table is a multiple of this
RATIOS = (1, 2)
PARTS = ("loc", "lens", "sparse_lens", "pages")
PROGRAM_ROWS = 32  # rows whose slots and lengths one program writes, a warp's lanes


@dataclass(frozen=True, slots=True)
class Shape:
    """Length of each row, padding rows, top-k width, and the dtype of lengths and slots."""

    lengths: tuple[int, ...]
    topk: int
    padding_rows: int = 0
    ids: torch.dtype = torch.int64


def width(topk: int) -> int:
    """Return the columns of a page-index table: topk, rounded up to 64."""
    return -(-topk // COLUMNS) * COLUMNS


def outputs(rows: int, topk: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Allocate what the kernel writes, by argument name: `r1_loc` to `r2_pages`."""

    def empty(part: str) -> torch.Tensor:
        size = (rows, width(topk)) if part == "pages" else (rows,)
        return torch.empty(size, dtype=torch.int64 if part == "loc" else torch.int32, device=device)

    return {f"r{ratio}_{part}": empty(part) for ratio in RATIOS for part in PARTS}


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make rows at scattered slots whose parity is that of their positions; padding has length 1 and slot 0."""
    device = generator.device
    lengths = torch.tensor(shape.lengths, device=device)
    pairs = 1 + torch.randperm(8 * len(shape.lengths), generator=generator, device=device)[: len(shape.lengths)]
    loc = 2 * pairs + (lengths + 1) % 2
    padding = torch.zeros(shape.padding_rows, dtype=torch.int64, device=device)
    return {
        "seq_lens": torch.cat([lengths, padding + 1]).to(shape.ids),
        "loc": torch.cat([loc, padding]).to(shape.ids),
        "topk": shape.topk,
        **outputs(len(shape.lengths) + shape.padding_rows, shape.topk, device),
    }


def reference(seq_lens: torch.Tensor, loc: torch.Tensor, topk: int, **made: torch.Tensor) -> None:
    """Write the four outputs of each ratio, the formulas as they stand."""
    for ratio in RATIOS:
        lens = (seq_lens // ratio).clamp(min=1)
        made[f"r{ratio}_loc"].copy_(torch.where(seq_lens % ratio == 0, loc // ratio, -1))
        made[f"r{ratio}_lens"].copy_(lens)
        made[f"r{ratio}_sparse_lens"].copy_(lens.clamp(max=topk))
        made[f"r{ratio}_pages"].fill_(-1)


def cost(tensors: Tensors) -> Cost:
    """Count a length and a slot read a row; a slot, two lengths and a row of page indices written for each ratio."""
    seq_lens, loc = tensors["seq_lens"], tensors["loc"]
    rows = seq_lens.numel()
    written = len(RATIOS) * rows * (8 + 2 * 4 + 4 * width(tensors["topk"]))
    return Cost(flops=6 * rows, bytes_read=rows * (seq_lens.element_size() + loc.element_size()), bytes_written=written)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride, or no top-k."""
    topk = tensors["topk"]
    if topk < 1:
        raise ValueError(f"topk: {topk}, expected at least 1")
    expect_tensor("seq_lens", tensors["seq_lens"], IDS, ("rows",))
    rows = tensors["seq_lens"].shape[0]
    expect_tensor("loc", tensors["loc"], IDS, (rows,))
    for ratio in RATIOS:
        expect_tensor(f"r{ratio}_loc", tensors[f"r{ratio}_loc"], I64, (rows,))
        expect_tensor(f"r{ratio}_lens", tensors[f"r{ratio}_lens"], I32, (rows,))
        expect_tensor(f"r{ratio}_sparse_lens", tensors[f"r{ratio}_sparse_lens"], I32, (rows,))
        expect_tensor(f"r{ratio}_pages", tensors[f"r{ratio}_pages"], I32, (rows, width(topk)))


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a negative length or slot."""
    expect_range("seq_lens", tensors["seq_lens"].long(), 0, 2**31)
    expect_range("loc", tensors["loc"].long(), 0, 2**62)


@triton.jit
def _low_ratio_metadata(
    seq_lens_ptr,
    loc_ptr,
    r1_loc_ptr,
    r1_lens_ptr,
    r1_sparse_lens_ptr,
    r1_pages_ptr,
    r2_loc_ptr,
    r2_lens_ptr,
    r2_sparse_lens_ptr,
    r2_pages_ptr,
    topk,
    count,
    apart,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The `apart` first programs write slots and lengths of ROWS rows each, the others a row of page indices each.

    So slots and lengths go out in whole sectors, and page indices wait for no load.
    """
    if tl.program_id(0) < apart:
        rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        live = rows < count
        length = tl.load(seq_lens_ptr + rows, mask=live, other=0).to(tl.int32)
        loc = tl.load(loc_ptr + rows, mask=live, other=0).to(tl.int64)
        tl.store(r1_loc_ptr + rows, loc, mask=live)
        tl.store(r2_loc_ptr + rows, tl.where(length % 2 == 0, loc >> 1, -1), mask=live)
        lens_1 = tl.maximum(length, 1)
        lens_2 = tl.maximum(length >> 1, 1)
        tl.store(r1_lens_ptr + rows, lens_1, mask=live)
        tl.store(r2_lens_ptr + rows, lens_2, mask=live)
        tl.store(r1_sparse_lens_ptr + rows, tl.minimum(lens_1, topk), mask=live)
        tl.store(r2_sparse_lens_ptr + rows, tl.minimum(lens_2, topk), mask=live)
    else:
        row = (tl.program_id(0) - apart).to(tl.int64)
        column = tl.arange(0, BLOCK)
        absent = tl.full((BLOCK,), -1, tl.int32)
        tl.store(r1_pages_ptr + row * WIDTH + column, absent, mask=column < WIDTH)
        tl.store(r2_pages_ptr + row * WIDTH + column, absent, mask=column < WIDTH)


def build_triton(tensors: Tensors) -> Call:
    """Launch a warp per row of page indices, and before them one per 32 rows of slots and lengths."""
    rows, columns = tensors["r1_pages"].shape
    apart = triton.cdiv(rows, PROGRAM_ROWS)
    made = [tensors[f"r{ratio}_{part}"] for ratio in RATIOS for part in PARTS]

    def call() -> None:
        if rows:
            _low_ratio_metadata[(apart + rows,)](
                tensors["seq_lens"],
                tensors["loc"],
                *made,
                tensors["topk"],
                rows,
                apart,
                WIDTH=columns,
                BLOCK=triton.next_power_of_2(columns),
                ROWS=PROGRAM_ROWS,
                num_warps=1,
            )

    return call


KERNEL = Kernel(
    name="low_ratio_metadata",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={f"r{ratio}_{part}": EXACT for ratio in RATIOS for part in PARTS},
    examples=(
        Shape((1, 2, 3, 1024, 1025, 513), topk=512, padding_rows=2),
        Shape((4, 129), topk=100, ids=torch.int32),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(lambda rows, case: Shape(tuple(range(1000, 1000 + rows)), topk=512), rows=(64, 256, 384)),
)
