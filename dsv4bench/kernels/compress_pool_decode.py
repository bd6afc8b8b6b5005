"""The ratio-2 compressor's pooling in decode as one launch: what a GPU without the fused kernels runs (3.5, 3.11).

The row of each request is pooled with the state before it; norm, projection, index keys and stores follow as kernels
of their own. On a GPU the bits are those of `compress_pool`, so that decode and prefill agree. For each row t at
position p:

    old             = ring[req * ring_size + (p - 1) % ring_size]; the sentinel (the ring's last row) where p = 0 and on
                      padding (loc = 0)
    e               = exp(score - max) of old and t, each divided by their sum
    pooled          = kv_old * e_old + kv * e_new, each product rounded, then the sum
    ring            = the state of t at req * ring_size + p % ring_size, at odd positions too; nothing on padding
    group_positions = p - p % 2; slots = pair_loc, 0 (the dummy) where that is negative

Rows at even positions and padding get values of no meaning, which the kernels after it write to slot 0.

Shapes: kv and score [n, 512] f32, ring [rows, 1024] f32 (kv, score), positions, loc (full slots) and pair_loc (slots of
complete pairs, else -1) i32|i64 [n], req i64 [n]; outputs pooled [n, 512] f32, group_positions and slots i64 [n], ring.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import F32, I64, IDS, expect_range, expect_tensor
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import libdevice, tl, triton
from dsv4bench.kernels.layout import HEAD_DIM
from dsv4bench.kernels.pair_pooling import STATE_DIM, expect_pair_ring, ring_rows
from dsv4bench.kernels.pair_pooling_triton import load_state

ROW = tl.constexpr(HEAD_DIM)
STATE = tl.constexpr(STATE_DIM)


@dataclass(frozen=True, slots=True)
class Shape:
    """Each request's position, padding rows, the ring's rows a request, and the dtype of positions and slots."""

    positions: tuple[int, ...]
    padding_rows: int
    ring_size: int
    ids: torch.dtype = torch.int64


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make one row a request, a ring of parked rows and an empty sentinel; padding names request 0."""
    device, requests = generator.device, len(shape.positions)
    rows = requests + shape.padding_rows
    pad = torch.nn.functional.pad
    req, positions = torch.arange(requests, device=device), torch.tensor(shape.positions, device=device)
    loc = pad(256 * (req + 1) + positions % 256, (0, shape.padding_rows))
    positions = pad(positions, (0, shape.padding_rows))
    ring = torch.randn((requests + 1) * shape.ring_size + 2, STATE_DIM, generator=generator, device=device)
    ring[-1, :HEAD_DIM], ring[-1, HEAD_DIM:] = 0, float("-inf")
    return {
        "kv": torch.randn(rows, HEAD_DIM, generator=generator, device=device),
        "score": torch.randn(rows, HEAD_DIM, generator=generator, device=device),
        "ring": ring,
        "positions": positions.to(shape.ids),
        "req": pad(req, (0, shape.padding_rows)),
        "loc": loc.to(shape.ids),
        "pair_loc": torch.where((positions % 2 == 1) | (loc == 0), loc >> 1, -1).to(shape.ids),
        "ring_size": shape.ring_size,
        "pooled": torch.empty(rows, HEAD_DIM, device=device),
        "group_positions": torch.empty(rows, dtype=torch.int64, device=device),
        "slots": torch.empty(rows, dtype=torch.int64, device=device),
    }


