"""The ratio-2 compressor, decode and verify: pool a token with the one before, store the row; park (specification 3.5).

A row of kv_score holds kv (512) and score (512): the state of a token. Decode has one row a request, verify blocks of
`draft_len` rows: consecutive positions of one request. For each live row t (loc != 0) at position p:

    p odd    old      = state of p - 1: row t - 1, but for the first row of a block what `ring` holds of p - 1
             pooled   = bf16(kv of old and t, weighed by the softmax of their scores, channel by channel)
             latent   = bf16(pooled / sqrt(mean(pooled^2) + eps) * weight)
             row      = bf16(latent rotated at p - 1)   stored at slot loc >> 1, as `compress_c1` stores
    p even   ring     = the state of t, at row req * ring_size + p % ring_size; nothing else

One launch does both: as ring_size > draft_len, no row of a block is parked where its first row reads. Verify leaves the
same bits as `draft_len` decodes. Drafts that are rejected need no undoing: the next block starts at the first of
their positions. Padding rows do nothing, though their position and request must exist.

Shapes: kv_score [n, 1024] f32 (row stride free, n a multiple of draft_len), ring [rows, 1024] f32, weight [512] bf16,
eps an f32 number, freqs [M, 64] f32 (cosine, sine interleaved), positions and loc i32|i64 [n] (full slots, 0 on
padding), req i64 [n]; outputs latent [n, 512] bf16 (rows at even positions and padding untouched), cache u8 [pages,
page_bytes], ring.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

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
from dsv4bench.kernels.layout import FULL_PAGE, HEAD_DIM, LAYOUTS, ROPE_DIM, KVLayout
from dsv4bench.kernels.paged import compressed_code_gaps
from dsv4bench.kernels.paged_triton import paged_constants
from dsv4bench.kernels.pair_pooling import (
    STATE_DIM,
    check_pair_values,
    expect_pair_arguments,
    pair_ring_size,
    pool,
    ring_rows,
    store_pooled,
)
from dsv4bench.kernels.pair_pooling_triton import PAIR_WARPS, load_state, pool_pair, store_pooled_row

STATE = tl.constexpr(STATE_DIM)


@dataclass(frozen=True, slots=True)
class Shape:
    """The first position of each request's block, rows of a block, padding blocks, ring rows, layout, page size."""

    firsts: tuple[int, ...]
    draft_len: int
    padding_blocks: int
    ring_size: int
    layout: str
    page_size: int
    ids: torch.dtype = torch.int64  # of positions and loc


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make blocks whose full slots are scattered pairs, over a ring of parked rows; padding names request 0."""
    device, layout = generator.device, LAYOUTS[shape.layout]
    requests, length = len(shape.firsts), shape.draft_len
    padding = shape.padding_blocks * length
    rows = requests * length + padding
    req = torch.arange(requests, device=device).repeat_interleave(length)
    positions = (torch.tensor(shape.firsts, device=device)[:, None] + torch.arange(length, device=device)).flatten()
    pairs = (max(shape.firsts) + length) // 2 + 1  # pooled rows of the longest request
    pages = pairs * requests // shape.page_size + 1
    pooled_slots = 1 + torch.randperm(pages * shape.page_size - 1, generator=generator, device=device)
    loc = 2 * pooled_slots[req * pairs + positions // 2] + positions % 2
    angles = 7 * torch.rand(2 * pairs, ROPE_DIM // 2, generator=generator, device=device)
    cache_shape = (pages, layout.page_bytes(shape.page_size))
    ring_shape = ((requests + 1) * shape.ring_size + 2, STATE_DIM)
    pad = torch.nn.functional.pad
    return {
        "kv_score": torch.randn(rows, STATE_DIM, generator=generator, device=device),
        "ring": torch.randn(ring_shape, generator=generator, device=device),
        "weight": (1 + 0.1 * torch.randn(HEAD_DIM, generator=generator, device=device)).bfloat16(),
        "eps": 1e-20,
        "freqs": torch.stack([angles.cos(), angles.sin()], -1).flatten(1),
        "positions": pad(positions, (0, padding)).to(shape.ids),
        "req": pad(req, (0, padding)),
        "loc": pad(loc, (0, padding)).to(shape.ids),
        "ring_size": shape.ring_size,
        "draft_len": length,
        "cache": torch.randint(256, cache_shape, generator=generator, device=device, dtype=torch.uint8),
        "page_size": shape.page_size,
        "layout": layout,
        "latent": torch.zeros(rows, HEAD_DIM, dtype=torch.bfloat16, device=device),
    }


def reference(
    kv_score: torch.Tensor,
    ring: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    freqs: torch.Tensor,
    positions: torch.Tensor,
    req: torch.Tensor,
    loc: torch.Tensor,
    ring_size: int,
    draft_len: int,
    cache: torch.Tensor,
    page_size: int,
    layout: KVLayout,
    latent: torch.Tensor,
) -> None:
    """Pool and store the live rows at odd positions, then park those at even ones."""
    odd, even = live_rows(positions, loc)
    before = positions[odd] - 1
    first = odd % draft_len == 0  # the row before belongs to another request, or to none
    parked = ring[ring_rows(req[odd], before, ring_size)]
    old = torch.where(first[:, None], parked, kv_score[(odd - 1).clamp(min=0)])
    pooled = pool(old, kv_score[odd])
    latent[odd] = store_pooled(pooled, weight, eps, freqs, before, loc[odd] >> 1, cache, page_size, layout)
    ring[ring_rows(req[even], positions[even], ring_size)] = kv_score[even]


def live_rows(positions: torch.Tensor, loc: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the live rows i64 at odd positions, which pool, and those at even positions, which are parked."""
    odd = positions % 2 == 1
    return ((loc != 0) & odd).nonzero().squeeze(1), ((loc != 0) & ~odd).nonzero().squeeze(1)


