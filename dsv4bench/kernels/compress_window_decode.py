"""The compressors of ratio 4 and 128 in a decode forward: keep the newest state, then pool its window (3.8).

Request i has row i of the batch and record i of plan_d. The row is copied to row write_row of the state pool; then, if
seq_len is a multiple of the ratio, the window that ends there is pooled (`window_pooling`), all of it from the pool,
into row i of `out`. Other rows of `out` stay as they are. No two requests name the same row or page.

Shapes: x [B, width] f32|bf16, ape [window, head_dim] of the same dtype, plan_d u8 [B, 16]; outputs pool
[pages, ratio, width] f32|bf16 and out [B, head_dim] f32|bf16; head_dim and width as in a prefill (`compress_window`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import expect_range
from dsv4bench.kernels.compress_plan import PLAN_D_BYTES, decode_records, read_decodes
from dsv4bench.kernels.compress_ring import StateRing, paged_tables, ring_size, window_tokens
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


@dataclass(frozen=True, slots=True)
class Shape:
    """Length of each request with its newest token, the ring, the rows' channels, and dtypes of batch and pool."""

    seq_lens: tuple[int, ...]
    ring: StateRing
    head_dim: int = HEAD_DIM
    dtype: torch.dtype = torch.float32
    pool_dtype: torch.dtype = torch.float32


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make requests with one new token each, their plan as the planner makes it, and a state pool."""
    device, ring = generator.device, shape.ring
    seq_lens = torch.tensor(shape.seq_lens, device=device)
    req, table, places = paged_tables(len(seq_lens), max(shape.seq_lens), ring.swa_page, generator)
    dtypes = (shape.dtype, shape.pool_dtype)
    made = random_states(ring, len(seq_lens), shape.head_dim, dtypes, (table, places), generator)
    out = torch.zeros(len(seq_lens), shape.head_dim, dtype=shape.dtype, device=device)
    plan_d = decode_records(ring, req, table, places, seq_lens)
    return {**made, "ratio": ring.ratio, "plan_d": plan_d, "out": out}


def reference(
    x: torch.Tensor, pool: torch.Tensor, ape: torch.Tensor, ratio: int, plan_d: torch.Tensor, out: torch.Tensor
) -> None:
    """Keep every newest state, then pool the windows that are complete."""
    plan = read_decodes(plan_d)
    pool.view(-1, x.shape[1])[plan.write_row] = x.to(pool.dtype)
    windows = complete_windows(plan_d, ratio)
    out[windows.row] = pool_windows(x, pool, ape, ratio, windows).to(out.dtype)


def complete_windows(plan_d: torch.Tensor, ratio: int) -> Windows:
    """Return the windows of the requests whose newest token completes a group: all of each in the state pool."""
    plan = read_decodes(plan_d)
    row = (plan.seq_len % ratio == 0).nonzero().squeeze(1)
    buffer_len = torch.full_like(row, window_tokens(ratio))
    return Windows(plan.seq_len[row], row, buffer_len, plan.read_page_0[row], plan.read_page_1[row])


def cost(tensors: Tensors) -> Cost:
    """Count each row read and kept, the records read, and each complete window's states read and its row written.

    A window's newest state is counted twice, as a row of the batch and as one of the pool.
    """
    x, pool, out = tensors["x"], tensors["pool"], tensors["out"]
    windows = complete_windows(tensors["plan_d"], tensors["ratio"])
    flops, read = window_traffic(windows, tensors)
    written = len(windows.row) * out.shape[1] * out.element_size() + x.numel() * pool.element_size()
    return Cost(flops, read + x.nbytes + tensors["plan_d"].nbytes, written)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride."""
    expect_window_arguments(tensors)
    expect_compact(tensors, "plan_d", PLAN_D_BYTES)
    if len(tensors["x"]) != len(tensors["plan_d"]):
        raise ValueError(f"plan_d: {len(tensors['plan_d'])} records, expected one for each of {len(tensors['x'])} rows")


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a record without a token, or one that names a row outside the state pool."""
    pool, ratio, plan = tensors["pool"], tensors["ratio"], read_decodes(tensors["plan_d"])
    expect_range("plan_d: seq_len", plan.seq_len, 1, 2**31)
    expect_range("plan_d: write_row", plan.write_row, 0, len(pool) * ratio)
    expect_windows(complete_windows(tensors["plan_d"], ratio), tensors["x"], pool, ratio)


@triton.jit
def _compress_window_decode(
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
    row = tl.program_id(0).to(tl.int64)
    seq_len = tl.load(plan_ptr + row * 4)
    write_row = tl.load(plan_ptr + row * 4 + 1).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    PARTS: tl.constexpr = 2 if WINDOW == RATIO else 4
    for part in tl.static_range(PARTS):
        at = part * HEAD_DIM + channel
        tl.store(pool_ptr + write_row * (PARTS * HEAD_DIM) + at, tl.load(x_ptr + row * (PARTS * HEAD_DIM) + at))
    if seq_len % RATIO == 0:
        page_0 = tl.load(plan_ptr + row * 4 + 2)
        page_1 = tl.load(plan_ptr + row * 4 + 3)
        pooled = pool_window(
            x_ptr, pool_ptr, ape_ptr, seq_len, row, WINDOW - 1, page_0, page_1, channel, True, RATIO, WINDOW, HEAD_DIM
        )
        tl.store(out_ptr + row * HEAD_DIM + channel, pooled)


def build_triton(tensors: Tensors) -> Call:
    """Launch one program for some channels of a request."""
    x, pool, ape, out = (tensors[name] for name in ("x", "pool", "ape", "out"))
    words = tensors["plan_d"].view(torch.int32)
    constants = window_constants(tensors["ratio"], ape.shape[1])
    grid = (len(x), ape.shape[1] // constants["CHANNELS"])

    def call() -> None:
        if len(x):
            _compress_window_decode[grid](x, pool, ape, words, out, **constants)

    return call


def bench_shape(rows: int, case: str) -> Shape:
    """Return `rows` requests of consecutive lengths: one in `ratio` of them completes a group."""
    ratio, head_dim = CASES[case]
    return Shape(tuple(range(1024, 1024 + rows)), StateRing(ratio, ring_size(ratio, 0), FULL_PAGE), head_dim)


KERNEL = Kernel(
    name="compress_window_decode",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={
        "out": Tolerance(rtol=5e-3, atol=5e-3, because="exp is approximate (specification 3.8)"),
        "pool": EXACT,
    },
    updates=("pool",),
    examples=(
        Shape((4, 5, 8, 260), StateRing(4, 8, 256)),
        Shape((128, 129, 256), StateRing(128, 256, 256), INDEX_DIM),
        Shape((4, 12, 3), StateRing(4, 16, 16), INDEX_DIM, torch.bfloat16),
        Shape((8, 16, 1), StateRing(4, 8, 16, request_ring=True), INDEX_DIM, pool_dtype=torch.bfloat16),
        Shape((127, 384), StateRing(128, 128, 256), INDEX_DIM, torch.bfloat16),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(64, 512), cases=tuple(CASES)),
)
