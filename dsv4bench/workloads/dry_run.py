"""What a cell is expected to run, take and save, before it runs: one row of the plan that `--dry-run` prints."""

from __future__ import annotations

from dataclasses import dataclass

from dsv4bench.workloads.batch import Batch
from dsv4bench.workloads.buckets import Refusal
from dsv4bench.workloads.cells import Cell, Group
from dsv4bench.workloads.memory import Memory, estimate
from dsv4bench.workloads.model import ceilings_of, forward_ns, reuse_saving

USUAL_SAMPLES = 10  # fewest samples where sampling stops by its own rule
OTHER_RUNS = 8  # runs of a step besides its samples: two verifications, warm-up, counting


@dataclass(frozen=True, slots=True)
class Planned:
    """One planned cell; every figure is `modelled`.

    `refusals` are the reasons of the forwards that the graph would not take; `step_ns` sums the slowest rank of every
    forward; `cell_ns` is all runs of the cell, rank after rank; `saved_rows` and `saved_bytes` are what reuse saves;
    `memory` is taken once by all cells of the group.
    """

    cell: Cell
    rows: int
    forwards: int
    refusals: tuple[str, ...]
    step_ns: float
    cell_ns: float
    saved_rows: int
    saved_bytes: int
    memory: Memory


def planned(group: Group, samples: int | None) -> tuple[Planned, ...]:
    """Return what each cell is expected to take with `samples` samples (None: as many as its own rule asks for)."""
    memory = estimate(group)
    return tuple(_planned(cell, samples, memory) for cell in group)


def _planned(cell: Cell, samples: int | None, memory: Memory) -> Planned:
    times = [[_forward_ns(cell, batch) for batch in forward] for forward in cell.run_forwards]
    busy = [batch for forward in cell.forwards for batch in forward if batch.live]
    savings = [reuse_saving(cell.geometry, batch, cell.variant.kv.extra) for batch in busy]
    return Planned(
        cell=cell,
        rows=cell.load.rows,
        forwards=len(times),
        refusals=tuple(pad.reason for pad in cell.graph_forwards if isinstance(pad, Refusal)),
        step_ns=sum(max(ranks) for ranks in times),
        cell_ns=((samples or USUAL_SAMPLES) + OTHER_RUNS) * sum(sum(ranks) for ranks in times),
        saved_rows=sum(saving.rows for saving in savings),
        saved_bytes=sum(saving.bytes for saving in savings),
        memory=memory,
    )


def _forward_ns(cell: Cell, batch: Batch) -> float:
    return forward_ns(cell.geometry, batch, cell.variant, ceilings_of(cell.device))
