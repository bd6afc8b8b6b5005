"""Combine the top-k with the sliding window: the rows of the workspace that each query row attends (specification 6.2).

The workspace holds every request's compressed rows, then every request's window rows. For a query row at position p of
request i, layer ratio r and top-k width K:

    t = min((p + 1) // r, K) columns   raw + compressed_bases[i], or -1 where raw is -1 (t = 0 at ratio 0)
    w = min(p + 1, window) columns     swa_bases[i] + (p - w + 1 + j) - (seq_lens[i] - gather_lens[i])
    the rest                           -1
    lens = t + w

Shapes: raw i32 [T, >= K] or None, query_start i32 [R + 1] (need not begin at 0), positions i64 [T]; seq_lens,
gather_lens, compressed_bases, swa_bases i32 [R]; outputs indices i32 [T, W] with W = ceil128(K + window), lens i32 [T].
A row that no request owns gets -1 everywhere and length 0. Every element of the outputs is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import I32, I64, expect_at_least, expect_at_most, expect_range, expect_tensor
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import tl, triton

COLUMNS = 128  # the width of `indices` is a multiple of this (specification 6.4)
FEW_ROWS = 2048  # up to here a program of four warps has one row, beyond it two (measured on an H200)
FEW_WINDOWS = 8192  # without a top-k: up to here four rows, beyond it 32 (measured on an H200)


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests as (cached prefix, new tokens), ratio and top-k width of the layer, rows that belong to no request."""

    requests: tuple[tuple[int, int], ...]
    ratio: int
    topk: int
    padding_rows: int = 0
    window: int = 128


