"""What is known of one cell of a group while its passes run."""

from __future__ import annotations

from dataclasses import dataclass, field

from dsv4bench.errors import CellError
from dsv4bench.profiling.capture import Captured
from dsv4bench.profiling.clocks import ClockMonitor
from dsv4bench.profiling.counting import Counts
from dsv4bench.profiling.timing import Timing
from dsv4bench.profiling.verify import Check
from dsv4bench.workloads.cells import Cell

StepKey = tuple[str, str]  # reuse, compressor


@dataclass(slots=True)
class CellRun:
    """One cell with its status, checks, times and counts so far."""

    cell: Cell
    status: str = "ok"
    reason: str | None = None
    checks: list[Check] = field(default_factory=list)
    timings: list[Timing | None] = field(default_factory=list)  # one per rank; None for a rank that had nothing to run
    compressor: Timing | None = None  # the ratio-2 compressor alone
    captured: dict[int, Captured] = field(default_factory=dict)  # see graphs.graph_key
    counts: Counts | None = None
    memory: dict[str, int | None] = field(default_factory=dict)
    clocks: ClockMonitor | None = None

    @property
    def key(self) -> StepKey:
        """Which step of the group this cell runs."""
        return self.cell.variant.reuse, self.cell.variant.compressor

    @property
    def graph(self) -> bool:
        """Whether the cell replays graphs (on a CPU: runs over static buffers again)."""
        return self.cell.variant.graph

    @property
    def full(self) -> bool:
        """Whether the cell captures the whole stack into one graph per forward."""
        return self.cell.variant.graph and self.cell.variant.graph_mode == "full"

    @property
    def live(self) -> bool:
        """Whether the cell can still be measured."""
        return self.status == "ok"

    def end(self, status: str, reason: str) -> None:
        """End the cell with a status and a reason; the first end counts."""
        if self.live:
            self.status, self.reason = status, reason

    def fail(self, error: CellError) -> None:
        """End the cell with the status that the error stands for."""
        self.end(error.status, str(error))

    def add(self, check: Check) -> None:
        """Keep a check; a failed one makes the cell wrong."""
        self.checks.append(check)
        if not check.passed:
            self.end("wrong", f"{check.name}: {check.detail}")
