"""The query and window rows of a forward: the part of the chunk cache that all layers share (specification 5.4).

Request i has e = extend_lens[i] query rows and ends at position s = seq_lens[i]. Its window rows are what any of its
queries sees: the last min(s, e + window - 1) positions. Both lists go request by request:

    query_start[i], swa_offsets[i] = query rows and window rows of the requests before i; entry R counts all
    swa_gather_lens[i], swa_first_pos[i] = window rows of i, and the position of the first
    query_pos[t] = position of query row t
    swa_ids[j]   = full_to_swa[slot(i, p)] for window row j, at position p of request i

    slot(i, p) = table[req[i], p / table_page] * table_page + p % table_page

so `table` holds token slots (table_page 1: `req_to_token`) or pages (256). Entries that the lists have spare are 0:
position 0, as padded rows have, and the dummy slot. This is upstream's `build_swa_token_ids`, in one launch.

Shapes: seq_lens, extend_lens i32 [R], req i32/i64 [R], table i32 [requests, entries] (row stride free), full_to_swa i64
[full slots]; outputs query_start, swa_offsets i32 [R + 1], swa_gather_lens, swa_first_pos i32 [R], query_pos i32/i64
[at least all query rows], swa_ids i32 [at least all window rows].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from dsv4bench.kernels.arguments import I32, I64, IDS, expect_page_size, expect_range, expect_tensor
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import tl, triton

PER_REQUEST = ("query_start", "swa_first_pos", "swa_gather_lens", "swa_offsets")
ROWS_AT_ONCE, REQUESTS_AT_ONCE = 256, 64
PROGRAMS = 4096  # about; a program goes on where its request has more rows


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests as (cached prefix, new tokens), tokens of a table entry, spare entries, window, dtype of ids."""

    requests: tuple[tuple[int, int], ...]
    table_page: int = 256
    spare: int = 0
    window: int = 128
    ids: torch.dtype = torch.int64


