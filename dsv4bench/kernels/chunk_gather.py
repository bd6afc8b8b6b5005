"""Which compressed rows of one ratio fill the workspace, and where its parts begin (specification 6.2).

The workspace holds the compressed rows of all requests, request by request, then the window rows of all. Request i has
seq_lens[i] / ratio compressed rows: the newest, incomplete group is not attended.

    ids[j]       = max(slot(i, c * ratio) / ratio, 0)      for workspace row j, compressed row c of request i
    bases[i]     = compressed rows of the requests before i
    swa_bases[i] = C + swa_offsets[i]                      the first window row of request i

    slot(i, p) = table[req[i], p / table_page] * table_page + p % table_page

so `table` holds token slots (table_page 1: `req_to_token`) or pages (256). Entries of `ids` that are spare are 0, the
dummy slot; they are workspace rows too.

Shapes: seq_lens i32 [R], req i32/i64 [R], table i32 [requests, entries] (row stride free), swa_offsets i32 [R + 1] (of
`chunk_windows`); outputs ids i32 [C], C at least all compressed rows, bases and swa_bases i32 [R].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from dsv4bench.kernels.arguments import I32, IDS, expect_one_of, expect_page_size, expect_range, expect_tensor
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import tl, triton

ROWS_AT_ONCE, REQUESTS_AT_ONCE = 256, 64
PROGRAMS = 4096  # about; a program goes on where its request has more rows


@dataclass(frozen=True, slots=True)
class Shape:
    """Tokens of each request, the ratio, tokens of a table entry, spare entries, dtype of the table's row numbers."""

    lengths: tuple[int, ...]
    ratio: int
    table_page: int = 256
    spare: int = 0
    ids: torch.dtype = torch.int64


