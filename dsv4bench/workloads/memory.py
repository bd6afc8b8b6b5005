"""How much device memory a group of cells takes, estimated before anything is allocated, and what would fit instead."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import torch

from dsv4bench.errors import UsageError
from dsv4bench.kernels.layout import FULL_PAGE, ROPE_DIM
from dsv4bench.units import GIB, KIB, format_bytes
from dsv4bench.workloads.batch import Batch, equal_requests
from dsv4bench.workloads.break_forms import form_of
from dsv4bench.workloads.buffers import make_buffers
from dsv4bench.workloads.cells import UNIFORM, Cell, Group, Load
from dsv4bench.workloads.experts import allocate_experts
from dsv4bench.workloads.mhc import make_mix_weights
from dsv4bench.workloads.model import BF16_BYTES, ROW_BYTES, compressed_rows, swa_rows, weight_bytes
from dsv4bench.workloads.moe import moe_bytes
from dsv4bench.workloads.pool_size import PoolSize, extents_of, pool_size, refuse_small_pool
from dsv4bench.workloads.pools import Extent, PageTables, Room, make_pools, page_counts
from dsv4bench.workloads.sources import LOGITS_BYTES

RESERVE_BYTES = {"cuda": 2 * GIB, "cpu": GIB // 4}  # device context, captured graphs, temporaries
META = torch.device("meta")  # tensors with a shape and no storage


@dataclass(frozen=True, slots=True)
class Memory:
    """Modelled bytes by part of a group of cells, which share all but the workspaces."""

    weights_bytes: int
    pool_bytes: int
    table_bytes: int
    buffer_bytes: int
    workspace_bytes: int
    logits_bytes: int
    reserve_bytes: int
    moe_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All parts together."""
        return sum(astuple(self))


def estimate(group: Group) -> Memory:
    """Return the memory that a group takes on its device; of ranks that have one each, on the device with most.

    Shapes come from the functions that allocate.
    """
    moe = _moe_bytes(group)
    if group[0].ranks == 1 or not group[0].dep:
        return replace(_estimate(group, _rows(group)), moe_bytes=moe)
    busy = range(min(group[0].ranks, len(group[0].load.requests)))  # dealt in turn: the others have no request
    alone = (_estimate(tuple(cell.of_rank(rank) for cell in group), _rows(group, rank)) for rank in busy)
    return replace(max(alone, key=lambda memory: memory.total_bytes), moe_bytes=moe)


def _rows(group: Group, rank: int | None = None) -> int:
    """Return the most rows of a forward, of one rank or of all; a graph's are those of the bucket of all ranks."""
    forwards = (forward for cell in group for forward in cell.run_forwards)
    return max(batch.rows for forward in forwards for batch in forward if rank in (None, batch.rank))


def _moe_bytes(group: Group) -> int:
    return moe_bytes(group[0].geometry, group[0].variant, group[0].ranks, _rows(group))


