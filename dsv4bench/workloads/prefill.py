"""Builds what a group of prefill cells shares: tables, pools with their prefix, buffers and forwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from dsv4bench.workloads.batch import Batch, Plan
from dsv4bench.workloads.buffers import StepBuffers, make_buffers
from dsv4bench.workloads.forward import Forward, RowInputs, make_forward, static_inputs
from dsv4bench.workloads.geometry import Geometry
from dsv4bench.workloads.late_layers import sparse_layers
from dsv4bench.workloads.mhc import MixWeights, make_mix_weights
from dsv4bench.workloads.pools import Extent, PageTables, Pools, Room, make_pools, make_tables
from dsv4bench.workloads.prefix import write_prefix
from dsv4bench.workloads.rope_table import rope_table
from dsv4bench.workloads.step import Step
from dsv4bench.workloads.variant import Variant
from dsv4bench.workloads.weights import Model


@dataclass(frozen=True, slots=True)
class Prefill:
    """Everything that the variants of one group share on the device."""

    model: Model
    pools: Pools
    buffers: StepBuffers
    inputs: RowInputs
    freqs: dict[int, torch.Tensor]
    forwards: tuple[tuple[Forward, ...], ...]  # rank -> forwards in order
    capacity: dict[int, int]  # ratio -> most compressed positions that a row of any forward may see
    tail: tuple[StepBuffers, RowInputs] | None  # of the late layers, where they are replayed
    mix_weights: MixWeights | None  # of the residual streams, where they are in the step

    def step(self, variant: Variant) -> Step:
        """Make the step of one variant over the shared storage, its workspace reserved for the largest forward."""
        step = Step(self.model, variant, self.pools, self.buffers, self.inputs)
        step.freqs, step.capacity, step.mix_weights = self.freqs, self.capacity, self.mix_weights
        if self.tail is not None:
            step.replay(Step(self.model, variant, self.pools, *self.tail))
        self.reserve_workspace(step)
        return step

    def reserve_workspace(self, step: Step) -> None:
        """Reserve a step's workspace for the largest forward."""
        step.kv_buffer.reserve(max(self._workspace_rows(f, step.variant) for f in self.all_forwards()))

    def held_bytes(self, step: Step) -> dict[str, int]:
        """Return what a step's workspace, the pools and the buffers take, experts with their buffers among these."""
        return {
            "workspace_bytes": step.kv_buffer.capacity_bytes,
            "pool_bytes": self.pools.bytes,
            "buffer_bytes": self.buffers.bytes + (step.moe.bytes if step.moe else 0),
        }

    def _workspace_rows(self, forward: Forward, variant: Variant) -> int:
        """Return the rows of the workspace at the layer that needs most; layers over packed caches need none."""
        sparse = sparse_layers(self.model.geometry, variant, forward.batch)
        return max((forward.swa_rows + forward.gathers[kind.ratio].rows for kind in sparse), default=0)

    def all_forwards(self) -> Iterator[Forward]:
        """Yield every forward, rank by rank."""
        for rank in self.forwards:
            yield from rank

    def forward(self, batch: Batch, draw: int = 0) -> Forward:
        """Build another forward over the same pools, with hidden states of its own; each `draw` gives others."""
        seed = self.model.seed + 7_919 + draw
        return make_forward(self.model.geometry, self.pools.tables, batch, seed, self.tail is not None)


def _tail(
    geometry: Geometry, tables: PageTables, forwards: list[Forward], break_copies: bool, mhc: bool
) -> tuple[StepBuffers, RowInputs]:
    """Allocate what the late layers of any forward need."""
    rows = max(forward.tail.batch.rows for forward in forwards if forward.tail is not None)
    device = tables.page_table.device
    buffers = make_buffers(geometry, rows, device, torch_path=False, packed=True, break_copies=break_copies)
    buffers = buffers.with_streams() if mhc else buffers
    return buffers, static_inputs(geometry, tables, rows, hidden=False)


def extents_of(plan: Plan) -> tuple[Extent, ...]:
    """Return, request by request, what is cached before the plan's first forward and the length after its last."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for batch in (batch for rank in plan for batch in rank if not batch.idle):
        for request in batch.requests:
            first[request.index] = min(request.prefix, first.get(request.index, request.prefix))
            last[request.index] = max(request.seq, last.get(request.index, 0))
    return tuple(Extent(first[i], last[i]) for i in range(len(first)))


@dataclass(frozen=True, slots=True)
class Beyond:
    """What there must be beyond what the plan itself uses.

    Where the plan is of one of several ranks, `longest` is the longest request of all: graphs have room for it on every
    rank, and it is what the pools of a rank without requests hold. `room` is what the pools are allocated for.
    """

    longest: Extent | None = None
    room: Room | None = None


def prepare(
    model: Model,
    variant: Variant,
    plan: Plan,
    torch_path: bool,
    break_copies: bool = False,
    beyond: Beyond = Beyond(),
) -> Prefill:
    """Allocate and fill what the cells of one group share.

    `torch_path` adds the buffers of that compressor, `break_copies` that of what breaks return.
    Of `variant` only the switches that all cells of a group share are read: KV pair, provider, replay, path and mhc.
    """
    geometry, device, replay = model.geometry, model.device, variant.replay == "on"
    mhc = variant.mhc == "on"
    longest = (beyond.longest,) if beyond.longest else ()
    extents = extents_of(plan) or longest
    tables = make_tables(extents, geometry.window, device, model.seed)
    pools = make_pools(geometry, variant.kv, tables, device, beyond.room)
    positions = max(e.end for e in (*extents, *longest))
    freqs = {ratio: rope_table(geometry, ratio, positions).to(device) for ratio in set(geometry.ratios)}
    write_prefix(model, pools, freqs, variant.provider)
    rows = max(batch.rows for rank in plan for batch in rank)
    forwards = tuple(
        tuple(
            make_forward(geometry, tables, batch, model.seed + 31 * batch.rank + place, replay)
            for place, batch in enumerate(rank)
        )
        for rank in plan
    )
    every = [forward for rank in forwards for forward in rank]
    buffers = make_buffers(geometry, rows, device, torch_path, variant.path == "recipe", break_copies)
    return Prefill(
        model=model,
        pools=pools,
        buffers=buffers.with_streams() if mhc else buffers,
        inputs=static_inputs(geometry, tables, rows),
        freqs=freqs,
        forwards=forwards,
        capacity={ratio: positions // ratio for ratio in geometry.compressed_ratios},
        tail=_tail(geometry, tables, every, break_copies, mhc) if replay else None,
        mix_weights=make_mix_weights(geometry, device, model.seed) if mhc else None,
    )
