"""Proves that the graph of a bucket does for every batch what an eager run does (appendix B.5, section 12).

First all batches run eagerly over the same padded rows, then the graph replays them one after the other, with nothing
between two replays but the next batch's inputs and poison: in all buffers, and in the cache slots that are to be
written. So whatever a captured kernel kept of another batch, or did not do, is in a byte that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from dsv4bench.profiling.capture import Captured, capture_breakable, run_pieces, tape_breakable, warm_up
from dsv4bench.profiling.cell_run import outcome
from dsv4bench.profiling.digest import Digest, digest
from dsv4bench.profiling.graphs import Pool, open_pool
from dsv4bench.profiling.live_rows import compare_live_rows
from dsv4bench.results.proofs import AS_EAGER, Comparison, Proof, ProofRow
from dsv4bench.workloads.batch import Batch
from dsv4bench.workloads.break_forms import Form, form_of
from dsv4bench.workloads.forward import Forward, Gather
from dsv4bench.workloads.geometry import LayerKind
from dsv4bench.workloads.late_layers import early
from dsv4bench.workloads.poison import CacheRows, poison_slots, rows_to_write
from dsv4bench.workloads.pools import RING_ROWS
from dsv4bench.workloads.prefill import Prefill, prepare
from dsv4bench.workloads.replay_batches import replay_batches
from dsv4bench.workloads.step import Step
from dsv4bench.workloads.variant import Variant
from dsv4bench.workloads.weights import Model

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Subject:
    """One batch on the device."""

    name: str
    forward: Forward
    continues: bool


@dataclass(slots=True)
class Left:
    """What a run left behind: for each of `AS_EAGER` a digest by place, and where padding was not zero."""

    parts: dict[str, dict[str, Digest]] = field(default_factory=lambda: {part: {} for part in AS_EAGER})
    soiled: list[str] = field(default_factory=list)


def proofs(model: Model, variants: Sequence[Variant], sizes: Sequence[int], progress: Progress) -> Iterator[Proof]:
    """Prove the graphs of `sizes` rows of each variant over shared caches, as tapes on a CPU; progress hears buckets.

    The variants are breakable and differ in compressor and breaks only. An error ends a variant's proof and no other.
    """
    largest = tuple(one.batch for one in replay_batches(max(sizes)))
    copies = any(form_of(variant).copies for variant in variants)
    torch_path = any(variant.compressor == "torch" for variant in variants)
    prefill = prepare(model, variants[0], (largest,), torch_path, copies)
    for variant in variants:
        yield _proof(prefill, variant, sizes, progress)


def _proof(prefill: Prefill, variant: Variant, sizes: Sequence[int], progress: Progress) -> Proof:
    step, form, rows = prefill.step(variant), form_of(variant), list[ProofRow]()
    graphs: dict[int, Captured] = {}
    reason, kind = None, ""
    try:
        graphs = capture_buckets(prefill, step, sizes)
        kind = next(iter(graphs.values())).kind
        for size in sizes:
            progress(f"bucket {size}, {variant.compressor}, {variant.breaks}")
            rows += prove_bucket(step, subjects(prefill, size), graphs[size], form)
    except Exception as error:
        reason = outcome(error)[1]
    finally:
        for captured in graphs.values():
            captured.free()
    return Proof(variant.switches(), kind, tuple(rows), reason)


def capture_buckets(prefill: Prefill, step: Step, sizes: Sequence[int]) -> dict[int, Captured]:
    """Capture one graph for each bucket, the largest first, in one memory pool (specification 6.6).

    CaptureError names the bucket whose capture failed; the graphs made before are then freed.
    """
    pool, graphs = open_pool(prefill.model.device), dict[int, Captured]()
    try:
        for size in sorted(sizes, reverse=True):
            graphs[size] = _capture(step, subjects(prefill, size)[0].forward, pool)
    except BaseException:
        for captured in graphs.values():
            captured.free()
        raise
    return graphs


def _capture(step: Step, forward: Forward, pool: Pool | None) -> Captured:
    step.load(forward)
    pieces = step.padded_pieces(forward, form_of(step.variant))
    if pool is None:
        return tape_breakable(pieces, step.ops)
    warm_up(pieces, pool.stream)
    return capture_breakable(pieces, pool.stream, pool.handle)


def subjects(prefill: Prefill, size: int) -> list[Subject]:
    """Return the batches that prove a bucket, on the device, each with hidden states of its own."""
    return [
        Subject(one.name, prefill.forward(one.batch, draw), one.continues)
        for draw, one in enumerate(replay_batches(size))
    ]


def prove_bucket(step: Step, batches: Sequence[Subject], captured: Captured, form: Form) -> list[ProofRow]:
    """Replay the batches in order and compare each with its eager run; the first is the one of the capture."""
    step.load(batches[0].forward)
    addresses = _addresses(step)
    wanted = [
        _run(step, one, form, partial(run_pieces, step.padded_pieces(one.forward, form))).parts for one in batches
    ]
    found = [_replay(step, one, form, captured, addresses, want) for one, want in zip(batches, wanted, strict=True)]
    rows = []
    for one, comparisons in zip(batches, found, strict=True):
        comparisons.append(Comparison("live rows", _live_rows(step, one.forward, form)))
        rows.append(ProofRow(one.forward.batch.rows, one.name, one.forward.live, tuple(comparisons)))
    return rows


def _replay(
    step: Step,
    one: Subject,
    form: Form,
    captured: Captured,
    addresses: tuple[int, ...],
    wanted: dict[str, dict[str, Digest]],
) -> list[Comparison]:
    before = _Snapshot(step, one)
    left = _run(step, one, form, captured.replay)
    return [
        *(Comparison(part, _difference(left.parts[part], wanted[part])) for part in AS_EAGER),
        Comparison("offsets", _offsets(step, one.forward, addresses)),
        Comparison("untouched", before.changed()),
        Comparison("padding", _places(left.soiled)),
    ]


def _live_rows(step: Step, forward: Forward, form: Form) -> str:
    """Say how padding changes live rows, or ""; there is nothing to compare without padding or without live rows."""
    if forward.live in (0, forward.batch.rows):
        return ""
    check = compare_live_rows(step, forward, form)
    return "" if check.passed else check.detail


def _run(step: Step, one: Subject, form: Form, run: Callable[[], None]) -> Left:
    """Run a batch over poison and return what it left."""
    if not one.continues:
        step.pools.restore_rings()
    step.poison()
    poison_slots(step.geometry, step.variant, step.pools, one.forward)
    step.load(one.forward)
    watch = _Watch(step, one.forward, form)
    step.observer = watch
    try:
        run()
    finally:
        step.observer = None
    return watch.end()


class _Watch:
    """An observer that digests, from inside the attention breaks, what later layers overwrite."""

    def __init__(self, step: Step, forward: Forward, form: Form) -> None:
        self._step = step
        self._forward = forward
        self._early = {kind.layer for kind in early(step.geometry, step.variant)}
        self._zeroed = form.breaks == "sm100"  # otherwise projections are made over live rows only
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
            parts[rows.what][f"layer {rows.layer}"] = digest(rows.read())
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


class _Snapshot:
    """Every cache and ring before a replay; what was to be written is taken over, then both must be equal.

    Slot 0 of the reserved page is looked at too, but for the ratio-2 torch path, which writes padding there (3.6).
    """

    def __init__(self, step: Step, one: Subject) -> None:
        self._step = step
        self._rows = list(rows_to_write(step.geometry, step.variant, step.pools, one.forward))
        self._caches = [rows.cache.clone() for rows in self._rows]
        rings = step.pools.rings if one.continues else step.pools.saved_rings
        self._rings = {source: ring.clone() for source, ring in rings.items()}
        self._parked = _parked_rows(one.forward.batch)

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
        return _places(found)

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


def _addresses(step: Step) -> tuple[int, ...]:
    steps = [step] if step.tail is None else [step, step.tail]
    return tuple(tensor.data_ptr() for one in steps for tensor in one.inputs.tensors())


def _offsets(step: Step, forward: Forward, addresses: tuple[int, ...]) -> str:
    """Say what is wrong with the static inputs after a load, or "": moved, or not this batch's offsets (5.3)."""
    if _addresses(step) != addresses:
        return "an input lies at another address than at capture"
    batch, slots = forward.batch, step.inputs.offsets.shape[1]
    requests = () if batch.idle else batch.requests
    rest = [0] * (slots - len(requests))
    wanted = [[*(batch.starts if requests else ()), *rest], [*(one.extend for one in requests), *rest]]
    return "" if step.inputs.offsets.tolist() == wanted else f"{step.inputs.offsets.tolist()}, expected {wanted}"


def _difference(got: dict[str, Digest], want: dict[str, Digest]) -> str:
    return _places([place for place in want if got.get(place) != want[place]])


def _places(places: Sequence[str]) -> str:
    """Name the first of some places and say how many there are; "" where there is none."""
    if not places:
        return ""
    return places[0] if len(places) == 1 else f"{places[0]} and {len(places) - 1} more"
