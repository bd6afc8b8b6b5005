"""Pages, positions and window lengths of few rows, one launch (`build_page_table_positions_small`, specification 5.1).

    lens[t]      = seq_lens[t]
    positions[t] = seq_lens[t] - 1
    swa_lens[t]  = min(seq_lens[t], window)
    table[t, k]  = req_to_token[req[t], k * page_size] / page_size      for every k < ceil(max_seq_len / page_size)

The table is not masked: past the end of a request it says what `req_to_token` holds there, and readers stop at `lens`.
A padded row comes as the last request with length 1 and needs no rule of its own.

Shapes: req_to_token i32 [requests, M] (row stride free; full slots, M > (pages - 1) * page_size), req i32/i64 [T] (rows
of req_to_token), seq_lens i32/i64 [T]; outputs lens, positions, swa_lens i32 [T], table i32 [T, pages].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import I32, IDS, expect_at_least, expect_page_size, expect_range, expect_tensor
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import tl, triton

PAGES_PER_PROGRAM = 256


@dataclass(frozen=True, slots=True)
class Shape:
    """Tokens of each request, rows of each (its last tokens), padding rows, page size, and dtype of row numbers."""

    lengths: tuple[int, ...]
    rows: int = 1
    padding_rows: int = 0
    page_size: int = 256
    ids: torch.dtype = torch.int64


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make requests of scattered pages whose tables hold slots past their ends, too."""
    device, size = generator.device, shape.page_size
    longest, count = max(shape.lengths), len(shape.lengths)
    pages = -(-longest // size)
    order = 1 + torch.randperm(count * pages, generator=generator, device=device).view(count, pages, 1)
    slots = order * size + torch.arange(size, device=device)
    last = torch.tensor([shape.lengths[-1]] * shape.padding_rows)
    seq_lens = torch.tensor([[length - shape.rows + 1 + j for j in range(shape.rows)] for length in shape.lengths])
    req = torch.arange(count).repeat_interleave(shape.rows)
    rows = seq_lens.numel() + shape.padding_rows
    return {
        "req_to_token": slots.view(count, -1).int(),
        "req": torch.cat([req, torch.full_like(last, count - 1)]).to(device, shape.ids),
        "seq_lens": torch.cat([seq_lens.flatten(), torch.ones_like(last)]).to(device, shape.ids),
        "max_seq_len": longest,
        "page_size": size,
        "window": 128,
        "lens": torch.empty(rows, dtype=torch.int32, device=device),
        "positions": torch.empty(rows, dtype=torch.int32, device=device),
        "table": torch.empty(rows, pages, dtype=torch.int32, device=device),
        "swa_lens": torch.empty(rows, dtype=torch.int32, device=device),
    }


def reference(
    req_to_token: torch.Tensor,
    req: torch.Tensor,
    seq_lens: torch.Tensor,
    max_seq_len: int,
    page_size: int,
    window: int,
    lens: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    swa_lens: torch.Tensor,
) -> None:
    """Take the first slot of every page of every row's request."""
    lens.copy_(seq_lens)
    positions.copy_(seq_lens - 1)
    swa_lens.copy_(seq_lens.clamp(max=window))
    table.copy_(req_to_token[:, :max_seq_len:page_size][req.long()] // page_size)


def cost(tensors: Tensors) -> Cost:
    """Count a slot read for each page of a request, a page written for each entry, two and three numbers a row."""
    rows, pages = tensors["table"].shape
    read = 4 * pages * tensors["req"].unique().numel()
    read += rows * (tensors["req"].element_size() + tensors["seq_lens"].element_size())
    return Cost(flops=rows * (pages + 2), bytes_read=read, bytes_written=4 * rows * (pages + 3))


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape, stride or page size, or a number below 1."""
    req_to_token, page_size = tensors["req_to_token"], tensors["page_size"]
    expect_page_size(page_size)
    expect_at_least("max_seq_len", tensors["max_seq_len"], 1)
    expect_at_least("window", tensors["window"], 1)
    pages = -(-tensors["max_seq_len"] // page_size)
    expect_tensor("req_to_token", req_to_token, I32, ("requests", "tokens"), free_strides=1)
    expect_tensor("seq_lens", tensors["seq_lens"], IDS, ("rows",))
    rows = len(tensors["seq_lens"])
    expect_tensor("req", tensors["req"], IDS, (rows,))
    for name in ("lens", "positions", "swa_lens"):
        expect_tensor(name, tensors[name], I32, (rows,))
    expect_tensor("table", tensors["table"], I32, (rows, pages))
    if req_to_token.shape[1] <= (pages - 1) * page_size:
        tokens, need = req_to_token.shape[1], (pages - 1) * page_size
        raise ValueError(f"req_to_token: {tokens} tokens a request, expected more than {need}: it has {pages} pages")


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a row of no request, and for a length outside 1 to max_seq_len."""
    expect_range("req", tensors["req"], 0, tensors["req_to_token"].shape[0])
    expect_range("seq_lens", tensors["seq_lens"], 1, tensors["max_seq_len"] + 1)


@triton.jit
def _page_table_positions(
    req_to_token_ptr,
    req_to_token_stride,
    req_ptr,
    seq_lens_ptr,
    lens_ptr,
    positions_ptr,
    table_ptr,
    swa_lens_ptr,
    pages,
    PAGE_BITS: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The length is loaded beside the request and stored while the slots are on their way: two waits, not three."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) == 0
    slots_ptr = req_to_token_ptr + tl.load(req_ptr + row).to(tl.int64) * req_to_token_stride
    length = tl.load(seq_lens_ptr + row, mask=first, other=0).to(tl.int32)
    page = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = page < pages
    slot = tl.load(slots_ptr + (page.to(tl.int64) << PAGE_BITS), mask=inside, other=0)
    tl.store(lens_ptr + row, length, mask=first)
    tl.store(positions_ptr + row, length - 1, mask=first)
    tl.store(swa_lens_ptr + row, tl.minimum(length, WINDOW), mask=first)
    tl.store(table_ptr + row * pages + page, slot >> PAGE_BITS, mask=inside)


def build_triton(tensors: Tensors) -> Call:
    """Launch one program per row and 256 pages."""
    req_to_token, table = tensors["req_to_token"], tensors["table"]
    rows, pages = table.shape
    grid = (rows, max(1, triton.cdiv(pages, PAGES_PER_PROGRAM)))

    def call() -> None:
        if rows:
            _page_table_positions[grid](
                req_to_token,
                req_to_token.stride(0),
                tensors["req"],
                tensors["seq_lens"],
                tensors["lens"],
                tensors["positions"],
                table,
                tensors["swa_lens"],
                pages,
                PAGE_BITS=tensors["page_size"].bit_length() - 1,
                WINDOW=tensors["window"],
                BLOCK=PAGES_PER_PROGRAM,
                num_warps=2,
            )

    return call


def bench_shape(rows: int, case: str) -> Shape:
    """Return requests of 64 K tokens: one row of each, or the last four where drafts are verified."""
    each = min(rows, {"decode": 1, "verify 4": 4}[case])
    return Shape((65536,) * (rows // each), rows=each, padding_rows=rows % each)


KERNEL = Kernel(
    name="page_table_positions",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"lens": EXACT, "positions": EXACT, "table": EXACT, "swa_lens": EXACT},
    examples=(
        Shape((300, 1, 513), padding_rows=2),
        Shape((128, 129, 127), rows=3, page_size=64, ids=torch.int32),
        Shape((1200,), page_size=4),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(64, 256, 384), cases=("decode", "verify 4")),
)
