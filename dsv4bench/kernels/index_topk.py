"""Top-k of the index logits: which compressed positions a query row attends (specification 6.5).

Of each row's finite logits the largest `topk` are kept, ties to the lowest column. Their positions are written
left-packed in ascending order of columns, then -1. Column c stands for position c, or for
`candidates[t, c // 8] * 8 + c % 8` where candidate blocks of 8 restrict the row.

Shapes: logits bf16 [T, C] (row stride free), candidates i32 [T, B] or None, output raw i32 [T, topk]. The Triton kernel
finds the threshold bit by bit on a 16-bit key, then packs in order; it gives the same result for the same logits as the
reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels import codec
from dsv4bench.kernels.arguments import (
    BF16,
    I32,
    expect_at_most,
    expect_candidate_ids,
    expect_candidates,
    expect_tensor,
)
from dsv4bench.kernels.codec_triton import order_key
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import tl, triton

CHUNK_VALUES = {"cpu": 1 << 18, "cuda": 1 << 24}  # logits that the reference orders at once: cache, or bounded memory
BLOCK_COLUMNS = 4096


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows, columns, top-k, and the candidate blocks that the columns stand for (0: columns are positions)."""

    rows: int
    columns: int
    topk: int
    blocks: int = 0


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make rows that see from none to all of their columns, with many equal logits."""
    device = generator.device
    logits = torch.randn(shape.rows, shape.columns, generator=generator, device=device).mul_(8).round_().div_(8)
    seen = torch.linspace(0, shape.columns, shape.rows, device=device).long()
    hidden = torch.arange(shape.columns, device=device) >= seen[:, None]
    candidates = None
    if shape.blocks:
        draw = torch.rand(shape.rows, 2 * shape.blocks, generator=generator, device=device)
        candidates = draw.argsort(dim=1)[:, : shape.blocks].sort(dim=1).values.to(torch.int32)
    return {
        "logits": logits.masked_fill_(hidden, float("-inf")).to(torch.bfloat16),
        "candidates": candidates,
        "candidate_block": 8,
        "topk": shape.topk,
        "raw": torch.empty(shape.rows, shape.topk, dtype=torch.int32, device=device),
    }


def reference(
    logits: torch.Tensor, candidates: torch.Tensor | None, candidate_block: int, topk: int, raw: torch.Tensor
) -> None:
    """Order (logit, lowest column) as one integer, so that no two are equal; sort the winners by column."""
    rows, columns = logits.shape
    kept = min(topk, columns)
    raw[:, kept:] = -1
    last = torch.arange(columns - 1, -1, -1, device=logits.device)
    chunk = max(1, CHUNK_VALUES[logits.device.type] // max(1, columns))
    for begin in range(0, rows if kept else 0, chunk):
        part = slice(begin, begin + chunk)
        keys = codec.order_key(logits[part]).long().mul_(columns).add_(last)
        top = keys.topk(kept, dim=1, sorted=False)
        finite = top.values >= columns  # a key of 0 leaves less than one whole `columns`
        column = top.indices.masked_fill(~finite, columns).sort(dim=1).values
        found = column < columns
        if candidates is not None:
            block = candidates[part].gather(1, (column // candidate_block).clamp(max=candidates.shape[1] - 1))
            column = block * candidate_block + column % candidate_block
        raw[part, :kept] = column.masked_fill(~found, -1).to(torch.int32)


def cost(tensors: Tensors) -> Cost:
    """Count each logit read once and compared once, each candidate block read once, each position written once."""
    logits, candidates = tensors["logits"], tensors["candidates"]
    read = 2 * logits.numel() + (0 if candidates is None else 4 * candidates.numel())
    return Cost(flops=logits.numel(), bytes_read=read, bytes_written=4 * tensors["raw"].numel())


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride."""
    candidates, topk, size = tensors["candidates"], tensors["topk"], tensors["candidate_block"]
    if topk < 1:
        raise ValueError(f"topk: {topk}, expected at least 1")
    expect_tensor("logits", tensors["logits"], BF16, ("rows", "columns"), free_strides=1)
    rows, columns = tensors["logits"].shape
    expect_tensor("raw", tensors["raw"], I32, (rows, topk), free_strides=1)
    expect_candidates(candidates, rows, size)
    if candidates is not None:
        expect_at_most("columns of logits", columns, size * candidates.shape[1], "so many have the candidate blocks")


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a candidate block with a position that i32 cannot hold; -1 is none."""
    expect_candidate_ids(tensors["candidates"], tensors["candidate_block"])


@triton.jit
def _keys(row_ptr, column, columns):
    return order_key(tl.load(row_ptr + column, mask=column < columns, other=float("-inf")))


@triton.jit
def _index_topk(
    logits_ptr,
    logits_stride,
    columns,
    candidates_ptr,
    candidates_stride,
    raw_ptr,
    raw_stride,
    CANDIDATE_BLOCK: tl.constexpr,
    TOPK: tl.constexpr,
    TOPK_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * logits_stride
    lane = tl.arange(0, BLOCK)
    threshold = tl.zeros((), tl.int32)  # the highest key that at least TOPK columns reach; 0 where fewer are finite
    for bit in range(16):
        tried = threshold | (0x8000 >> bit)
        reached = tl.zeros((BLOCK,), tl.int32)
        for begin in range(0, columns, BLOCK):
            reached += (_keys(row_ptr, begin + lane, columns) >= tried).to(tl.int32)
        threshold = tl.where(tl.sum(reached) >= TOPK, tried, threshold)
    beyond = tl.zeros((BLOCK,), tl.int32)
    for begin in range(0, columns, BLOCK):
        beyond += (_keys(row_ptr, begin + lane, columns) > threshold).to(tl.int32)
    room = tl.where(threshold > 0, TOPK - tl.sum(beyond), 0)  # places left for columns at the threshold
    above_before = tl.zeros((), tl.int32)
    equal_before = tl.zeros((), tl.int32)
    for begin in range(0, columns, BLOCK):
        key = _keys(row_ptr, begin + lane, columns)
        above = (key > threshold).to(tl.int32)
        equal = (key == threshold).to(tl.int32)
        both = tl.cumsum(above + (equal << 16), axis=0)  # two counts in one: a block has fewer than 2^15 columns
        above_at = above_before + (both & 0xFFFF) - above
        equal_at = equal_before + (both >> 16) - equal
        chosen = (above > 0) | ((equal > 0) & (equal_at < room))
        position = begin + lane
        if CANDIDATE_BLOCK > 0:
            block_at = candidates_ptr + row * candidates_stride + position // CANDIDATE_BLOCK
            block = tl.load(block_at, mask=chosen, other=0)
            position = block * CANDIDATE_BLOCK + position % CANDIDATE_BLOCK
        tl.store(raw_ptr + row * raw_stride + above_at + tl.minimum(equal_at, room), position, mask=chosen)
        above_before += tl.sum(above)
        equal_before += tl.sum(equal)
    slot = tl.arange(0, TOPK_BLOCK)
    unused = (slot >= above_before + tl.minimum(equal_before, room)) & (slot < TOPK)
    tl.store(raw_ptr + row * raw_stride + slot, tl.full((TOPK_BLOCK,), -1, tl.int32), mask=unused)


def build_triton(tensors: Tensors) -> Call:
    """Launch one program a row, which walks over its columns in blocks of at most 4096."""
    logits, candidates, raw = tensors["logits"], tensors["candidates"], tensors["raw"]
    rows, columns = logits.shape
    topk = tensors["topk"]
    block = min(BLOCK_COLUMNS, max(128, triton.next_power_of_2(columns)))

    def call() -> None:
        if rows:
            _index_topk[(rows,)](
                logits,
                logits.stride(0),
                columns,
                candidates,
                0 if candidates is None else candidates.stride(0),
                raw,
                raw.stride(0),
                CANDIDATE_BLOCK=0 if candidates is None else tensors["candidate_block"],
                TOPK=topk,
                TOPK_BLOCK=triton.next_power_of_2(topk),
                BLOCK=block,
                num_warps=max(1, min(8, block // 512)),
            )

    return call


KERNEL = Kernel(
    name="index_topk",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"raw": EXACT},
    examples=(
        Shape(rows=6, columns=200, topk=32),
        Shape(rows=3, columns=9000, topk=512),
        Shape(rows=4, columns=256, topk=64, blocks=32),
        Shape(rows=2, columns=16, topk=32),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(lambda rows, case: Shape(rows, 8192, 512), rows=(1024, 8192)),
)
