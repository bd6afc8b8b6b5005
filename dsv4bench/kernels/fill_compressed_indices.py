"""Every compressed slot that a row sees, where no indexer chooses (`fill_all_compressed_indices`, specification 5.1).

    slots[t, c] = table[t, c / n] * n + c % n     for c < min(lens[t], K), with n = page_size / ratio rows a page
    raw[t, c]   = c                               likewise, where `raw` is given
    both        = -1                              for the other columns

For rows whose compressed length is at most K: then the top-k is all of them. Both outputs are written whole.

Shapes: table i32 [T, pages] (row stride free; pages of the full pool), lens i32 [T] (compressed lengths); outputs slots
i32 [T, K], raw i32 [T, K] or None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import I32, expect_one_of, expect_page_size, expect_range, expect_tensor
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import tl, triton

COLUMNS_PER_PROGRAM = 512


@dataclass(frozen=True, slots=True)
class Shape:
    """Compressed length of each row, columns, the layer's ratio, and tokens of a page."""

    lengths: tuple[int, ...]
    columns: int
    ratio: int
    page_size: int = 256


def bench_shape(rows: int, case: str) -> Shape:
    """Return rows whose lengths fill 512 columns evenly; the case names the ratio."""
    return Shape(
        tuple(1 + 512 * row // rows for row in range(rows)), columns=512, ratio=int(case.removeprefix("ratio "))
    )


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make rows of scattered pages; the table is one page wider than the longest row needs."""
    device, rows = generator.device, len(shape.lengths)
    pages = max(shape.lengths) * shape.ratio // shape.page_size + 2
    table = 1 + torch.randperm(rows * pages, generator=generator, device=device).view(rows, pages)
    return {
        "table": table.int(),
        "lens": torch.tensor(shape.lengths, dtype=torch.int32, device=device),
        "ratio": shape.ratio,
        "page_size": shape.page_size,
        "slots": torch.empty(rows, shape.columns, dtype=torch.int32, device=device),
        "raw": torch.empty(rows, shape.columns, dtype=torch.int32, device=device),
    }


def reference(
    table: torch.Tensor,
    lens: torch.Tensor,
    ratio: int,
    page_size: int,
    slots: torch.Tensor,
    raw: torch.Tensor | None,
) -> None:
    """Address every column's position in its page, then blank the columns past each row's length."""
    page_rows = page_size // ratio
    column = torch.arange(slots.shape[1], device=slots.device, dtype=torch.int32)
    live = column < lens[:, None]
    page = table[:, (column // page_rows).clamp(max=table.shape[1] - 1)]
    slots.copy_(torch.where(live, page * page_rows + column % page_rows, -1))
    if raw is not None:
        raw.copy_(torch.where(live, column, -1))


def cost(tensors: Tensors) -> Cost:
    """Count each live page entry and length read once, every column of the outputs written once."""
    slots, page_rows = tensors["slots"], tensors["page_size"] // tensors["ratio"]
    pages = (tensors["lens"].clamp(max=slots.shape[1]) + page_rows - 1) // page_rows
    tables = 1 if tensors["raw"] is None else 2
    read = 4 * (int(pages.sum()) + slots.shape[0])
    return Cost(flops=2 * slots.numel(), bytes_read=read, bytes_written=4 * tables * slots.numel())


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape, stride or page size, or an unknown ratio."""
    ratio, page_size = tensors["ratio"], tensors["page_size"]
    expect_one_of("ratio", ratio, (1, 2, 4, 128))
    expect_page_size(page_size)
    if page_size < ratio:
        raise ValueError(f"page_size: {page_size}, expected at least the ratio, {ratio}")
    expect_tensor("lens", tensors["lens"], I32, ("rows",))
    rows = tensors["lens"].shape[0]
    expect_tensor("table", tensors["table"], I32, (rows, "pages"), free_strides=1)
    expect_tensor("slots", tensors["slots"], I32, (rows, "columns"))
    if tensors["raw"] is not None:
        expect_tensor("raw", tensors["raw"], I32, tuple(tensors["slots"].shape))


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a length that is over the columns or over what the table holds, or a negative page."""
    table, slots, page_rows = tensors["table"], tensors["slots"], tensors["page_size"] // tensors["ratio"]
    expect_range("lens", tensors["lens"].long(), 0, min(slots.shape[1], table.shape[1] * page_rows) + 1)
    used = torch.arange(table.shape[1], device=table.device) * page_rows < tensors["lens"][:, None]
    expect_range("table", torch.where(used, table.long(), 0), 0, 2**31 // page_rows)


@triton.jit
def _fill_compressed_indices(
    table_ptr,
    table_stride,
    lens_ptr,
    slots_ptr,
    raw_ptr,
    columns,
    PAGE_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    live = inside & (column < tl.load(lens_ptr + row))
    page = tl.load(table_ptr + row * table_stride + column // PAGE_ROWS, mask=live, other=0)
    slot = page * PAGE_ROWS + column % PAGE_ROWS
    tl.store(slots_ptr + row * columns + column, tl.where(live, slot, -1), mask=inside)
    if raw_ptr is not None:
        tl.store(raw_ptr + row * columns + column, tl.where(live, column, -1), mask=inside)


def build_triton(tensors: Tensors) -> Call:
    """Launch one program per row and 512 columns."""
    table, slots = tensors["table"], tensors["slots"]
    rows, columns = slots.shape

    def call() -> None:
        if slots.numel():
            _fill_compressed_indices[(rows, triton.cdiv(columns, COLUMNS_PER_PROGRAM))](
                table,
                table.stride(0),
                tensors["lens"],
                slots,
                tensors["raw"],
                columns,
                PAGE_ROWS=tensors["page_size"] // tensors["ratio"],
                BLOCK=COLUMNS_PER_PROGRAM,
                num_warps=4,
            )

    return call


KERNEL = Kernel(
    name="fill_compressed_indices",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"slots": EXACT, "raw": EXACT},
    examples=(
        Shape((0, 1, 128, 129, 512), columns=512, ratio=2),
        Shape((700, 257, 1), columns=700, ratio=1),
        Shape((5, 0), columns=8, ratio=128),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(64, 256, 384), cases=("ratio 1", "ratio 2")),
)
