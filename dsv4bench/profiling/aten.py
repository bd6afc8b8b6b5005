"""Aten operations per range: what stands beside the calls where no device counts launches (a CPU)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dsv4bench.profiling.dispatch_mode import DispatchMode
from dsv4bench.profiling.ledger import Ledger, Where
from dsv4bench.ranges import Range


class AtenCounter(DispatchMode):
    """A mark, and a context manager while counting: every aten operation goes to the innermost open range.

    Views move no data and are left out. Counting implies no_grad: with gradients, other operations would be dispatched.
    """

    def __init__(self, ledger: Ledger, where: Where = "eager") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger = ledger
        self.where: Where = where
        self._open: list[Range] = []
        self._no_grad = torch.no_grad()

    def hear(self, where: Where) -> None:
        """Hear that what follows runs in `where`."""
        self.where = where
        self.ledger.declare(where, "aten_ops")

    def enter(self, rng: Range) -> None:
        """Open the range."""
        self._open.append(rng)

    def exit(self, rng: Range) -> None:
        """Close the innermost range."""
        self._open.pop()

    def __enter__(self) -> AtenCounter:
        self._no_grad.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._no_grad.__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not _is_view(func):
            self.ledger.add(self._open[-1] if self._open else None, self.where, "aten_ops")
        return func(*args, **(kwargs or {}))


def _is_view(func: Any) -> bool:
    """An operation that returns an alias of an argument without writing to it, by its schema."""
    aliases = [returned.alias_info for returned in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)
