"""The compressors of ratio 4 and 128 in a prefill or verify forward: pool windows, then keep states (3.8).

Each record of plan_c pools one window (`window_pooling`) of the batch `x` and the state pool, and leaves the result in
the row of `out` that has the record's number; a record that stands for nothing leaves its row as it is. Then each
record of plan_w copies row ragged_id of the batch to row write_row of the pool. All windows are pooled before the first
row is written: they see the states of earlier forwards, which a write may take the place of.

Records may come in any order (`compress_plan`); no two writes name the same row.

Shapes: x [T, width] f32|bf16, ape [window, head_dim] of the same dtype, plan_c u8 [n, 16], plan_w u8 [m, 8]; outputs
pool [pages, ratio, width] f32|bf16 and out [n, head_dim] f32|bf16. head_dim is 512, or 128 for the indexer; width is
4 * head_dim at ratio 4 and 2 * head_dim at ratio 128.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import expect_at_most, expect_range
from dsv4bench.kernels.compress_plan import (
    MAX_TOKENS,
    PLAN_C_BYTES,
    PLAN_W_BYTES,
    expect_records,
    padded,
    prefill_records,
    read_compressions,
    read_writes,
)
from dsv4bench.kernels.compress_ring import StateRing, paged_tables, ring_size
from dsv4bench.kernels.contract import (
    EXACT,
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
from dsv4bench.kernels.layout import FULL_PAGE, HEAD_DIM, INDEX_DIM
from dsv4bench.kernels.window_pooling import (
    Windows,
    expect_compact,
    expect_window_arguments,
    expect_windows,
    pool_windows,
    random_states,
    window_traffic,
)
from dsv4bench.kernels.window_pooling_triton import pool_window, window_constants

CASES = {"c4": (4, HEAD_DIM), "c4 index": (4, INDEX_DIM), "c128": (128, HEAD_DIM)}
WRITE_WARPS = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests as (cached prefix, new tokens), rows of the batch behind them, the ring, and the rows' channels.

    `dtype` is that of the batch and of the biases, `pool_dtype` that of the state pool.
    """

    requests: tuple[tuple[int, int], ...]
    padding_rows: int
    ring: StateRing
    head_dim: int = HEAD_DIM
    dtype: torch.dtype = torch.float32
    pool_dtype: torch.dtype = torch.float32


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make a batch, its plans as the host makes them, and a state pool; rows behind the requests are NaN."""
    device, ring = generator.device, shape.ring
    prefix, extend = torch.tensor(shape.requests, device=device).unbind(1)
    longest = max(prefix + extend for prefix, extend in shape.requests)
    req, table, places = paged_tables(len(extend), longest, ring.swa_page, generator)
    plan_c, plan_w = prefill_records(ring, req, table, places, prefix + extend, extend)
    tokens = sum(extend for _, extend in shape.requests)
    if shape.padding_rows:
        plan_c, plan_w = (padded(plan, tokens + shape.padding_rows) for plan in (plan_c, plan_w))
    rows, dtypes = tokens + shape.padding_rows, (shape.dtype, shape.pool_dtype)
    made = random_states(ring, rows, shape.head_dim, dtypes, (table, places), generator)
    made["x"][tokens:] = float("nan")
    out = torch.zeros(len(plan_c), shape.head_dim, dtype=shape.dtype, device=device)
    return {**made, "ratio": ring.ratio, "plan_c": plan_c, "plan_w": plan_w, "out": out}


def reference(
    x: torch.Tensor,
    pool: torch.Tensor,
    ape: torch.Tensor,
    ratio: int,
    plan_c: torch.Tensor,
    plan_w: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Pool every window, then keep the states that the plan names."""
    events, writes = read_compressions(plan_c), read_writes(plan_w)
    out[events.valid] = pool_windows(x, pool, ape, ratio, windows_of(plan_c)).to(out.dtype)
    pool.view(-1, x.shape[1])[writes.write_row[writes.valid]] = x[writes.ragged_id[writes.valid]].to(pool.dtype)


def windows_of(plan_c: torch.Tensor) -> Windows:
    """Return the windows of the records that stand for one."""
    *fields, valid = read_compressions(plan_c)
    return Windows(*(field[valid] for field in fields))


