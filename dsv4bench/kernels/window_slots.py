"""The window slots of each query row, newest first, for attention over packed caches (specification 5.1, 6.1).

For a row at position p of request i, column j < window holds the window slot of position p - j, and -1 where that lies
before the request's `floor`:

    slots[j] = full_to_swa[page_table[i, (p - j) // 256] * 256 + (p - j) % 256]    if p - j >= max(floor[i], 0)
    lens     = min(p - floor[i] + 1, window)

A replayed tail floors its windows where the tail can begin, seq - window: rows before it were not written in this
forward (specification 1.2); elsewhere the floor is 0. Padded rows (loc 0) get -1 everywhere and length 0.

Shapes: positions, req, loc i64 [T]; page_table i32 [R, pages] of pages of 256; full_to_swa i64 [full slots]; floor i32
[R]; outputs slots i32 [T, W] with W a multiple of 64 from `window` on, lens i32 [T]. Every element is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import I32, I64, expect_range, expect_tensor
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import FULL_PAGE

PAGE = tl.constexpr(FULL_PAGE)
COLUMNS = 64  # what the width of a table of slots is a multiple of (specification 5.1)


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests as (cached prefix, new tokens), rows that belong to none, the window, whether windows are floored."""

    requests: tuple[tuple[int, int], ...]
    padding_rows: int = 0
    window: int = 128
    floored: bool = False


