"""The ratio-2 compressor's pooling as plain torch operations: the "before" of change G (specification 3.6).

Change G put one fused kernel and a ring write-back (`compress_c2`) where these operations were; norm, projection, index
keys and stores follow as kernels of their own. The operations and their order are those of specification 3.6, 54
launches there, but for its gather of the frequency table, which later kernels read themselves. Shapes depend on the
arguments' shapes only and nothing waits for the device, so that a CUDA graph can hold it.

For each row t at position p, live where loc != 0:

    old      = state of p - 1: the previous row of the batch if live, of the same request and at p - 1; else
               ring[req * ring_size + (p - 1) % ring_size]; the sentinel (the ring's last row) where p = 0 or on padding
    pooled   = bf16(sum of kv over (old, t), weighed by the softmax of their scores), channel by channel
    ring     = the last `ring_size` live rows of each request at req * ring_size + p % ring_size, and an empty sentinel
    group_positions = p - p % 2; slots = loc >> 1 where p is odd, else 0

Unlike `compress_c2` it pools every row: rows at even positions and padding get values of no meaning, which the kernels
after it write to slot 0, the dummy.

Shapes: kv and score [T, 512] f32, ring [rows, 1024] f32 (kv, score), positions, req and loc i64 [T]; outputs pooled
[T, 512] bf16, group_positions and slots i64 [T], ring.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import BF16, F32, I64, expect_range, expect_tensor
from dsv4bench.kernels.contract import EXACT, Bench, Cost, Kernel, Tensors, Tolerance, torch_provider
from dsv4bench.kernels.layout import HEAD_DIM
from dsv4bench.kernels.pair_pooling import STATE_DIM, expect_pair_ring


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests as (cached prefix, new rows), padding rows, and the ring's rows a request."""

    requests: tuple[tuple[int, int], ...]
    padding_rows: int
    ring_size: int


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make a packed batch with a ring of rows that earlier chunks parked and an empty sentinel."""
    device = generator.device
    prefix, extend = torch.tensor(shape.requests, device=device).unbind(1)
    req = torch.repeat_interleave(torch.arange(len(extend), device=device), extend)
    positions = torch.arange(len(req), device=device) - (extend.cumsum(0) - extend)[req] + prefix[req]
    rows = len(req) + shape.padding_rows
    ring = torch.randn((len(extend) + 1) * shape.ring_size + 2, STATE_DIM, generator=generator, device=device)
    _clear_sentinel(ring)
    return {
        "kv": torch.randn(rows, HEAD_DIM, generator=generator, device=device),
        "score": torch.randn(rows, HEAD_DIM, generator=generator, device=device),
        "ring": ring,
        "positions": _padded(positions, rows, 0),
        "req": _padded(req, rows, len(extend) - 1),
        "loc": _padded(256 * (req + 1) + positions, rows, 0),
        "ring_size": shape.ring_size,
        "pooled": torch.empty(rows, HEAD_DIM, dtype=torch.bfloat16, device=device),
        "group_positions": torch.empty(rows, dtype=torch.int64, device=device),
        "slots": torch.empty(rows, dtype=torch.int64, device=device),
    }


def _padded(values: torch.Tensor, rows: int, value: int) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, rows - len(values)), value=value)


def reference(
    kv: torch.Tensor,
    score: torch.Tensor,
    ring: torch.Tensor,
    positions: torch.Tensor,
    req: torch.Tensor,
    loc: torch.Tensor,
    ring_size: int,
    pooled: torch.Tensor,
    group_positions: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Pool every row with the state before it, and park the newest rows."""
    if kv.shape[0] == 0:
        return
    pad = loc == 0
    before = (positions - 1).masked_fill(pad, -1)
    parked = ring[_ring_rows(req, before, ring_size)]
    joined = _joined(positions, before, req, pad)
    old_kv = torch.where(joined, kv.roll(1, 0), parked[:, :HEAD_DIM])
    old_score = torch.where(joined, score.roll(1, 0), parked[:, HEAD_DIM:])
    _park(kv, score, ring, positions, req, pad, ring_size)
    weights = torch.stack([old_score, score], 1).softmax(1)
    pooled.copy_((torch.stack([old_kv, kv], 1) * weights).sum(1))
    _place(positions, loc, group_positions, slots)