def bench_shape(rows: int, case: str) -> Shape:
    """Return `rows` new tokens of one request or of requests of 64 each, on 1 K cached tokens a request."""
    each = rows if case == "1 request" else min(rows, 64)
    return Shape(((1024, each),) * (rows // each), table_page=1, spare=rows % each)


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make requests at scattered slots and rows of the table; a random map to window slots."""
    device, count = generator.device, len(shape.requests)
    seqs = [cached + new for cached, new in shape.requests]
    extends = [new for _, new in shape.requests]
    gathered = [min(seq, new + shape.window - 1) for seq, new in zip(seqs, extends, strict=True)]
    entries = -(-max(seqs, default=0) // shape.table_page) + 1
    table = torch.randperm((count + 1) * entries, generator=generator, device=device).view(count + 1, entries)
    return {
        "seq_lens": torch.tensor(seqs, dtype=torch.int32, device=device),
        "extend_lens": torch.tensor(extends, dtype=torch.int32, device=device),
        "req": torch.randperm(count + 1, generator=generator, device=device)[:count].to(shape.ids),
        "table": table.int(),
        "table_page": shape.table_page,
        "full_to_swa": torch.randperm(table.numel() * shape.table_page, generator=generator, device=device),
        "window": shape.window,
        "query_start": torch.empty(count + 1, dtype=torch.int32, device=device),
        "query_pos": torch.empty(sum(extends) + shape.spare, dtype=shape.ids, device=device),
        "swa_ids": torch.empty(sum(gathered) + shape.spare, dtype=torch.int32, device=device),
        "swa_first_pos": torch.empty(count, dtype=torch.int32, device=device),
        "swa_gather_lens": torch.empty(count, dtype=torch.int32, device=device),
        "swa_offsets": torch.empty(count + 1, dtype=torch.int32, device=device),
    }


def reference(
    seq_lens: torch.Tensor,
    extend_lens: torch.Tensor,
    req: torch.Tensor,
    table: torch.Tensor,
    table_page: int,
    full_to_swa: torch.Tensor,
    window: int,
    query_start: torch.Tensor,
    query_pos: torch.Tensor,
    swa_ids: torch.Tensor,
    swa_first_pos: torch.Tensor,
    swa_gather_lens: torch.Tensor,
    swa_offsets: torch.Tensor,
) -> None:
    """Lay out each list request by request; translate the window rows' positions to full slots, then window slots."""
    gathered = torch.minimum(seq_lens, extend_lens + window - 1)
    swa_gather_lens.copy_(gathered)
    swa_first_pos.copy_(seq_lens - gathered)
    _, positions = _last_positions(seq_lens, extend_lens, query_start, len(query_pos))
    query_pos.copy_(positions)
    request, positions = _last_positions(seq_lens, gathered, swa_offsets, len(swa_ids))
    slots = _full_slots(table, table_page, pad(req.long(), (0, 1))[request], positions)
    swa_ids.copy_(torch.where(request < len(req), full_to_swa[slots], 0))


def _last_positions(
    seq_lens: torch.Tensor, counts: torch.Tensor, starts: torch.Tensor, rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return request and position of `rows` rows, the last `counts` positions of each request; write where each starts.

    Rows beyond the last belong to request R, which has none, and to position 0.
    """
    starts[0] = 0
    starts[1:] = counts.cumsum(0)
    row = torch.arange(rows, device=starts.device, dtype=torch.int32)
    request = torch.searchsorted(starts, row, right=True) - 1
    position = row - starts[request] + pad(seq_lens - counts, (0, 1))[request]
    return request, torch.where(request < len(counts), position, 0)


def _full_slots(table: torch.Tensor, table_page: int, row: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return table[row, positions // table_page].long() * table_page + positions % table_page


def cost(tensors: Tensors) -> Cost:
    """Count each table entry and window slot read once, each id, position and number of a request written once."""
    windows, queries, requests = (len(tensors[name]) for name in ("swa_ids", "query_pos", "req"))
    seq, page = tensors["seq_lens"], tensors["table_page"]
    gathered = torch.minimum(seq, tensors["extend_lens"] + tensors["window"] - 1)
    entries = int((-(-seq // page) - (seq - gathered) // page).clamp(min=0).sum())
    read = 4 * entries + 8 * int(gathered.sum()) + requests * (4 + 4 + tensors["req"].element_size())
    written = 4 * windows + queries * tensors["query_pos"].element_size() + 4 * (4 * requests + 2)
    return Cost(flops=5 * windows + 2 * queries, bytes_read=read, bytes_written=written)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape, stride or page size, or a window of nothing."""
    expect_page_size(tensors["table_page"], "table_page")
    if tensors["window"] < 1:
        raise ValueError(f"window: {tensors['window']}, expected at least 1")
    expect_tensor("seq_lens", tensors["seq_lens"], I32, ("requests",))
    count = len(tensors["seq_lens"])
    expect_tensor("extend_lens", tensors["extend_lens"], I32, (count,))
    expect_tensor("req", tensors["req"], IDS, (count,))
    expect_tensor("table", tensors["table"], I32, ("requests", "entries"), free_strides=1)
    expect_tensor("full_to_swa", tensors["full_to_swa"], I64, ("slots",))
    expect_tensor("query_pos", tensors["query_pos"], IDS, ("rows",))
    expect_tensor("swa_ids", tensors["swa_ids"], I32, ("rows",))
    for name in PER_REQUEST:
        size = count + 1 if name in ("query_start", "swa_offsets") else count
        expect_tensor(name, tensors[name], I32, (size,))


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for lengths, rows of the table, slots and list sizes that do not fit each other."""
    seq, extend, table = tensors["seq_lens"].long(), tensors["extend_lens"].long(), tensors["table"]
    page, req, full_to_swa = tensors["table_page"], tensors["req"].long(), tensors["full_to_swa"]
    expect_range("seq_lens", seq, 0, table.shape[1] * page + 1)
    expect_range("extend_lens", extend, 0, 2**31)
    expect_range("cached prefix", seq - extend, 0, 2**31)
    expect_range("req", req, 0, table.shape[0])
    gathered = torch.minimum(seq, extend + tensors["window"] - 1)
    for name, counts in (("query_pos", extend), ("swa_ids", gathered)):
        if len(tensors[name]) < counts.sum():
            raise ValueError(f"{name}: {len(tensors[name])} entries, expected at least {int(counts.sum())}")
    request, positions = _last_positions(seq, gathered, torch.empty_like(tensors["swa_offsets"]), int(gathered.sum()))
    slots = _full_slots(table, page, req[request], positions)
    expect_range("slot of window row ", slots, 0, len(full_to_swa))
    expect_range("window slot of window row ", full_to_swa[slots], 0, 2**31)


@triton.jit
def _rows_before(seq_lens_ptr, extend_lens_ptr, end, SPAN: tl.constexpr, REQUESTS: tl.constexpr):
    """Return the query rows and the window rows of the requests before number `end`."""
    queries = tl.zeros((), tl.int32)
    windows = tl.zeros((), tl.int32)
    for first in range(0, end, REQUESTS):
        request = first + tl.arange(0, REQUESTS)
        seq = tl.load(seq_lens_ptr + request, mask=request < end, other=0)
        extend = tl.load(extend_lens_ptr + request, mask=request < end, other=0)
        queries += tl.sum(extend)
        windows += tl.sum(tl.minimum(seq, extend + (SPAN - 1)))
    return queries, windows


@triton.jit
def _chunk_windows(
    seq_lens_ptr,
    extend_lens_ptr,
    req_ptr,
    table_ptr,
    table_stride,
    full_to_swa_ptr,
    query_pos_ptr,
    swa_ids_ptr,
    query_start_ptr,
    swa_first_pos_ptr,
    swa_gather_lens_ptr,
    swa_offsets_ptr,
    requests,
    query_size,
    swa_size,
    PAGE: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
    REQUESTS: tl.constexpr,
):
    request = tl.program_id(0)  # number `requests` has no positions; it owns what the lists have spare
    chunk = tl.program_id(1)
    live = request < requests
    seq = tl.load(seq_lens_ptr + request, mask=live, other=0)
    extend = tl.load(extend_lens_ptr + request, mask=live, other=0)
    gathered = tl.minimum(seq, extend + (SPAN - 1))
    query_start, swa_start = _rows_before(seq_lens_ptr, extend_lens_ptr, request, SPAN, REQUESTS)
    if chunk == 0:
        tl.store(query_start_ptr + request, query_start)
        tl.store(swa_offsets_ptr + request, swa_start)
        tl.store(swa_gather_lens_ptr + request, gathered, mask=live)
        tl.store(swa_first_pos_ptr + request, seq - gathered, mask=live)
    queries = tl.where(live, extend, query_size - query_start)
    windows = tl.where(live, gathered, swa_size - swa_start)
    table_row_ptr = table_ptr + tl.load(req_ptr + request, mask=live, other=0).to(tl.int64) * table_stride
    for first in range(chunk * ROWS, tl.maximum(queries, windows), tl.num_programs(1) * ROWS):
        row = first + tl.arange(0, ROWS)
        tl.store(query_pos_ptr + query_start + row, tl.where(row < extend, seq - extend + row, 0), mask=row < queries)
        known = row < gathered
        position = seq - gathered + row
        entry = tl.load(table_row_ptr + position // PAGE, mask=known, other=0).to(tl.int64)
        swa_slot = tl.load(full_to_swa_ptr + entry * PAGE + position % PAGE, mask=known, other=0)
        tl.store(swa_ids_ptr + swa_start + row, swa_slot.to(tl.int32), mask=row < windows)


def build_triton(tensors: Tensors) -> Call:
    """Launch a row of programs for each request, and one for the entries that the lists have spare."""
    requests, lists = len(tensors["seq_lens"]), (tensors["query_pos"], tensors["swa_ids"])
    sizes = [len(entries) for entries in lists]
    chunks = min(triton.cdiv(max(*sizes, 1), ROWS_AT_ONCE), max(1, PROGRAMS // (requests + 1)))

    def call() -> None:
        _chunk_windows[(requests + 1, chunks)](
            tensors["seq_lens"],
            tensors["extend_lens"],
            tensors["req"],
            tensors["table"],
            tensors["table"].stride(0),
            tensors["full_to_swa"],
            *lists,
            *(tensors[name] for name in PER_REQUEST),
            requests,
            *sizes,
            PAGE=tensors["table_page"],
            SPAN=tensors["window"],
            ROWS=ROWS_AT_ONCE,
            REQUESTS=REQUESTS_AT_ONCE,
            num_warps=2,
        )

    return call


KERNEL = Kernel(
    name="chunk_windows",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs=dict.fromkeys(("query_pos", "swa_ids", *PER_REQUEST), EXACT),
    examples=(
        Shape(((300, 40), (0, 1), (126, 130)), spare=3),
        Shape(((5, 3), (1030, 0), (0, 128)), table_page=1, ids=torch.int32),
        Shape(((0, 700),)),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(1024, 8192, 65536), cases=("1 request", "64 each")),
)
