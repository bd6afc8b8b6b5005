"""Traces of graph replays made by hand, and the ledger of the graphs that they replay."""

from dsv4bench.profiling.traces.columns import NO_ID
from dsv4bench.results.ledger_table import Node
from tests.profiling.traces.made_rows import Made

EXEC = 7 << 32  # the upper half of ids: the graph that was instantiated


def node(op, name, metric="kernels", layer=2, kv_source=2, number=None):
    """A node of layer 2, source 2."""
    return Node(layer, kv_source, op, metric, name, number)


def numbered(*nodes):
    """A graph: its nodes with the numbers of their creation."""
    return tuple(
        Node(one.layer, one.kv_source, one.op, one.metric, one.name, number) for number, one in enumerate(nodes)
    )


class Replay:
    """Writes a trace launch by launch: one operation every 10 ns that lasts 4, and waits as it is told."""

    def __init__(self, ids=False):
        self.ids = ids
        self.now_ns = 1000
        self.correlation = 0
        self.made = Made()

    @property
    def operations(self):
        """The rows of the operations so far, to be changed."""
        return self.made.rows["operations"]

    def host(self, name, annotation=None):
        """One launch of the host, inside an annotation."""
        self.correlation += 1
        at_ns = self.correlation * 10
        self.made.launched(at_ns, self.correlation, name)
        if annotation is not None:
            self.made.opened(annotation, at_ns - 1, at_ns + 1)

    def ran(self, name, kind="kernel", stream=7, number=None):
        """One record of the last launch."""
        node_id = EXEC | number if self.ids and number is not None else NO_ID
        self.made.ran(self.correlation, name, kind, self.now_ns, node=node_id, stream=stream)
        self.last(4)
        self.now_ns += 10

    def last(self, spent_ns, place=-1):
        """One operation lasts so long."""
        row = self.operations[place]
        row["end_ns"] = row["start_ns"] + spent_ns

    def graph(self, graph):
        """One replay of a graph as Kineto writes it: copies are kernels with a name of their own."""
        self.host("cudaGraphLaunch")
        for one in graph:
            if one.metric == "kernels":
                self.ran(one.name, number=one.number)
            elif one.metric == "copies":
                self.ran("memcpy128", number=one.number)
            elif one.metric == "sets":
                self.ran("Memset (Device)", "set", number=one.number)

    def eager(self, rng, *names):
        """Kernels that the host launches inside a range."""
        for name in names:
            self.host("cuLaunchKernelEx", rng.text() if rng else None)
            self.ran(name)

    def idle(self, spent_ns):
        """Nothing runs for so long, the usual 6 ns apart."""
        self.now_ns += spent_ns

    @property
    def trace(self):
        """What was written."""
        return self.made.trace()