def cost(tensors: Tensors) -> Cost:
    """Count each window's states read and its row written, each kept state read and written, and the records read."""
    windows, writes = windows_of(tensors["plan_c"]), read_writes(tensors["plan_w"])
    x, pool, out, kept = tensors["x"], tensors["pool"], tensors["out"], int(writes.valid.sum())
    flops, read = window_traffic(windows, tensors)
    read += kept * x.shape[1] * x.element_size() + tensors["plan_c"].nbytes + tensors["plan_w"].nbytes
    written = len(windows.row) * out.shape[1] * out.element_size() + kept * x.shape[1] * pool.element_size()
    return Cost(flops, read, written)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride, or a batch that a u16 cannot number."""
    expect_window_arguments(tensors)
    expect_at_most("x: rows", len(tensors["x"]), MAX_TOKENS, "ragged_id is a u16")
    expect_compact(tensors, "plan_c", PLAN_C_BYTES)
    expect_records("plan_w", tensors["plan_w"], "writes", PLAN_W_BYTES)


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a record that names a row outside the batch or the state pool."""
    x, pool, ratio = tensors["x"], tensors["pool"], tensors["ratio"]
    expect_windows(windows_of(tensors["plan_c"]), x, pool, ratio)
    writes = read_writes(tensors["plan_w"])
    expect_range("plan_w: ragged_id", writes.ragged_id[writes.valid], 0, len(x))
    expect_range("plan_w: write_row", writes.write_row[writes.valid], 0, len(pool) * ratio)


@triton.jit
def _pool_windows(
    x_ptr,
    pool_ptr,
    ape_ptr,
    plan_ptr,
    out_ptr,
    RATIO: tl.constexpr,
    WINDOW: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    record = tl.program_id(0).to(tl.int64)
    seq_len = tl.load(plan_ptr + record * 4)
    if seq_len == -1:
        return
    ids = tl.load(plan_ptr + record * 4 + 1)
    page_0 = tl.load(plan_ptr + record * 4 + 2)
    page_1 = tl.load(plan_ptr + record * 4 + 3)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    row, buffer_len = ids & 0xFFFF, ids >> 16 & 0xFFFF
    pooled = pool_window(
        x_ptr, pool_ptr, ape_ptr, seq_len, row, buffer_len, page_0, page_1, channel, False, RATIO, WINDOW, HEAD_DIM
    )
    tl.store(out_ptr + record * HEAD_DIM + channel, pooled)


@triton.jit
def _keep_states(x_ptr, pool_ptr, plan_ptr, WIDTH: tl.constexpr):
    record = tl.program_id(0).to(tl.int64)
    row = tl.load(plan_ptr + record * 2)
    if row == -1:
        return
    write_row = tl.load(plan_ptr + record * 2 + 1).to(tl.int64)
    channel = tl.arange(0, WIDTH)
    tl.store(pool_ptr + write_row * WIDTH + channel, tl.load(x_ptr + row.to(tl.int64) * WIDTH + channel))


def build_triton(tensors: Tensors) -> Call:
    """Launch one program for some channels of a window, then one for each kept state."""
    x, pool, ape, out = (tensors[name] for name in ("x", "pool", "ape", "out"))
    events, writes = (tensors[name].view(torch.int32) for name in ("plan_c", "plan_w"))
    constants = window_constants(tensors["ratio"], ape.shape[1])
    grid = (len(events), ape.shape[1] // constants["CHANNELS"])

    def call() -> None:
        if len(events):
            _pool_windows[grid](x, pool, ape, events, out, **constants)
        if len(writes):
            _keep_states[(len(writes),)](x, pool, writes, WIDTH=x.shape[1], num_warps=WRITE_WARPS)

    return call


def bench_shape(rows: int, case: str) -> Shape:
    """Return one request that prefills `rows` tokens behind as long a prefix as c2's."""
    ratio, head_dim = CASES[case]
    return Shape(((8192, rows),), 0, StateRing(ratio, ring_size(ratio, 0), FULL_PAGE), head_dim)


KERNEL = Kernel(
    name="compress_window",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={
        "out": Tolerance(rtol=5e-3, atol=5e-3, because="exp is approximate (specification 3.8)"),
        "pool": EXACT,
    },
    updates=("pool",),
    examples=(
        Shape(((0, 9), (6, 3), (253, 6)), 3, StateRing(4, 8, 256)),
        Shape(((120, 137), (0, 2)), 0, StateRing(128, 128, 256), INDEX_DIM),
        Shape(((13, 12), (2, 2)), 0, StateRing(4, 16, 16), INDEX_DIM, torch.bfloat16),
        Shape(((3, 9), (16, 1)), 1, StateRing(4, 8, 16, request_ring=True), INDEX_DIM, pool_dtype=torch.bfloat16),
        Shape(((127, 1), (250, 8)), 2, StateRing(128, 256, 256), INDEX_DIM, torch.bfloat16),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(1024, 8192), cases=tuple(CASES)),
)
