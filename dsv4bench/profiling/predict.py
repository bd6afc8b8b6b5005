"""What reuse should save: rows not dequantised again, their bytes, and the time they take at the measured rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dsv4bench.profiling.alone import time_per_round_ns
from dsv4bench.profiling.graphs import Pool
from dsv4bench.profiling.timing import Call, Clock
from dsv4bench.units import NS_PER_S
from dsv4bench.workloads.forward import Forward
from dsv4bench.workloads.model import dequant_bytes, reuse_saving
from dsv4bench.workloads.step import Step


def predict(step: Step, forwards: Sequence[Forward], clock: Clock, pool: Pool | None) -> dict[str, Any] | None:
    """Return the record's prediction over `forwards`, or None where there is no row to save.

    The rate is that of this step's own dequant over every source of the longest forward, measured here.
    """
    layout = step.pools.compressed_layout
    savings = [reuse_saving(step.geometry, forward.batch, step.variant) for forward in forwards if forward.live]
    saved_bytes = sum(saving.bytes for saving in savings)
    if not saved_bytes:
        return None
    calls, moved_bytes = _dequants(step, max(forwards, key=lambda forward: forward.workspace_rows))
    rate = moved_bytes / time_per_round_ns(calls, clock, pool) * NS_PER_S
    row_bytes = dequant_bytes(layout, 1)
    return {
        "saved_rows": sum(saving.rows for saving in savings),
        "saved_bytes": saved_bytes,
        "dequant_bytes_per_s": rate,
        "saved_ns": saved_bytes / rate * NS_PER_S,
        "how": f"rows saved x {row_bytes} bytes (read and written) / the dequant rate measured here, launch gaps apart",
    }


def _dequants(step: Step, forward: Forward) -> tuple[list[Call], int]:
    """Return the calls that dequantise every source once, and the bytes that they read and write."""
    out, layout = step.kv_buffer.get(forward.workspace_rows), step.pools.compressed_layout
    calls: list[Call] = []
    moved_bytes = 0
    for kind in step.geometry.layers:
        if kind.owns_kv:
            gather = forward.gathers[kind.ratio]
            tensors = step.compressed(kind) | {"ids": gather.ids, "out": out[: gather.rows]}
            calls.append(step.ops.provider_of("dequant", tensors)[1].build(tensors))
            moved_bytes += dequant_bytes(layout, gather.rows)
    return calls, moved_bytes


def peak_bytes(run: Call, device: torch.device) -> int | None:
    """Return the most device memory allocated while `run` runs once, or None where the device does not tell (a CPU)."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated())
