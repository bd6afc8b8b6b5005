"""The compressed slots of each row's top-k, for attention over packed caches (specification 5.1, 6.1).

A page of 256 tokens holds 256 // ratio compressed rows. For a row of request i at position p:

    slots[j] = page_table[i, raw[j] // page_rows] * page_rows + raw[j] % page_rows, or -1 where raw[j] is -1
    lens     = min((p + 1) // ratio, K), the columns that may hold a position; 0 on padding (loc 0)

Shapes: raw i32 [T, K] (request-local compressed positions), positions, req, loc i64 [T], page_table i32 [R, pages];
outputs slots i32 [T, K], lens i32 [T]. Every element is written; columns past `lens` are -1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import I32, I64, expect_one_of, expect_range, expect_tensor
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import FULL_PAGE
from dsv4bench.kernels.paged import table_slots

RATIOS = (1, 2, 4, 128)


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests as (cached prefix, new tokens), rows that belong to none, ratio, columns of the top-k."""

    requests: tuple[tuple[int, int], ...]
    ratio: int
    topk: int
    padding_rows: int = 0


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make a packed batch over shuffled pages whose top-k is random, with a hole in every ninth column on average."""
    device, requests = generator.device, len(shape.requests)
    req = torch.cat([torch.full((new,), i, device=device) for i, (_, new) in enumerate(shape.requests)])
    positions = torch.cat([torch.arange(cached, cached + new, device=device) for cached, new in shape.requests])
    pages = -(-max(cached + new for cached, new in shape.requests) // FULL_PAGE)
    page_table = 1 + torch.randperm(requests * pages, generator=generator, device=device).view(requests, pages).int()
    loc = page_table[req, positions // FULL_PAGE].long() * FULL_PAGE + positions % FULL_PAGE
    pads = (0, shape.padding_rows)
    positions, loc = torch.nn.functional.pad(positions, pads), torch.nn.functional.pad(loc, pads)
    visible = ((positions + 1) // shape.ratio)[:, None]
    draw = torch.rand(len(positions), shape.topk, generator=generator, device=device)
    hole = torch.rand(draw.shape, generator=generator, device=device) < 1 / 9
    raw = (draw * visible).long().clamp(max=visible - 1)
    return {
        "raw": raw.masked_fill(hole | (torch.arange(shape.topk, device=device) >= visible), -1).int(),
        "positions": positions,
        "req": torch.nn.functional.pad(req, pads, value=requests - 1),
        "loc": loc,
        "page_table": page_table,
        "ratio": shape.ratio,
        "slots": torch.empty(draw.shape, dtype=torch.int32, device=device),
        "lens": torch.empty(len(positions), dtype=torch.int32, device=device),
    }


def reference(
    raw: torch.Tensor,
    positions: torch.Tensor,
    req: torch.Tensor,
    loc: torch.Tensor,
    page_table: torch.Tensor,
    ratio: int,
    slots: torch.Tensor,
    lens: torch.Tensor,
) -> None:
    """Translate every chosen position through the page table."""
    lens.copy_(torch.where(loc != 0, ((positions + 1) // ratio).clamp(max=raw.shape[1]), 0))
    chosen = (raw >= 0) & (torch.arange(raw.shape[1], device=raw.device) < lens[:, None])
    known = torch.where(chosen, raw, 0)
    slots.copy_(torch.where(chosen, table_slots(page_table, req, known, FULL_PAGE // ratio), -1))


def cost(tensors: Tensors) -> Cost:
    """Count each visible column, the integers of the rows and each table entry that some column names, read once."""
    raw, req, positions, ratio = (tensors[name] for name in ("raw", "req", "positions", "ratio"))
    lens = torch.where(tensors["loc"] != 0, ((positions + 1) // ratio).clamp(max=raw.shape[1]), 0)
    chosen = (raw >= 0) & (torch.arange(raw.shape[1], device=raw.device) < lens[:, None])
    entries = req[:, None] * tensors["page_table"].shape[1] + raw // (FULL_PAGE // ratio)
    read = 4 * int(lens.sum()) + 3 * 8 * len(positions) + 4 * entries[chosen].unique().numel()
    return Cost(flops=0, bytes_read=read, bytes_written=4 * (raw.numel() + len(positions)))


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride, or an unknown ratio."""
    expect_one_of("ratio", tensors["ratio"], RATIOS)
    expect_tensor("raw", tensors["raw"], I32, ("rows", "topk"), free_strides=1)
    rows, topk = tensors["raw"].shape
    for name in ("positions", "req", "loc"):
        expect_tensor(name, tensors[name], I64, (rows,))
    expect_tensor("page_table", tensors["page_table"], I32, ("requests", "pages"), free_strides=1)
    expect_tensor("slots", tensors["slots"], I32, (rows, topk))
    expect_tensor("lens", tensors["lens"], I32, (rows,))


