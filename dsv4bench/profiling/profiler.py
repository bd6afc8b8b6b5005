"""Record one step under torch.profiler: its device operations, its launches and its ranges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from torch.profiler import ProfilerActivity, profile

if TYPE_CHECKING:
    from dsv4bench.profiling.traces.columns import Trace


def profile_trace(run: Callable[[], None], device: str) -> Trace:
    """Run one warmed-up step under the profiler and read the trace back; its file is gone afterwards.

    `run` must mark its ranges with `ranges.RecordFunction`. On a "cpu" there are no device operations.
    """
    from dsv4bench.profiling.traces import kineto_reader  # pandas, which a process that profiles nothing does without

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with profile(activities=activities, acc_events=True) as profiler:
        run()
        if device == "cuda":
            torch.cuda.synchronize()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "step.json"
        profiler.export_chrome_trace(str(path))
        return kineto_reader.read(path)
