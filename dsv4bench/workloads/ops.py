"""How a step calls an operation: inside its range, on its provider, and under an audit while a cell is verified."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dsv4bench.kernels.contract import Call, Kernel, Provider, Tensors, takes_all
from dsv4bench.ranges import Borders, Mark, Range, Silent, borders
from dsv4bench.workloads.geometry import LayerKind
from dsv4bench.workloads.providers import parse

Audit = Callable[[Range, Kernel, Provider, dict[str, Any], Call], None]
Exchange = Callable[[str, dict[str, torch.Tensor], Call], None]

Place = tuple[int, int, str | None]  # rank, layer, op


class Ops:
    """Dispatches catalogue kernels and plain GEMMs, each inside its `Range`.

    `mark` hears every range; `audit`, while it is set, is called in place of each kernel's launch and must launch it.
    `provider` is a choice as `providers.parse` reads it, `device` "cpu" or "cuda"; `rank` is whose batch runs.
    """

    def __init__(self, provider: str, device: str, rank: int = 0) -> None:
        self._choice = parse(provider, device)
        self._device = device
        self.audit: Audit | None = None
        self.exchange: Exchange | None = None  # called in place of each collective, and must run it
        self.rank = rank
        self._mark: Mark = Silent()
        self._borders: dict[Place, Borders] = {}
        self._ranges: dict[Place, Range] = {}
        self._providers: dict[str, tuple[Kernel, Provider]] = {}
        self._instead: dict[str, Provider] = {}  # who took the calls that a kernel's provider refused
        self._took: set[str] = set()  # kernels whose provider may refuse calls, and took one

    @property
    def mark(self) -> Mark:
        """Who hears the ranges."""
        return self._mark

    @mark.setter
    def mark(self, mark: Mark) -> None:
        self._mark = mark
        self._borders = {}  # prepared by the mark before

    def range(self, kind: LayerKind, op: str | None) -> Range:
        """Return the range of `op` in a layer; always the same object."""
        key = (self.rank, kind.layer, op)
        found = self._ranges.get(key)
        if found is None:
            found = self._ranges[key] = Range(0, kind.layer, kind.ratio, kind.kv_source, op, self.rank)
        return found

    def _around(self, kind: LayerKind, op: str | None) -> Borders:
        key = (self.rank, kind.layer, op)
        found = self._borders.get(key)
        if found is None:
            found = self._borders[key] = borders(self._mark, self.range(kind, op))
        return found

    def run(self, kind: LayerKind, op: str, name: str, **tensors: Any) -> None:
        """Run the catalogue's kernel `name` as operation `op` of a layer."""
        enter, leave = self._around(kind, op)
        found = self.provider_of(name, tensors)
        enter()
        try:
            call = found[1].build(tensors)
            if self.audit is None:
                call()
            else:
                self.audit(self.range(kind, op), *found, tensors, call)
        finally:
            leave()

    def provider(self, name: str) -> tuple[Kernel, Provider]:
        """Return the catalogue's kernel `name` and who runs it here; CellSkipped where nobody can."""
        found = self._providers.get(name)
        if found is None:
            found = self._providers[name] = self._choice.resolve(name, self._device)
        return found

    def provider_of(self, name: str, tensors: Tensors) -> tuple[Kernel, Provider]:
        """Return the kernel `name` and who runs a call on `tensors`: our own where the provider of all refuses it.

        CellSkipped where the provider was named for this kernel: it never gives way.
        """
        found, provider = self.provider(name)
        if provider.refuses is takes_all:
            return found, provider
        refusal = provider.refuses(tensors)
        if refusal is None:
            self._took.add(name)
            return found, provider
        if name not in self._instead:
            self._instead[name] = self._choice.instead(provider, refusal, name, self._device)
        return found, self._instead[name]

    @property
    def ran_on(self) -> dict[str, str]:
        """Whom every kernel ran on so far, by the kernel's name: "sglang, triton" where one refused some calls."""
        return {name: ", ".join(self._ran(name)) for name in sorted(self._providers)}

    @property
    def not_called(self) -> dict[str, str]:
        """The kernels for which a provider was named and that were not called so far, with that provider."""
        return {name: provider for name, provider in self._choice.of_one if name not in self._providers}

    def _ran(self, name: str) -> Iterator[str]:
        if name in self._took or name not in self._instead:
            yield self._providers[name][1].name
        if name in self._instead:
            yield self._instead[name].name

    def matmul(self, kind: LayerKind, op: str, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        """Write `x @ weight` into `out`; an f32 `out` takes the f32 accumulator unrounded."""
        with self.within(kind, op):
            if out.dtype == x.dtype:
                torch.mm(x, weight, out=out)
            elif x.is_cuda:
                torch.mm(x, weight, torch.float32, out=out)
            else:  # a CPU has no mixed GEMM; products of bf16 are exact in f32
                torch.mm(x.float(), weight.float(), out=out)

    def collective(self, name: str, call: Call, out: torch.Tensor, rows: torch.Tensor) -> None:
        """Let `call` exchange `rows` with other ranks into `out`; an all-reduce has both in one."""
        if self.exchange is None:
            call()
        else:
            self.exchange(name, {"out": out, "rows": rows}, call)

    @contextmanager
    def within(self, kind: LayerKind, op: str | None) -> Iterator[None]:
        """Open the range of `op` around plain torch work."""
        enter, leave = self._around(kind, op)
        enter()
        try:
            yield
        finally:
            leave()
