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
+ p % ring_size. That is a second launch: a chunk that begins odd and ends even reads the ring row that it overwrites.

Shapes: kv_score [T, 1024] f32 (row stride free), ring [rows, 1024] f32, weight [512] bf16, eps an f32 number, freqs
[M, 64] f32 (cosine, sine interleaved), positions and req i64 [T], loc i64 [T] (full slots, 0 on padding), starts and
lens i32 [S] (first row and rows of each request; a length may be 0); outputs latent [T, 512] bf16, cache u8 [pages,
page_bytes], ring.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels import codec
from dsv4bench.kernels.arguments import expect_cache
from dsv4bench.kernels.contract import EXACT, TRITON, Call, Cost, Kernel, Provider, Tensors, Tolerance, torch_provider
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import HEAD_DIM, LAYOUTS, ROPE_DIM, KVLayout
from dsv4bench.kernels.paged_triton import paged_constants, store_compressed_rows
from dsv4bench.kernels.row_triton import rms_norm, rotate_tail, round_bf16

STATE_DIM = 2 * HEAD_DIM  # kv and score
ROW = tl.constexpr(HEAD_DIM)
STATE = tl.constexpr(STATE_DIM)


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
    normed = codec.rms_norm(pool(old, kv_score[rows]).bfloat16(), weight, eps).bfloat16()
    latent[rows] = normed
    row = codec.rotate_tail(normed, freqs, positions[rows] - 1).bfloat16()
    codec.write_compressed(cache, loc[rows] >> 1, row, page_size, layout)
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


def pool(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return kv f32 [n, 512] of two states [n, 1024] pooled by the softmax of their scores."""
    difference = old[:, HEAD_DIM:] - new[:, HEAD_DIM:]
    smaller = (-difference.abs()).exp()
    weight_old = torch.where(difference > 0, 1.0, smaller)
    weight_new = torch.where(difference > 0, smaller, 1.0)
    return (old[:, :HEAD_DIM] * weight_old + new[:, :HEAD_DIM] * weight_new) / (1 + smaller)


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
    written = pooled * (2 * HEAD_DIM + layout.row_bytes) + parked * 4 * STATE_DIM
    return Cost(flops=28 * pooled * HEAD_DIM, bytes_read=read, bytes_written=written)


@triton.jit
def _pool_and_store(
    kv_score_ptr,
    kv_score_stride,
    ring_ptr,
    weight_ptr,
    eps,
    freqs_ptr,
    positions_ptr,
    req_ptr,
    loc_ptr,
    cache_ptr,
    latent_ptr,
    RING: tl.constexpr,
    LAYOUT: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    loc = tl.load(loc_ptr + row)
    position = tl.load(positions_ptr + row)
    if (loc == 0) | (position % 2 == 0):
        return
    req = tl.load(req_ptr + row)
    exists = row > 0
    req_before = tl.load(req_ptr + row - 1, mask=exists, other=-1)
    position_before = tl.load(positions_ptr + row - 1, mask=exists, other=-1)
    loc_before = tl.load(loc_ptr + row - 1, mask=exists, other=0)
    here = (loc_before != 0) & (req_before == req) & (position_before == position - 1)
    parked = req * RING + (position - 1) % RING
    new_ptr = kv_score_ptr + row * kv_score_stride
    old_ptr = tl.where(here, new_ptr - kv_score_stride, ring_ptr + parked * STATE)
    channel = tl.arange(0, ROW)[None, :]
    kv_new = tl.load(new_ptr + channel)
    score_new = tl.load(new_ptr + ROW + channel)
    kv_old = tl.load(old_ptr + channel)
    score_old = tl.load(old_ptr + ROW + channel)
    difference = score_old - score_new
    smaller = tl.exp(tl.abs(difference) * -1.0)
    weight_old = tl.where(difference > 0, 1.0, smaller)
    weight_new = tl.where(difference > 0, smaller, 1.0)
    pooled = round_bf16((kv_old * weight_old + kv_new * weight_new) / (1.0 + smaller))
    weight = tl.load(weight_ptr + tl.arange(0, ROW)).to(tl.float32)
    latent = round_bf16(rms_norm(pooled, weight, eps))
    tl.store(latent_ptr + row * ROW + channel, latent.to(tl.bfloat16))
    one = tl.arange(0, 1)
    live = one == 0
    rotated = round_bf16(rotate_tail(latent, freqs_ptr, position - 1 + one, live, False))
    store_compressed_rows(cache_ptr, (loc >> 1) + one, live, rotated, LAYOUT, PAGE_SIZE, PAGE_BYTES)


@triton.jit
def _park(
    kv_score_ptr, kv_score_stride, ring_ptr, positions_ptr, req_ptr, loc_ptr, starts_ptr, lens_ptr, RING: tl.constexpr
):
    back = tl.program_id(0)
    length = tl.load(lens_ptr + tl.program_id(1))
    if back >= length:
        return
    row = (tl.load(starts_ptr + tl.program_id(1)) + length - 1 - back).to(tl.int64)
    if tl.load(loc_ptr + row) == 0:
        return
    slot = tl.load(req_ptr + row) * RING + tl.load(positions_ptr + row) % RING
    channel = tl.arange(0, STATE)
    tl.store(ring_ptr + slot * STATE + channel, tl.load(kv_score_ptr + row * kv_score_stride + channel))


def build_triton(tensors: Tensors) -> Call:
    """Launch one program a row to pool and store, then one a ring row and request to park."""
    kv_score, ring = tensors["kv_score"], tensors["ring"]
    positions, req, loc = tensors["positions"], tensors["req"], tensors["loc"]
    starts, lens, ring_size = tensors["starts"], tensors["lens"], tensors["ring_size"]
    expect_cache(tensors["cache"], tensors["layout"], tensors["page_size"])
    constants = paged_constants(tensors["layout"], tensors["page_size"])

    def call() -> None:
        if kv_score.shape[0] == 0:
            return
        _pool_and_store[(kv_score.shape[0],)](
            kv_score,
            kv_score.stride(0),
            ring,
            tensors["weight"],
            tensors["eps"],
            tensors["freqs"],
            positions,
            req,
            loc,
            tensors["cache"],
            tensors["latent"],
            RING=ring_size,
            **constants,
            num_warps=2,
        )
        _park[(ring_size, len(starts))](
            kv_score, kv_score.stride(0), ring, positions, req, loc, starts, lens, RING=ring_size, num_warps=2
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
            share=0.999, gaps=codec.compressed_code_gaps, because="a latent that moved by one step may change its code"
        ),
        "ring": EXACT,
    },
    examples=(
        Shape(((0, 5), (7, 4)), 2, 8, "fp4", 128),
        Shape(((3, 3), (0, 1), (1, 1)), 0, 2, "v41", 2),
        Shape(((6, 4),), 1, 4, "v4", 64),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
)
