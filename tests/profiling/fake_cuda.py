"""A device that exists only in tests: streams that capture, graphs that replay, and the CUDA bindings that list nodes.

Launching while a stream captures records and executes nothing; replaying executes what was recorded. So a test sees
what a real capture would do to data.
"""

from contextlib import contextmanager
from enum import IntEnum
from types import SimpleNamespace

import torch


class NodeType(IntEnum):
    cudaGraphNodeTypeKernel = 0
    cudaGraphNodeTypeMemcpy = 1
    cudaGraphNodeTypeMemset = 2
    cudaGraphNodeTypeHost = 3
    cudaGraphNodeTypeGraph = 4
    cudaGraphNodeTypeEventRecord = 7
    cudaGraphNodeTypeConditional = 13


KERNEL, COPY, SET = NodeType.cudaGraphNodeTypeKernel, NodeType.cudaGraphNodeTypeMemcpy, NodeType.cudaGraphNodeTypeMemset
HOST, CHILD = NodeType.cudaGraphNodeTypeHost, NodeType.cudaGraphNodeTypeGraph
CONDITIONAL = NodeType.cudaGraphNodeTypeConditional


class Error(IntEnum):
    success = 0
    invalid = 1


class Handle(int):
    """An opaque number, as the bindings' handles are."""


class FakeCuda:
    """The device; `install` puts it in the place of torch.cuda for one test."""

    def __init__(self):
        self.nodes = {}  # handle -> (type, name, child graph or None, work)
        self.graph_nodes = {}  # graph handle -> node handles
        self.capturing = None  # (capture id, graph handle, stream handle)
        self.captures = 0
        self.invalidated = False
        self.current = FakeStream(self, 0)
        self.log = []
        self.reset_graphs = []
        self.reserved_bytes = 1000

    def launch(self, name="k", work=None, kind=KERNEL, child=None):
        """Launch an operation on the current stream: record it while capturing, else do its work now."""
        if self.capturing is None:
            if work:
                work()
            return
        self.add_node(self.capturing[1], name, kind, child, work)

    def add_node(self, graph, name="k", kind=KERNEL, child=None, work=None):
        handle = Handle(100 + len(self.nodes))
        self.nodes[handle] = (kind, name, child, work)
        self.graph_nodes.setdefault(graph, []).append(handle)

    def synchronise_illegally(self):
        """What `.item()` does: an error while capturing, and the capture is spoilt."""
        if self.capturing is not None:
            self.invalidated = True
            raise RuntimeError("operation not permitted when stream is capturing")

    def begin(self):
        assert self.capturing is None, "a stream captures one graph at a time"
        assert self.current.cuda_stream != 0, "the default stream cannot capture"
        self.captures += 1
        graph = Handle(10_000 + self.captures)
        self.graph_nodes[graph] = []
        self.capturing = (self.captures, graph, self.current.cuda_stream)
        return graph

    def end(self):
        self.capturing, spoilt, self.invalidated = None, self.invalidated, False
        if spoilt:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.reserved_bytes += 64

    def execute(self, graph):
        self.log.append(f"launch graph {graph - 10_000}")
        for handle in self.graph_nodes[graph]:
            work = self.nodes[handle][3]
            if work:
                work()

    def install(self, monkeypatch):
        for name, value in {
            "CUDAGraph": lambda: FakeGraph(self),
            "Stream": lambda: FakeStream(self, 7),
            "stream": self._stream,
            "current_stream": lambda: self.current,
            "synchronize": self._synchronize,
            "empty_cache": lambda: self.log.append("empty cache"),
            "graph_pool_handle": lambda: (0, 1),
            "memory_reserved": lambda: self.reserved_bytes,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        return self

    def _synchronize(self):
        assert self.capturing is None, "cannot synchronise while capturing"

    @contextmanager
    def _stream(self, stream):
        around, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = around


class FakeStream:
    def __init__(self, device, handle):
        self.device = device
        self.cuda_stream = handle

    def wait_stream(self, other):
        self.device.log.append(f"{self.cuda_stream} waits for {other.cuda_stream}")


class FakeGraph:
    def __init__(self, device):
        self.device = device
        self.handle = None

    def capture_begin(self, pool, capture_error_mode):
        assert capture_error_mode == "thread_local"
        self.device.log.append(f"capture into pool {pool}")
        self.handle = self.device.begin()

    def capture_end(self):
        self.device.end()

    def replay(self):
        self.device.execute(self.handle)

    def reset(self):
        self.device.reset_graphs.append(self.handle)


class Bindings:
    """`cuda.bindings.runtime` and `.driver` in one; `form` picks the release whose capture info it imitates.

    "13": plain with 7 results. "12": `_v3` with 7 and plain with 6, which fails. "v2": `_v2` with 6 and plain with 3.
    """

    cudaGraphNodeType = NodeType

    def __init__(self, device, form="13"):
        self.device = device
        self.form = form
        self.shuffle = False
        self.calls = 0
        self.first_id = 0
        if form == "12":
            self.cudaStreamGetCaptureInfo_v3 = self._info
        if form == "v2":
            self.cudaStreamGetCaptureInfo_v2 = lambda stream: (*self._info(stream)[:5], 0)

    def cudaStreamGetCaptureInfo(self, stream):
        if self.form == "12":
            return (Error.invalid, *[None] * 5)
        return self._info(stream) if self.form == "13" else self._info(stream)[:3]

    def _info(self, stream):
        active = self.device.capturing if self.device.capturing and self.device.capturing[2] == stream else None
        if active is None:
            return (Error.success, 0, 0, None, None, None, 0)
        return (Error.success, 1, active[0], active[1], [], [], 0)

    def cudaGraphGetNodes(self, graph, numNodes=0):
        self.calls += 1
        handles = list(self.device.graph_nodes[graph])
        if self.shuffle:
            handles.reverse()
        return (Error.success, handles if numNodes else None, len(handles))

    def cudaGraphNodeGetType(self, node):
        return (Error.success, self.device.nodes[node][0])

    def cudaGraphChildGraphNodeGetGraph(self, node):
        return (Error.success, self.device.nodes[node][2])

    def tools_id(self, node):
        """What `cudaGraphNodeGetToolsId` of 13.1 returns: the ids of a graph's nodes count up from `first_id`."""
        (graph,) = (nodes for nodes in self.device.graph_nodes.values() if node in nodes)
        return (Error.success, self.first_id + graph.index(node))

    def CUgraphNode(self, value):
        return Handle(value)

    def cuGraphKernelNodeGetParams(self, node):
        name = self.device.nodes[node][1]
        if name is None:
            return (Error.invalid, None)
        through_runtime = name.startswith("runtime_")
        return (
            Error.success,
            SimpleNamespace(func=0 if through_runtime else node, kern=node if through_runtime else 0),
        )

    def cuFuncGetName(self, function):
        return (Error.success, self.device.nodes[function][1].encode())

    def cuKernelGetName(self, kernel):
        return (Error.success, self.device.nodes[kernel][1].encode())
