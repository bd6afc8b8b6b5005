"""What two source trees are given to do: the same seeded tensors, drawn once and saved, perturbed for the control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

import torch

from dsv4bench.errors import CellSkipped
from dsv4bench.kernels import kernel
from dsv4bench.kernels.layout import KVLayout
from dsv4bench.profiling.cell_run import outcome
from dsv4bench.profiling.digest_control import perturb
from dsv4bench.results.digests import Subject
from dsv4bench.workloads.kernel_cells import KernelCell, KernelGroup
from dsv4bench.workloads.providers import IN_A_FILE


@dataclass(frozen=True, slots=True)
class Saved:
    """The files of a cell: its job and the perturbed one, with what was perturbed; an error where none could be drawn.

    A control without a file is one of a kernel of which nothing can be perturbed.
    """

    job: Path | None = None
    error: str | None = None
    control: Path | None = None
    perturbed: str | None = None


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


def save_jobs(cells: Sequence[KernelCell], folder: Path, control: float | None = None) -> list[Saved]:
    """Draw the tensors of every cell and save them for `digest_child`; `control` has one input of a twin perturbed."""
    return [_saved(cell, folder / f"{number}.pt", control) for number, cell in enumerate(cells)]


def _saved(cell: KernelCell, path: Path, control: float | None) -> Saved:
    """Save a cell; the twin is the same draw, so that what a kernel leaves alone is the same in both."""
    try:
        found = kernel(cell.kernel)
        tensors = found.inputs(cell.shape, torch.Generator(cell.device).manual_seed(cell.seed))
        torch.save(job(cell, tensors), path)
        perturbed = None if control is None else perturb(found, tensors, control)
        if perturbed is None:
            return Saved(path)
        twin = path.with_suffix(".control.pt")
        torch.save(job(cell, tensors), twin)
    except Exception as error:  # one kernel's failure is a row, and the others go on
        return Saved(error=f"drawing its inputs: {outcome(error)[1]}")
    return Saved(path, control=twin, perturbed=perturbed)


def job(cell: KernelCell, tensors: dict[str, Any]) -> dict[str, Any]:
    """Return what the child is told of a cell: kernel, provider, tensors made plain, names of outputs."""
    found: dict[str, Any] = {
        "kernel": cell.kernel,
        "provider": cell.provider,
        "outputs": list(kernel(cell.kernel).outputs),
    }
    in_a_file = IN_A_FILE.fullmatch(cell.provider)
    if in_a_file:
        found |= {"file": in_a_file[1], "provider": in_a_file[2]}
    return found | {"tensors": {name: plain(value) for name, value in tensors.items()}}


def plain(value: Any) -> Any:
    """Return a tensor or a number as it is, a layout by its name and any other dataclass by class and fields."""
    if isinstance(value, KVLayout):
        return {"layout": value.name}
    if is_dataclass(value) and not isinstance(value, type):
        return {"module": type(value).__module__, "class": type(value).__qualname__, "fields": asdict(value)}
    return value


def subject(cell: KernelCell) -> Subject:
    """Return how a table names a cell."""
    return Subject(cell.kernel, cell.case, cell.rows, cell.provider)
