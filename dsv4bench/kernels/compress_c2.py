"""The ratio-2 compressor, prefill: pool two tokens into one row, store it; park the newest tokens (specification 3.5).

A row of kv_score holds kv (512) and score (512): the state of a token. For each live row (loc != 0) at an odd position
p, with the state of p - 1 as its partner, the old one:

    d      = score_old - score_new, t = exp(-|d|)               a softmax of two, channel by channel
    pooled = bf16((kv_old * w_old + kv_new * w_new) / (1 + t))  the larger score weighs 1, the other t
    latent = bf16(pooled / sqrt(mean(pooled^2) + eps) * weight)
    row    = bf16(latent rotated at p - 1)                      stored at slot loc >> 1, as `compress_c1` stores

The partner is the previous row of the batch if that is live, of the same request and at p - 1. Otherwise an earlier
chunk parked it in `ring`, at row req * ring_size + (p - 1) % ring_size. Rows at even positions pool nothing, and their
latents stay untouched. Then the last `ring_size` rows of each request are parked, padding apart, at row req * ring_size
+ p % ring_size. A chunk that begins odd and ends even reads the ring row that it overwrites; only its first row does,
so one program has both, and one launch is enough. A request has one run of rows; every live row belongs to one.

Shapes: kv_score [T, 1024] f32 (row stride free), ring [rows, 1024] f32, weight [512] bf16, eps an f32 number, freqs
[M, 64] f32 (cosine, sine interleaved), positions i32|i64 [T], req i64 [T], loc i32|i64 [T] (full slots, 0 on padding),
starts and lens i32 [S] (first row and rows of each request; a length may be 0); outputs latent [T, 512] bf16, cache u8
[pages, page_bytes], ring.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import I32, expect_range, expect_tensor
from dsv4bench.kernels.contract import TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, Tolerance, torch_provider
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import HEAD_DIM, LAYOUTS, ROPE_DIM, KVLayout
from dsv4bench.kernels.paged import compressed_code_gaps
from dsv4bench.kernels.paged_triton import paged_constants
from dsv4bench.kernels.pair_pooling import STATE_DIM, check_pair_values, expect_pair_arguments, pool, store_pooled
from dsv4bench.kernels.pair_pooling_triton import (
    PAIR_WARPS,
    STATE,
    begins_a_request,
    load_state,
    park_newest,
    pool_pair,
    store_pooled_row,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests as (cached prefix, new rows), padding rows, ring rows a request, the cache's layout and page size."""

    requests: tuple[tuple[int, int], ...]
    padding_rows: int
    ring_size: int
    layout: str
    page_size: int


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make a packed batch; its full slots are scattered pairs, its ring holds rows that earlier chunks parked."""
    device, layout = generator.device, LAYOUTS[shape.layout]
    prefix, extend = torch.tensor(shape.requests, device=device).unbind(1)
    rows = int(extend.sum()) + shape.padding_rows
    starts = extend.cumsum(0) - extend
    req = torch.repeat_interleave(torch.arange(len(extend), device=device), extend)
    positions = torch.arange(len(req), device=device) - starts[req] + prefix[req]
    pairs = int((prefix + extend).max() + 1) // 2  # pooled rows of the longest request
    pages = pairs * len(extend) // shape.page_size + 1
    pooled_slots = 1 + torch.randperm(pages * shape.page_size - 1, generator=generator, device=device)
    loc = 2 * pooled_slots[req * pairs + positions // 2] + positions % 2
    angles = 7 * torch.rand(2 * pairs, ROPE_DIM // 2, generator=generator, device=device)
    cache_shape = (pages, layout.page_bytes(shape.page_size))
    ring_rows = (len(extend) + 1) * shape.ring_size + 2
    return {
        "kv_score": torch.randn(rows, STATE_DIM, generator=generator, device=device),
        "ring": torch.randn(ring_rows, STATE_DIM, generator=generator, device=device),
        "weight": (1 + 0.1 * torch.randn(HEAD_DIM, generator=generator, device=device)).bfloat16(),
        "eps": 1e-20,
        "freqs": torch.stack([angles.cos(), angles.sin()], -1).flatten(1),
        "positions": _padded(positions, rows, 0),
        "req": _padded(req, rows, len(extend) - 1),
        "loc": _padded(loc, rows, 0),
        "starts": starts.int(),
        "lens": extend.int(),
        "ring_size": shape.ring_size,
        "cache": torch.randint(256, cache_shape, generator=generator, device=device, dtype=torch.uint8),
        "page_size": shape.page_size,
        "layout": layout,
        "latent": torch.zeros(rows, HEAD_DIM, dtype=torch.bfloat16, device=device),
    }


def _padded(values: torch.Tensor, rows: int, value: int) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, rows - len(values)), value=value)


def reference(
    kv_score: torch.Tensor,
    ring: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    freqs: torch.Tensor,
    positions: torch.Tensor,
    req: torch.Tensor,
    loc: torch.Tensor,
    starts: torch.Tensor,
    lens: torch.Tensor,
    ring_size: int,
    cache: torch.Tensor,
    page_size: int,
    layout: KVLayout,
    latent: torch.Tensor,
) -> None:
    """Pool the live odd rows with their partners, store them, then park the newest rows."""
    rows = pooling_rows(positions, loc)
    old = partners(rows, kv_score, ring, positions, req, loc, ring_size)
    pooled = pool(old, kv_score[rows])
    slots = loc[rows] >> 1
    latent[rows] = store_pooled(pooled, weight, eps, freqs, positions[rows] - 1, slots, cache, page_size, layout)
    newest = parked_rows(loc, starts, lens, ring_size)
    ring[req[newest] * ring_size + positions[newest] % ring_size] = kv_score[newest]


def pooling_rows(positions: torch.Tensor, loc: torch.Tensor) -> torch.Tensor:
    """Return the rows i64 that pool: live and at an odd position."""
    return ((loc != 0) & (positions % 2 == 1)).nonzero().squeeze(1)


def partners(
    rows: torch.Tensor,
    kv_score: torch.Tensor,
    ring: torch.Tensor,
    positions: torch.Tensor,
    req: torch.Tensor,
    loc: torch.Tensor,
    ring_size: int,
) -> torch.Tensor:
    """Return kv and score [n, 1024] of the position before each of `rows` [n]: from the batch, else from the ring."""
    before = (rows - 1).clamp(min=0)  # row 0 meets itself, at a position that is not the one before
    here = (loc[before] != 0) & (req[before] == req[rows]) & (positions[before] == positions[rows] - 1)
    parked = ring[req[rows] * ring_size + (positions[rows] - 1) % ring_size]
    return torch.where(here[:, None], kv_score[before], parked)


def parked_rows(loc: torch.Tensor, starts: torch.Tensor, lens: torch.Tensor, ring_size: int) -> torch.Tensor:
    """Return the rows i64 that are parked: the last `ring_size` of each request, without padding."""
    back = torch.arange(ring_size, device=loc.device)
    rows = (starts + lens - 1)[:, None] - back
    rows = rows[back < lens[:, None]].long()
    return rows[loc[rows] != 0]


def cost(tensors: Tensors) -> Cost:
    """Count two states read and a latent and a slot written for each pooled row, and a state moved for each parked one.

    About 12 operations a value to pool, 4 for the norm, 12 for quantising.
    """
    loc, layout = tensors["loc"], tensors["layout"]
    pooled = len(pooling_rows(tensors["positions"], loc))
    parked = len(parked_rows(loc, tensors["starts"], tensors["lens"], tensors["ring_size"]))
    read = (2 * pooled + parked) * 4 * STATE_DIM + pooled * 4 * ROPE_DIM + 2 * HEAD_DIM + len(loc) * 3 * 8
    written = pooled * (2 * HEAD_DIM + layout.used_bytes) + parked * 4 * STATE_DIM
    return Cost(flops=28 * pooled * HEAD_DIM, bytes_read=read, bytes_written=written)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape, stride, page or ring size."""
    expect_pair_arguments(tensors)
    expect_tensor("starts", tensors["starts"], I32, ("requests",))
    expect_tensor("lens", tensors["lens"], I32, (len(tensors["starts"]),))


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a slot, request or position out of range, or a request whose rows are not in the batch."""
    check_pair_values(tensors)
    lens, end = tensors["lens"], len(tensors["loc"]) + 1
    starts = tensors["starts"].where(lens > 0, 0)  # the start of a request without rows may be anything
    expect_range("lens", lens, 0, end)
    expect_range("starts", starts, 0, end)
    expect_range("starts + lens", starts + lens, 0, end)


@triton.jit
def _compress_c2(
    kv_score_ptr,
    kv_score_stride,
    ring_ptr,
    weight_ptr,
    eps,
    freqs_ptr,
    positions_ptr,
    req_ptr,
    loc_ptr,
    starts_ptr,
    lens_ptr,
    cache_ptr,
    latent_ptr,
    requests,
    RING: tl.constexpr,
    LAYOUT: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
):
    """The first programs have a request each, its first row and its newest rows; then every other row has one.

    Of a request's rows only the first may read the ring, so the program that overwrites the ring has read it before.
    """
    program = tl.program_id(0)
    has_request = program < requests
    length = tl.load(lens_ptr + program, mask=has_request, other=0)
    if has_request & (length == 0):
        return
    start = tl.load(starts_ptr + program, mask=has_request, other=0)
    row = tl.where(has_request, start, program - requests).to(tl.int64)
    loc = tl.load(loc_ptr + row).to(tl.int64)
    position = tl.load(positions_ptr + row).to(tl.int64)
    req = tl.load(req_ptr + row)
    exists = row > 0
    req_before = tl.load(req_ptr + row - 1, mask=exists, other=-1)
    position_before = tl.load(positions_ptr + row - 1, mask=exists, other=-1)
    loc_before = tl.load(loc_ptr + row - 1, mask=exists, other=0)
    here = (loc_before != 0) & (req_before == req) & (position_before == position - 1)
    pools = (loc != 0) & (position % 2 == 1)
    if pools & (here == 0) & (has_request == 0):
        pools = begins_a_request(row, starts_ptr, lens_ptr, requests) == 0  # another program has that row
    if pools:
        parked = req * RING + (position - 1) % RING
        new_ptr = kv_score_ptr + row * kv_score_stride
        old_ptr = tl.where(here, new_ptr - kv_score_stride, ring_ptr + parked * STATE)
        kv_new, score_new = load_state(new_ptr)
        kv_old, score_old = load_state(old_ptr)
        pooled = pool_pair(kv_old, score_old, kv_new, score_new)
        store_pooled_row(
            pooled,
            row,
            position - 1,
            loc >> 1,
            weight_ptr,
            eps,
            freqs_ptr,
            cache_ptr,
            latent_ptr,
            LAYOUT,
            PAGE_SIZE,
            PAGE_BYTES,
        )
    if has_request:
        tl.debug_barrier()  # every thread has read the ring
        park_newest(kv_score_ptr, kv_score_stride, ring_ptr, positions_ptr, req, loc_ptr, row, length, RING)


def build_triton(tensors: Tensors) -> Call:
    """Launch one program a request, which pools its first row and parks its newest, and one a row for the others."""
    kv_score, starts = tensors["kv_score"], tensors["starts"]
    rows, requests = kv_score.shape[0], len(starts)
    constants = paged_constants(tensors["layout"], tensors["page_size"])

    def call() -> None:
        if rows:
            _compress_c2[(rows + requests,)](
                kv_score,
                kv_score.stride(0),
                *(tensors[name] for name in ("ring", "weight", "eps", "freqs", "positions", "req", "loc")),
                starts,
                *(tensors[name] for name in ("lens", "cache", "latent")),
                requests,
                RING=tensors["ring_size"],
                **constants,
                num_warps=PAIR_WARPS,
            )

    return call


KERNEL = Kernel(
    name="compress_c2",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={
        "latent": Tolerance(rtol=2**-6, atol=2**-20, because="exp, and the order of the sum (specification 9.1)"),
        "cache": Tolerance(
            share=0.999, gaps=compressed_code_gaps, because="a latent that moved by one step may change its code"
        ),
        "ring": Tolerance(because="states are copied"),
    },
    updates=("ring",),
    examples=(
        Shape(((0, 5), (7, 4)), 2, 8, "fp4", 128),
        Shape(((3, 3), (0, 1), (1, 1)), 0, 2, "v41", 2),
        Shape(((6, 4),), 1, 4, "v4", 64),
        Shape(((3, 2), (2, 2)), 0, 4, "v41_new", 2),
        Shape(((0, 3),), 1, 2, "fp4_new", 128),
        Shape(((1, 3),), 0, 2, "uniform", 64),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(lambda rows, kv: Shape(((8192, rows),), 0, 8, kv, 128), (1024, 8192), ("v4", "v41", "fp4")),
)
