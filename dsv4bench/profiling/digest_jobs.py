"""What two source trees are given to do: the same seeded tensors, drawn once and saved, perturbed for the control."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dsv4bench.errors import CellSkipped, UsageError
from dsv4bench.kernels import kernel
from dsv4bench.kernels.layout import KVLayout
from dsv4bench.results.digests import Subject
from dsv4bench.workloads.kernel_cells import KernelCell, KernelGroup

Tensors = dict[str, Any]


def digest_cells(plan: Sequence[KernelGroup]) -> tuple[list[KernelCell], list[str]]:
    """Return the cells of a plan that can run here, and why each of the others cannot."""
    able, reasons = [], []
    for cell in [cell for group in plan for cell in group]:
        try:
            cell.of()
            able.append(cell)
        except CellSkipped as error:
            reasons.append(f"{cell.kernel} by {cell.provider}: {error}")
    return able, list(dict.fromkeys(reasons))


def save_jobs(cells: Sequence[KernelCell], path: Path, control: float | None = None) -> None:
    """Draw the tensors of every cell and save them for `digest_child`; `control` perturbs one input of each."""
    torch.save([job(cell, control) for cell in cells], path)


def job(cell: KernelCell, control: float | None = None) -> dict[str, Any]:
    """Return what the child is told of a cell: kernel, provider, tensors (a layout by its name), names of outputs."""
    found = kernel(cell.kernel)
    tensors = found.inputs(cell.shape, torch.Generator(cell.device).manual_seed(cell.seed))
    if control is not None:
        perturb(tensors, tuple(found.outputs), control, cell.kernel)
    plain = {name: {"layout": v.name} if isinstance(v, KVLayout) else v for name, v in tensors.items()}
    return {"kernel": cell.kernel, "provider": cell.provider, "tensors": plain, "outputs": list(found.outputs)}


def perturb(tensors: Tensors, outputs: Sequence[str], epsilon: float, name: str) -> str:
    """Add `epsilon` to the first input of floats, or flip the lowest bit of the first input of bytes; return its name.

    UsageError for a kernel that reads neither.
    """
    read = {key: value for key, value in tensors.items() if isinstance(value, torch.Tensor) and key not in outputs}
    for key, value in read.items():
        if value.is_floating_point():
            value.add_(epsilon)
            return key
    for key, value in read.items():
        if value.dtype == torch.uint8:
            value.bitwise_xor_(1)
            return key
    raise UsageError(f"--control {epsilon:g}: {name} reads no floats and no bytes that could be perturbed")


def subject(cell: KernelCell) -> Subject:
    """Return how a table names a cell."""
    return Subject(cell.kernel, cell.case, cell.rows, cell.provider)
