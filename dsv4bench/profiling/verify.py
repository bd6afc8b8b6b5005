"""What it means that a cell is right: reused heads, equal outputs, kernels within tolerance, replays equal to eager.

A check is a `Check` with a name, whether it passed, and one sentence; a cell with a failed check is wrong and gets no
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dsv4bench.kernels.contract import EXACT, Call, Kernel, Provider, Tolerance
from dsv4bench.profiling.digest import Digest, digest, digest_all
from dsv4bench.ranges import Range
from dsv4bench.workloads.batch import Batch
from dsv4bench.workloads.forward import Forward, Gather
from dsv4bench.workloads.geometry import Geometry, LayerKind
from dsv4bench.workloads.poison import poison_slots
from dsv4bench.workloads.step import Step


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was verified."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What one run of a step left behind: its layer inputs and output, and every cache and ring."""

    layers: tuple[Digest, ...]
    caches: tuple[Digest, ...]


@dataclass(slots=True)
class Watch:
    """An observer that digests every layer's input and compares every reused head row with a fresh dequant."""

    layers: list[Digest] = field(default_factory=list)
    heads: int = 0
    stale: list[int] = field(default_factory=list)

    def layer_input(self, kind: LayerKind, residual: torch.Tensor) -> None:
        """Digest the residual stream that enters a layer."""
        self.layers.append(digest(residual))

    def reused_head(self, step: Step, kind: LayerKind, gather: Gather, head: torch.Tensor) -> None:
        """Dequantise the head again into scratch and compare it byte for byte."""
        fresh = torch.empty_like(head)
        tensors = step.compressed(kind) | {"ids": gather.ids, "out": fresh}
        _, provider = step.ops.provider_of("dequant", tensors)
        provider.build(tensors)()
        self.heads += 1
        if not torch.equal(fresh.view(torch.int16), head.contiguous().view(torch.int16)):
            self.stale.append(kind.layer)

    def check(self, expected: int) -> Check:
        """Return whether `expected` heads were reused, and each held what a fresh dequant gives."""
        detail = f"{self.heads} reused heads equal a fresh dequant byte for byte"
        if self.stale:
            detail = f"{len(self.stale)} of {self.heads} reused heads differ, first in layer {self.stale[0]}"
        elif self.heads != expected:
            detail = f"{self.heads} heads were reused, expected {expected}"
        return Check("reused heads", not self.stale and self.heads == expected, detail)


def observe(step: Step, forwards: Sequence[Forward], run: Callable[[Forward], None]) -> tuple[Seen, Watch]:
    """Run the forwards in order and return what they left behind.

    Rings start as the prefix left them; buffers, workspace and the slots that a forward is to write start poisoned.
    """
    watch = Watch()
    step.pools.restore_rings()
    for forward in forwards:
        step.poison()
        poison_slots(step.geometry, step.variant, step.pools, forward)
        step.load(forward)
        step.observer = watch
        try:
            run(forward)
        finally:
            step.observer = None
        watch.layers.append(digest(step.result(forward)))
    return Seen(tuple(watch.layers), digest_all(step.pools.written())), watch


def compare(name: str, got: Seen, want: Seen) -> Check:
    """Check that two runs left the same bytes behind."""
    wrong = [i for i, pair in enumerate(zip(got.layers, want.layers, strict=True)) if pair[0] != pair[1]]
    if wrong:
        return Check(
            name, False, f"{len(wrong)} of {len(want.layers)} layer outputs differ, first is number {wrong[0]}"
        )
    if got.caches != want.caches:
        count = sum(a != b for a, b in zip(got.caches, want.caches, strict=True))
        return Check(name, False, f"layer outputs are equal, {count} of {len(want.caches)} caches or rings differ")
    return Check(name, True, f"{len(want.layers)} layer outputs and {len(want.caches)} caches and rings are byte-equal")


