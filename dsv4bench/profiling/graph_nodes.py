"""Read the nodes of a CUDA graph while it is being captured, through the `cuda.bindings` package.

The functions changed between releases: 13.x has one `cudaStreamGetCaptureInfo` with 7 results; 12.x has that as `_v3`
beside a plain form with 6, which fails on graphs with edge data (programmatic launches); other builds name that one
`_v2` and have a plain form with 3 results, which does not tell the graph.
"""

from __future__ import annotations

import importlib
from typing import Any

from dsv4bench.errors import CaptureError
from dsv4bench.results.ledger_table import UNKNOWN, kernel_name

_NODE_METRICS = {
    "cudaGraphNodeTypeKernel": "kernels",
    "cudaGraphNodeTypeMemcpy": "copies",
    "cudaGraphNodeTypeMemset": "sets",
    "cudaGraphNodeTypeConditional": "dynamic",
}
_CHILD_GRAPH = "cudaGraphNodeTypeGraph"
_STATUS_ACTIVE = 1  # cudaStreamCaptureStatusActive
_LOWER_HALF = 0xFFFFFFFF
_LEAST_RESULTS_WITH_GRAPH = 6  # error, status, id, graph, dependencies, number of dependencies


class GraphNodes:
    """Asks a stream for its graph under capture, and a graph for its nodes.

    `runtime` and `driver` are `cuda.bindings.runtime` and `cuda.bindings.driver`, or fakes of them. Every method raises
    `CaptureError` with the name of the call that failed.
    """

    def __init__(self, runtime: Any, driver: Any) -> None:
        self._runtime = runtime
        self._driver = driver
        self._types: dict[int, str] = {int(kind): kind.name for kind in runtime.cudaGraphNodeType}
        self._names: dict[tuple[int, int], str] = {}
        self._tools_id = getattr(runtime, "cudaGraphNodeGetToolsId", None)  # bindings and driver from 13.1 on

    def capturing(self, stream: int) -> tuple[int, Any] | None:
        """Return (id of the capture, graph) if the stream with this handle is capturing, else None.

        The id is unique in the life of the process, so that a new one means a new graph.
        """
        status, capture_id, graph = self._capture_info(stream)[:3]
        return (int(capture_id), graph) if int(status) == _STATUS_ACTIVE else None

    def count(self, graph: Any) -> int:
        """Return the number of nodes of `graph`, child graphs counted as one node."""
        return int(self._call(self._runtime.cudaGraphGetNodes, graph)[-1])

    def nodes(self, graph: Any) -> list[Any]:
        """Return the handles of all nodes of `graph`."""
        count = self.count(graph)
        return list(self._call(self._runtime.cudaGraphGetNodes, graph, count)[0])[:count] if count else []

    def number(self, node: Any, ordinal: int) -> int | None:
        """Return the lower half of the node's id in a trace; `ordinal` is how many nodes were created before it.

        The upper half is the graph's, and another one once it is instantiated. Bindings or a driver that tell no ids
        count them all the same, from 0 in the order of creation. None for a child graph, whose nodes have their own.
        """
        if self._type(node) == _CHILD_GRAPH:
            return None
        if self._tools_id is not None:
            error, *found = self._tools_id(node)
            if not int(error):
                return int(found[0]) & _LOWER_HALF
            self._tools_id = None  # the bindings have the function and the driver does not
        return ordinal

    def describe(self, node: Any) -> list[tuple[str, str]]:
        """Return (metric of the ledger, name) of a node: several for a child graph, whose own nodes are what runs.

        Of a kernel's name only what every source of names tells (`ledger_table.kernel_name`).
        """
        kind = self._type(node)
        if kind == _CHILD_GRAPH:
            child = self._call(self._runtime.cudaGraphChildGraphNodeGetGraph, node)[0]
            return [what for inner in self.nodes(child) for what in self.describe(inner)]
        name = self._kernel_name(node) if kind == "cudaGraphNodeTypeKernel" else kind.removeprefix("cudaGraphNodeType")
        return [(_NODE_METRICS.get(kind, "others"), name)]

    def _type(self, node: Any) -> str:
        return self._types[int(self._call(self._runtime.cudaGraphNodeGetType, node)[0])]

    def _capture_info(self, stream: int) -> tuple[Any, ...]:
        for form in ("_v3", "", "_v2"):
            function = getattr(self._runtime, f"cudaStreamGetCaptureInfo{form}", None)
            if function is None:
                continue
            results = self._call(function, stream)
            if len(results) >= _LEAST_RESULTS_WITH_GRAPH - 1:
                return results
        raise CaptureError("this version of cuda.bindings does not tell the graph of a capture")

    def _kernel_name(self, node: Any) -> str:
        error, parameters = self._driver.cuGraphKernelNodeGetParams(self._driver.CUgraphNode(int(node)))
        if int(error):
            return UNKNOWN
        # a kernel launched through the runtime may have no CUfunction in this context, only a CUkernel
        key = (int(parameters.func), int(parameters.kern))
        if key not in self._names:
            asked = ((parameters.func, self._driver.cuFuncGetName), (parameters.kern, self._driver.cuKernelGetName))
            answers = [ask(handle) for handle, ask in asked if int(handle)]
            names = (kernel_name(name.decode()) for error, name in answers if not int(error))
            self._names[key] = next(names, UNKNOWN)
        return self._names[key]

    def _call(self, function: Any, *arguments: Any) -> tuple[Any, ...]:
        error, *results = function(*arguments)
        if int(error):
            raise CaptureError(f"{function.__name__} failed: {getattr(error, 'name', error)}")
        return tuple(results)


def load_graph_nodes() -> GraphNodes:
    """Return a reader on the installed `cuda.bindings`; CaptureError with a plain sentence where it is missing."""
    try:
        runtime = importlib.import_module("cuda.bindings.runtime")
        driver = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise CaptureError("counting the nodes of a captured graph needs the package cuda-bindings") from error
    return GraphNodes(runtime, driver)
