"""`dsv4bench check capture`: what of a workload is not graph-safe, found on a CPU before a GPU sees it.

Every bucket is captured on tapes with its own batch and again with other batches of the same bucket. What a capture
refuses is a finding, and so is every difference between two captures, and what a capture reads of an earlier batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from dsv4bench.profiling.capture import Captured, tape_breakable
from dsv4bench.profiling.graphs import padded_plan
from dsv4bench.profiling.tape_compare import compare_tapes
from dsv4bench.profiling.tape_kept import kept_values
from dsv4bench.profiling.tape_rules import Finding, Rule
from dsv4bench.profiling.verify import other_batch
from dsv4bench.workloads.batch import Batch
from dsv4bench.workloads.break_forms import form_of
from dsv4bench.workloads.cells import Cell
from dsv4bench.workloads.forward import Forward
from dsv4bench.workloads.prefill import Prefill, prepare
from dsv4bench.workloads.providers import parse, refuse_absent
from dsv4bench.workloads.step import Step
from dsv4bench.workloads.weights import Model


@dataclass(frozen=True, slots=True)
class Unsafe:
    """One thing that is not graph-safe: what it is, where, how to mend it, and every piece that does it."""

    place: str
    rule: Rule
    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CaptureReport:
    """What came of one cell: its `buckets` with the captures of each, and what is not graph-safe.

    `refused` are the reasons why a forward is not captured; `segments`, `breaks` and `nodes` are those of the largest
    bucket. `uncaptured` are sentences about kernels of a named provider that no segment calls, so that nothing was
    checked of them. `failed` says why the cell could not be checked at all.
    """

    cell: Cell
    buckets: tuple[int, ...] = ()
    captures: int = 0
    segments: int = 0
    breaks: int = 0
    nodes: int = 0
    refused: tuple[str, ...] = ()
    unsafe: tuple[Unsafe, ...] = ()
    uncaptured: tuple[str, ...] = ()
    failed: str | None = None


def check_capture(cell: Cell, model: Model) -> CaptureReport:
    """Capture each bucket of a cell with several batches; CaptureError or CellSkipped where it cannot run at all."""
    refuse_absent(parse(cell.variant.provider, cell.device), cell.device)
    plan, refusals = padded_plan((cell,))
    refused = tuple(dict.fromkeys(refusals.values()))
    variant = cell.variant
    prefill = prepare(model, variant, plan, variant.compressor == "torch", form_of(variant).copies)
    step = prefill.step(variant)
    fullest_last = sorted(prefill.all_forwards(), key=lambda forward: forward.live)
    forwards = {forward.batch.bucket: forward for forward in fullest_last if forward.batch.bucket}
    findings: list[Finding] = []
    captures: list[Captured] = []
    with torch.no_grad():
        for bucket in sorted(forwards, key=lambda rows: -(rows or 0)):
            captures += _captured(prefill, step, forwards[bucket], findings)
    largest = captures[0] if captures else None
    return CaptureReport(
        cell=cell,
        buckets=tuple(sorted(bucket for bucket in forwards if bucket)),
        captures=len(captures),
        segments=largest.segments if largest else 0,
        breaks=largest.breaks if largest else 0,
        nodes=sum(len(tape.nodes) for tape in largest.graphs) if largest else 0,
        refused=refused,
        unsafe=merged(findings),
        uncaptured=tuple(_uncaptured(step, captures)),
    )


def _uncaptured(step: Step, captures: Sequence[Captured]) -> Iterator[str]:
    """Yield a sentence for each kernel with a provider of its own that was called in no segment."""
    called = {name for captured in captures for tape in captured.graphs for name in tape.kernels}
    for name, provider in parse(step.variant.provider, "cpu").of_one if captures else ():
        if name not in called:
            why = "is not called" if name in step.ops.not_called else "runs in breaks, which are not captured"
            yield f"{name}={provider} {why}"


def _captured(prefill: Prefill, step: Step, forward: Forward, findings: list[Finding]) -> list[Captured]:
    """Capture one bucket with its own batch and with others, adding to `findings`; the first is the own one.

    Before all others a capture stands for the warm-up runs: what it refuses, no real capture sees.
    """
    warm_up = _capture(step, forward, [])
    first = _capture(step, forward, findings)
    findings += kept_values(warm_up.graphs, first.graphs, _changing(step))
    rest = []
    for batch in other_batches(forward.batch):
        again = _capture(step, prefill.forward(batch), findings)
        findings += compare_tapes(first.graphs, again.graphs)
        rest.append(again)
    return [first, *rest]


def _capture(step: Step, forward: Forward, findings: list[Finding]) -> Captured:
    step.load(forward)
    pieces = step.padded_pieces(forward, form_of(step.variant))
    return tape_breakable(pieces, step.ops, findings=findings)


def _changing(step: Step) -> Iterator[torch.Tensor]:
    """Yield what holds a batch, or what a step makes of it."""
    for one in (step, step.tail):
        if one is not None:
            yield from (*one.inputs.tensors(), *one.buffers.tensors())
    yield from (*step.pools.caches(), *step.pools.rings.values())


def other_batches(batch: Batch) -> Iterator[Batch]:
    """Yield batches of the same bucket: one with a row less, one with a request less, where there are several."""
    if batch.idle:
        return
    fewer_rows = other_batch(batch)
    if fewer_rows is not None:
        yield fewer_rows
    if len(batch.requests) > 1:
        yield replace(batch, requests=batch.requests[1:])


def merged(findings: Iterable[Finding]) -> tuple[Unsafe, ...]:
    """Join findings that say the same of the same line, in the order of first appearance."""
    found: dict[tuple[str, Rule], dict[str, None]] = {}
    for one in findings:
        found.setdefault((one.place, one.rule), {})[one.piece] = None
    return tuple(Unsafe(place, rule, tuple(pieces)) for (place, rule), pieces in found.items())
