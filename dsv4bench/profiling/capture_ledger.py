"""A mark that listens while a CUDA graph is captured and gives every new node to the innermost open range.

No profiler is needed, and the counts are exact: a node is one device operation of every replay. At each border of a
range the graph is asked for its nodes; those not seen before belong to the range that was innermost until then. The
node list is that of the whole graph, so work forked to a side stream is seen too. One thread captures at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dsv4bench.errors import CaptureError
from dsv4bench.profiling.graph_nodes import GraphNodes
from dsv4bench.profiling.ledger import DEVICE_METRICS, Ledger, Where
from dsv4bench.ranges import Range
from dsv4bench.results.ledger_table import Graph, Node

METHOD = "capture ledger"
_SEGMENT: Where = "segment"


def current_stream() -> int:
    """Return the handle of torch's current stream: the capture's own stream inside `torch.cuda.graph`."""
    return torch.cuda.current_stream().cuda_stream


class CaptureLedger:
    """Counts the nodes of captured graphs into `ledger`, exclusively per range, all of them in "segment".

    `graphs` are the nodes of each, in order. Outside a capture the mark only follows the ranges, so eager breaks add
    nothing. Tell it `begin_graph` after a capture begins and `end_graph` before it ends: nodes
    after the last range are only seen then.
    """

    def __init__(self, ledger: Ledger, nodes: GraphNodes, stream: Callable[[], int] = current_stream) -> None:
        self.ledger = ledger
        self._nodes = nodes
        self._stream = stream
        self._open: list[Range] = []
        self._graphs: list[list[Node]] = []
        self._capture_id: int | None = None
        self._known: set[int] = set()
        ledger.declare(_SEGMENT, *DEVICE_METRICS)

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The nodes of every captured graph, in the order in which the ledger saw them; child graphs as their nodes."""
        return tuple(map(tuple, self._graphs))

    def enter(self, rng: Range) -> None:
        """Give what was captured so far to the range around, and open `rng`."""
        self._collect()
        self._open.append(rng)

    def exit(self, rng: Range) -> None:
        """Give what was captured since to the innermost range, and close it."""
        self._collect()
        self._open.pop()

    def begin_graph(self) -> None:
        """Hear that a capture has begun; CaptureError if the current stream is not capturing."""
        if self._nodes.capturing(self._stream()) is None:
            raise CaptureError("the capture ledger was told of a capture, and the current stream is not capturing")
        self._collect()

    def end_graph(self) -> None:
        """Collect the nodes after the last range; CaptureError if the graph and the ledger disagree."""
        self._collect()
        active = self._nodes.capturing(self._stream())
        count = self._nodes.count(active[1]) if active else 0
        if count != len(self._known):
            raise CaptureError(f"the graph has {count} nodes, the capture ledger has seen {len(self._known)}")

    def _collect(self) -> None:
        active = self._nodes.capturing(self._stream())
        if active is None:
            return
        capture_id, graph = active
        if capture_id != self._capture_id:
            self._capture_id, self._known = capture_id, set()
            self._graphs.append([])
        # the count is cheap and most borders add nothing
        if self._nodes.count(graph) == len(self._known):
            return
        # creation order is usual but not promised, so all handles are compared
        for node in self._nodes.nodes(graph):
            if int(node) not in self._known:
                self._attribute(node)
                self._known.add(int(node))

    def _attribute(self, node: Any) -> None:
        rng = self._open[-1] if self._open else None
        layer, kv_source, op = (rng.layer, rng.kv_source, rng.op) if rng else (None, None, None)
        number = self._nodes.number(node, len(self._known))
        for metric, name in self._nodes.describe(node):
            self.ledger.add(rng, _SEGMENT, metric)
            self._graphs[-1].append(Node(layer, kv_source, op, metric, name, number))
