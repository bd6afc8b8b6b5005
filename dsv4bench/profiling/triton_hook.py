"""Triton's own count of its launches: a hook that Triton calls on every launch, a captured one included, and no replay.

It is the one source of counts that is neither CUDA's nor a profiler's.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dsv4bench.profiling.ledger import OUTSIDE_OPS
from dsv4bench.ranges import Range

Key = tuple[str, int | None]  # operation, kv_source


class TritonLaunches:
    """A mark that counts the launches of Triton kernels under the innermost range; `names` are those of the kernels."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._counts: Counter[Key] = Counter()
        self._open: list[Range] = []

    def enter(self, rng: Range) -> None:
        """Open the range."""
        self._open.append(rng)

    def exit(self, rng: Range) -> None:
        """Close the innermost range."""
        self._open.pop()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear Triton inside this."""
        hooks = importlib.import_module("triton").knobs.runtime.launch_enter_hook
        hooks.add(self._launched)
        try:
            yield
        finally:
            hooks.remove(self._launched)

    def take(self) -> Counter[Key]:
        """Return the launches since the last time that it was asked."""
        taken, self._counts = self._counts, Counter()
        return taken

    def _launched(self, metadata: Any) -> None:
        """Hear of one launch; `metadata` is Triton's lazy dict, with the kernel's name as CUDA has it."""
        self.names.add(metadata.get()["name"])
        rng = self._open[-1] if self._open else None
        self._counts[(rng.op if rng else None) or OUTSIDE_OPS, rng.kv_source if rng else None] += 1
