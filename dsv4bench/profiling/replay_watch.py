"""What a run of one batch leaves behind, and what it must not touch; `replay_proof.py` compares eager runs and replays.

What later layers overwrite is digested from inside the attention breaks, which run eagerly in both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from dsv4bench.profiling.digest import Digest, digest
from dsv4bench.results.proofs import AS_EAGER
from dsv4bench.workloads.batch import Batch
from dsv4bench.workloads.forward import Forward, Gather
from dsv4bench.workloads.geometry import LayerKind
from dsv4bench.workloads.late_layers import early
from dsv4bench.workloads.poison import POISON, CacheRows, poison_slots, rows_to_write
from dsv4bench.workloads.pools import RING_ROWS, Pools
from dsv4bench.workloads.step import Step
from dsv4bench.workloads.variant import Variant


@dataclass(slots=True)
class Left:
    """What a run left behind: for each of `AS_EAGER` a digest by place, and where padding was not zero.

    `unwritten` are the places, by the same names, where a row of a cache that was to be written still holds poison.
    """

    parts: dict[str, dict[str, Digest]] = field(default_factory=lambda: {part: {} for part in AS_EAGER})
    soiled: list[str] = field(default_factory=list)
    unwritten: dict[str, list[str]] = field(default_factory=lambda: {part: [] for part in AS_EAGER})


class Beginning:
    """What caches and rings held before any batch ran: the prefix, and poison in the reserved page of every cache.

    Padding is zero, and so is a fresh page: what padding writes to slot 0 would not show without the poison.
    """

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._caches = [cache.clone() for cache in pools.caches()]

    def restore(self, continues: bool) -> None:
        """Put caches and rings back; for a batch that `continues` the one before, the poison alone."""
        for cache, kept in zip(self._pools.caches(), self._caches, strict=True):
            if not continues:
                cache.copy_(kept)
            cache[0].fill_(POISON)
        if not continues:
            self._pools.restore_rings()


def run_over_poison(step: Step, forward: Forward, run: Callable[[], None]) -> Left:
    """Run a batch over poison and return what it left."""
    step.poison()
    poison_slots(step.geometry, step.variant, step.pools, forward)
    step.load(forward)
    watch = _Watch(step, forward)
    step.observer = watch
    try:
        run()
    finally:
        step.observer = None
    return watch.end()


class _Watch:
    """An observer that digests, from inside the attention breaks, what later layers overwrite."""

    def __init__(self, step: Step, forward: Forward) -> None:
        self._step = step
        self._forward = forward
        self._early = {kind.layer for kind in early(step.geometry, step.variant)}
        self._zeroed = step.variant.breaks == "sm100"  # otherwise projections are made over live rows only
        self._left = Left()

    def layer_input(self, kind: LayerKind, residual: torch.Tensor) -> None:
        """Digest the residual stream that enters a layer and a source's latents, and look at the padding."""
        parts, live, buffers = self._left.parts, self._forward.live, self._step.buffers
        parts["outputs"][f"layer {kind.layer}"] = digest(residual)
        if kind.layer in self._step.pools.compressed:
            latent = buffers.latent[:live]
            if kind.ratio == 2:  # a row at an even position has none
                latent = latent[self._forward.inputs.pair_loc[:live] >= 0]
            parts["latents"][f"source {kind.layer}"] = digest(latent)
            if self._zeroed:
                for name in _projections(kind, self._step.variant):
                    self._look(f"layer {kind.layer} {name}", getattr(buffers, name))
        if kind.layer in self._early:
            self._look(f"layer {kind.layer} residual", buffers.residual)

    def reused_head(self, step: Step, kind: LayerKind, gather: Gather, head: torch.Tensor) -> None:
        """See nothing: how heads are reused is a check of its own."""

    def end(self) -> Left:
        """Digest what is left after the run."""
        step, parts = self._step, self._left.parts
        parts["outputs"]["the output"] = digest(step.result(self._forward))
        for rows in rows_to_write(step.geometry, step.variant, step.pools, self._forward):
            written = rows.read()
            parts[rows.what][f"layer {rows.layer}"] = digest(written)
            if (written == POISON).all(dim=1).any().item():
                self._left.unwritten[rows.what].append(f"layer {rows.layer}")
        for source, ring in step.pools.rings.items():
            parts["rings"][f"source {source}"] = digest(ring)
        return self._left

    def _look(self, name: str, buffer: torch.Tensor) -> None:
        live, rows = self._forward.live, self._forward.batch.rows
        if (buffer[live:rows] != 0).any().item():
            self._left.soiled.append(name)


def _projections(kind: LayerKind, variant: Variant) -> tuple[str, ...]:
    """Return the buffers of a source's projections, which a break zeroes behind the live rows (specification 6.6)."""
    queries = ("index_q_raw", "index_weights_raw") if kind.owns_index else ()
    if kind.ratio == 1:
        return ("source_kv", *queries)
    return ("kv_score", *queries) if variant.compressor == "fused" else ("split_kv", "split_score", *queries)


class Snapshot:
    """Every cache and ring before a replay; what was to be written is taken over, then both must be equal.

    Slot 0 of the reserved page is looked at too, but for the ratio-2 torch path, which writes padding there (3.6).
    """

    def __init__(self, step: Step, forward: Forward) -> None:
        self._step = step
        self._rows = list(rows_to_write(step.geometry, step.variant, step.pools, forward))
        self._caches = [rows.cache.clone() for rows in self._rows]
        self._rings = {source: ring.clone() for source, ring in step.pools.rings.items()}
        self._parked = _parked_rows(forward.batch)

    def changed(self) -> str:
        """Return what was written that was not to be, or ""."""
        found = []
        for rows, kept in zip(self._rows, self._caches, strict=True):
            self._with_dummy(rows).copy_to(kept)
            if not torch.equal(rows.cache, kept):
                found.append(f"{rows.what} of layer {rows.layer}")
        for source, ring in self._step.pools.rings.items():
            kept = self._rings[source]
            kept[self._parked] = ring[self._parked]
            if not torch.equal(ring.view(torch.int32), kept.view(torch.int32)):
                found.append(f"ring of source {source}")
        return places_text(found)

    def _with_dummy(self, rows: CacheRows) -> CacheRows:
        dummy = self._step.variant.compressor == "torch" and self._step.geometry.ratios[rows.layer] == 2
        if rows.what == "window" or not dummy:
            return rows
        return replace(rows, slots=torch.nn.functional.pad(rows.slots, (0, 1)))


def _parked_rows(batch: Batch) -> list[int]:
    """Return the ring rows of the last new tokens of each request: all that a forward may write (3.5)."""
    if batch.idle:
        return []
    newest = ((one, max(one.prefix, one.seq - RING_ROWS)) for one in batch.requests)
    return [one.index * RING_ROWS + at % RING_ROWS for one, first in newest for at in range(first, one.seq)]


def places_text(places: Sequence[str]) -> str:
    """Name the first of some places and say how many there are; "" where there is none."""
    if not places:
        return ""
    return places[0] if len(places) == 1 else f"{places[0]} and {len(places) - 1} more"
