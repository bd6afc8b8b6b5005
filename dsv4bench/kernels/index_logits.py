"""Index logits: how much each query row wants each compressed position (specification 6.5).

    logit(t, c) = sum_h relu(q[t, h] . k[c]) * weights[t, h]       visible where c < (positions[t] + 1) // ratio

with Hopper's rounding: the dot product to bf16, its product with the weight to bf16, the sum over heads in f32 to bf16.
k[c] lies in the index-K pool at slot `page_table[req[t], c // n] * n + c % n`, n = 256 // ratio. Column c of the output
is position c, or `candidates[t, c // 8] * 8 + c % 8` where candidate blocks are given. What is not visible, the columns
of a candidate -1 and columns past the candidates are -inf; every element is written.

Shapes: q [T, Hi, 128] bf16 on the index grid, weights [T, Hi] bf16, cache u8 [pages, page_size * 68], page_table i32
[R, full pages], req and positions i64 [T], candidates i32 [T, B] or None, output logits bf16 [T, C].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels import arguments, codec, paged
from dsv4bench.kernels.contract import TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, Tolerance, torch_provider
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import FULL_PAGE, INDEX_DIM, INDEX_K
from dsv4bench.kernels.paged_triton import load_index_rows
from dsv4bench.kernels.row_triton import round_bf16

DIM, FULL = tl.constexpr(INDEX_DIM), tl.constexpr(FULL_PAGE)
NOBODY = tl.constexpr(0x7FFFFFFF)  # no request, and no position
BLOCK_COLUMNS, ROWS_PER_PROGRAM = 128, 16
HEADS_PER_DOT = 128  # rows of q times heads that meet one tile of keys at once
SHARING = {"cpu"}  # devices where the reference may read lengths back, and lets a request's rows share its keys
CHUNK_SCORES, CHUNK_KEYS = 1 << 20, 1 << 18  # scores of a head, and keys of a row, that it holds at once


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests as (cached prefix, new tokens), index heads, ratio, candidate blocks of a row (0: none), index page."""

    requests: tuple[tuple[int, int], ...]
    heads: int
    ratio: int
    blocks: int = 0
    page_size: int = 64


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make queries on the index grid and keys of random codes in shuffled pages from 1 on; spread candidates evenly."""
    device, heads = generator.device, shape.heads
    extends = torch.tensor([extend for _, extend in shape.requests])
    lengths = torch.tensor([prefix for prefix, _ in shape.requests]) + extends
    positions = torch.cat([torch.arange(prefix, prefix + extend) for prefix, extend in shape.requests]).to(device)
    pages = len(extends) * -(-int(lengths.max()) // FULL_PAGE)
    page_table = 1 + torch.randperm(pages, generator=generator, device=device).view(len(extends), -1).int()
    size = (-(-(pages + 1) * FULL_PAGE // shape.ratio // shape.page_size), INDEX_K.page_bytes(shape.page_size))
    cache = torch.randint(256, size, generator=generator, device=device, dtype=torch.uint8)
    cache[:, shape.page_size * INDEX_K.data_bytes :].remainder_(3).add_(124)  # scales 2^-3 to 2^-1: unit keys
    q = torch.randn(len(positions), heads, INDEX_DIM, generator=generator, device=device)
    weights = torch.randn(len(positions), heads, generator=generator, device=device) * (INDEX_DIM * heads) ** -0.5
    columns = 8 * shape.blocks if shape.blocks else -(-int(lengths.max()) // shape.ratio // 64) * 64
    return {
        "q": codec.fake_quant_index(q).bfloat16(),
        "weights": weights.bfloat16(),
        "cache": cache,
        "page_size": shape.page_size,
        "page_table": page_table,
        "req": torch.arange(len(extends)).repeat_interleave(extends).to(device),
        "positions": positions,
        "ratio": shape.ratio,
        "candidates": _spread_candidates(positions, shape) if shape.blocks else None,
        "candidate_block": 8,
        "logits": torch.empty(len(positions), columns, dtype=torch.bfloat16, device=device),
    }


def _spread_candidates(positions: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Return block ids [rows, blocks]: every n-th visible block, then -1."""
    visible = (((positions + 1) // shape.ratio + 7) // 8)[:, None]
    block = torch.arange(shape.blocks, device=positions.device) * ((visible + shape.blocks - 1) // shape.blocks)
    return block.masked_fill(block >= visible, -1).to(torch.int32)


def reference(
    q: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    page_size: int,
    page_table: torch.Tensor,
    req: torch.Tensor,
    positions: torch.Tensor,
    ratio: int,
    candidates: torch.Tensor | None,
    candidate_block: int,
    logits: torch.Tensor,
) -> None:
    """Score chunks of rows: on a CPU the rows of one request share its keys, else each row gathers its own.

    The second way reads nothing back to the host, so that a CUDA graph can hold it.
    """
    logits.fill_(float("-inf"))
    seen = (positions + 1) // ratio
    columns = logits.shape[1] if candidates is None else min(logits.shape[1], candidates.shape[1] * candidate_block)
    shared = candidates is None and q.device.type in SHARING
    if shared and len(q):
        columns = min(columns, int(seen.max()))
    step = max(1, (CHUNK_SCORES // q.shape[1] if shared else CHUNK_KEYS) // max(1, columns))
    for first in range(0, len(q) if columns else 0, step):
        rows = slice(first, first + step)
        position = torch.arange(columns, device=q.device)[None]
        if candidates is not None:
            begin = (candidates[rows].long() * candidate_block)[:, :, None]
            position = (begin + torch.arange(candidate_block, device=q.device)).flatten(1)[:, :columns]
        owners, counts, limit = _owners(req[rows], seen[rows]) if shared else (req[rows], [], seen[rows])
        wanted = position.masked_fill((position < 0) | (position >= limit[:, None]), 0)
        slots = paged.table_slots(page_table, owners, wanted, FULL_PAGE // ratio)
        keys = codec.index_unpack(*paged.read_rows(cache, slots.flatten(), page_size, INDEX_K)).float()
        scores = _scores(q[rows].float(), weights[rows], keys.view(*wanted.shape, INDEX_DIM), counts)
        logits[rows, :columns] = scores.masked_fill_((position < 0) | (position >= seen[rows, None]), float("-inf"))


def _owners(req: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, list[int], torch.Tensor]:
    """Return each run of equal requests: the request, its number of rows, and how far the farthest of them sees."""
    owners, run, counts = torch.unique_consecutive(req, return_inverse=True, return_counts=True)
    return owners, counts.tolist(), torch.zeros_like(owners).scatter_reduce_(0, run, seen, "amax")


def _scores(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """Return bf16 scores [rows, columns]; keys are one set a row, or one for each run of `counts` rows."""
    if counts:
        dots = q.new_empty(*q.shape[:2], keys.shape[1])
        for rows, out, own in zip(q.split(counts), dots.split(counts), keys, strict=True):
            torch.mm(rows.flatten(0, 1), own.T, out=out.flatten(0, 1))
    else:
        dots = torch.bmm(q, keys.transpose(1, 2))
    terms = dots.bfloat16().clamp_(min=0).mul_(weights[:, :, None])
    return terms.sum(dim=1, dtype=torch.float32).to(torch.bfloat16)


def cost(tensors: Tensors) -> Cost:
    """Count 256 FLOPs a head and scored position; each tensor once, a key once for a request, or a row's candidates."""
    q, logits, candidates = tensors["q"], tensors["logits"], tensors["candidates"]
    seen, table = (tensors["positions"] + 1) // tensors["ratio"], 0
    if candidates is None:
        scored = seen.clamp(max=logits.shape[1])
        keys = seen.new_zeros(len(tensors["page_table"])).scatter_reduce_(0, tensors["req"], scored, "amax").sum()
    else:
        first = candidates.long() * tensors["candidate_block"]
        scored = (seen[:, None] - first).clamp(0, tensors["candidate_block"]).masked_fill_(first < 0, 0).sum(dim=1)
        keys, table = scored.sum(), 4 * candidates.numel()
    read = 2 * (q.numel() + tensors["weights"].numel()) + INDEX_K.row_bytes * int(keys) + 16 * len(q) + table
    return Cost(2 * INDEX_DIM * q.shape[1] * int(scored.sum()), bytes_read=read, bytes_written=2 * logits.numel())


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride."""
    arguments.expect_page_size(tensors["ratio"], "ratio")
    arguments.expect_cache(tensors["cache"], INDEX_K, tensors["page_size"])
    arguments.expect_tensor("q", tensors["q"], arguments.BF16, ("rows", "heads", INDEX_DIM))
    rows, heads, _ = tensors["q"].shape
    arguments.expect_tensor("weights", tensors["weights"], arguments.BF16, (rows, heads))
    arguments.expect_tensor("page_table", tensors["page_table"], arguments.I32, ("requests", "pages"))
    for name in ("req", "positions"):
        arguments.expect_tensor(name, tensors[name], arguments.I64, (rows,))
    arguments.expect_candidates(tensors["candidates"], rows, tensors["candidate_block"])
    arguments.expect_tensor("logits", tensors["logits"], arguments.BF16, (rows, "columns"))


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a request or position outside the page table, a page outside the cache, or a block."""
    requests, pages = tensors["page_table"].shape
    slots = len(tensors["cache"]) * tensors["page_size"]
    arguments.expect_range("req", tensors["req"], 0, requests)
    arguments.expect_range("positions", tensors["positions"], 0, pages * FULL_PAGE)
    arguments.expect_range("page_table", tensors["page_table"], 0, slots * tensors["ratio"] // FULL_PAGE)
    arguments.expect_candidate_ids(tensors["candidates"], tensors["candidate_block"])


@triton.jit
def _index_logits(
    q_ptr,
    weights_ptr,
    cache_ptr,
    page_table_ptr,
    req_ptr,
    positions_ptr,
    candidates_ptr,
    logits_ptr,
    rows,
    pages,
    candidates,
    columns,
    RATIO: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    CANDIDATE_BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    first = tl.program_id(0) * ROWS
    row = first + tl.arange(0, ROWS)
    live = row < rows
    req = tl.load(req_ptr + row, mask=live, other=-1)
    seen = (tl.load(positions_ptr + row, mask=live, other=-1) + 1) // RATIO
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    position = column
    if CANDIDATE_BLOCK > 0:  # then a program has one row
        listed = column // CANDIDATE_BLOCK
        block_at = candidates_ptr + first.to(tl.int64) * candidates + listed
        block = tl.load(block_at, mask=listed < candidates, other=-1)
        position = tl.where(block < 0, NOBODY, block * CANDIDATE_BLOCK + column % CANDIDATE_BLOCK)
    if tl.max(seen) <= tl.min(position):  # nothing here is visible
        at = logits_ptr + row.to(tl.int64)[:, None] * columns + column[None, :]
        tl.store(at, float("-inf"), mask=live[:, None] & (column < columns)[None, :])
    else:
        member = tl.arange(0, GROUP)
        head_of = tl.arange(0, GROUP * HEADS_BLOCK) % HEADS_BLOCK
        member_of = tl.arange(0, GROUP * HEADS_BLOCK) // HEADS_BLOCK
        head_at = member_of * HEADS + head_of
        q_at = head_at[:, None] * DIM + tl.arange(0, DIM)[None, :]
        logits_at = member[None, :] * columns + column[:, None]
        current = tl.min(tl.where(live, req, NOBODY))
        while current < NOBODY:  # rows of one request share its keys; as a rule there is one request here
            farthest = tl.max(tl.where(req == current, seen, 0))
            table, there = page_table_ptr + current * pages, position < farthest
            page = tl.load(table + position // (FULL // RATIO), mask=there, other=0).to(tl.int64)
            slots = page * (FULL // RATIO) + position % (FULL // RATIO)
            keys = load_index_rows(cache_ptr, slots, there, PAGE_SIZE)
            for group in range(0, ROWS, GROUP):
                begin = first + group
                base = begin.to(tl.int64)
                filled = (begin + member_of < rows) & (head_of < HEADS)
                q = tl.load(q_ptr + base * (HEADS * DIM) + q_at, mask=filled[:, None], other=0.0)
                weight = tl.load(weights_ptr + base * HEADS + head_at, mask=filled, other=0.0).to(tl.float32)
                dots = tl.maximum(round_bf16(tl.dot(keys, tl.trans(q))), 0.0)
                terms = tl.reshape(round_bf16(dots * weight[None, :]), (BLOCK, GROUP, HEADS_BLOCK))
                known = begin + member < rows
                mine = known & (tl.load(req_ptr + begin + member, mask=known, other=-1) == current)
                sees = (tl.load(positions_ptr + begin + member, mask=mine, other=-1) + 1) // RATIO
                score = tl.where(position[:, None] < sees[None, :], tl.sum(terms, axis=2), float("-inf"))
                at = logits_ptr + base * columns + logits_at
                tl.store(at, score.to(tl.bfloat16), mask=mine[None, :] & (column < columns)[:, None])
            current = tl.min(tl.where(live & (req > current), req, NOBODY))


def build_triton(tensors: Tensors) -> Call:
    """Launch a program per 16 rows, or per row with candidates, and 128 columns of `logits`, whatever its data."""
    names = ("q", "weights", "cache", "page_table", "req", "positions", "candidates", "logits")
    rows, heads, _ = tensors["q"].shape
    candidates, columns = tensors["candidates"], tensors["logits"].shape[1]
    heads_block = max(16, triton.next_power_of_2(heads))
    tile = 1 if candidates is not None else ROWS_PER_PROGRAM
    sizes = (rows, tensors["page_table"].shape[1], 0 if candidates is None else candidates.shape[1], columns)

    def call() -> None:
        if rows and columns:
            _index_logits[(triton.cdiv(rows, tile), triton.cdiv(columns, BLOCK_COLUMNS))](
                *(tensors[name] for name in names),
                *sizes,
                RATIO=tensors["ratio"],
                PAGE_SIZE=tensors["page_size"],
                CANDIDATE_BLOCK=0 if candidates is None else tensors["candidate_block"],
                HEADS=heads,
                HEADS_BLOCK=heads_block,
                GROUP=max(1, min(tile, HEADS_PER_DOT // heads_block)),
                ROWS=tile,
                BLOCK=BLOCK_COLUMNS,
                num_warps=8 if candidates is None else 4,
                num_stages=2,
            )

    return call


def bench_shape(rows: int, case: str) -> Shape:
    """Return rows of at most 64 requests on as many cached tokens as the case says, candidates on 64 K at ratio 1."""
    count, (prefix, blocks) = min(rows, 64), {"8 K": (8192, 0), "64 K": (65536, 0), "two-level": (65536, 2048)}[case]
    requests = tuple((prefix, rows // count + (i < rows % count)) for i in range(count))
    return Shape(requests, heads=32, ratio=1 if blocks else 2, blocks=blocks)


KERNEL = Kernel(
    name="index_logits",
    inputs=inputs,
    reference=reference,
    cost=cost,
    # a dot summed in another order can round to the next bf16, and so can its product and the sum (specification 9.1)
    outputs={"logits": Tolerance(rtol=2**-6, atol=2**-8, because="order of the sums before three roundings to bf16")},
    examples=(
        Shape(((40, 5), (0, 3), (250, 9)), heads=4, ratio=1),
        Shape(((300, 3), (17, 4)), heads=32, ratio=2, page_size=128),
        Shape(((250, 4), (9, 2)), heads=32, ratio=1, blocks=8),
        Shape(((500, 3), (0, 1)), heads=4, ratio=2, blocks=20),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(64, 256, 2048), cases=("8 K", "64 K", "two-level"), cpu_rows=4),
)
