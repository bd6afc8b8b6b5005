"""An adapter: how a function of an installed package does a kernel's work on this project's tensors.

`prepare` makes the arguments that upstream's own callers hold in another form: integers of another width, a table of
another granularity, a complex view. `launch` is the work itself, whatever upstream launches for it. `deliver` puts
results that upstream allocates itself where the kernel's contract wants them. A provider's call does all three; its
bare call, which comparisons of speed measure, prepares once and only launches.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch

from dsv4bench.kernels.contract import Call, Needs, Provider, Tensors, takes_all
from dsv4bench.kernels.layout import ROPE_DIM

Function = Callable[..., Any]
Results = Any  # what the launch returns: None, a tensor, or several


def _nothing(tensors: Tensors) -> dict[str, Any]:
    return {}


def _as_written(tensors: Tensors, results: Results) -> None:
    """Deliver nothing: the launch wrote the outputs itself."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One kernel on one package.

    `functions` are what is called, each "module:name", imported when a call is built and handed to `launch` after the
    tensors; `prepare` returns the tensors that it replaces. `rows` names the tensor whose length is the batch: with
    none, nothing is called. `refuses` is as `Provider.refuses`.
    """

    kernel: str
    package: str
    functions: tuple[str, ...]
    launch: Callable[..., Results]
    rows: str
    prepare: Callable[[Tensors], dict[str, Any]] = _nothing
    deliver: Callable[[Tensors, Results], None] = _as_written
    refuses: Callable[[Tensors], str | None] = takes_all
    packages: tuple[str, ...] = ()
    capability: tuple[int, int] = (9, 0)

    def build(self, tensors: Tensors) -> Call:
        """Return the call that keeps the kernel's contract; ValueError where upstream cannot take these tensors."""
        functions = self._functions(tensors)

        def call() -> None:
            if tensors[self.rows].shape[0]:
                self.deliver(tensors, self.launch({**tensors, **self.prepare(tensors)}, *functions))

        return call

    def bare(self, tensors: Tensors) -> Call:
        """Return the launch alone, on arguments that were prepared once; results stay where upstream put them.

        They live until the next launch. A graph of many calls would else give all of them the same memory, and what
        should be cold would be written to lines that the L2 holds.
        """
        functions = self._functions(tensors)
        prepared = {**tensors, **self.prepare(tensors)}
        held: list[Results] = []

        def call() -> None:
            if tensors[self.rows].shape[0]:
                held[:] = [self.launch(prepared, *functions)]

        return call

    def provider(self) -> Provider:
        """Return this adapter as a provider, which imports its packages when it is built and not before."""
        needs = Needs("cuda", (*self.packages, self.package), self.capability)
        return Provider(self.package, self.build, needs, self.refuses, self.bare)

    def _functions(self, tensors: Tensors) -> list[Function]:
        reason = self.refuses(tensors)
        if reason is not None:
            raise ValueError(f"{self.kernel} on {self.package}: {reason}")
        return [imported(function) for function in self.functions]


def imported(function: str) -> Function:
    """Import the function "module:name", or "module:Class.name"."""
    module, _, name = function.partition(":")
    found: Function = attrgetter(name)(importlib.import_module(module))
    return found


def first_of(*refusals: Callable[[Tensors], str | None]) -> Callable[[Tensors], str | None]:
    """Return a refusal that gives the first reason of several."""

    def refuses(tensors: Tensors) -> str | None:
        return next((reason for refusal in refusals if (reason := refusal(tensors)) is not None), None)

    return refuses


def needs_dense(name: str) -> Callable[[Tensors], str | None]:
    """Return the refusal of a tensor whose rows do not lie one after the other."""

    def refuses(tensors: Tensors) -> str | None:
        tensor = tensors[name]
        if tensor.is_contiguous():
            return None
        return f"{name} must be contiguous, not with strides {tuple(tensor.stride())}"

    return refuses


def delivers(*outputs: str) -> Callable[[Tensors, Results], None]:
    """Return a delivery that copies results, in order, to the outputs of these names."""

    def deliver(tensors: Tensors, results: Results) -> None:
        for name, found in zip(outputs, results, strict=True):
            tensors[name].copy_(found)

    return deliver


def complex_table(freqs: torch.Tensor) -> torch.Tensor:
    """View a table of rotations f32 [M, 64] as complex64 [M, 32], the form in which upstream's layers keep it."""
    return torch.view_as_complex(freqs.view(-1, ROPE_DIM // 2, 2))


def ascending(found: torch.Tensor) -> None:
    """Sort each row of ids i32 in place, -1 last: upstream's selections come in no order."""
    last = torch.iinfo(torch.int32).max
    ordered = found.masked_fill(found < 0, last).sort(dim=1).values
    found.copy_(ordered.masked_fill_(ordered == last, -1))