def cost(tensors: Tensors) -> Cost:
    """Count the state of each live row read, a latent and a slot written for each at an odd position, else a state.

    Where the first row of a block pools, a parked state is read too. About 12 operations a value to pool, 4 for the
    norm, 12 for quantising.
    """
    odd, even = live_rows(tensors["positions"], tensors["loc"])
    states = len(odd) + len(even) + int((odd % tensors["draft_len"] == 0).sum())
    ids = sum(tensors[name].nbytes for name in ("positions", "req", "loc"))
    read = states * 4 * STATE_DIM + len(odd) * 4 * ROPE_DIM + 2 * HEAD_DIM + ids
    written = len(odd) * (2 * HEAD_DIM + tensors["layout"].used_bytes) + len(even) * 4 * STATE_DIM
    return Cost(flops=28 * len(odd) * HEAD_DIM, bytes_read=read, bytes_written=written)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride, or a page, ring or draft that cannot be."""
    expect_pair_arguments(tensors)
    rows, draft_len, ring_size = len(tensors["kv_score"]), tensors["draft_len"], tensors["ring_size"]
    if draft_len < 1 or rows % draft_len:
        raise ValueError(f"draft_len: {draft_len}, expected a divisor of the {rows} rows of kv_score")
    if ring_size <= draft_len:  # the first row of a block reads the row before it, which the block must not park over
        raise ValueError(f"ring_size: {ring_size}, expected more than the draft_len of {draft_len}")


def check_values(tensors: Tensors) -> None:
    """Raise unless ids are in range and the live rows of each block are consecutive positions of one request."""
    check_pair_values(tensors)
    length = tensors["draft_len"]
    live, positions, req = (tensors[name].view(-1, length) for name in ("loc", "positions", "req"))
    broken = (positions.diff(dim=1) != 1) | (req.diff(dim=1) != 0)
    wrong = (broken & (live[:, 1:] != 0)).nonzero()
    if len(wrong):
        block, row = wrong[0].tolist()
        pair = [(int(req[block, at]), int(positions[block, at])) for at in (row, row + 1)]
        raise ValueError(f"positions: row {block * length + row + 1} is {pair[1]} (request, position) after {pair[0]}")


@triton.jit
def _compress_c2_decode(
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
    DRAFT: tl.constexpr,
    LAYOUT: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    loc = tl.load(loc_ptr + row).to(tl.int64)
    position = tl.load(positions_ptr + row).to(tl.int64)
    ring_ptr += tl.load(req_ptr + row) * RING * STATE
    new_ptr = kv_score_ptr + row * kv_score_stride
    kv_new, score_new = load_state(new_ptr)
    if loc == 0:
        return
    if position % 2 == 0:
        channel = tl.arange(0, kv_new.shape[1])[None, :]
        here_ptr = ring_ptr + position % RING * STATE + channel
        tl.store(here_ptr, kv_new)
        tl.store(here_ptr + kv_new.shape[1], score_new)
        return
    old_ptr = tl.where(row % DRAFT == 0, ring_ptr + (position - 1) % RING * STATE, new_ptr - kv_score_stride)
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


def build_triton(tensors: Tensors) -> Call:
    """Launch one program a row."""
    kv_score = tensors["kv_score"]
    names = ("ring", "weight", "eps", "freqs", "positions", "req", "loc", "cache", "latent")
    arguments = (kv_score, kv_score.stride(0), *(tensors[name] for name in names))
    constants = {"RING": tensors["ring_size"], "DRAFT": tensors["draft_len"]}
    constants |= paged_constants(tensors["layout"], tensors["page_size"])

    def call() -> None:
        if kv_score.shape[0]:
            _compress_c2_decode[(kv_score.shape[0],)](*arguments, **constants, num_warps=PAIR_WARPS)

    return call


def bench_shape(rows: int, layout: str) -> Shape:
    """Return blocks of 4 rows, every other one beginning odd; single rows where they do not go into `rows`."""
    length = 1 if rows % 4 else 4
    firsts = tuple(1000 + request for request in range(rows // length))
    return Shape(firsts, length, 0, pair_ring_size(length - 1), layout, FULL_PAGE // 2)


KERNEL = Kernel(
    name="compress_c2_decode",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={
        "latent": Tolerance(rtol=2**-6, atol=2**-20, because="exp, and the order of the sum (specification 9.1)"),
        "cache": Tolerance(
            share=0.999, gaps=compressed_code_gaps, because="a latent that moved by one step may change its code"
        ),
        "ring": EXACT,
    },
    updates=("ring",),
    examples=(
        Shape((5, 8, 1), 1, 1, 2, "fp4", 128),
        Shape((3, 6), 5, 1, 8, "v41", 2, torch.int32),
        Shape((31,), 6, 0, 8, "v4", 64),
        Shape((3, 7), 2, 0, 4, "v41_new", 64),
        Shape((7,), 1, 1, 2, "fp4_new", 2),
        Shape((1,), 3, 0, 4, "uniform", 64),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(64, 512), cases=tuple(LAYOUTS)),
)
