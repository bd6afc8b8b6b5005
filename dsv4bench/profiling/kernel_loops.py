"""What is timed of a kernel: many calls in one CUDA graph, so that launch gaps do not count; on a CPU the calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from dsv4bench.errors import CaptureError
from dsv4bench.profiling.capture import Listeners, capture_full, warm_up
from dsv4bench.profiling.capture_ledger import current_stream
from dsv4bench.profiling.graph_nodes import GraphNodes, load_graph_nodes
from dsv4bench.profiling.graphs import open_pool
from dsv4bench.profiling.ledger import DEVICE_METRICS
from dsv4bench.profiling.timing import Call
from dsv4bench.workloads.step import Piece

LEAST_CALLS = {"cuda": 32, "cpu": 1}  # of a loop: what one graph launch costs is shared by so many calls


@dataclass(frozen=True, slots=True)
class Loop:
    """`run` makes `rounds` rounds of all calls, together `calls`; `why_eager` says why a GPU runs them uncaptured.

    `kept` are the calls themselves: a graph holds addresses only, so whoever replays it keeps their tensors alive.
    `launches` are the kernels, copies and sets of one call; None where no graph, or no cuda-bindings, tells.
    """

    run: Call
    calls: int
    rounds: int
    kept: tuple[Call, ...]
    why_eager: str | None = None
    launches: float | None = None


class LaunchCount:
    """Hears a graph's end and counts its device operations into `total`, which stays None where nobody can tell."""

    def __init__(self) -> None:
        self.total: int | None = None
        self._nodes: GraphNodes | None = None
        with suppress(CaptureError):
            self._nodes = load_graph_nodes()

    def begin_graph(self) -> None:
        """Nothing has been launched yet."""

    def end_graph(self) -> None:
        """Count the kernels, copies and sets of the graph under capture; a graph that does not tell is no failure."""
        with suppress(CaptureError):
            active = self._nodes.capturing(current_stream()) if self._nodes else None
            if self._nodes and active:
                found = [metric for node in self._nodes.nodes(active[1]) for metric, _ in self._nodes.describe(node)]
                self.total = sum(metric in DEVICE_METRICS for metric in found)


def loop(calls: Sequence[Call], device: torch.device) -> Loop:
    """Return a loop over the calls, on a GPU as one graph; where a graph cannot hold them, they run one by one."""
    rounds = math.ceil(LEAST_CALLS[device.type] / len(calls))
    count = rounds * len(calls)

    def run() -> None:
        for call in [*calls] * rounds:
            call()

    pool = open_pool(device)  # its own: a capture that fails may spoil a pool that others use
    if pool is None:
        return Loop(run, count, rounds, tuple(calls))
    pieces = [Piece("calls", "segment", run)]
    warm_up(pieces, pool.stream, times=1)
    launched = LaunchCount()
    try:
        captured = capture_full(pieces, pool.stream, pool.handle, Listeners(graphs=launched))
    except CaptureError as error:
        return Loop(run, count, rounds, tuple(calls), str(error).splitlines()[0])
    launches = None if launched.total is None else launched.total / count
    return Loop(captured.replay, count, rounds, tuple(calls), launches=launches)
