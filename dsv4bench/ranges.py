"""The one way to name what runs: a `Range`, entered and left through a mark.

A step never knows who listens. It calls `mark.enter(range)` and `mark.exit(range)`; the mark is `Silent`, `Nvtx` (timed
passes), `RecordFunction` (under torch.profiler only) or a ledger of `profiling/` that counts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Protocol

DOMAIN = "dsv4bench"
PREFIX = "dsv4bench:"


@dataclass(frozen=True, slots=True)
class Range:
    """What runs: step, layer, ratio, kv_source, op and rank; None where it does not apply."""

    step: int = 0
    layer: int | None = None
    ratio: int | None = None
    kv_source: int | None = None
    op: str | None = None
    rank: int = 0

    def text(self) -> str:
        """Return the name that NVTX and the profiler carry, e.g. "dsv4bench:step=0 layer=2 op=combine rank=0"."""
        parts = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) is not None]
        return PREFIX + " ".join(parts)


def parse_range(text: str) -> Range | None:
    """Read a `Range` back from its text, or return None for a name that is not ours."""
    if not text.startswith(PREFIX):
        return None
    pairs = dict(part.split("=", 1) for part in text[len(PREFIX) :].split())
    values = {key: value if key == "op" else int(value) for key, value in pairs.items()}
    return Range(**values)  # type: ignore[arg-type]  # keys and kinds are those that text() wrote


Borders = tuple[Callable[[], None], Callable[[], None]]  # enter and leave one range


class Mark(Protocol):
    """Listens to the ranges of a step."""

    def enter(self, rng: Range) -> None:
        """Hear that `rng` begins on this thread."""

    def exit(self, rng: Range) -> None:
        """Hear that `rng`, the innermost open one, ends."""


class Silent:
    """A mark that does nothing."""

    def enter(self, rng: Range) -> None:
        """Ignore the range."""

    def exit(self, rng: Range) -> None:
        """Ignore the range."""


class Several:
    """A mark that tells several marks, in order on entering and in reverse on leaving."""

    def __init__(self, *marks: Mark) -> None:
        self._marks = marks

    def enter(self, rng: Range) -> None:
        """Tell every mark that `rng` begins."""
        for mark in self._marks:
            mark.enter(rng)

    def exit(self, rng: Range) -> None:
        """Tell every mark that `rng` ends."""
        for mark in reversed(self._marks):
            mark.exit(rng)


class Nvtx:
    """NVTX push/pop ranges in our own domain, with strings prepared once per range.

    Raises ImportError where the `nvtx` package is missing; `timing_mark` is the way to ask for it safely.
    """

    def __init__(self) -> None:
        self._domain = importlib.import_module("nvtx").get_domain(DOMAIN)
        self._prepared: dict[Range, Borders] = {}

    def prepare(self, rng: Range) -> Borders:
        """Return the two calls of `rng` with its string registered, without a frame of Python in either."""
        found = self._prepared.get(rng)
        if found is None:
            attributes = self._domain.get_event_attributes(message=rng.text())
            found = self._prepared[rng] = partial(self._domain.push_range, attributes), self._domain.pop_range
        return found

    def enter(self, rng: Range) -> None:
        """Push the range."""
        self.prepare(rng)[0]()

    def exit(self, rng: Range) -> None:
        """Pop the innermost range."""
        self._domain.pop_range()


class TorchNvtx:
    """NVTX push/pop ranges of torch, in the default domain; for profiled passes on a GPU only.

    nsys 2023.4 records them, but none of the package `nvtx` from 0.2.12 on (seen).
    """

    def __init__(self) -> None:
        self._nvtx = importlib.import_module("torch.cuda.nvtx")

    def enter(self, rng: Range) -> None:
        """Push the range."""
        self._nvtx.range_push(rng.text())

    def exit(self, rng: Range) -> None:
        """Pop the innermost range."""
        self._nvtx.range_pop()


def borders(mark: Mark, rng: Range) -> Borders:
    """Return the calls that enter and leave `rng`; keep them, since a mark may have prepared them at some cost."""
    if isinstance(mark, Nvtx):
        return mark.prepare(rng)
    return partial(mark.enter, rng), partial(mark.exit, rng)


class RecordFunction:
    """torch.profiler ranges; for profiled passes only, never for timed ones."""

    def __init__(self) -> None:
        self._record_function = importlib.import_module("torch.profiler").record_function
        self._open: list[Any] = []

    def enter(self, rng: Range) -> None:
        """Open a user annotation named by the range."""
        opened = self._record_function(rng.text())
        opened.__enter__()
        self._open.append(opened)

    def exit(self, rng: Range) -> None:
        """Close the innermost annotation."""
        self._open.pop().__exit__(None, None, None)


def timing_mark() -> tuple[Mark, str]:
    """Return the mark of timed passes and its name: NVTX where the `nvtx` package is installed, else silent."""
    try:
        return Nvtx(), "nvtx"
    except ImportError:
        return Silent(), "silent (the nvtx package is not installed)"
