"""Counts of one forward: calls on any device, device operations on a GPU, aten operations on a CPU.

An eager step on a GPU is counted by torch.profiler. In a graph the capture ledger counts the segments, and the
profiler, over one replay, the breaks; the same trace gives the device time of both. On a CPU calls and aten operations
are counted while the pieces run.

What reads traces is imported where a trace is read: it needs pandas, and most processes that measure profile nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dsv4bench.errors import CaptureError
from dsv4bench.profiling.aten import AtenCounter
from dsv4bench.profiling.capture import Captured, Listeners, run_pieces
from dsv4bench.profiling.capture_ledger import METHOD as CAPTURE_METHOD
from dsv4bench.profiling.capture_ledger import CaptureLedger
from dsv4bench.profiling.graph_nodes import load_graph_nodes
from dsv4bench.profiling.ledger import DEVICE_METRICS, CallLedger, Ledger, Row, Where
from dsv4bench.profiling.profiler import profile_trace
from dsv4bench.ranges import Mark, RecordFunction, Several, Silent
from dsv4bench.results.ledger_table import Graph, to_plain
from dsv4bench.workloads.step import Piece, Step

if TYPE_CHECKING:
    from dsv4bench.profiling.replay_match import Replayed
    from dsv4bench.profiling.traces.attribute import Coverage
    from dsv4bench.profiling.traces.columns import Trace


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows for a record, how complete they are, and one sentence where two sources disagree.

    Of a GPU `device_time` too, and of a graph the ledger of its nodes, both as a record keeps them.
    """

    rows: list[Row]
    coverage: dict[str, Any] | None
    disagreement: str | None = None
    device_time: dict[str, Any] | None = None
    capture_ledger: dict[str, Any] | None = None


def count_on_cpu(step: Step, pieces: Sequence[Piece], where: Where | None = None) -> Counts:
    """Run the pieces once and count calls and aten operations, all of them `where` says, or each by its piece's kind.

    A full graph has what others run in breaks in its segment.
    """
    ledger = Ledger()
    calls, aten = CallLedger(ledger), AtenCounter(ledger)

    def hear(kind: Where) -> None:
        calls.hear(where or kind)
        aten.hear(where or kind)

    step.ops.mark = Several(calls, aten)
    try:
        with aten:
            run_pieces(pieces, hear)
    finally:
        step.ops.mark = Silent()
    return Counts(ledger.rows(), None)


def profile_eager(step: Step, pieces: Sequence[Piece], *marks: Mark) -> tuple[Ledger, Trace]:
    """Run the pieces once under the profiler of a GPU; return the calls and the trace. `marks` hear the ranges too."""
    ledger = Ledger()
    calls = CallLedger(ledger)
    calls.hear("eager")
    step.ops.mark = Several(RecordFunction(), calls, *marks)
    try:
        return ledger, profile_trace(partial(_together, step, partial(run_pieces, pieces)), "cuda")
    finally:
        step.ops.mark = Silent()


def _together(step: Step, run: Callable[[], None]) -> None:
    """Run a step, all ranks that exchange rows in it together: a profiler that starts late is no waiting."""
    if step.moe is not None:
        step.moe.ranks.tell("a profiled step", None)
    run()


def count_eager(step: Step, pieces: Sequence[Piece]) -> Counts:
    """Run the pieces once under the profiler of a GPU and count calls and device operations."""
    from dsv4bench.profiling.device_time import device_time
    from dsv4bench.profiling.replay_match import Replayed
    from dsv4bench.profiling.traces.attribute import attribute

    ledger, trace = profile_eager(step, pieces)
    found = attribute(trace)
    ledger.merge(found.ledger)
    return Counts(ledger.rows(), asdict(found.coverage), device_time=device_time(trace, Replayed()))


class GraphCounter:
    """Listens while a step's graph is captured; then profiles one replay. `marks` hear both too."""

    def __init__(self, step: Step, *marks: Mark) -> None:
        self._step = step
        self._ledger = Ledger()
        self._calls = CallLedger(self._ledger)
        self._nodes = CaptureLedger(self._ledger, load_graph_nodes())
        self._marks = marks
        self.listeners = Listeners(graphs=self._nodes, on_piece=self._calls.hear)

    def __enter__(self) -> GraphCounter:
        self._step.ops.mark = Several(self._calls, self._nodes, *self._marks)
        return self

    def __exit__(self, *error: object) -> None:
        self._step.ops.mark = Silent()

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The nodes of the captured graphs."""
        return self._nodes.graphs

    def profile(self, captured: Captured) -> Trace:
        """Return the trace of one replay."""
        self._step.ops.mark = Several(RecordFunction(), *self._marks)
        try:
            return profile_trace(partial(_together, self._step, captured.replay), "cuda")
        finally:
            self._step.ops.mark = Silent()

    def count(self, trace: Trace) -> Counts:
        """Return segments (ledger) and breaks (the trace of a replay) together, with the time of both."""
        from dsv4bench.profiling.device_time import device_time
        from dsv4bench.profiling.replay_match import match_replay
        from dsv4bench.profiling.traces.attribute import attribute

        segment = self._ledger.total(*DEVICE_METRICS)
        breaks, replayed = attribute(trace, "break"), match_replay(trace, self.graphs)
        self._ledger.merge(breaks.ledger)
        total = breaks.coverage.replayed
        return Counts(
            self._ledger.rows(),
            _coverage(breaks.coverage, replayed),
            None if total == segment else f"{total} operations replayed, {segment} captured",
            device_time(trace, replayed, "break"),
            to_plain(self.graphs),
        )


def _coverage(breaks: Coverage, replayed: Replayed) -> dict[str, Any]:
    """Return how many operations of a replay, those of breaks and of segments together, found their range."""
    return asdict(breaks) | {
        "attributed": breaks.attributed + replayed.attributed,
        "unattributed": breaks.unattributed + replayed.unattributed,
        "ambiguous": breaks.ambiguous + replayed.ambiguous,
        "lost": breaks.lost + replayed.missing,
        "misnamed": replayed.misnamed,
        "method": f"{CAPTURE_METHOD} joined by {replayed.method} (segments) + {breaks.method} (breaks)",
    }


def why_not_captured() -> str | None:
    """Return one sentence saying why no graph can be captured and counted here, or None if it can."""
    try:
        load_graph_nodes()
    except CaptureError as error:
        return str(error)
    return None


def agreed(graph: Counts, eager: Counts) -> Counts:
    """Return a graph's counts, saying where an eager step over the same rows counts otherwise."""
    return replace(graph, disagreement=graph.disagreement or same_operations(eager.rows, graph.rows))


def same_operations(eager: Iterable[Row], graph: Iterable[Row]) -> str | None:
    """Return None if, op by op, an eager step does what segments and breaks do together, else the first difference.

    A GEMM is one operation whatever number of kernels it takes, so GEMMs are compared by calls.
    """
    first, second = _per_op(eager), _per_op(graph)
    for op in sorted(first.keys() | second.keys()):
        if first.get(op) != second.get(op):
            return f"{op}: {_words(first.get(op))} eager, {_words(second.get(op))} in segments and breaks"
    return None


def _per_op(rows: Iterable[Row]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for row in rows:
        op = str(row["op"])
        metrics = ("calls",) if op.endswith("_proj") or "_proj_" in op else DEVICE_METRICS
        values = tuple(int(row[metric] or 0) for metric in metrics)
        found[op] = tuple(map(sum, zip(found.get(op, (0,) * len(metrics)), values, strict=True)))
    return found


def _words(values: tuple[int, ...] | None) -> str:
    return "nothing" if values is None else "/".join(map(str, values))