def width(topk: int, window: int) -> int:
    """Return the columns of `indices`: topk + window, rounded up to 128."""
    return -(-(topk + window) // COLUMNS) * COLUMNS


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make a packed batch whose top-k is random, with a hole in every seventh column on average."""
    device = generator.device
    prefix = torch.tensor([cached for cached, _ in shape.requests], dtype=torch.int64)
    extend = torch.tensor([new for _, new in shape.requests], dtype=torch.int64)
    positions = torch.cat([torch.arange(cached, cached + new) for cached, new in shape.requests])
    positions = torch.cat([positions, positions.new_zeros(shape.padding_rows)]).to(device)
    seq_lens = prefix + extend
    gather_lens = torch.minimum(seq_lens, extend + shape.window - 1)
    compressed = seq_lens // shape.ratio if shape.ratio else torch.zeros_like(seq_lens)
    swa_bases = int(compressed.sum()) + _exclusive(gather_lens)
    rows = positions.numel()
    return {
        "raw": _random_topk(positions, shape, generator) if shape.ratio else None,
        "query_start": torch.cat([extend.new_zeros(1), extend.cumsum(0)]).to(device, torch.int32),
        "positions": positions,
        "seq_lens": seq_lens.to(device, torch.int32),
        "gather_lens": gather_lens.to(device, torch.int32),
        "compressed_bases": _exclusive(compressed).to(device, torch.int32),
        "swa_bases": swa_bases.to(device, torch.int32),
        "window": shape.window,
        "ratio": shape.ratio,
        "topk": shape.topk,
        "indices": torch.empty(rows, width(shape.topk, shape.window), dtype=torch.int32, device=device),
        "lens": torch.empty(rows, dtype=torch.int32, device=device),
    }


def _exclusive(lengths: torch.Tensor) -> torch.Tensor:
    return lengths.cumsum(0) - lengths


def _random_topk(positions: torch.Tensor, shape: Shape, generator: torch.Generator) -> torch.Tensor:
    visible = ((positions + 1) // shape.ratio)[:, None]
    draw = torch.rand(positions.numel(), shape.topk, generator=generator, device=positions.device)
    chosen = (draw * visible).long().clamp(max=visible - 1)
    hole = torch.rand(draw.shape, generator=generator, device=positions.device) < 1 / 7
    beyond = torch.arange(shape.topk, device=positions.device) >= visible
    return chosen.masked_fill(hole | beyond, -1).to(torch.int32)


def reference(
    raw: torch.Tensor | None,
    query_start: torch.Tensor,
    positions: torch.Tensor,
    seq_lens: torch.Tensor,
    gather_lens: torch.Tensor,
    compressed_bases: torch.Tensor,
    swa_bases: torch.Tensor,
    window: int,
    ratio: int,
    topk: int,
    indices: torch.Tensor,
    lens: torch.Tensor,
) -> None:
    """Find each row's request, then write its compressed columns and its window columns."""
    if not seq_lens.numel():
        indices.fill_(-1)
        lens.zero_()
        return
    row = torch.arange(positions.numel(), device=positions.device, dtype=torch.int32) + query_start[0]
    owned = row < query_start[-1]
    request = (torch.searchsorted(query_start, row, right=True) - 1).clamp(0, seq_lens.numel() - 1)
    position = positions.to(torch.int32)
    kept = ((position + 1) // ratio).clamp(max=topk) if ratio else torch.zeros_like(position)
    in_window = (position + 1).clamp(max=window)
    lens.copy_(torch.where(owned, kept + in_window, 0))
    # the workspace row that column 0 would be if the window began there
    first = (swa_bases - seq_lens + gather_lens)[request] + position - in_window + 1 - kept
    column = torch.arange(indices.shape[1], device=indices.device, dtype=torch.int32)
    indices.copy_(torch.where(column < lens[:, None], first[:, None] + column, -1))
    if raw is not None and ratio:
        head = raw[:, :topk]
        chosen = torch.where(head >= 0, head + compressed_bases[request, None], -1)
        compressed = owned[:, None] & (column[:topk] < kept[:, None])
        indices[:, :topk] = torch.where(compressed, chosen, indices[:, :topk])


def cost(tensors: Tensors) -> Cost:
    """Count the kept top-k columns and the integers of rows and requests read once, the outputs written once."""
    indices, lens, ratio = tensors["indices"], tensors["lens"], tensors["ratio"]
    rows, requests = lens.numel(), tensors["seq_lens"].numel()
    kept = ((tensors["positions"] + 1) // ratio).clamp(max=tensors["topk"]).sum().item() if ratio else 0
    read = 4 * int(kept) + 8 * rows + 4 * (5 * requests + 1)
    return Cost(flops=indices.numel(), bytes_read=read, bytes_written=4 * (indices.numel() + rows))


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride."""
    raw = tensors["raw"]
    for name, least in (("ratio", 0), ("topk", 0), ("window", 1)):
        expect_at_least(name, tensors[name], least)
    expect_tensor("positions", tensors["positions"], I64, ("rows",))
    expect_tensor("seq_lens", tensors["seq_lens"], I32, ("requests",))
    rows, requests = len(tensors["positions"]), len(tensors["seq_lens"])
    if raw is not None:
        expect_tensor("raw", raw, I32, (rows, "columns"), free_strides=1)
        expect_at_most("topk", tensors["topk"], raw.shape[1], "raw has no more columns")
    expect_tensor("query_start", tensors["query_start"], I32, (requests + 1,))
    for name in ("gather_lens", "compressed_bases", "swa_bases"):
        expect_tensor(name, tensors[name], I32, (requests,))
    expect_tensor("indices", tensors["indices"], I32, (rows, width(tensors["topk"], tensors["window"])), free_strides=1)
    expect_tensor("lens", tensors["lens"], I32, (rows,))


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for requests out of order, or a row whose columns lie outside what its request has gathered.

    Rows that no request owns, and columns of the top-k that a row does not keep, may hold anything.
    """
    starts, seq_lens, ratio, topk = (tensors[name] for name in ("query_start", "seq_lens", "ratio", "topk"))
    positions, unread = tensors["positions"], seq_lens - tensors["gather_lens"]
    expect_range("query_start[1:] - query_start[:-1]", starts.diff(), 0, 2**31)
    expect_range("seq_lens - gather_lens", unread, 0, 2**31)
    row = torch.arange(len(positions), device=positions.device) + starts[0]
    owned = (row < starts[-1]).nonzero()[:, 0]
    request = torch.searchsorted(starts, row[owned], right=True) - 1
    position, length = positions[owned], seq_lens[request]
    expect_range("seq_lens - positions, of owned rows", length - position, 1, 2**31)
    oldest = (position + 1 - tensors["window"]).clamp(min=0)
    expect_range("positions of windows behind what is not gathered", oldest - unread[request], 0, 2**31)
    if tensors["raw"] is not None and ratio:
        kept = torch.arange(topk, device=row.device) < ((position + 1) // ratio)[:, None]
        chosen = tensors["raw"][owned, :topk].long().where(kept, -1)
        expect_range("raw", chosen, -1, 2**31)
        expect_range("rows behind raw, of its request", (length // ratio)[:, None] - 1 - chosen, 0, 2**31)


@triton.jit
def _combine(
    raw_ptr,
    raw_stride,
    query_start_ptr,
    positions_ptr,
    seq_lens_ptr,
    gather_lens_ptr,
    compressed_bases_ptr,
    swa_bases_ptr,
    indices_ptr,
    indices_stride,
    lens_ptr,
    rows,
    requests,
    topk,
    WINDOW: tl.constexpr,
    RATIO: tl.constexpr,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    offset = row.to(tl.int64)[:, None]
    position = tl.load(positions_ptr + row, mask=live, other=0).to(tl.int32)
    kept = tl.zeros((ROWS,), tl.int32)
    if RATIO > 0:  # the top-k is on its way while the row's request is searched
        kept = tl.minimum((position + 1) // RATIO, topk)
        head = tl.arange(0, HEAD)[None, :]
        chosen = tl.load(raw_ptr + offset * raw_stride + head, mask=live[:, None] & (head < kept[:, None]), other=-1)
    at = row + tl.load(query_start_ptr)
    owned = live & (at < tl.load(query_start_ptr + requests))
    low = tl.zeros((ROWS,), tl.int32)  # the request lies in [low, high)
    high = tl.zeros((ROWS,), tl.int32) + requests
    for _ in range(STEPS):
        middle = (low + high) // 2
        right = tl.load(query_start_ptr + middle, mask=owned, other=0) <= at
        low = tl.where(right, middle, low)
        high = tl.where(right, high, middle)
    in_window = tl.minimum(position + 1, WINDOW)
    length = tl.where(owned, kept + in_window, 0)
    tl.store(lens_ptr + row, length, mask=live)
    before = tl.load(seq_lens_ptr + low, mask=owned, other=0) - tl.load(gather_lens_ptr + low, mask=owned, other=0)
    first = tl.load(swa_bases_ptr + low, mask=owned, other=0) - before + position - in_window + 1 - kept
    if RATIO > 0:
        base = tl.load(compressed_bases_ptr + low, mask=owned, other=0)
        in_head = tl.where(head < length[:, None], first[:, None] + head, -1)
        compressed = owned[:, None] & (head < kept[:, None])
        in_head = tl.where(compressed, tl.where(chosen >= 0, chosen + base[:, None], -1), in_head)
        tl.store(indices_ptr + offset * indices_stride + head, in_head, mask=live[:, None] & (head < WIDTH))
    for begin in range(HEAD, WIDTH, BLOCK):
        column = begin + tl.arange(0, BLOCK)[None, :]
        index = tl.where(column < length[:, None], first[:, None] + column, -1)
        tl.store(indices_ptr + offset * indices_stride + column, index, mask=live[:, None] & (column < WIDTH))


def build_triton(tensors: Tensors) -> Call:
    """Launch one program of four warps per row or two, or per four or 32 where there is no top-k."""
    raw, indices = tensors["raw"], tensors["indices"]
    rows, columns = indices.shape
    requests = tensors["seq_lens"].numel()
    ratio, topk = tensors["ratio"], tensors["topk"]
    program_rows = (1 if rows <= FEW_ROWS else 2) if ratio else (4 if rows <= FEW_WINDOWS else 32)
    names = ("query_start", "positions", "seq_lens", "gather_lens", "compressed_bases", "swa_bases")

    def call() -> None:
        if rows:
            _combine[(triton.cdiv(rows, program_rows),)](
                raw,
                0 if raw is None else raw.stride(0),
                *(tensors[name] for name in names),
                indices,
                indices.stride(0),
                tensors["lens"],
                rows,
                requests,
                topk,
                WINDOW=tensors["window"],
                RATIO=ratio,
                STEPS=requests.bit_length(),
                ROWS=program_rows,
                WIDTH=columns,
                HEAD=triton.next_power_of_2(topk) if ratio else 0,
                BLOCK=COLUMNS,
                num_warps=4,
            )

    return call


def bench_shape(rows: int, case: str) -> Shape:
    """Return one request's chunk behind a prefix of 8192, and the top-k of 512."""
    ratio = int(case.removeprefix("ratio "))
    return Shape(((8192, rows),), ratio, 512 if ratio else 0)


KERNEL = Kernel(
    name="combine",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"indices": EXACT, "lens": EXACT},
    examples=(
        Shape(((5, 9), (0, 3), (299, 4)), ratio=2, topk=32, padding_rows=3),
        Shape(((0, 1), (140, 6)), ratio=1, topk=128),
        Shape(((127, 3), (0, 2)), ratio=0, topk=0, padding_rows=1),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(1024, 8192, 65536), cases=("ratio 0", "ratio 1", "ratio 2")),
)
