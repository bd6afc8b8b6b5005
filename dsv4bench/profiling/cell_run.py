"""What is known of one cell of a group while its passes run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import torch

from dsv4bench.errors import CaptureError, CellError
from dsv4bench.profiling.capture import Captured
from dsv4bench.profiling.clocks import ClockMonitor
from dsv4bench.profiling.counting import Counts
from dsv4bench.profiling.timing import Part, Timing
from dsv4bench.profiling.verify import Check
from dsv4bench.results.redundant import RepeatedRow
from dsv4bench.workloads.cells import Cell
from dsv4bench.workloads.variant import Variant

Side = tuple[str, str]  # compressor, provider: steps of one side give the same outputs with and without reuse
Key = TypeVar("Key", bound=Hashable)
StepKey = tuple[str, Side]  # reuse, and of which side


@dataclass(slots=True)
class CellRun:
    """One cell with its status, checks, times and counts so far."""

    cell: Cell
    status: str = "ok"
    reason: str | None = None
    checks: list[Check] = field(default_factory=list)
    # rank -> stretch: all forwards together on one rank, one by one where ranks wait for each other; None: nothing ran
    timings: list[list[Timing | None]] = field(default_factory=list)
    compressor: Timing | None = None  # the ratio-2 compressor alone
    captured: dict[int, Captured] = field(default_factory=dict)  # see graphs.graph_key
    counts: Counts | None = None
    redundant: list[RepeatedRow] | None = None  # calls of the counted forward with inputs seen before
    memory: dict[str, int | None] = field(default_factory=dict)
    clocks: ClockMonitor | None = None

    @property
    def key(self) -> StepKey:
        """Which step of the group this cell runs."""
        return self.cell.variant.reuse, self.side

    @property
    def side(self) -> Side:
        """What it shares with the step that its outputs are compared with."""
        return self.cell.variant.compressor, self.provider

    @property
    def graph(self) -> bool:
        """Whether the cell replays graphs (on a CPU: tapes)."""
        return self.cell.variant.graph

    @property
    def full(self) -> bool:
        """Whether the cell captures the whole stack into one graph per forward."""
        return self.cell.variant.graph and self.cell.variant.graph_mode == "full"

    @property
    def provider(self) -> str:
        """Who runs its kernels, as its variant spells it."""
        return self.cell.variant.provider

    @property
    def tape_form(self) -> Variant:
        """What makes its tapes what they are: all switches but that of reuse, where breaks stay eager."""
        return self.cell.variant if self.full else replace(self.cell.variant, reuse="on")

    @property
    def live(self) -> bool:
        """Whether the cell can still be measured."""
        return self.status == "ok"

    def end(self, status: str, reason: str) -> None:
        """End the cell with a status and a reason; the first end counts."""
        if self.live:
            self.status, self.reason = status, reason

    def fail(self, error: Exception) -> None:
        """End the cell with the status and the reason that the error stands for."""
        self.end(*outcome(error))

    def free(self) -> None:
        """Free the graphs: NCCL waits for those that hold its collectives before a communicator can end."""
        for captured in self.captured.values():
            captured.free()
        self.captured.clear()

    def add(self, check: Check) -> None:
        """Keep a check; a failed one makes the cell wrong."""
        self.checks.append(check)
        if not check.passed:
            self.end("wrong", f"{check.name}: {check.detail}")


def by(key: Callable[[CellRun], Key], runs: Iterable[CellRun]) -> dict[Key, list[CellRun]]:
    """Return the cells that have the same key together, in order."""
    found: dict[Key, list[CellRun]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return found


def outcome(error: Exception) -> tuple[str, str]:
    """Return the status and the reason that an error stands for."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out_of_memory", out_of_memory_reason(error)
    if isinstance(error, CellError):
        return error.status, str(error)
    if isinstance(error, CaptureError):
        return "failed", f"capture: {error}"
    message = str(error).splitlines()[0] if str(error) else "no message"
    return "failed", f"{type(error).__name__}: {message}"


def out_of_memory_reason(error: Exception) -> str:
    """Return the first two sentences of an allocator: that there is no memory, and how much was asked for."""
    return ". ".join(str(error).split(". ")[:2])


@dataclass(frozen=True, slots=True)
class Several:
    """Cells that an error ends together."""

    runs: Sequence[CellRun]

    def fail(self, error: Exception) -> None:
        """End each with the status and the reason that the error stands for."""
        for run in self.runs:
            run.fail(error)


class StepError(Exception):
    """What the step of one cell raised while it was timed."""

    def __init__(self, run: CellRun, error: Exception) -> None:
        super().__init__(str(error))
        self.run = run
        self.error = error


def naming(run: CellRun, part: Part) -> Part:
    """Return a part whose error says whose it is."""

    def call() -> None:
        try:
            part.run()
        except Exception as error:
            raise StepError(run, error) from error

    return replace(part, run=call)


class Ends(Protocol):
    """Something that an error can end."""

    def fail(self, error: Exception) -> None:
        """End with the status and the reason that the error stands for."""


@contextmanager
def ending(run: Ends, strands: Callable[[Exception], bool] = lambda _: False) -> Iterator[None]:
    """Let an error of the body end this cell and no other, unless it `strands` other ranks: that is raised."""
    try:
        yield
    except Exception as error:
        if strands(error):
            raise
        run.fail(error)
