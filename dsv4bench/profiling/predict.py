"""What reuse should save: the time of the bytes not dequantised again, and the host's time for the calls not made."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from dsv4bench.profiling.alone import time_per_round_ns
from dsv4bench.profiling.graphs import Pool
from dsv4bench.profiling.timing import Call, Clock
from dsv4bench.units import NS_PER_S
from dsv4bench.workloads.forward import Forward
from dsv4bench.workloads.geometry import LayerKind
from dsv4bench.workloads.model import dequant_bytes, reuse_saving
from dsv4bench.workloads.step import Step

SUBMIT_ROUNDS = 11
Dequant = tuple[LayerKind, dict[str, Any]]


def predict(step: Step, forwards: Sequence[Forward], clock: Clock, pool: Pool | None) -> dict[str, Any] | None:
    """Return the record's prediction over `forwards`, or None where there is no row to save.

    The rate is that of this step's own dequant over every source of the longest forward, measured here. So is what the
    host takes to submit one of these calls, inside the ranges that the step's mark hears; a CPU, on which the call is
    the work, has no `submit_ns_a_call`.
    """
    layout = step.pools.compressed_layout
    savings = [reuse_saving(step.geometry, forward.batch, step.variant) for forward in forwards if forward.live]
    saved_bytes = sum(saving.bytes for saving in savings)
    if not saved_bytes:
        return None
    dequants = _dequants(step, max(forwards, key=lambda forward: forward.workspace_rows))
    calls = [step.ops.provider_of("dequant", tensors)[1].build(tensors) for _, tensors in dequants]
    moved_bytes = sum(dequant_bytes(layout, len(tensors["out"])) for _, tensors in dequants)
    rate = moved_bytes / time_per_round_ns(calls, clock, pool) * NS_PER_S
    submit = {"submit_ns_a_call": _submit_ns_a_call(step, dequants, clock)} if clock.enqueues else {}
    row_bytes = dequant_bytes(layout, 1)
    return {
        "saved_calls": sum(saving.calls for saving in savings),
        "saved_rows": sum(saving.rows for saving in savings),
        "saved_bytes": saved_bytes,
        "dequant_bytes_per_s": rate,
        "saved_ns": saved_bytes / rate * NS_PER_S,
        **submit,
        "how": f"rows saved x {row_bytes} bytes (read and written) / the dequant rate measured here, launch gaps apart",
    }


def _dequants(step: Step, forward: Forward) -> list[Dequant]:
    """Return the layers that own a source, each with the tensors of the call that dequantises it."""
    out = step.kv_buffer.get(forward.workspace_rows)

    def tensors(kind: LayerKind) -> dict[str, Any]:
        gather = forward.gathers[kind.ratio]
        return step.compressed(kind) | {"ids": gather.ids, "out": out[: gather.rows]}

    return [(kind, tensors(kind)) for kind in step.geometry.layers if kind.owns_kv]


def _submit_ns_a_call(step: Step, dequants: Sequence[Dequant], clock: Clock) -> float:
    """Return the host's time to enqueue one dequant as a step does, on an empty queue: the median of some rounds."""

    def round_of_calls() -> None:
        for kind, tensors in dequants:
            step.ops.run(kind, "dequant_compressed", "dequant", **tensors)

    round_of_calls()
    taken_ns = []
    for _ in range(SUBMIT_ROUNDS):
        clock.synchronize()
        taken_ns.append(clock.measure(round_of_calls, 1)[1])
    return median(taken_ns) / len(dequants)


def peak_bytes(run: Call, device: torch.device) -> int | None:
    """Return the most device memory allocated while `run` runs once, or None where the device does not tell (a CPU)."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated())