def columns(window: int) -> int:
    """Return the columns of `slots`: the window, rounded up to 64."""
    return -(-window // COLUMNS) * COLUMNS


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make a packed batch over shuffled pages and a random map to window slots."""
    device = generator.device
    prefix, extend = torch.tensor(shape.requests, device=device).unbind(1)
    seq = prefix + extend
    req = torch.repeat_interleave(torch.arange(len(extend), device=device), extend)
    positions = torch.cat([torch.arange(cached, cached + new, device=device) for cached, new in shape.requests])
    pages = -(-int(seq.max()) // FULL_PAGE)
    order = 1 + torch.randperm(len(extend) * pages, generator=generator, device=device)
    page_table = order.view(len(extend), pages).int()
    rows = len(req) + shape.padding_rows
    loc = page_table[req, positions // FULL_PAGE].long() * FULL_PAGE + positions % FULL_PAGE
    pads = (0, shape.padding_rows)
    full = (1 + len(order)) * FULL_PAGE
    return {
        "positions": torch.nn.functional.pad(positions, pads),
        "req": torch.nn.functional.pad(req, pads, value=len(extend) - 1),
        "loc": torch.nn.functional.pad(loc, pads),
        "page_table": page_table,
        "full_to_swa": torch.randperm(full, generator=generator, device=device),
        "floor": (seq - shape.window if shape.floored else torch.zeros_like(seq)).int(),
        "window": shape.window,
        "slots": torch.empty(rows, columns(shape.window), dtype=torch.int32, device=device),
        "lens": torch.empty(rows, dtype=torch.int32, device=device),
    }


def reference(
    positions: torch.Tensor,
    req: torch.Tensor,
    loc: torch.Tensor,
    page_table: torch.Tensor,
    full_to_swa: torch.Tensor,
    floor: torch.Tensor,
    window: int,
    slots: torch.Tensor,
    lens: torch.Tensor,
) -> None:
    """Look the slots of the newest positions up, row by row."""
    column = torch.arange(slots.shape[1], device=slots.device)
    position = positions[:, None] - column
    first = floor.clamp(min=0)[req].long()
    lens.copy_(torch.where(loc != 0, (positions - first + 1).clamp(max=window), 0))
    inside = column < lens[:, None]
    known = position.clamp(min=0)
    full = page_table[req[:, None], known // FULL_PAGE].long() * FULL_PAGE + known % FULL_PAGE
    slots.copy_(torch.where(inside, full_to_swa[torch.where(inside, full, 0)], -1))


def cost(tensors: Tensors) -> Cost:
    """Count each table entry and window slot that some row needs, and the integers of rows and requests, read once."""
    positions, req, floor = tensors["positions"], tensors["req"], tensors["floor"]
    position = positions[:, None] - torch.arange(tensors["window"], device=positions.device)
    inside = (position >= floor.clamp(min=0)[req][:, None]) & (tensors["loc"] != 0)[:, None]
    tokens = tensors["page_table"].shape[1] * FULL_PAGE
    needed = (req[:, None] * tokens + position)[inside].unique()
    read = 8 * needed.numel() + 4 * (needed // FULL_PAGE).unique().numel() + 3 * 8 * len(positions) + 4 * len(floor)
    return Cost(flops=0, bytes_read=read, bytes_written=4 * (tensors["slots"].numel() + len(positions)))


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride."""
    expect_tensor("positions", tensors["positions"], I64, ("rows",))
    rows = len(tensors["positions"])
    expect_tensor("req", tensors["req"], I64, (rows,))
    expect_tensor("loc", tensors["loc"], I64, (rows,))
    expect_tensor("page_table", tensors["page_table"], I32, ("requests", "pages"), free_strides=1)
    expect_tensor("full_to_swa", tensors["full_to_swa"], I64, ("full slots",))
    expect_tensor("floor", tensors["floor"], I32, (len(tensors["page_table"]),))
    expect_tensor("slots", tensors["slots"], I32, (rows, columns(tensors["window"])))
    expect_tensor("lens", tensors["lens"], I32, (rows,))


def check_values(tensors: Tensors) -> None:
    """Raise ValueError for a request or a position outside the page table, or a page outside the map."""
    requests, pages = tensors["page_table"].shape
    expect_range("req", tensors["req"], 0, requests)
    expect_range("positions", tensors["positions"], 0, pages * FULL_PAGE)
    expect_range("page_table", tensors["page_table"], 0, tensors["full_to_swa"].numel() // FULL_PAGE)


@triton.jit
def _window_slots(
    positions_ptr,
    req_ptr,
    loc_ptr,
    page_table_ptr,
    page_table_stride,
    full_to_swa_ptr,
    floor_ptr,
    slots_ptr,
    lens_ptr,
    WINDOW: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(positions_ptr + row)
    req = tl.load(req_ptr + row)
    first = tl.maximum(tl.load(floor_ptr + req), 0).to(tl.int64)
    length = tl.minimum(position - first + 1, WINDOW)
    length = tl.where(tl.load(loc_ptr + row) != 0, length, 0)
    tl.store(lens_ptr + row, length.to(tl.int32))
    column = tl.arange(0, BLOCK)
    inside = column < length
    at = position - column
    page = tl.load(page_table_ptr + req * page_table_stride + at // PAGE, mask=inside, other=0).to(tl.int64)
    slot = tl.load(full_to_swa_ptr + page * PAGE + at % PAGE, mask=inside, other=-1)
    tl.store(slots_ptr + row * WIDTH + column, tl.where(inside, slot, -1).to(tl.int32), mask=column < WIDTH)


def build_triton(tensors: Tensors) -> Call:
    """Launch one program a row."""
    slots, table = tensors["slots"], tensors["page_table"]
    rows, width = slots.shape

    def call() -> None:
        if rows:
            _window_slots[(rows,)](
                tensors["positions"],
                tensors["req"],
                tensors["loc"],
                table,
                table.stride(0),
                tensors["full_to_swa"],
                tensors["floor"],
                slots,
                tensors["lens"],
                WINDOW=tensors["window"],
                WIDTH=width,
                BLOCK=triton.next_power_of_2(width),
                num_warps=1,
            )

    return call


def bench_shape(rows: int, case: str) -> Shape:
    """Return requests on 8 K cached tokens: drafts of four tokens to verify, or tails of 128 replayed rows, floored."""
    each = min(rows, {"verify 4": 4, "tail 128": 128}[case])
    return Shape(((8192, each),) * (rows // each), rows % each, floored=case == "tail 128")


KERNEL = Kernel(
    name="window_slots",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"slots": EXACT, "lens": EXACT},
    examples=(
        Shape(((0, 5), (250, 9), (300, 3)), padding_rows=2),
        Shape(((400, 128), (10, 3)), floored=True),
        Shape(((0, 70),), window=48),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(256, 1024, 8192), cases=("verify 4", "tail 128")),
)
