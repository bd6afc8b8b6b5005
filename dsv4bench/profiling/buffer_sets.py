"""Buffer sets: the tensors of one call several times over, so that no call finds its data in the L2 ("cold").

A rotation calls set after set. Its sets together exceed three times the L2, so what a call touched is evicted before
its set comes round again. One set alone, called over and over, is "hot": its data stay in the L2 where they fit.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import torch

from dsv4bench.kernels.contract import Cost
from dsv4bench.units import GIB, KIB, MIB

TIMES_L2 = 3
MOST_SETS = 1024
MOST_BYTES = {"cuda": 16 * GIB, "cpu": 64 * MIB}  # of all sets: a call may touch little of what its tensors hold
CPU_L2 = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
CPU_L2_UNKNOWN_BYTES = 1 * MIB
Tensors = dict[str, Any]


def l2_bytes(device: torch.device) -> int:
    """Return the size of the L2: the GPU's, or a CPU core's (1 MiB where the kernel does not tell)."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    text = CPU_L2.read_text(encoding="ascii") if CPU_L2.exists() else ""
    found = re.fullmatch(r"(\d+)K\s*", text)
    return int(found[1]) * KIB if found else CPU_L2_UNKNOWN_BYTES


def set_bytes(tensors: Tensors) -> int:
    """Return the bytes of the elements of all tensors of a call."""
    return sum(value.numel() * value.element_size() for value in tensors.values() if isinstance(value, torch.Tensor))


def sets_needed(tensors: Tensors, touched_bytes: int, cache_bytes: int, device: torch.device) -> int:
    """Return how many sets exceed `TIMES_L2` caches if a call touches so many bytes of its tensors.

    At least 2, at most `MOST_SETS`, and no more than fit in `MOST_BYTES`.
    """
    fitting = min(MOST_SETS, MOST_BYTES[device.type] // max(1, set_bytes(tensors)))
    return max(2, min(fitting, math.ceil(TIMES_L2 * cache_bytes / max(1, touched_bytes))))


def touched_bytes(tensors: Tensors, cost: Cost) -> int:
    """Return how many bytes a call touches at least: what its cost counts, but no more than its tensors hold."""
    return min(set_bytes(tensors), cost.bytes_moved)


def rotation(first: Tensors, count: int) -> list[Tensors]:
    """Return `count` sets of equal contents at different addresses; the first is `first` itself."""
    return [first, *(copied(first) for _ in range(count - 1))]


def copied(tensors: Tensors) -> Tensors:
    """Copy every tensor, its strides too; other values are shared."""
    return {name: _copy(value) if isinstance(value, torch.Tensor) else value for name, value in tensors.items()}


def restore(tensors: Tensors, pristine: Tensors) -> None:
    """Give every tensor of a set the contents of `pristine` again."""
    for name, value in pristine.items():
        if isinstance(value, torch.Tensor):
            tensors[name].copy_(value)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    fresh = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return fresh.copy_(tensor)