def _ring_rows(req: torch.Tensor, positions: torch.Tensor, ring_size: int) -> torch.Tensor:
    """Return the ring's rows i64 of positions; -1, the sentinel, for a negative position."""
    rows = req * ring_size + positions % ring_size
    return rows.masked_fill_(positions < 0, -1)


def _joined(positions: torch.Tensor, before: torch.Tensor, req: torch.Tensor, pad: torch.Tensor) -> torch.Tensor:
    """Return bool [T, 1]: the previous row holds the position before, of the same request, and both are live."""
    follows = (positions.roll(1) == before) & (req.roll(1) == req)  # `before` is -1 on padding: no position equals it
    joined = follows & ~pad.roll(1)
    joined[:1].fill_(False)  # the roll brought the last row here (a plain assignment copies a host scalar)
    return joined[:, None]


def _park(
    kv: torch.Tensor,
    score: torch.Tensor,
    ring: torch.Tensor,
    positions: torch.Tensor,
    req: torch.Tensor,
    pad: torch.Tensor,
    ring_size: int,
) -> None:
    """Write the last `ring_size` live rows of each request to the ring; all other rows go to the sentinel."""
    newest = ~pad
    ends = (req[ring_size:] != req[:-ring_size]) | pad[ring_size:]
    newest[:-ring_size].logical_and_(ends)
    kept = positions.masked_fill(~newest, -1)
    ring[_ring_rows(req, kept, ring_size)] = torch.cat([kv, score], 1)
    _clear_sentinel(ring)


def _clear_sentinel(ring: torch.Tensor) -> None:
    ring[-1, :HEAD_DIM].fill_(0)
    ring[-1, HEAD_DIM:].fill_(float("-inf"))


def _place(positions: torch.Tensor, loc: torch.Tensor, group_positions: torch.Tensor, slots: torch.Tensor) -> None:
    """Write the first position of each row's group, and the slot of a complete group (else -1, then the dummy 0)."""
    torch.mul(positions // 2, 2, out=group_positions)
    slot = torch.where(positions % 2 == 1, loc >> 1, -1)
    torch.clamp(slot, min=0, out=slots)


def cost(tensors: Tensors) -> Cost:
    """Count, as the least that this work moves, each row's own and old state read, its result and parked state written.

    About 12 operations a value. The torch operations move about ten times as much.
    """
    rows = tensors["kv"].shape[0]
    read = rows * (2 * 4 * STATE_DIM + 3 * 8)
    return Cost(flops=12 * rows * HEAD_DIM, bytes_read=read, bytes_written=rows * (2 * HEAD_DIM + 2 * 8))


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride, or a wrong ring size."""
    expect_tensor("kv", tensors["kv"], F32, ("n", HEAD_DIM), free_strides=1)
    rows = len(tensors["kv"])
    expect_tensor("score", tensors["score"], F32, (rows, HEAD_DIM), free_strides=1)
    expect_tensor("ring", tensors["ring"], F32, ("rows", STATE_DIM))
    for name in ("positions", "req", "loc", "group_positions", "slots"):
        expect_tensor(name, tensors[name], I64, (rows,))
    expect_tensor("pooled", tensors["pooled"], BF16, (rows, HEAD_DIM))
    expect_pair_ring(tensors["ring_size"], tensors["ring"])


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a request outside the ring, or a position or slot that is negative or that i32 lacks."""
    requests = (len(tensors["ring"]) - 1) // tensors["ring_size"]  # the last row is the sentinel
    expect_range("req", tensors["req"], 0, requests)
    for name in ("positions", "loc"):
        expect_range(name, tensors[name], 0, 2**31)


KERNEL = Kernel(
    name="compress_pool",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={
        "pooled": Tolerance(rtol=2**-6, atol=2**-20, because="exp and division differ (specification 9.1)"),
        "group_positions": EXACT,
        "slots": EXACT,
        "ring": EXACT,
    },
    updates=("ring",),
    examples=(Shape(((0, 5), (7, 12)), 2, 8), Shape(((3, 3), (0, 1)), 0, 2)),
    providers=(torch_provider(reference),),
    check=check,
    check_values=check_values,
    bench=Bench(lambda rows, case: Shape(((8192, rows),), 0, 8), rows=(1024, 8192)),
)
