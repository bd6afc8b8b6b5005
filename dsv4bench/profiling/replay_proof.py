"""Proves that the graph of a bucket does for every batch what an eager run does (appendix B.5, section 12).

First all batches run eagerly over the same padded rows, then the graph replays them one after the other. Between two
replays there are only the next batch's inputs, caches and rings as the prefix left them, and poison: in all buffers, in
the cache slots that are to be written and in the reserved page. So whatever a captured kernel kept of another batch,
did not do, or did to rows that are not its own, is in a byte that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial

import torch

from dsv4bench.errors import CaptureError
from dsv4bench.profiling.capture import Captured, capture_breakable, run_pieces, tape_breakable, warm_up
from dsv4bench.profiling.cell_run import outcome
from dsv4bench.profiling.digest import Digest
from dsv4bench.profiling.graphs import Pool, open_pool
from dsv4bench.profiling.live_rows import compare_live_rows
from dsv4bench.profiling.replay_watch import Beginning, Left, Snapshot, places_text, run_over_poison
from dsv4bench.results.proofs import AS_EAGER, Comparison, Proof, ProofRow
from dsv4bench.workloads.break_forms import form_of
from dsv4bench.workloads.cells import cells
from dsv4bench.workloads.forward import Forward
from dsv4bench.workloads.memory import free_bytes, refuse_too_large
from dsv4bench.workloads.options import PrefillOptions
from dsv4bench.workloads.prefill import Prefill, prepare
from dsv4bench.workloads.providers import parse, refuse_absent
from dsv4bench.workloads.replay_batches import replay_batches
from dsv4bench.workloads.step import Step
from dsv4bench.workloads.variant import Variant
from dsv4bench.workloads.weights import Model, make_model

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Subject:
    """One batch on the device."""

    name: str
    forward: Forward
    continues: bool


@torch.no_grad()
def prove(options: PrefillOptions, progress: Progress) -> Iterator[Proof]:
    """Prove the buckets of `options` for all its variants; the cells of one group share caches, whatever their load.

    UsageError where not even a small load of the geometry fits into memory.
    """
    device, model, groups = torch.device(options.device), None, cells(options)
    refuse_too_large(groups, free_bytes(options.device))
    for group in groups:
        if model is None or model.geometry != group[0].geometry:
            model = make_model(group[0].geometry, device, options.seed)
        yield from proofs(model, [cell.variant for cell in group], options.buckets, progress)


def proofs(model: Model, variants: Sequence[Variant], sizes: Sequence[int], progress: Progress) -> Iterator[Proof]:
    """Prove the graphs of `sizes` rows of each variant over shared caches, as tapes on a CPU; progress hears buckets.

    The variants are breakable and differ in compressor and breaks only. An error ends a variant's proof and no other,
    one while the caches are made (no memory) all of them.
    """
    largest = tuple(one.batch for one in replay_batches(max(sizes)))
    copies = any(form_of(variant).copies for variant in variants)
    torch_path = any(variant.compressor == "torch" for variant in variants)
    try:
        prefill = prepare(model, variants[0], (largest,), torch_path, copies)
        beginning = Beginning(prefill.pools)
    except Exception as error:
        yield from (Proof(variant.switches(), "", (), outcome(error)[1]) for variant in variants)
        return
    for variant in variants:
        yield _proof(prefill, beginning, variant, sizes, progress)


def _proof(prefill: Prefill, beginning: Beginning, variant: Variant, sizes: Sequence[int], progress: Progress) -> Proof:
    step, rows = prefill.step(variant), list[ProofRow]()
    graphs: dict[int, Captured] = {}
    reason, kind = None, ""
    try:
        refuse_absent(parse(variant.provider, prefill.model.device.type), prefill.model.device.type)
        graphs = capture_buckets(prefill, step, sizes)
        kind = next(iter(graphs.values())).kind
        for size in sizes:
            progress(f"bucket {size}, {variant.compressor}, {variant.breaks}")
            rows += prove_bucket(step, beginning, subjects(prefill, size), graphs[size])
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
            with _of_bucket(size):
                graphs[size] = _capture(step, prefill.forward(replay_batches(size)[0].batch), pool)
    except BaseException:
        for captured in graphs.values():
            captured.free()
        raise
    return graphs


@contextmanager
def _of_bucket(size: int) -> Iterator[None]:
    try:
        yield
    except CaptureError as error:
        raise CaptureError(f"bucket {size}: {error}") from error


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


def prove_bucket(step: Step, beginning: Beginning, batches: Sequence[Subject], captured: Captured) -> list[ProofRow]:
    """Replay the batches in order and compare each with its eager run; the first is the one of the capture."""
    form = form_of(step.variant)
    step.load(batches[0].forward)
    addresses = _addresses(step)
    wanted = []
    for one in batches:
        beginning.restore(one.continues)
        eager = partial(run_pieces, step.padded_pieces(one.forward, form))
        wanted.append(run_over_poison(step, one.forward, eager).parts)
    found = []
    for one, want in zip(batches, wanted, strict=True):
        beginning.restore(one.continues)
        before = Snapshot(step, one.forward)
        left = run_over_poison(step, one.forward, captured.replay)
        found.append(
            [
                *(Comparison(part, _difference(left, part, want[part])) for part in AS_EAGER),
                Comparison("offsets", _offsets(step, one.forward, addresses)),
                Comparison("untouched", before.changed()),
                Comparison("padding", places_text(left.soiled)),
            ]
        )
    for one, comparisons in zip(batches, found, strict=True):
        if 0 < one.forward.live < one.forward.batch.rows:
            check = compare_live_rows(step, one.forward, form)
            comparisons.append(Comparison("live rows", "" if check.passed else check.detail))
    return [
        ProofRow(one.forward.batch.rows, one.name, one.forward.live, tuple(comparisons))
        for one, comparisons in zip(batches, found, strict=True)
    ]


def _addresses(step: Step) -> tuple[int, ...]:
    steps = [step] if step.tail is None else [step, step.tail]
    return tuple(tensor.data_ptr() for one in steps for tensor in one.inputs.tensors())


def _offsets(step: Step, forward: Forward, addresses: tuple[int, ...]) -> str:
    """Say what is wrong with the static inputs after a load, or "": moved, or not this batch's values (5.3).

    An eager run reads them too: without this it would be as wrong as the replay.
    """
    if _addresses(step) != addresses:
        return "an input lies at another address than at capture"
    batch, slots = forward.batch, step.inputs.offsets.shape[1]
    requests = () if batch.idle else batch.requests
    rest = [0] * (slots - len(requests))
    wanted = [[*(batch.starts if requests else ()), *rest], [*(one.extend for one in requests), *rest]]
    if step.inputs.offsets.tolist() != wanted:
        return f"{step.inputs.offsets.tolist()}, expected {wanted}"
    stale = [name for name, mine, its in _loaded(step, forward) if not torch.equal(mine[: its.shape[0]], its)]
    return f"not this batch's: {', '.join(stale)}" if stale else ""


def _loaded(step: Step, forward: Forward) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield the name of each static input, the tensor that kernels read, and the batch's own."""
    for one, batch, of in ((step, forward, ""), (step.tail, forward.tail, "the tail's ")):
        if one is not None and batch is not None:
            for input_ in fields(one.inputs):
                yield f"{of}{input_.name}", getattr(one.inputs, input_.name), getattr(batch.inputs, input_.name)


def _difference(left: Left, part: str, want: dict[str, Digest]) -> str:
    """Say where a replay left something else than the eager run, or a row unwritten as that did too; "" if neither."""
    differing = places_text([place for place in want if left.parts[part].get(place) != want[place]])
    unwritten = places_text(left.unwritten[part])
    return differing or (f"not written: {unwritten}" if unwritten else "")
