"""Pooling two tokens into one row as Triton device functions, shared by the ratio-2 compressors (specification 3.5).

Prefill, decode and verify must agree bit for bit: each gives a program one row, [1, 512], and launches it with
`PAIR_WARPS`, so that the sum of the norm is taken in one order.
"""

from __future__ import annotations

from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import HEAD_DIM
from dsv4bench.kernels.paged_triton import store_compressed_rows
from dsv4bench.kernels.pair_pooling import STATE_DIM
from dsv4bench.kernels.row_triton import rms_norm, rotate_tail, round_bf16

PAIR_WARPS = 2
ROW = tl.constexpr(HEAD_DIM)
STATE = tl.constexpr(STATE_DIM)


@triton.jit
def load_state(ptr):
    """Return kv and score, both f32 [1, 512], of the state at a pointer."""
    channel = tl.arange(0, ROW)[None, :]
    return tl.load(ptr + channel), tl.load(ptr + ROW + channel)


@triton.jit
def pool_pair(kv_old, score_old, kv_new, score_new):
    """Return the kv of two states pooled by the softmax of their scores, rounded to bf16; the FMA is pinned."""
    difference = score_old - score_new
    smaller = tl.exp(tl.abs(difference) * -1.0)
    weight_old = tl.where(difference > 0, 1.0, smaller)
    weight_new = tl.where(difference > 0, smaller, 1.0)
    return round_bf16(tl.fma(kv_old, weight_old, kv_new * weight_new) / (1.0 + smaller))


@triton.jit
def store_pooled_row(
    pooled,
    row,
    position,
    slot,
    weight_ptr,
    eps,
    freqs_ptr,
    cache_ptr,
    latent_ptr,
    LAYOUT: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
):
    """Write the latent of a pooled row [1, 512] to row `row`, and store it, rotated at `position`, in slot `slot`."""
    weight = tl.load(weight_ptr + tl.arange(0, ROW)).to(tl.float32)
    latent = round_bf16(rms_norm(pooled, weight, eps))
    tl.store(latent_ptr + row * ROW + tl.arange(0, ROW)[None, :], latent.to(tl.bfloat16))
    one = tl.arange(0, 1)
    live = one == 0
    rotated = rotate_tail(latent, freqs_ptr, position + one, live, False, ROUND=True)
    store_compressed_rows(cache_ptr, slot + one, live, rotated, LAYOUT, PAGE_SIZE, PAGE_BYTES)


@triton.jit
def begins_a_request(row, starts_ptr, lens_ptr, requests):
    """Return as i32 whether some request's rows begin at `row`."""
    found = 0
    for begin in range(0, requests, 64):
        column = begin + tl.arange(0, 64)
        length = tl.load(lens_ptr + column, mask=column < requests, other=0)
        start = tl.load(starts_ptr + column, mask=column < requests, other=-1)
        found += tl.max(((start == row) & (length > 0)).to(tl.int32), axis=0)
    return found


@triton.jit
def park_newest(
    kv_score_ptr, kv_score_stride, ring_ptr, positions_ptr, req, loc_ptr, start, length, RING: tl.constexpr
):
    """Copy a request's last `RING` rows, padding apart, to their rows of the ring."""
    channel = tl.arange(0, STATE)
    for back in tl.static_range(RING):
        row = start + length - 1 - back
        inside = length - back > 0
        kept = inside & (tl.load(loc_ptr + row, mask=inside, other=0) != 0)
        every = channel < tl.where(kept, STATE, 0)
        slot = req * RING + tl.load(positions_ptr + row, mask=kept, other=0).to(tl.int64) % RING
        state = tl.load(kv_score_ptr + row * kv_score_stride + channel, mask=every, other=0.0)
        tl.store(ring_ptr + slot * STATE + channel, state, mask=every)