def bench_shape(rows: int, case: str) -> Shape:
    """Return `rows` compressed rows of one request, or for "/64" of requests of 64 each; the case says the ratio."""
    ratio, each = int(case.split()[1]), min(rows, 64) if case.endswith("/64") else rows
    return Shape((each * ratio,) * (rows // each), ratio, spare=rows % each)


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make requests at scattered pages and rows of the table, each with 5 window rows."""
    device, count, page = generator.device, len(shape.lengths), max(shape.table_page, shape.ratio)
    pages = -(-max(shape.lengths, default=0) // page) + 1
    table = torch.randperm((count + 1) * pages, generator=generator, device=device).view(count + 1, pages, 1)
    if shape.table_page < page:  # the slots of a page, of which each group of `ratio` tokens shares one
        table = (table * page + torch.arange(page, device=device)).flatten(1)
    rows = sum(length // shape.ratio for length in shape.lengths)
    return {
        "seq_lens": torch.tensor(shape.lengths, dtype=torch.int32, device=device),
        "req": torch.randperm(count + 1, generator=generator, device=device)[:count].to(shape.ids),
        "table": table.flatten(1).int(),
        "table_page": shape.table_page,
        "ratio": shape.ratio,
        "swa_offsets": 5 * torch.arange(count + 1, dtype=torch.int32, device=device),
        "ids": torch.empty(rows + shape.spare, dtype=torch.int32, device=device),
        "bases": torch.empty(count, dtype=torch.int32, device=device),
        "swa_bases": torch.empty(count, dtype=torch.int32, device=device),
    }


def reference(
    seq_lens: torch.Tensor,
    req: torch.Tensor,
    table: torch.Tensor,
    table_page: int,
    ratio: int,
    swa_offsets: torch.Tensor,
    ids: torch.Tensor,
    bases: torch.Tensor,
    swa_bases: torch.Tensor,
) -> None:
    """Lay the compressed rows out request by request, then translate the first token of each."""
    starts = pad((seq_lens // ratio).cumsum(0, dtype=torch.int32), (1, 0))
    bases.copy_(starts[:-1])
    swa_bases.copy_(len(ids) + swa_offsets[:-1])
    row = torch.arange(len(ids), device=ids.device, dtype=torch.int32)
    request = torch.searchsorted(starts, row, right=True) - 1  # R for the spare entries
    live = request < len(req)
    position = torch.where(live, (row - starts[request]) * ratio, 0)
    entry = table[pad(req.long(), (0, 1))[request], position // table_page].long()
    slot = entry * table_page + position % table_page
    ids.copy_(torch.where(live, (slot // ratio).clamp(min=0), 0))


def cost(tensors: Tensors) -> Cost:
    """Count each table entry read once, each id written, three numbers read and two written a request."""
    rows, requests = len(tensors["ids"]), len(tensors["seq_lens"])
    ratio, page = tensors["ratio"], max(tensors["table_page"], tensors["ratio"])
    entries = int((-(-(tensors["seq_lens"] // ratio * ratio) // page)).sum())
    read = 4 * entries + requests * (4 + 4 + tensors["req"].element_size())
    return Cost(flops=5 * rows, bytes_read=read, bytes_written=4 * (rows + 2 * requests))


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape, stride or page size, or an unknown ratio."""
    expect_page_size(tensors["table_page"], "table_page")
    expect_one_of("ratio", tensors["ratio"], (1, 2, 4, 128))
    expect_tensor("seq_lens", tensors["seq_lens"], I32, ("requests",))
    count = len(tensors["seq_lens"])
    expect_tensor("req", tensors["req"], IDS, (count,))
    expect_tensor("table", tensors["table"], I32, ("requests", "entries"), free_strides=1)
    expect_tensor("swa_offsets", tensors["swa_offsets"], I32, (count + 1,))
    expect_tensor("ids", tensors["ids"], I32, ("rows",))
    expect_tensor("bases", tensors["bases"], I32, (count,))
    expect_tensor("swa_bases", tensors["swa_bases"], I32, (count,))


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for lengths and rows of the table out of range, and for a list that is too short."""
    seq, table, ratio = tensors["seq_lens"].long(), tensors["table"], tensors["ratio"]
    expect_range("seq_lens", seq, 0, table.shape[1] * tensors["table_page"] + 1)
    expect_range("req", tensors["req"], 0, table.shape[0])
    rows = int((seq // ratio).sum())
    if len(tensors["ids"]) < rows:
        raise ValueError(f"ids: {len(tensors['ids'])} entries, expected at least {rows}")


@triton.jit
def _rows_before(seq_lens_ptr, end, RATIO: tl.constexpr, REQUESTS: tl.constexpr):
    """Return the compressed rows of the requests before number `end`."""
    rows = tl.zeros((), tl.int32)
    for first in range(0, end, REQUESTS):
        request = first + tl.arange(0, REQUESTS)
        rows += tl.sum(tl.load(seq_lens_ptr + request, mask=request < end, other=0) // RATIO)
    return rows


@triton.jit
def _chunk_gather(
    seq_lens_ptr,
    req_ptr,
    table_ptr,
    table_stride,
    swa_offsets_ptr,
    ids_ptr,
    bases_ptr,
    swa_bases_ptr,
    requests,
    size,
    PAGE: tl.constexpr,
    RATIO: tl.constexpr,
    ROWS: tl.constexpr,
    REQUESTS: tl.constexpr,
):
    request = tl.program_id(0)  # number `requests` has no positions; it owns the spare entries
    chunk = tl.program_id(1)
    live = request < requests
    base = _rows_before(seq_lens_ptr, request, RATIO, REQUESTS)
    if live & (chunk == 0):
        tl.store(bases_ptr + request, base)
        tl.store(swa_bases_ptr + request, size + tl.load(swa_offsets_ptr + request))
    compressed = tl.load(seq_lens_ptr + request, mask=live, other=0) // RATIO
    rows = tl.where(live, compressed, size - base)
    table_row_ptr = table_ptr + tl.load(req_ptr + request, mask=live, other=0).to(tl.int64) * table_stride
    for first in range(chunk * ROWS, rows, tl.num_programs(1) * ROWS):
        row = first + tl.arange(0, ROWS)
        position = row * RATIO
        known = row < compressed
        entry = tl.load(table_row_ptr + position // PAGE, mask=known, other=0).to(tl.int64)
        slot = tl.where(known, entry * PAGE + position % PAGE, 0)
        tl.store(ids_ptr + base + row, tl.maximum(slot // RATIO, 0).to(tl.int32), mask=row < rows)


def build_triton(tensors: Tensors) -> Call:
    """Launch a row of programs for each request, and one for the spare entries."""
    requests, table, ids = len(tensors["seq_lens"]), tensors["table"], tensors["ids"]
    chunks = min(max(1, triton.cdiv(len(ids), ROWS_AT_ONCE)), max(1, PROGRAMS // (requests + 1)))

    def call() -> None:
        _chunk_gather[(requests + 1, chunks)](
            tensors["seq_lens"],
            tensors["req"],
            table,
            table.stride(0),
            tensors["swa_offsets"],
            ids,
            tensors["bases"],
            tensors["swa_bases"],
            requests,
            len(ids),
            PAGE=tensors["table_page"],
            RATIO=tensors["ratio"],
            ROWS=ROWS_AT_ONCE,
            REQUESTS=REQUESTS_AT_ONCE,
            num_warps=2,
        )

    return call


KERNEL = Kernel(
    name="chunk_gather",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"ids": EXACT, "bases": EXACT, "swa_bases": EXACT},
    examples=(
        Shape((340, 1, 255), ratio=2, spare=3),
        Shape((514, 0, 128), ratio=1, ids=torch.int32),
        Shape((600, 127), ratio=128, table_page=1),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(8192, 65536), cases=("ratio 1", "ratio 2", "ratio 1 /64", "ratio 2 /64")),
)
