"""Candidate blocks of the two-level top-k: the best blocks of 8 compressed positions of each row (specification 6.5).

A block's key is its largest logit; only blocks with a visible position, c < (pos + 1) // ratio, take part; the row's
newest visible block always wins. The ids of the best B blocks are written ascending, then -1; ties go to the lowest
block. A row with at most B visible blocks gets all of them: then nothing is filtered.

Shapes: logits bf16 [T, C] (row stride free; never NaN), positions i64 [T], output blocks i32 [T, B]. The Triton kernel
gives the same result for the same logits as the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from dsv4bench.kernels import codec
from dsv4bench.kernels.arguments import BF16, I32, I64, expect_page_size, expect_range, expect_tensor
from dsv4bench.kernels.codec_triton import order_key
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import tl, triton

CHUNK_VALUES = {"cpu": 1 << 18, "cuda": 1 << 25}  # logits that the reference reads at once: cache, or bounded memory
BLOCKS_AT_ONCE = 1024
NEWEST = tl.constexpr(0xFFFF)  # above the key of every finite logit


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows, columns of the logits, blocks to keep, the layer's ratio, and the position of the last row."""

    rows: int
    columns: int
    blocks: int
    ratio: int
    last: int


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make rows from position 0 to `last`, with many equal logits; what a row does not see is -inf."""
    device = generator.device
    positions = torch.linspace(0, shape.last, shape.rows, device=device).long()
    logits = torch.randn(shape.rows, shape.columns, generator=generator, device=device).mul_(4).round_().div_(4)
    hidden = torch.arange(shape.columns, device=device) >= ((positions + 1) // shape.ratio)[:, None]
    return {
        "logits": logits.masked_fill_(hidden, float("-inf")).to(torch.bfloat16),
        "positions": positions,
        "ratio": shape.ratio,
        "candidate_block": 8,
        "blocks": torch.empty(shape.rows, shape.blocks, dtype=torch.int32, device=device),
    }


def reference(
    logits: torch.Tensor, positions: torch.Tensor, ratio: int, candidate_block: int, blocks: torch.Tensor
) -> None:
    """Order (block maximum, lowest block) as one integer, so that no two are equal; sort the winners by id."""
    rows, columns = logits.shape
    count = -(-columns // candidate_block)
    kept = min(count, blocks.shape[1])
    blocks[:, kept:] = -1
    last = torch.arange(count - 1, -1, -1, device=logits.device)
    chunk = max(1, CHUNK_VALUES[logits.device.type] // max(1, columns))
    for begin in range(0, rows if kept else 0, chunk):
        part = slice(begin, begin + chunk)
        keys = _block_keys(logits[part], (positions[part] + 1) // ratio, candidate_block)
        top = keys.mul_(count).add_(last).topk(kept, dim=1, sorted=False)
        taken = top.values >= count  # a key of 0 leaves less than one whole `count`
        block = top.indices.masked_fill(~taken, count).sort(dim=1).values
        blocks[part, :kept] = block.masked_fill(block == count, -1).to(torch.int32)


def _block_keys(logits: torch.Tensor, visible: torch.Tensor, candidate_block: int) -> torch.Tensor:
    """Return i64 keys [rows, blocks]: 0 without a visible position, else the maximum's order, the newest highest."""
    whole = pad(logits, (0, -logits.shape[1] % candidate_block), value=float("-inf"))
    keys = codec.order_key(whole.unflatten(1, (-1, candidate_block)).amax(dim=2)).long().clamp_(min=1)
    block = torch.arange(keys.shape[1], device=keys.device)
    newest = ((visible - 1) // candidate_block)[:, None]  # -1 for a row that sees nothing
    return keys.masked_fill_(block == newest, NEWEST.value).masked_fill_(block > newest, 0)


def cost(tensors: Tensors) -> Cost:
    """Count visible logits and positions read once, one comparison a logit, each block id written once."""
    logits, positions = tensors["logits"], tensors["positions"]
    visible = int(((positions + 1) // tensors["ratio"]).clamp(max=logits.shape[1]).sum())
    read = 2 * visible + 8 * positions.numel()
    return Cost(flops=visible, bytes_read=read, bytes_written=4 * tensors["blocks"].numel())


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride."""
    expect_page_size(tensors["ratio"], "ratio")
    expect_page_size(tensors["candidate_block"], "candidate_block")
    expect_tensor("logits", tensors["logits"], BF16, ("rows", "columns"), free_strides=1)
    rows = len(tensors["logits"])
    expect_tensor("positions", tensors["positions"], I64, (rows,))
    expect_tensor("blocks", tensors["blocks"], I32, (rows, "blocks"), free_strides=1)
    if tensors["blocks"].shape[1] < 1:
        raise ValueError("blocks: keeps 0 a row, expected at least 1")


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a row that sees more positions than the logits have columns."""
    sees_one_more = (tensors["logits"].shape[1] + 1) * tensors["ratio"] - 1  # the first position that does
    expect_range("positions", tensors["positions"], 0, sees_one_more)


@triton.jit
def _keys(row_ptr, block, columns, newest, SIZE: tl.constexpr):
    column = block[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    logits = tl.load(row_ptr + column, mask=column < columns, other=float("-inf"))
    best = tl.max(logits.to(tl.float32), axis=1).to(tl.bfloat16)
    return tl.where(block > newest, 0, tl.where(block == newest, NEWEST, order_key(best)))


@triton.jit
def _index_candidates(
    logits_ptr,
    logits_stride,
    columns,
    positions_ptr,
    blocks_ptr,
    blocks_stride,
    RATIO: tl.constexpr,
    SIZE: tl.constexpr,
    KEPT: tl.constexpr,
    KEPT_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * logits_stride
    out_ptr = blocks_ptr + row * blocks_stride
    lane = tl.arange(0, BLOCK)
    seen = ((tl.load(positions_ptr + row) + 1) // RATIO).to(tl.int32)
    newest = (seen + SIZE - 1) // SIZE - 1
    count = (tl.minimum(seen, columns) + SIZE - 1) // SIZE  # blocks that take part
    if count <= KEPT:
        slot = tl.arange(0, KEPT_BLOCK)
        tl.store(out_ptr + slot, tl.where(slot < count, slot, -1), mask=slot < KEPT)
    else:
        threshold = tl.zeros((), tl.int32)  # the highest key that at least KEPT blocks reach
        for bit in range(16):
            tried = threshold | (0x8000 >> bit)
            reached = tl.zeros((BLOCK,), tl.int32)
            for begin in range(0, count, BLOCK):
                reached += (_keys(row_ptr, begin + lane, columns, newest, SIZE) >= tried).to(tl.int32)
            threshold = tl.where(tl.sum(reached) >= KEPT, tried, threshold)
        beyond = tl.zeros((BLOCK,), tl.int32)
        for begin in range(0, count, BLOCK):
            beyond += (_keys(row_ptr, begin + lane, columns, newest, SIZE) > threshold).to(tl.int32)
        room = KEPT - tl.sum(beyond)  # places left for blocks at the threshold
        above_before = tl.zeros((), tl.int32)
        equal_before = tl.zeros((), tl.int32)
        for begin in range(0, count, BLOCK):
            key = _keys(row_ptr, begin + lane, columns, newest, SIZE)
            above = (key > threshold).to(tl.int32)
            equal = (key == threshold).to(tl.int32)
            both = tl.cumsum(above + (equal << 16), axis=0)  # two counts in one: fewer than 2^15 at once
            above_at = above_before + (both & 0xFFFF) - above
            equal_at = equal_before + (both >> 16) - equal
            chosen = (above > 0) | ((equal > 0) & (equal_at < room))
            tl.store(out_ptr + above_at + tl.minimum(equal_at, room), begin + lane, mask=chosen)
            above_before += tl.sum(above)
            equal_before += tl.sum(equal)


def build_triton(tensors: Tensors) -> Call:
    """Launch one program a row."""
    logits, blocks, size = tensors["logits"], tensors["blocks"], tensors["candidate_block"]
    rows, columns = logits.shape
    kept = blocks.shape[1]
    at_once = min(BLOCKS_AT_ONCE, max(16, triton.next_power_of_2(triton.cdiv(columns, size))))

    def call() -> None:
        if rows:
            _index_candidates[(rows,)](
                logits,
                logits.stride(0),
                columns,
                tensors["positions"],
                blocks,
                blocks.stride(0),
                RATIO=tensors["ratio"],
                SIZE=size,
                KEPT=kept,
                KEPT_BLOCK=triton.next_power_of_2(kept),
                BLOCK=at_once,
                num_warps=max(1, min(8, at_once // 128)),
            )

    return call


KERNEL = Kernel(
    name="index_candidates",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"blocks": EXACT},
    examples=(
        Shape(rows=5, columns=256, blocks=8, ratio=1, last=250),
        Shape(rows=3, columns=100, blocks=4, ratio=2, last=199),
        Shape(rows=3, columns=9000, blocks=600, ratio=1, last=8999),
        Shape(rows=3, columns=64, blocks=16, ratio=1, last=60),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(lambda rows, case: Shape(rows, 32768, 2048, 1, 32767), rows=(1024, 4096)),
)
