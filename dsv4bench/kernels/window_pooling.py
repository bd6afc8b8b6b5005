"""Pooling the tokens of a window into one row in plain torch, for the compressors of ratio 4 and 128 (3.8).

The state of a token, a row of the batch's projection and of the state pool, is kv and score, each `head_dim` wide. At
ratio 4 each comes twice, for windows overlap: first the part for the window of the next group, then that of its own.

    ratio 4    kv_overlap | kv | score_overlap | score             ratio 128    kv | score

A window pools `window` tokens, oldest first; entry i of one that ends at row t of the batch is

    i < buffer_len     row i % ratio of a page of the state pool: page_1, and page_0 for the group before (ratio 4)
    else               row t - (window - 1) + i of the batch

    out = sum over i of kv[i] * softmax over i of (score[i] + ape[i])          channel by channel

The first window of a request at ratio 4, seq_len = 4, has no group before its own: those four entries weigh nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import expect_one_of, expect_tensor
from dsv4bench.kernels.compress_plan import expect_records
from dsv4bench.kernels.compress_ring import OVERLAPPING_RATIO, RATIOS, StateRing, window_tokens
from dsv4bench.kernels.contract import Tensors
from dsv4bench.kernels.layout import HEAD_DIM, INDEX_DIM

FLOATS = (torch.float32, torch.bfloat16)
NOTHING = torch.finfo(torch.float32).min  # the score of an entry that weighs nothing


def state_dim(ratio: int, head_dim: int) -> int:
    """Return the width of a token's state: kv and score, at ratio 4 twice."""
    return head_dim * (4 if ratio == OVERLAPPING_RATIO else 2)


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows to pool, i64 [n] each: length of the request, row of the batch, older tokens, pages of the state pool."""

    seq_len: torch.Tensor
    row: torch.Tensor
    buffer_len: torch.Tensor
    page_0: torch.Tensor
    page_1: torch.Tensor

    def exist(self, ratio: int) -> torch.Tensor:
        """Return bool [n, window]: all entries but those before the first token of a request."""
        entry = torch.arange(window_tokens(ratio), device=self.row.device)
        return (entry >= len(entry) - ratio) | (self.seq_len > ratio)[:, None]

    def stored(self, ratio: int) -> torch.Tensor:
        """Return bool [n, window]: the entries that lie in the state pool."""
        entry = torch.arange(window_tokens(ratio), device=self.row.device)
        return self.exist(ratio) & (entry < self.buffer_len[:, None])

    def pool_rows(self, ratio: int) -> torch.Tensor:
        """Return the rows i64 [n, window] of the state pool of entries that lie there."""
        entry = torch.arange(window_tokens(ratio), device=self.row.device)
        page = torch.where(entry < len(entry) - ratio, self.page_0[:, None], self.page_1[:, None])
        return page * ratio + entry % ratio

    def batch_rows(self, ratio: int) -> torch.Tensor:
        """Return the rows i64 [n, window] of the batch of entries that lie there."""
        window = window_tokens(ratio)
        return self.row[:, None] - (window - 1) + torch.arange(window, device=self.row.device)


def pool_windows(x: torch.Tensor, pool: torch.Tensor, ape: torch.Tensor, ratio: int, windows: Windows) -> torch.Tensor:
    """Return the pooled rows f32 [n, head_dim] of windows over the batch x [rows, width] and the state pool.

    What lies in the pool is rounded to the dtype of `x`; a row that no entry names is not read.
    """
    exist, stored = windows.exist(ratio), windows.stored(ratio)
    fresh, before = exist & ~stored, exist.shape[1] - ratio
    states = torch.zeros(*exist.shape, x.shape[1], device=x.device)
    states[stored] = pool.flatten(0, 1)[windows.pool_rows(ratio)[stored]].to(x.dtype).float()
    states[fresh] = x[windows.batch_rows(ratio)[fresh]].float()
    parts = states.unflatten(2, (2, -1, ape.shape[1]))  # kv or score, for the next window or its own
    kv, score = torch.cat([parts[:, :before, :, 0], parts[:, before:, :, -1]], 1).unbind(2)
    score = (score + ape.float()).masked_fill(~exist[:, :, None], NOTHING)
    weight = (score - score.amax(1, keepdim=True)).exp()
    return (kv * weight).sum(1) / weight.sum(1)


def random_states(
    ring: StateRing,
    rows: int,
    head_dim: int,
    dtypes: tuple[torch.dtype, torch.dtype],
    tables: tuple[torch.Tensor, torch.Tensor],
    generator: torch.Generator,
) -> dict[str, Any]:
    """Make x [rows, width], the state pool of a ring over req_to_token and full_to_state, and ape; full of values."""
    device, width = generator.device, state_dim(ring.ratio, head_dim)
    states = ring.ring_size * (len(tables[0]) if ring.by_request else len(tables[1]) // ring.swa_page)
    drawn = {
        "x": torch.randn(rows, width, generator=generator, device=device),
        "pool": torch.randn(states // ring.ratio, ring.ratio, width, generator=generator, device=device),
        "ape": torch.randn(ring.window, head_dim, generator=generator, device=device),
    }
    return {name: value.to(dtypes[name == "pool"]) for name, value in drawn.items()}


def expect_window_arguments(tensors: Tensors) -> None:
    """Raise unless ratio, projection, state pool and position biases have their dtypes, shapes and strides."""
    x, pool, ape, ratio = (tensors[name] for name in ("x", "pool", "ape", "ratio"))
    expect_one_of("ratio", ratio, RATIOS)
    expect_tensor("ape", ape, FLOATS, (window_tokens(ratio), "head_dim"))
    head_dim = ape.shape[1]
    expect_one_of("ape: head_dim", head_dim, (INDEX_DIM, HEAD_DIM))
    width = state_dim(ratio, head_dim)
    expect_tensor("x", x, (ape.dtype,), ("n", width))
    expect_tensor("pool", pool, FLOATS, ("pages", ratio, width))


def expect_compact(tensors: Tensors, plan: str, record_bytes: int) -> None:
    """Raise unless the plan called `plan` holds records of that size, and `out` has a row for each."""
    expect_records(plan, tensors[plan], "plans", record_bytes)
    expect_tensor("out", tensors["out"], FLOATS, (len(tensors[plan]), tensors["ape"].shape[1]))


def expect_windows(windows: Windows, x: torch.Tensor, pool: torch.Tensor, ratio: int) -> None:
    """Raise unless every entry lies in the batch or in the state pool; reads tensors."""
    stored = windows.stored(ratio)
    for name, rows, where, end in (
        ("row of the state pool", windows.pool_rows(ratio), stored, len(pool) * ratio),
        ("row of the batch", windows.batch_rows(ratio), windows.exist(ratio) & ~stored, len(x)),
    ):
        wrong = (where & ((rows < 0) | (rows >= end))).nonzero()
        if len(wrong):
            window, entry = wrong[0].tolist()
            found = int(rows[window, entry])
            raise ValueError(f"window {window}, entry {entry}: {name} {found}, expected 0 to {end - 1}")


def window_traffic(windows: Windows, tensors: Tensors) -> tuple[int, int]:
    """Return FLOPs and bytes read of pooling: kv and score of each entry, the biases once; about 6 FLOPs a value."""
    x, pool, ape, ratio = (tensors[name] for name in ("x", "pool", "ape", "ratio"))
    entries, stored = int(windows.exist(ratio).sum()), int(windows.stored(ratio).sum())
    head_dim = ape.shape[1]
    values = 2 * head_dim * (stored * pool.element_size() + (entries - stored) * x.element_size())
    return 6 * entries * head_dim, values + ape.nbytes
