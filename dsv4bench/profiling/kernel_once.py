"""One call of one kernel for somebody else's profiler: warmed up first, then alone between profiler start and stop."""

from __future__ import annotations

import torch

from dsv4bench.kernels import kernel
from dsv4bench.workloads.kernel_cells import KernelCell

WARM_UPS = 2  # compilation, and what a first launch loads


def call_once(cell: KernelCell) -> None:
    """Make the call; CellSkipped where the provider cannot run here. On a CPU there is no profiler to start."""
    tensors = kernel(cell.kernel).inputs(cell.shape, torch.Generator(cell.device).manual_seed(cell.seed))
    with torch.no_grad():
        call = cell.of().to_time(tensors)
        for _ in range(WARM_UPS):
            call()
        if cell.device != "cuda":
            call()
            return
        torch.cuda.synchronize()
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]  # torch's own gap
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