def reference(
    kv: torch.Tensor,
    score: torch.Tensor,
    ring: torch.Tensor,
    positions: torch.Tensor,
    req: torch.Tensor,
    loc: torch.Tensor,
    pair_loc: torch.Tensor,
    ring_size: int,
    pooled: torch.Tensor,
    group_positions: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Pool every row with the state before it, then park the live ones."""
    alone = (loc == 0) | (positions == 0)
    before = ring_rows(req, positions - 1, ring_size).masked_fill(alone, ring.shape[0] - 1)
    old = ring[before]
    scores = torch.stack([old[:, HEAD_DIM:], score], 1)
    exponentials = (scores - scores.amax(1, keepdim=True)).exp()
    shares = exponentials / exponentials.sum(1, keepdim=True)
    pooled.copy_((torch.stack([old[:, :HEAD_DIM], kv], 1) * shares).sum(1))
    live = loc != 0
    ring[ring_rows(req, positions, ring_size)[live]] = torch.cat([kv, score], 1)[live]
    group_positions.copy_(positions - positions % 2)
    slots.copy_(pair_loc.clamp(min=0))


def cost(tensors: Tensors) -> Cost:
    """Count each row's own and old state and ids read, its pooled row, position and slot written, a live state parked.

    About 10 operations a value.
    """
    rows, live = tensors["kv"].shape[0], int((tensors["loc"] != 0).sum())
    read = rows * 2 * 4 * STATE_DIM + sum(tensors[name].nbytes for name in ("positions", "req", "loc", "pair_loc"))
    written = rows * (4 * HEAD_DIM + 2 * 8) + live * 4 * STATE_DIM
    return Cost(flops=10 * rows * HEAD_DIM, bytes_read=read, bytes_written=written)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride, or a wrong ring size."""
    expect_tensor("kv", tensors["kv"], F32, ("n", HEAD_DIM))
    rows = tensors["kv"].shape[0]
    expect_tensor("score", tensors["score"], F32, (rows, HEAD_DIM))
    expect_tensor("ring", tensors["ring"], F32, ("rows", STATE_DIM))
    for name in ("positions", "loc", "pair_loc"):
        expect_tensor(name, tensors[name], IDS, (rows,))
    expect_tensor("req", tensors["req"], I64, (rows,))
    expect_tensor("pooled", tensors["pooled"], F32, (rows, HEAD_DIM))
    for name in ("group_positions", "slots"):
        expect_tensor(name, tensors[name], I64, (rows,))
    expect_pair_ring(tensors["ring_size"], tensors["ring"])


def check_values(tensors: Tensors) -> None:
    """Raise unless every row names a request of the ring, short of the sentinel, and no negative position or slot."""
    most = torch.iinfo(torch.int64).max
    expect_range("positions", tensors["positions"], 0, most)
    expect_range("loc", tensors["loc"], 0, most)
    expect_range("pair_loc", tensors["pair_loc"], -1, most)
    expect_range("req", tensors["req"], 0, (tensors["ring"].shape[0] - 1) // tensors["ring_size"])


@triton.jit
def _pool_decode(
    kv_ptr,
    score_ptr,
    ring_ptr,
    sentinel,
    positions_ptr,
    req_ptr,
    loc_ptr,
    pair_loc_ptr,
    pooled_ptr,
    group_positions_ptr,
    slots_ptr,
    RING: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(positions_ptr + row).to(tl.int64)
    live = tl.load(loc_ptr + row) != 0
    base = tl.load(req_ptr + row) * RING
    before = tl.where(live & (position > 0), base + (position + RING - 1) % RING, sentinel)
    kv_old, score_old = load_state(ring_ptr + before * STATE)
    channel = tl.arange(0, ROW)[None, :]
    kv = tl.load(kv_ptr + row * ROW + channel)
    score = tl.load(score_ptr + row * ROW + channel)
    if live:
        here_ptr = ring_ptr + (base + position % RING) * STATE + channel
        tl.store(here_ptr, kv)
        tl.store(here_ptr + ROW, score)
    largest = tl.maximum(score_old, score)
    e_old = libdevice.exp(score_old - largest)  # torch's; tl.exp is an approximation
    e_new = libdevice.exp(score - largest)
    total = e_old + e_new
    pooled = kv_old * tl.div_rn(e_old, total) + kv * tl.div_rn(e_new, total)
    tl.store(pooled_ptr + row * ROW + channel, pooled)
    tl.store(group_positions_ptr + row, position - position % 2)
    tl.store(slots_ptr + row, tl.maximum(tl.load(pair_loc_ptr + row).to(tl.int64), 0))


def build_triton(tensors: Tensors) -> Call:
    """Launch one program a row, without FMA contraction: torch rounds both products."""
    rows, sentinel = tensors["kv"].shape[0], tensors["ring"].shape[0] - 1
    names = ("positions", "req", "loc", "pair_loc", "pooled", "group_positions", "slots")
    arguments = (tensors["kv"], tensors["score"], tensors["ring"], sentinel, *(tensors[name] for name in names))

    def call() -> None:
        if rows:
            _pool_decode[(rows,)](*arguments, RING=tensors["ring_size"], num_warps=4, enable_fp_fusion=False)

    return call


KERNEL = Kernel(
    name="compress_pool_decode",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"pooled": EXACT, "group_positions": EXACT, "slots": EXACT, "ring": EXACT},
    updates=("ring",),
    examples=(Shape((5, 4, 0, 1), 2, 2), Shape((8, 7, 33), 1, 8, torch.int32)),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(lambda rows, case: Shape(tuple(range(1000, 1000 + rows)), 0, 2), rows=(64, 512)),
)
