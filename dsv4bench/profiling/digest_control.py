"""What the control of a digest perturbs: something of a kernel's inputs that some output must show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dsv4bench.kernels.contract import Kernel, same_bits
from dsv4bench.profiling.buffer_sets import copied

COUNTS = (torch.int32, torch.int64)  # what a kernel gives that chooses or counts
Tensors = dict[str, Any]


def perturb(found: Kernel, tensors: Tensors, epsilon: float) -> str | None:
    """Perturb an input in place and say which and how; None where no one element of its inputs changes an output.

    The first input of floats has `epsilon` added, or the first input of bytes its lowest bits flipped. A kernel whose
    outputs are counts or choices alone shows neither (a sum changes no order), nor does one that reads only integers:
    one element of theirs takes another value.
    """
    read = {name: value for name, value in tensors.items() if name not in found.outputs and _holds(value)}
    if all(tensors[name].dtype in COUNTS for name in found.outputs):
        return _one_element(found, tensors, read)
    for name, value in read.items():
        if value.is_floating_point():
            value.add_(epsilon)
            return f"{name} + {epsilon:g}"
    for name, value in read.items():
        if value.dtype == torch.uint8:
            value.bitwise_xor_(1)
            return f"lowest bits of {name}"
    return _one_element(found, tensors, read)


def _holds(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > 0


def _one_element(found: Kernel, tensors: Tensors, read: Tensors) -> str | None:
    """Give one element the first other value that the kernel allows and that its reference shows, tried on a CPU."""
    here = {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in tensors.items()}
    wanted = copied(here)
    found.reference(**wanted)
    for name in read:
        for place in _places(here[name]):
            before = here[name][place].item()
            for after in _others(here[name], before):
                tried = copied(here)
                tried[name][place] = after
                if tried[name][place] != before and _shows(found, tried, wanted):
                    tensors[name][place] = after
                    return f"{name}{list(place)} {before:g} -> {after:g}"
    return None


def _places(value: torch.Tensor) -> Iterator[tuple[int, ...]]:
    """Yield the indices of the first, the middle and the last element."""
    for flat in dict.fromkeys((0, value.numel() // 2, value.numel() - 1)):
        yield tuple(int(index) for index in torch.unravel_index(torch.tensor(flat), value.shape))


def _others(value: torch.Tensor, before: float) -> tuple[float, ...]:
    """Return values for one element: neighbours and extremes of integers; above and below all others, of floats."""
    if not value.is_floating_point():
        return (before + 1, before - 1, int(value.max()), int(value.min()))
    finite = value[value.isfinite()]
    if not finite.numel():
        return ()
    most, least = float(finite.max()), float(finite.min())
    return (most + max(1.0, abs(most)), least - max(1.0, abs(least)))


def _shows(found: Kernel, tried: Tensors, wanted: Tensors) -> bool:
    try:
        found.check_values(tried)
        found.reference(**tried)
    except (IndexError, RuntimeError, ValueError):  # not a value that the kernel allows
        return False
    return any(not bool(same_bits(tried[name], wanted[name]).all()) for name in found.outputs)