class KernelAudit:
    """Looks at the ids of every kernel, and runs the torch reference beside it in the first layer of each kind.

    The reference works on clones of the same inputs, which the kernel must leave as they were.
    """

    def __init__(self, geometry: Geometry) -> None:
        self._layers = {kind.layer for kind in first_of_each_kind(geometry)}
        self.compared = 0
        self.wrong: list[str] = []

    def __call__(self, rng: Range, kernel: Kernel, provider: Provider, tensors: dict[str, Any], call: Call) -> None:
        """Look at slots and ids, then launch `call`; in an audited layer compare its outputs with the reference's.

        Raises a ValueError that names the layer, the operation and the argument where an id lies outside its tensor.
        """
        try:
            kernel.check_values(tensors)
        except ValueError as error:
            raise ValueError(f"layer {rng.layer} {rng.op}: {error}") from error
        if rng.layer not in self._layers or provider.name == "torch":
            call()
            return
        before = {name: tensors[name].clone() for name in kernel.outputs}
        expected = {name: tensor.clone() for name, tensor in before.items()}
        kernel.reference(**{**tensors, **expected})
        inputs = {name: (tensors[name], tensors[name].clone()) for name in _only_read(kernel, tensors)}
        call()
        self.wrong += [
            f"layer {rng.layer} {rng.op} {name}: an input that the call changed"
            for name, (now, then) in inputs.items()
            if EXACT.deviation(now, then)
        ]
        for name, tolerance in kernel.outputs.items():
            got, want = tensors[name], expected[name]
            if name == "cache":
                deviation = cache_deviation(tolerance, tensors, want, before[name])
            else:
                deviation = tolerance.deviation(got, want)
            self.compared += 1
            if deviation is not None:
                self.wrong.append(f"layer {rng.layer} {rng.op} {name}: {deviation}")

    def check(self) -> Check:
        """Return whether every output was within its kernel's tolerance."""
        if self.wrong:
            return Check("kernels against torch", False, self.wrong[0])
        detail = f"{self.compared} outputs in layers {sorted(self._layers)} within their kernels' tolerances"
        return Check("kernels against torch", True, detail)


def _only_read(kernel: Kernel, tensors: dict[str, Any]) -> list[str]:
    """Return the names of the tensors of a call that share no storage with its outputs."""
    written = {tensors[name].untyped_storage().data_ptr() for name in kernel.outputs}
    return [
        name
        for name, tensor in tensors.items()
        if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in written
    ]


def cache_deviation(
    tolerance: Tolerance, tensors: dict[str, Any], want: torch.Tensor, before: torch.Tensor
) -> str | None:
    """Return None if a cache [pages, bytes] is near enough to `want`, judged by the bytes that either side changed.

    A share is one of those bytes, not of the whole pool. Slot 0 takes what padding writes, several rows at once (3.6),
    so the reserved page is nobody's.
    """
    got = tensors["cache"]
    changed = (got != before) | (want != before)
    changed[0] = False
    pages = changed.any(dim=1)
    return tolerance.too_far(got[pages], want[pages], tensors) or tolerance.deviation(got[changed], want[changed])


def first_of_each_kind(geometry: Geometry) -> list[LayerKind]:
    """Return the first layer of each kind: ratio, owner of KV, owner of an index, role in the candidate filter."""
    found: dict[tuple[int, bool, bool, str], LayerKind] = {}
    for kind in geometry.layers:
        found.setdefault((kind.ratio, kind.owns_kv, kind.owns_index, kind.candidates), kind)
    return list(found.values())


def other_batch(batch: Batch) -> Batch | None:
    """Return a batch of the same requests with one row less, or None where there is only one row.

    The first request that has more than one new token loses its first, which counts as cached; where none has, the
    first request is left out. So every row behind it moves up: a graph that kept any input of the first batch shows.
    """
    if batch.live < 2:
        return None
    requests = list(batch.requests)
    longer = next((i for i, request in enumerate(requests) if request.extend > 1), None)
    if longer is None:
        del requests[0]
    else:
        request = requests[longer]
        requests[longer] = type(request)(request.index, request.prefix + 1, request.extend - 1)
    return Batch(tuple(requests), batch.rank, batch.bucket)
