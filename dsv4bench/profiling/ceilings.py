"""What this device can do at best, measured in the same run: how fast it moves bytes, and how fast it multiplies.

Bytes are moved by elementwise operations of torch, never by a copy: a copy in a CUDA graph takes a slower path. Beside
the large pass, two are measured at the bytes of the kernel that is timed: half read and half written, and at the
kernel's own mix of reads and writes, as near as up to 3 reads to a write or 4 writes to a read come. The faster of
these two is the ceiling of that kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.contract import Call, Cost
from dsv4bench.units import GIB, MIB

VALUE_BYTES = 4  # f32
CHUNK_VALUES = 64  # read once and written several times side by side, so that the reads come from the L1 or the L2
MIXES = ((3, 1), (2, 1), (1, 1), (1, 2), (1, 3), (1, 4))  # values read, values written
LARGE_BYTES = {"cuda": 4 * GIB, "cpu": 16 * MIB}  # of both sides together: 2 GiB read, 2 GiB written
MATMUL_SIZE = {"cuda": 8192, "cpu": 256}


@dataclass(frozen=True, slots=True)
class Mover:
    """An elementwise operation that reads `reads` tensors and writes one, `writes` times as large."""

    reads: int
    writes: int
    chunks: int

    @property
    def bytes_moved(self) -> int:
        """Bytes that one call reads and writes."""
        return (self.reads + self.writes) * self.chunks * CHUNK_VALUES * VALUE_BYTES

    @property
    def read_share(self) -> float:
        """The share of the bytes that are read."""
        return self.reads / (self.reads + self.writes)

    def tensors(self, device: torch.device) -> dict[str, Any]:
        """Allocate the tensors of one call."""
        sources = [torch.ones(self.chunks, 1, CHUNK_VALUES, device=device) for _ in range(self.reads)]
        return {
            "out": torch.empty(self.chunks, self.writes, CHUNK_VALUES, device=device),
            **{f"source_{number}": source for number, source in enumerate(sources)},
        }

    def build(self, tensors: dict[str, Any]) -> Call:
        """Return the call over such tensors."""
        out = tensors["out"]
        a, b, c = ([tensors[f"source_{i}"].expand_as(out) for i in range(self.reads)] * 3)[:3]
        if self.reads == 1:
            return lambda: _done(torch.add(a, 1, out=out))
        if self.reads == 2:
            return lambda: _done(torch.add(a, b, out=out))
        return lambda: _done(torch.addcmul(a, b, c, out=out))


def even_mover(bytes_moved: int) -> Mover:
    """Return the mover of about so many bytes that reads as much as it writes."""
    return _mover((1, 1), bytes_moved)


def mixed_mover(cost: Cost) -> Mover:
    """Return the mover of a kernel's bytes whose share of reads is nearest to the kernel's."""
    share = cost.bytes_read / max(1, cost.bytes_moved)
    return _mover(min(MIXES, key=lambda mix: abs(mix[0] / sum(mix) - share)), cost.bytes_moved)


def large_mover(device: torch.device) -> Mover:
    """Return the mover that shows what the memory gives at best."""
    return even_mover(LARGE_BYTES[device.type])


def matmul(device: torch.device) -> tuple[Call, int]:
    """Return a square bf16 product into a tensor that exists, and its FLOPs."""
    size = MATMUL_SIZE[device.type]
    left, right = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    out = torch.empty_like(left)
    return (lambda: _done(torch.matmul(left, right, out=out))), 2 * size**3


def _mover(mix: tuple[int, int], bytes_moved: int) -> Mover:
    return Mover(*mix, chunks=max(1, round(bytes_moved / (sum(mix) * CHUNK_VALUES * VALUE_BYTES))))


def _done(_: torch.Tensor) -> None:
    """Drop what an operation with `out` returns."""
