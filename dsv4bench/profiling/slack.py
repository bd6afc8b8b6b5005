"""What a cell of `--mem-fraction` leaves free beside weights and pools: each side alone, without the other's workspace.

Cells of a group share a process: each is looked at with the workspaces and graphs of the others given back.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import torch

from dsv4bench.profiling.capture import Captured, run_pieces, warm_up
from dsv4bench.profiling.cell_run import CellRun, ending
from dsv4bench.profiling.graphs import NO_GRAPH, Pool, capture_alone, open_pool
from dsv4bench.profiling.group import GroupRun
from dsv4bench.workloads.forward import Forward
from dsv4bench.workloads.memory import pools_of, step_bytes
from dsv4bench.workloads.pool_size import PoolSize
from dsv4bench.workloads.step import Step

LEAST = "lowest_free_bytes"
MEASURED = "device memory - (peak reserved by torch + held by others), this side alone"
MODELLED = "modelled: given device memory - (weights + pools + buffers + tables + logits + workspace)"


def measure_slack(group: GroupRun) -> None:
    """Add what every living cell leaves free to its memory; nothing where no fraction was given.

    Every cell runs once before the first is looked at, graphs on the stream of all captures: so modules that the device
    loads, and the workspaces that GEMMs keep for a stream, are there for both sides.
    """
    size = pools_of(group.runs[0].cell, group.session.free_bytes)
    if size is None:
        return
    if group.session.device.type != "cuda":
        for run in group.living():
            run.memory |= _told(size) | _modelled(group, run, size)
        return
    pool: Pool | None = None
    for run in group.living():
        with ending(run, group.strands):
            pool = pool or (open_pool(group.session.device) if run.graph else None)
            _warm(group, run, pool)
    for run in group.living():
        with ending(run, group.strands):
            run.memory |= _told(size) | _measured(group, run, pool)
    for step in group.steps.values():
        group.prefill.reserve_workspace(step)


def _told(size: PoolSize) -> dict[str, Any]:
    """Return what the cells of a plan were given."""
    return {
        "weights_bytes": size.weights_bytes,
        "full_pool_tokens": size.full_tokens,
        "window_pool_tokens": size.window_tokens,
    }


def _modelled(group: GroupRun, run: CellRun, size: PoolSize) -> dict[str, Any]:
    plan, workspace_bytes = run.cell.memory, group.steps[run.key].kv_buffer.capacity_bytes
    assert plan is not None
    assert plan.device_bytes is not None, "a CPU is given its device memory"
    own_bytes = step_bytes(run.cell, group.session.peers.rank if group.session.peers else 0)
    held_bytes = size.weights_bytes + size.pool_bytes + own_bytes + workspace_bytes
    return {
        "slack_how": MODELLED,
        "device_bytes": plan.device_bytes,
        "workspace_bytes": workspace_bytes,
        "peak_allocated_bytes": held_bytes,
        "peak_reserved_bytes": None,
        LEAST: plan.device_bytes - held_bytes,
    }


def _measured(group: GroupRun, run: CellRun, pool: Pool | None) -> dict[str, Any]:
    for step in group.steps.values():
        step.kv_buffer.release()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step = group.steps[run.key]
    group.prefill.reserve_workspace(step)
    captured: dict[int, Captured] = {}
    try:
        if pool is not None and run.graph:
            own = replace(pool, handle=torch.cuda.graph_pool_handle())
            _replay(group, run, own, captured)
        else:
            _run_eagerly(group, run)
        return {"slack_how": MEASURED, "workspace_bytes": step.kv_buffer.capacity_bytes, **_seen()}
    finally:
        for graph in captured.values():
            graph.free()


def _seen() -> dict[str, Any]:
    """Return the peaks since they were reset, and what is left of the device at the highest of them."""
    torch.cuda.synchronize()
    free_bytes, device_bytes = torch.cuda.mem_get_info()
    others_bytes = device_bytes - free_bytes - torch.cuda.memory_reserved()
    peak_bytes = torch.cuda.max_memory_reserved()
    return {
        "device_bytes": device_bytes,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": peak_bytes,
        LEAST: device_bytes - others_bytes - peak_bytes,
    }


def _warm(group: GroupRun, run: CellRun, pool: Pool | None) -> None:
    """Run a cell's forwards, and the first of its graphs' on the stream of captures: the same on every rank."""
    _run_eagerly(group, run)
    taken = [forward for forward in group.prefill.all_forwards() if group.graphs.key(run, forward) != NO_GRAPH]
    if pool is not None and run.graph and taken:
        step = group.steps[run.key]
        step.load(taken[0])
        warm_up(group.graphs.pieces(run, step, taken[0]), pool.stream)


def _run_eagerly(group: GroupRun, run: CellRun) -> None:
    step = group.steps[run.key]
    for forward in group.prefill.all_forwards():
        _run_forward(group, step, forward)


def _run_forward(group: GroupRun, step: Step, forward: Forward) -> None:
    """Run a forward eagerly; a rank without rows sits it out, unless others exchange rows with it."""
    if forward.live or group.exchanging:
        step.load(forward)
        run_pieces(step.live_pieces(forward))


def _replay(group: GroupRun, run: CellRun, pool: Pool, captured: dict[int, Captured]) -> None:
    """Capture what the cell's forwards need into `captured`, and replay each; one without a graph runs eagerly."""
    step = group.steps[run.key]
    for forward in group.prefill.all_forwards():
        key = group.graphs.key(run, forward)
        if key == NO_GRAPH:
            _run_forward(group, step, forward)
            continue
        step.load(forward)
        if key not in captured:
            pieces = group.graphs.pieces(run, step, forward)
            warm_up(pieces, pool.stream)
            captured[key] = capture_alone(run, step, pieces, pool)
        captured[key].replay()
