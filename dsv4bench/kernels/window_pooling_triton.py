"""Pooling the tokens of a window as a Triton device function, shared by prefill and decode (specification 3.8).

A program has one window and CHANNELS of its channels: 4096 values of kv and as many of score at once. A batch of few
windows, as at ratio 128, is so spread over the device.
"""

from __future__ import annotations

from typing import Any

from dsv4bench.kernels.compress_ring import window_tokens
from dsv4bench.kernels.jit import tl, triton

WINDOW_WARPS = 8
PROGRAM_VALUES = 4096


def window_constants(ratio: int, head_dim: int) -> dict[str, Any]:
    """Return the constexpr arguments of a kernel that pools windows, its warps too."""
    channels = min(PROGRAM_VALUES // window_tokens(ratio), head_dim)
    sizes = {"RATIO": ratio, "WINDOW": window_tokens(ratio), "HEAD_DIM": head_dim, "CHANNELS": channels}
    return {**sizes, "num_warps": WINDOW_WARPS}


@triton.jit
def pool_window(
    x_ptr,
    pool_ptr,
    ape_ptr,
    seq_len,
    row,
    buffer_len,
    page_0,
    page_1,
    channel,
    PARKED: tl.constexpr,
    RATIO: tl.constexpr,
    WINDOW: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Return the pooled row f32 [C] of one window at channels [C].

    `PARKED` says that rows of the batch lie in the state pool already, rounded to its dtype: they are read from the
    batch none the less, so that no thread waits for another's store.
    """
    BEFORE: tl.constexpr = WINDOW - RATIO  # entries of the group before, which has its own part of a state
    SCORE: tl.constexpr = HEAD_DIM if BEFORE == 0 else 2 * HEAD_DIM
    entry = tl.arange(0, WINDOW)
    exists = entry >= tl.where(seq_len > RATIO, 0, BEFORE)
    stored = (exists & (entry < buffer_len))[:, None]
    fresh = (exists & (entry >= buffer_len))[:, None]
    page = tl.where(entry < BEFORE, page_0, page_1).to(tl.int64)
    part = tl.where(entry < BEFORE, 0, SCORE - HEAD_DIM)
    old = (page * RATIO + entry % RATIO) * (2 * SCORE) + part
    new = (row.to(tl.int64) - (WINDOW - 1) + entry) * (2 * SCORE) + part
    old_ptr = pool_ptr + old[:, None] + channel[None, :]
    new_ptr = x_ptr + new[:, None] + channel[None, :]
    kv_old = tl.load(old_ptr, mask=stored, other=0.0)
    score_old = tl.load(old_ptr + SCORE, mask=stored, other=0.0)
    kv_new = tl.load(new_ptr, mask=fresh, other=0.0)
    score_new = tl.load(new_ptr + SCORE, mask=fresh, other=0.0)
    if PARKED:
        kv_new = kv_new.to(kv_old.dtype).to(x_ptr.dtype.element_ty)
        score_new = score_new.to(score_old.dtype).to(x_ptr.dtype.element_ty)
    kv = tl.where(stored, kv_old.to(kv_new.dtype), kv_new).to(tl.float32)
    score = tl.where(stored, score_old.to(score_new.dtype), score_new).to(tl.float32)
    score += tl.load(ape_ptr + entry[:, None] * HEAD_DIM + channel[None, :]).to(tl.float32)
    score = tl.where(exists[:, None], score, -3.4028234663852886e38)
    weight = tl.exp(score - tl.max(score, axis=0)[None, :])
    return tl.sum(kv * weight, axis=0) / tl.sum(weight, axis=0)
