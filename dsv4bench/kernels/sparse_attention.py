"""Sparse attention with a sink over gathered rows; a row is key and value at once (specification 6.4).

For query row t, head h and the valid columns j < lens[t] of indices[t] (valid: 0 <= index < N):

    s_j = scale * (q . kv[index_j]),  m = max s_j
    out = sum_j exp(s_j - m) kv[index_j] / (sum_j exp(s_j - m) + exp(sink[h] - m))

and 0 where no column is valid. Sums are f32; the weights exp(s_j - m) meet the values as bf16.

Shapes: q [T, H, 512] bf16, kv [N, 1, 512] bf16 (row stride free), indices i32 [T, W], lens i32 [T], sink f32 [H],
output out [T, H, 512] bf16. Rows of kv that no valid column names are never used, whatever they hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import BF16, F32, I32, expect_range, expect_tensor
from dsv4bench.kernels.attend import attend, queries_at_once
from dsv4bench.kernels.attend_triton import LOG2_E, attend_block, attended
from dsv4bench.kernels.contract import (
    HOPPER,
    TRITON,
    Bench,
    Call,
    Cost,
    Kernel,
    Provider,
    Tensors,
    Tolerance,
    torch_provider,
)
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import HEAD_DIM

DIM = tl.constexpr(HEAD_DIM)
HOPPER_LAUNCH = {"BLOCK": 64, "STAGES": 2, "SCORE_REGISTERS": 112, "GATHER_REGISTERS": 64}
BLOCK_KEYS, STAGES = 32, 3  # two gathers in flight beside 64 KiB of queries: 160 KiB of shared memory


@dataclass(frozen=True, slots=True)
class Shape:
    """Query rows, heads, rows of the workspace, columns of the index table, and the first columns that are scanned."""

    rows: int
    heads: int
    keys: int
    columns: int
    scanned: int


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make unit normal queries and rows, and distinct indices with one hole in nine; every row scans `scanned`."""
    device = generator.device
    order = torch.rand(shape.rows, shape.keys, generator=generator, device=device).argsort(dim=1)
    indices = order.repeat(1, -(-shape.columns // shape.keys))[:, : shape.columns]
    hole = torch.rand(indices.shape, generator=generator, device=device) < 1 / 9
    return {
        "q": torch.randn(shape.rows, shape.heads, HEAD_DIM, generator=generator, device=device).to(torch.bfloat16),
        "kv": torch.randn(shape.keys, 1, HEAD_DIM, generator=generator, device=device).to(torch.bfloat16),
        "indices": indices.masked_fill(hole, -1).to(torch.int32),
        "lens": torch.full((shape.rows,), shape.scanned, dtype=torch.int32, device=device),
        "sink": torch.randn(shape.heads, generator=generator, device=device),
        "scale": HEAD_DIM**-0.5,
        "out": torch.empty(shape.rows, shape.heads, HEAD_DIM, dtype=torch.bfloat16, device=device),
    }


def reference(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    lens: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Gather each row's keys in chunks of rows, and attend; only the longest row's columns are touched on a CPU."""
    columns = indices.shape[1]
    if lens.device.type == "cpu" and lens.numel():
        columns = min(columns, int(lens.max()))
    if not (columns and kv.shape[0] and out.numel()):
        out.zero_()
        return
    chunk = min(len(q), queries_at_once(q, columns))
    packed = kv.new_empty(chunk * columns, HEAD_DIM)
    keys = q.new_empty(chunk, columns, HEAD_DIM, dtype=torch.float32)
    for begin in range(0, len(q), chunk):
        rows = slice(begin, begin + chunk)
        valid, index, empty = _selection(indices[rows, :columns], lens[rows], kv.shape[0])
        count = len(index)
        torch.index_select(kv.view(-1, HEAD_DIM), 0, index.flatten(), out=packed[: count * columns])
        keys[:count] = packed[: count * columns].view(count, columns, HEAD_DIM)
        out[rows] = attend(q[rows].float(), keys[:count], valid, sink, scale).masked_fill_(empty[:, :, None], 0)


def _selection(indices: torch.Tensor, lens: torch.Tensor, keys: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return which columns are valid, a row to gather for each, and which rows have no valid column [rows, 1].

    Invalid columns gather a valid one of their row: what a row never selected may hold NaN, and 0 * NaN is not 0.
    """
    column = torch.arange(indices.shape[1], device=indices.device)
    valid = (indices >= 0) & (indices < keys) & (column < lens[:, None])
    stand_in = indices.masked_fill(~valid, -1).amax(dim=1, keepdim=True)
    return valid, torch.where(valid, indices, stand_in.clamp(min=0)), stand_in < 0


def cost(tensors: Tensors) -> Cost:
    """Count 2 * (512 + 512) FLOPs per head and valid column; each named row, query, index and output once."""
    q, kv, indices, lens = tensors["q"], tensors["kv"], tensors["indices"], tensors["lens"]
    valid, _, _ = _selection(indices, lens, kv.shape[0])
    named = indices[valid].unique().numel()
    scanned = int(lens.clamp(max=indices.shape[1]).sum())
    read = 2 * q.numel() + 2 * HEAD_DIM * named + 4 * (scanned + lens.numel() + q.shape[1])
    return Cost(4 * HEAD_DIM * q.shape[1] * int(valid.sum()), bytes_read=read, bytes_written=2 * tensors["out"].numel())


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride."""
    q, kv, indices = tensors["q"], tensors["kv"], tensors["indices"]
    expect_tensor("q", q, BF16, ("rows", "heads", HEAD_DIM), free_strides=2)
    expect_tensor("kv", kv, BF16, ("keys", 1, HEAD_DIM), free_strides=2)
    expect_tensor("indices", indices, I32, (q.shape[0], "columns"), free_strides=1)
    expect_tensor("lens", tensors["lens"], I32, (q.shape[0],))
    expect_tensor("sink", tensors["sink"], F32, (q.shape[1],))
    expect_tensor("out", tensors["out"], BF16, tuple(q.shape), free_strides=2)


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a length over the table's columns, or under 0."""
    expect_range("lens", tensors["lens"], 0, tensors["indices"].shape[1] + 1)


@triton.jit
def _sparse_attention(
    q_ptr,
    q_row_stride,
    q_head_stride,
    kv_ptr,
    kv_stride,
    keys,
    indices_ptr,
    indices_stride,
    columns,
    lens_ptr,
    sink_ptr,
    out_ptr,
    out_row_stride,
    out_head_stride,
    scale_log2,
    HEADS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    channel = tl.arange(0, DIM)
    key = tl.arange(0, BLOCK_KEYS)
    live = head < HEADS
    q_at = q_ptr + row * q_row_stride + head[:, None] * q_head_stride + channel[None, :]
    q = tl.load(q_at, mask=live[:, None], other=0.0)
    length = tl.minimum(tl.load(lens_ptr + row), columns)
    index_at = indices_ptr + row * indices_stride + key
    highest = tl.full((BLOCK_HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_HEADS,), tl.float32)
    acc = tl.zeros((BLOCK_HEADS, DIM), tl.float32)
    coming = tl.load(index_at, mask=key < length, other=-1)
    for begin in range(0, length, BLOCK_KEYS):
        index = coming  # the next step's are on their way, so that rows are gathered without waiting for indices
        later = begin + BLOCK_KEYS
        coming = tl.load(index_at + later, mask=later + key < length, other=-1)
        valid = (index >= 0) & (index < keys)
        k_at = kv_ptr + index.to(tl.int64)[:, None] * kv_stride + channel[None, :]
        k = tl.load(k_at, mask=valid[:, None], other=0.0)
        highest, total, acc = attend_block(q, k, valid, scale_log2, highest, total, acc)
    sink = tl.load(sink_ptr + head, mask=live, other=0.0)
    out_at = out_ptr + row * out_row_stride + head[:, None] * out_head_stride + channel[None, :]
    tl.store(out_at, attended(highest, total, acc, sink), mask=live[:, None])


def build_triton(tensors: Tensors) -> Call:
    """Launch one program per query row and 64 heads, `BLOCK_KEYS` a step; fewer than 16 heads are padded to 16."""
    q, kv, indices, out = tensors["q"], tensors["kv"], tensors["indices"], tensors["out"]
    rows, heads, _ = q.shape
    block_heads = min(64, max(16, triton.next_power_of_2(heads)))

    def call() -> None:
        if rows:
            _sparse_attention[(rows, triton.cdiv(heads, block_heads))](
                q,
                *q.stride()[:2],
                kv,
                kv.stride(0),
                kv.shape[0],
                indices,
                indices.stride(0),
                indices.shape[1],
                tensors["lens"],
                tensors["sink"],
                out,
                *out.stride()[:2],
                tensors["scale"] * LOG2_E.value,
                HEADS=heads,
                BLOCK_HEADS=block_heads,
                BLOCK_KEYS=BLOCK_KEYS,
                num_warps=8 if block_heads == 64 else 4,
                num_stages=STAGES,
            )

    return call


def bench_shape(rows: int, case: str) -> Shape:
    """Return 64 heads over a workspace of 8192 rows, all columns scanned."""
    width = int(case.removeprefix("width "))
    return Shape(rows, heads=64, keys=8192, columns=width, scanned=width)


def build_gluon(tensors: Tensors) -> Call:
    """Launch one program a multiprocessor of the Hopper kernel, which walks query rows and blocks of 64 heads."""
    from dsv4bench.kernels import sparse_attention_gluon as hopper

    q, kv, indices, out = tensors["q"], tensors["kv"], tensors["indices"], tensors["out"]
    rows, heads, _ = q.shape
    blocks = triton.cdiv(heads, 64)
    programs = rows * blocks
    if q.is_cuda:  # elsewhere it is compiled only
        programs = min(programs, torch.cuda.get_device_properties(q.device).multi_processor_count)

    def call() -> None:
        if rows:
            hopper.sparse_attention[(programs,)](
                q,
                *q.stride()[:2],
                kv,
                kv.stride(0),
                kv.shape[0],
                indices,
                indices.stride(0),
                indices.shape[1],
                tensors["lens"],
                tensors["sink"],
                out,
                *out.stride()[:2],
                tensors["scale"] * LOG2_E.value,
                rows * blocks,
                HEADS=heads,
                HEAD_BLOCKS=blocks,
                **HOPPER_LAUNCH,
                num_warps=hopper.VALUE_WARPS,
            )

    return call


KERNEL = Kernel(
    name="sparse_attention",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"out": Tolerance(rtol=2e-2, atol=2e-2, because="another order of sums; weights rounded to bf16 (6.4)")},
    examples=(
        Shape(rows=5, heads=4, keys=150, columns=256, scanned=150),
        Shape(rows=2, heads=64, keys=300, columns=128, scanned=128),
        Shape(rows=1, heads=128, keys=40, columns=128, scanned=70),
    ),
    providers=(
        torch_provider(reference),
        Provider("triton", build_triton, TRITON),
        Provider("gluon", build_gluon, HOPPER),
    ),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(4096,), cases=("width 640", "width 128")),
)