def _estimate(group: Group, rows: int) -> Memory:
    """Return what a group takes on one device, whose buffers have `rows` rows."""
    cell = group[0]
    geometry, batches = cell.geometry, [batch for forwards in cell.plan for batch in forwards]
    extents = extents_of(cell.load.requests)
    full_pages, swa_pages = page_counts(extents, geometry.window)
    empty = torch.empty(0, device=META)
    pools = make_pools(geometry, cell.variant.kv, PageTables(empty, empty, full_pages, swa_pages, extents), META)
    torch_path = any(one.variant.compressor == "torch" for one in group)
    buffers = make_buffers(geometry, rows, META, torch_path, cell.variant.path == "recipe", _break_copies(group))
    mix_bytes = 0
    if cell.variant.mhc == "on":
        buffers, mix_bytes = buffers.with_streams(), make_mix_weights(geometry, META, seed=0).bytes
    visible = max((extent.end // ratio for extent in extents for ratio in geometry.compressed_ratios), default=0)
    return Memory(
        weights_bytes=weight_bytes(geometry) + mix_bytes,
        pool_bytes=pools.bytes,
        table_bytes=_table_bytes(cell, batches, extents, full_pages),
        buffer_bytes=buffers.bytes + _tail_bytes(cell, group),
        workspace_bytes=_workspaces(group) * max(_workspace_rows(cell, batch) for batch in batches) * ROW_BYTES,
        logits_bytes=min(rows * visible * BF16_BYTES, LOGITS_BYTES),
        reserve_bytes=RESERVE_BYTES[cell.device],
    )


def step_bytes(cell: Cell, rank: int) -> int:
    """Return what one cell alone takes on a rank beside weights, pools and workspace; without requests experts only."""
    own, moe = cell.of_rank(rank) if cell.dep else cell, _moe_bytes((cell,)) - _expert_bytes(cell)
    if not own.load.requests:
        return moe
    memory = _estimate((own,), _rows((cell,), rank if cell.dep else None))
    return memory.table_bytes + memory.buffer_bytes + memory.logits_bytes + moe


def _tail_bytes(cell: Cell, group: Group) -> int:
    """Return the bytes of the buffers of the replayed late layers."""
    if cell.variant.replay == "off":
        return 0
    window, slots = cell.geometry.window, len(cell.load.requests)
    batches = (batch for one in group for forward in one.run_forwards for batch in forward)
    rows = max(batch.tail(window, slots).rows for batch in batches)
    copies = _break_copies(group)
    buffers = make_buffers(cell.geometry, rows, META, torch_path=False, packed=True, break_copies=copies)
    return (buffers.with_streams() if cell.variant.mhc == "on" else buffers).bytes


def _break_copies(group: Group) -> bool:
    """Return whether any cell copies what breaks return."""
    return any(form_of(cell.variant).copies for cell in group)


def _workspaces(group: Group) -> int:
    """Return how many workspaces live at once: one per side and reuse (off always), and one to verify with."""
    reuses = {"off", *(cell.variant.reuse for cell in group)}
    return len({(cell.variant.compressor, cell.variant.provider) for cell in group}) * len(reuses) + 1


def _workspace_rows(cell: Cell, batch: Batch) -> int:
    head = max((compressed_rows(batch, ratio) for ratio in cell.geometry.compressed_ratios), default=0)
    return head + swa_rows(batch, cell.geometry.window)


def _table_bytes(cell: Cell, batches: list[Batch], extents: tuple[Extent, ...], full_pages: int) -> int:
    """Return the bytes of rotation tables, slot maps, and what each forward keeps: hidden states and gather ids."""
    geometry = cell.geometry
    longest = max(extent.end for extent in extents)
    rotations = len(set(geometry.ratios)) * longest * ROPE_DIM * 4
    slots = full_pages * FULL_PAGE * 8 + len(extents) * -(-longest // FULL_PAGE) * 4
    rows = [batch.rows for batch in batches]
    hidden = (sum(rows) + max(rows)) * geometry.hidden * BF16_BYTES  # each forward's own, and the static ones
    gathered = sum(compressed_rows(batch, ratio) for batch in batches for ratio in geometry.compressed_ratios)
    windows = sum(swa_rows(batch, geometry.window) for batch in batches)
    return rotations + slots + hidden + (gathered + windows) * 4


def free_bytes(device: str) -> int:
    """Return the memory that is free on "cuda" or "cpu" now."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
        return int(fields["MemAvailable"].split()[0]) * KIB
    except (OSError, KeyError):  # not Linux: what the machine has is the best that is known
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def refuse_too_large(groups: Iterable[Group], memory_bytes: int) -> None:
    """Raise UsageError, saying what would fit, for the first of `groups` that takes more than `memory_bytes`."""
    free = format_bytes(memory_bytes)
    for group in groups:
        needed = estimate(group).total_bytes
        if needed > memory_bytes:
            asked, fitting = _asked(group[0]), what_fits(memory_bytes, group)
            raise UsageError(
                f"{asked}: about {format_bytes(needed)} needed (modelled), {free} free; expected {fitting}"
            )


def pools_of(cell: Cell, free_bytes: int) -> PoolSize | None:
    """Return the pools that `--mem-fraction` gives a cell where `free_bytes` are free at first; None without it."""
    plan = cell.memory
    if plan is None:
        return None
    known = plan.device_bytes or free_bytes
    return pool_size(plan, cell.geometry, cell.variant.kv, known, own_weight_bytes(cell))


def own_weight_bytes(cell: Cell) -> int:
    """Return the weights that a cell itself holds on a device: the stack's, and those of experts that stand in."""
    return weight_bytes(cell.geometry) + _expert_bytes(cell)


def _expert_bytes(cell: Cell) -> int:
    if cell.variant.moe != "experts":
        return 0
    return sum(one.nbytes for one in allocate_experts(cell.geometry, 0, cell.ranks, META).tensors())


def room_of(cell: Cell, free_bytes: int) -> Room | None:
    """Return what `--mem-fraction` makes room for in a cell's pools; None without it."""
    size = pools_of(cell, free_bytes)
    return size.room if size else None


def refuse_small_pools(groups: Iterable[Group], free_bytes: int) -> None:
    """Raise UsageError, saying which fraction would do, for the largest batch that `--mem-fraction` leaves no room.

    0 free bytes: not known here, so that only a plan of a given size of memory is looked at.
    """
    asked = [(group[0], requests) for group in groups if group[0].memory for requests in group[0].device_requests]
    for cell, requests in sorted(asked, key=lambda one: -page_counts(extents_of(one[1]), one[0].geometry.window)[0]):
        size = pools_of(cell, free_bytes)
        if cell.memory and size and size.device_bytes:
            refuse_small_pool(size, cell.memory, cell.geometry, requests, _asked(cell))


def what_fits(memory_bytes: int, group: Group) -> str:
    """Return the nearest smaller workload that `memory_bytes` hold: fewer requests, else shorter prefixes.

    The answer is modelled: a few words to follow "expected", such as "at most --batch 16 at this prefix".
    """
    geometry, load = group[0].geometry, group[0].load
    if memory_bytes < weight_bytes(geometry):
        return f"a smaller geometry: the weights of {geometry.name} alone do not fit"

    def fits(smaller: Load) -> bool:
        return estimate(tuple(replace(cell, load=smaller) for cell in group)).total_bytes <= memory_bytes

    batch = _largest(len(load.requests) - 1, lambda count: fits(_first_requests(group[0], count)))
    if batch:
        return f"at most --batch {batch}" + (" at this prefix" if load.source == UNIFORM else "")
    if load.source == UNIFORM and load.prefix:
        pages = _largest(load.prefix // FULL_PAGE, lambda count: fits(_with_prefix(load, count * FULL_PAGE)))
        if pages:
            return f"at most --prefix {pages * FULL_PAGE}"
    return "a smaller --chunk or geometry"


def _first_requests(cell: Cell, count: int) -> Load:
    load = cell.load
    if load.source == UNIFORM and load.extend and load.prefix is not None:
        return Load(equal_requests(count, load.extend, load.prefix, cell.chunk, cell.ranks))
    return replace(load, requests=load.requests[:count])


def _with_prefix(load: Load, prefix: int) -> Load:
    return replace(load, requests=tuple(replace(request, prefix=prefix) for request in load.requests))


def _largest(most: int, holds: Callable[[int], bool]) -> int:
    """Return the largest whole number up to `most` for which `holds`, which is true below some point; 0 if for none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _asked(cell: Cell) -> str:
    load = cell.load
    if load.source != UNIFORM:
        return f"--requests {load.source} --batch {len(load.requests)}"
    return f"--batch {len(load.requests)} --prefix {load.prefix} ({load.extend} new tokens each)"
