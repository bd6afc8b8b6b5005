"""Pooling two tokens into one row in plain torch, and the ring of states it keeps, for the ratio-2 compressors (3.5).

The state of a token is a row of 1024 f32: kv (512) and score (512). Position p of request r is parked in row
r * ring_size + p % ring_size of the ring, whose last row is the sentinel: kv 0, score -inf, the state of no token.
"""

from __future__ import annotations

import torch

from dsv4bench.kernels import codec
from dsv4bench.kernels.arguments import BF16, F32, I64, IDS, expect_at_most, expect_cache, expect_range, expect_tensor
from dsv4bench.kernels.contract import Tensors
from dsv4bench.kernels.layout import HEAD_DIM, ROPE_DIM, KVLayout

STATE_DIM = 2 * HEAD_DIM  # kv and score


def pair_ring_size(drafts: int) -> int:
    """Return the ring rows a request needs for `drafts` drafted tokens, 0 without speculation (specification 3.5).

    The first row of a block reads the row before the block, which its own draft_len = drafts + 1 rows must not meet: a
    power of two of at least draft_len + 1.
    """
    if drafts < 0:
        raise ValueError(f"drafts: {drafts}, expected at least 0")
    return 2 if drafts == 0 else 1 << (drafts + 1).bit_length()


def ring_rows(req: torch.Tensor, positions: torch.Tensor, ring_size: int) -> torch.Tensor:
    """Return the ring's rows i64 of positions of requests."""
    return req * ring_size + positions.long() % ring_size


def pool(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return kv f32 [n, 512] of two states [n, 1024] pooled by the softmax of their scores.

    With d the difference of the scores (old less new) and t = exp(-|d|), the larger score weighs 1, the other t.
    """
    difference = old[:, HEAD_DIM:] - new[:, HEAD_DIM:]
    smaller = (-difference.abs()).exp()
    weight_old = torch.where(difference > 0, 1.0, smaller)
    weight_new = torch.where(difference > 0, smaller, 1.0)
    return (old[:, :HEAD_DIM] * weight_old + new[:, :HEAD_DIM] * weight_new) / (1 + smaller)


def store_pooled(
    pooled: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    freqs: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    page_size: int,
    layout: KVLayout,
) -> torch.Tensor:
    """Store pooled rows f32 [n, 512], normed and rotated at `positions` [n], in `slots` [n]; return latents bf16."""
    latent = codec.rms_norm(pooled.bfloat16(), weight, eps).bfloat16()
    row = codec.rotate_tail(latent, freqs, positions).bfloat16()
    codec.write_compressed(cache, slots, row, page_size, layout)
    return latent


def expect_pair_arguments(tensors: Tensors) -> None:
    """Raise unless the arguments that prefill, decode and verify share have their dtypes, shapes and strides."""
    kv_score, ring_size = tensors["kv_score"], tensors["ring_size"]
    expect_tensor("kv_score", kv_score, F32, ("n", STATE_DIM), free_strides=1)
    rows = kv_score.shape[0]
    expect_tensor("ring", tensors["ring"], F32, ("rows", STATE_DIM))
    expect_tensor("weight", tensors["weight"], BF16, (HEAD_DIM,))
    expect_tensor("freqs", tensors["freqs"], F32, ("positions", ROPE_DIM))
    expect_tensor("positions", tensors["positions"], IDS, (rows,))
    expect_tensor("req", tensors["req"], I64, (rows,))
    expect_tensor("loc", tensors["loc"], IDS, (rows,))
    expect_tensor("latent", tensors["latent"], BF16, (rows, HEAD_DIM))
    expect_cache(tensors["cache"], tensors["layout"], tensors["page_size"])
    expect_pair_ring(ring_size, tensors["ring"])


def expect_pair_ring(ring_size: int, ring: torch.Tensor) -> None:
    """Raise unless the ring size is even, so that even positions keep to even rows, and the ring holds one request."""
    if ring_size < 2 or ring_size % 2:
        raise ValueError(f"ring_size: {ring_size}, expected an even number of at least 2")
    expect_at_most("ring_size", ring_size, len(ring), "the ring has no more rows")


def check_pair_values(tensors: Tensors) -> None:
    """Raise unless every row, padding too, names a position of the table, a request of the ring and a slot."""
    slots = tensors["cache"].shape[0] * tensors["page_size"]
    expect_range("positions", tensors["positions"], 0, tensors["freqs"].shape[0])
    expect_range("req", tensors["req"], 0, tensors["ring"].shape[0] // tensors["ring_size"])
    expect_range("loc", tensors["loc"], 0, 2 * slots)
