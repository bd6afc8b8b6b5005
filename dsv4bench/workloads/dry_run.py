"""What a cell is expected to run, take and save, before it runs: one row of the plan that `--dry-run` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dsv4bench.units import format_bytes, format_ns, format_rate
from dsv4bench.workloads.batch import Batch
from dsv4bench.workloads.buckets import Refusal
from dsv4bench.workloads.cells import Cell, Group
from dsv4bench.workloads.memory import Memory, estimate, pools_of
from dsv4bench.workloads.model import ceilings_of, forward_ns, reuse_saving
from dsv4bench.workloads.moe_costs import exchanged_bytes
from dsv4bench.workloads.pool_size import PoolSize
from dsv4bench.workloads.step_scope import in_words, layer_shares

USUAL_SAMPLES = 10  # fewest samples where sampling stops by its own rule
OTHER_RUNS = 8  # runs of a step besides its samples: two verifications, warm-up, counting


@dataclass(frozen=True, slots=True)
class Planned:
    """One planned cell; every figure is `modelled`.

    `buckets` are those of the forwards that a breakable graph takes, and `padded_rows` the rows of all forwards with
    their padding. `refusals` are the reasons of the forwards that it would not take; a cell whose every forward is
    refused does not run: its times are None. `step_ns` sums the slowest rank of every forward; `cell_ns` is all runs of
    the cell, rank after rank. `saved_rows` and `saved_bytes` are what reuse saves on all ranks, `saved_ns` what it
    saves of the step, its launches apart, and `saved_share` that time as a share of the step without reuse.
    `stack_share` and `stack_bytes_share` are the step's shares of the FLOPs and bytes of v41-flash's layers.
    `exchanged_bytes` are those of the buffers that each collective of a step works on, which are in no time here.
    `memory` is taken once by all cells of the group. `pools` are those of `--mem-fraction`.
    """

    cell: Cell
    rows: int
    forwards: int
    buckets: tuple[int, ...]
    padded_rows: int
    refusals: tuple[str, ...]
    step_ns: float | None
    cell_ns: float | None
    saved_rows: int
    saved_bytes: int
    saved_ns: float
    saved_share: float
    stack_share: float
    stack_bytes_share: float
    exchanged_bytes: dict[str, int]
    memory: Memory
    pools: PoolSize | None = None

    @property
    def refused(self) -> bool:
        """Whether the graph takes none of the forwards, so that the cell does not run."""
        return len(self.refusals) == self.forwards


def planned(group: Group, samples: int | None, free_bytes: int = 0) -> tuple[Planned, ...]:
    """Return what each cell is expected to take with `samples` samples (None: as many as its own rule asks for).

    `free_bytes` of device memory are what `--mem-fraction` is a fraction of, where no size was given.
    """
    memory, pools = estimate(group), pools_of(group[0], free_bytes)
    return tuple(replace(_planned(cell, samples, memory), pools=pools) for cell in group)


def as_plain(row: Planned) -> dict[str, Any]:
    """Return a planned cell as plain values, labelled "modelled"; `extend` and `prefix` are "mixed" if they differ."""
    cell, load, variant = row.cell, row.cell.load, row.cell.variant
    return {
        "label": "modelled",
        "status": "refused" if row.refused else "planned",
        "geometry": cell.geometry.name,
        "requests": len(load.requests),
        "extend": "mixed" if load.extend is None else load.extend,
        "prefix": "mixed" if load.prefix is None else load.prefix,
        "source": load.source,
        "rows": row.rows,
        "forwards": row.forwards,
        "buckets": list(row.buckets),
        "padded_rows": row.padded_rows,
        "chunk": cell.chunk,
        "ranks": cell.ranks,
        "mode": cell.mode,
        "breaks": variant.switches()["breaks"],
        "break_outputs": variant.switches()["break-outputs"],
        "reuse": variant.reuse,
        "kv": variant.kv.name,
        "compressor": variant.compressor,
        "provider": variant.provider,
        "fault": variant.fault,
        "replay": variant.replay,
        "path": variant.path,
        "moe": variant.moe,
        "mhc": variant.mhc,
        **{name: getattr(row, name) for name in ("step_ns", "cell_ns", "saved_rows", "saved_bytes", "saved_ns")},
        "saved_share": row.saved_share,
        "in_step": in_words(variant),
        "stack_share": row.stack_share,
        "stack_bytes_share": row.stack_bytes_share,
        "exchanged_bytes": row.exchanged_bytes,
        "memory_bytes": row.memory.total_bytes,
        "refusals": list(row.refusals),
        **_pools(row),
    }


def _pools(row: Planned) -> dict[str, Any]:
    """Return the pools of `--mem-fraction`; nothing without it."""
    plan, size = row.cell.memory, row.pools
    if plan is None or size is None:
        return {}
    return {
        "mem_fraction": plan.fraction,
        "recipe": plan.recipe or None,
        "device_bytes": size.device_bytes,
        "weights_bytes": size.weights_bytes,
        "full_pool_tokens": size.full_tokens,
        "window_pool_tokens": size.window_tokens,
        "pool_bytes": size.pool_bytes,
        "slack_bytes": size.device_bytes - size.weights_bytes - size.pool_bytes,
    }


def plan_notes(rows: Sequence[Planned]) -> list[str]:
    """Return what must be read with a plan: the assumed rates, what no time holds, and what a graph refuses."""
    rates = {row.cell.device: ceilings_of(row.cell.device) for row in rows}
    return [
        *(
            f"modelled at {one.name}, nothing of it measured here: {format_rate(one.bytes_per_s)} of bytes moved,"
            f" {format_ns(one.launch_ns, 1)} a launch"
            for one in rates.values()
        ),
        *_exchange_note(rows),
        *(f"the graph refuses: {reason}" for reason in sorted({reason for row in rows for reason in row.refusals})),
    ]


def _exchange_note(rows: Sequence[Planned]) -> list[str]:
    """Return the line that says how much ranks exchange, from the least to the most of all cells."""
    found: dict[str, list[int]] = {}
    for row in rows:
        for name, moved in row.exchanged_bytes.items():
            found.setdefault(name, []).append(moved)
    if not found:
        return []
    spans = {name: dict.fromkeys(map(format_bytes, (min(moved), max(moved)))) for name, moved in found.items()}
    said = ", ".join(f"{name} {' to '.join(span)}" for name, span in spans.items())
    return [f"exchange of rows, in no time above, as no link's rate is known here: {said} a step"]


def _planned(cell: Cell, samples: int | None, memory: Memory) -> Planned:
    times = _times_ns(cell)
    refusals = tuple(pad.reason for pad in cell.graph_forwards if isinstance(pad, Refusal))
    runs = len(refusals) < len(times)
    savings = [[reuse_saving(cell.geometry, batch, cell.variant) for batch in ranks] for ranks in cell.forwards]
    rate = ceilings_of(cell.device).bytes_per_s
    saved_ns = sum(max(saving.ns(rate) for saving in ranks) for ranks in savings)
    before_ns = _step_ns(_times_ns(replace(cell, variant=replace(cell.variant, reuse="off"))))
    shares = _layer_shares(cell)
    return Planned(
        cell=cell,
        rows=cell.load.rows,
        forwards=len(times),
        buckets=tuple(ranks[0].bucket for ranks in cell.run_forwards if ranks[0].bucket is not None),
        padded_rows=sum(batch.rows for ranks in cell.run_forwards for batch in ranks),
        refusals=refusals,
        step_ns=_step_ns(times) if runs else None,
        cell_ns=((samples or USUAL_SAMPLES) + OTHER_RUNS) * sum(map(sum, times)) if runs else None,
        saved_rows=sum(saving.rows for ranks in savings for saving in ranks),
        saved_bytes=sum(saving.bytes for ranks in savings for saving in ranks),
        saved_ns=saved_ns,
        saved_share=saved_ns / before_ns,
        stack_share=shares[0],
        stack_bytes_share=shares[1],
        exchanged_bytes=_exchanged_bytes(cell),
        memory=memory,
    )


def _times_ns(cell: Cell) -> list[list[float]]:
    return [[_forward_ns(cell, forward, rank) for rank in range(len(forward))] for forward in cell.run_forwards]


def _forward_ns(cell: Cell, forward: Sequence[Batch], rank: int) -> float:
    others = (*forward[:rank], *forward[rank + 1 :])
    return forward_ns(cell.geometry, forward[rank], cell.variant, ceilings_of(cell.device), others)


def _step_ns(times: Sequence[Sequence[float]]) -> float:
    return sum(max(ranks) for ranks in times)


def _exchanged_bytes(cell: Cell) -> dict[str, int]:
    """Return the bytes of every kind of collective, summed over the forwards of a step."""
    found: Counter[str] = Counter()
    for forward in cell.run_forwards:
        found.update(exchanged_bytes(cell.geometry, forward, cell.variant))
    return dict(found)


def _layer_shares(cell: Cell) -> tuple[float, float]:
    return layer_shares(cell.forwards[0], cell.variant)