def check_values(tensors: Tensors) -> None:
    """Raise ValueError for a request outside the page table or a position that it does not cover."""
    requests, pages = tensors["page_table"].shape
    expect_range("req", tensors["req"], 0, requests)
    expect_range("raw", tensors["raw"], -1, pages * (FULL_PAGE // tensors["ratio"]))


@triton.jit
def _compressed_slots(
    raw_ptr,
    raw_stride,
    positions_ptr,
    req_ptr,
    loc_ptr,
    page_table_ptr,
    page_table_stride,
    slots_ptr,
    lens_ptr,
    RATIO: tl.constexpr,
    PAGE_ROWS: tl.constexpr,
    TOPK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    length = tl.minimum((tl.load(positions_ptr + row) + 1) // RATIO, TOPK)
    length = tl.where(tl.load(loc_ptr + row) != 0, length, 0)
    tl.store(lens_ptr + row, length.to(tl.int32))
    column = tl.arange(0, BLOCK)
    raw = tl.load(raw_ptr + row * raw_stride + column, mask=column < length, other=-1)
    chosen = raw >= 0
    table = page_table_ptr + tl.load(req_ptr + row) * page_table_stride
    page = tl.load(table + raw // PAGE_ROWS, mask=chosen, other=0)
    slot = page * PAGE_ROWS + raw % PAGE_ROWS
    tl.store(slots_ptr + row * TOPK + column, tl.where(chosen, slot, -1), mask=column < TOPK)


def build_triton(tensors: Tensors) -> Call:
    """Launch one program a row."""
    raw, table, ratio = tensors["raw"], tensors["page_table"], tensors["ratio"]
    rows, topk = raw.shape

    def call() -> None:
        if rows:
            _compressed_slots[(rows,)](
                raw,
                raw.stride(0),
                tensors["positions"],
                tensors["req"],
                tensors["loc"],
                table,
                table.stride(0),
                tensors["slots"],
                tensors["lens"],
                RATIO=ratio,
                PAGE_ROWS=FULL_PAGE // ratio,
                TOPK=topk,
                BLOCK=triton.next_power_of_2(topk),
                num_warps=4,
            )

    return call


def bench_shape(rows: int, case: str) -> Shape:
    """Return drafts of four tokens to verify on 8 K cached ones, all of their top-k selected; the case is the ratio."""
    each, ratio = min(rows, 4), int(case.removeprefix("ratio "))
    return Shape(((8192, each),) * (rows // each), ratio, topk=512, padding_rows=rows % each)


KERNEL = Kernel(
    name="compressed_slots",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"slots": EXACT, "lens": EXACT},
    examples=(
        Shape(((5, 9), (0, 3), (299, 4)), ratio=2, topk=32, padding_rows=3),
        Shape(((0, 1), (600, 6)), ratio=1, topk=512),
        Shape(((900, 3),), ratio=128, topk=48),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(256, 1024, 8192), cases=("ratio 1", "ratio 2")),
)
