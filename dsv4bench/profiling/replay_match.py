"""Match what a profiler saw of a replay to the nodes that were captured, by the first rung that tells them.

A replay is one host call per graph, and all its device records carry that call's correlation id. So the i-th graph
launch is the i-th graph of the ledger, and within it:

1. records with node ids (Kineto from February 2026 on) are the nodes of these numbers, if metric and name agree;
2. else, on one stream, records in the order of their start are the nodes in the order of their creation, if they are
   the same metrics and names in the same order: `inferred`. Where a graph ran on several streams the order is that of
   each name, and names that several streams and several places share are ambiguous;
3. else nothing is attributed: never a guess.

A record whose metric and name no node of the graph has (another library's, say) is nobody's, and hides no other.

Copies and fills share one name. A replay runs some of them as kernels of the driver, whose names do not always tell
one from the other: on an H200 one replay of a segment had the 8 fills that were captured, another 9, a third 7, each
with the captured number of operations in all. So their place among the other operations tells them; `misnamed` counts
those that the trace calls by the other's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dsv4bench.profiling.traces import ranges_of
from dsv4bench.profiling.traces.columns import Trace
from dsv4bench.profiling.traces.ranges_of import METHODS, graph_launch_rows
from dsv4bench.profiling.traces.records import Record, records_of
from dsv4bench.results.counts import DEVICE
from dsv4bench.results.ledger_table import UNKNOWN, Graph, Node, kernel_name
from dsv4bench.units import format_count

BY_ID = METHODS[ranges_of.BY_NODE_ID]
BY_ORDER = METHODS[ranges_of.BY_ORDER]
BY_NAME = METHODS[ranges_of.BY_NAME]
NOT_AT_ALL = "not matched"
_LOWER_HALF = 0xFFFFFFFF

Key = tuple[str, str]
NAMELESS: Key = ("kernels", UNKNOWN)
MOVED: Key = ("copies or fills", "")
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Matched:
    """One device record of a replay and the node that it ran: None where it is nobody's or could be several's."""

    operation: Record
    node: Node | None
    ambiguous: bool = False

    @property
    def attributed(self) -> bool:
        """Whether it ran a node that was captured inside a range."""
        return self.node is not None and self.node.placed

    @property
    def misnamed(self) -> bool:
        """Whether it is a copy that the trace calls a fill, or the reverse."""
        return self.node is not None and self.node.metric != self.operation.metric


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch of a graph, a row of `launches`: its records by start, how they matched, how many nodes have none.

    `why` says what did not fit where the records are not matched.
    """

    launch: int
    matched: tuple[Matched, ...]
    method: str
    missing: int = 0
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """All graph launches of a trace, in the order of the host; every device record of a graph is in one of them."""

    launches: tuple[Launched, ...] = ()

    @property
    def method(self) -> str:
        """How the records were matched, every way that was needed."""
        return ", ".join(dict.fromkeys(launch.method for launch in self.launches)) or NOT_AT_ALL

    @property
    def matched(self) -> Iterator[Matched]:
        """The records of all launches."""
        for launch in self.launches:
            yield from launch.matched

    @property
    def attributed(self) -> int:
        """How many records ran a node of a range."""
        return sum(one.attributed for one in self.matched)

    @property
    def ambiguous(self) -> int:
        """How many records could be nodes of several places."""
        return sum(one.ambiguous for one in self.matched)

    @property
    def unattributed(self) -> int:
        """How many records are nobody's, or run a node of no range."""
        return sum(not one.attributed and not one.ambiguous for one in self.matched)

    @property
    def misnamed(self) -> int:
        """How many copies and fills have each other's name in the trace."""
        return sum(one.misnamed for one in self.matched)

    @property
    def missing(self) -> int:
        """How many nodes have no record, of launches whose other records are known."""
        return sum(launch.missing for launch in self.launches)

    @property
    def why(self) -> list[str]:
        """What did not fit, a sentence for each launch that is not matched."""
        return [f"segment {place}: {one.why}" for place, one in enumerate(self.launches) if one.why]


def match_replay(trace: Trace, graphs: Sequence[Graph]) -> Replayed:
    """Match the records of the graphs in `trace`, which holds one replay of all `graphs` or several in a row."""
    records: dict[int, list[Record]] = {launch: [] for launch in graph_launch_rows(trace).tolist()}
    for record in records_of(trace):
        if record.launch in records:
            records[record.launch].append(record)
    if not graphs or len(records) % len(graphs):
        why = f"{len(records)} graph launches, {len(graphs)} graphs captured"
        return Replayed(tuple(_unmatched(launch, own, why) for launch, own in records.items()))
    pairs = enumerate(records.items())
    return Replayed(tuple(_match(key, own, graphs[place % len(graphs)]) for place, (key, own) in pairs))


def fitting(trace: Trace, ledgers: Sequence[Sequence[Graph]]) -> Sequence[Graph]:
    """Return the graphs of the ledger that tells most of what graphs replayed in `trace`, the first of equals."""
    return max(ledgers, key=lambda graphs: match_replay(trace, graphs).attributed, default=())


def _unmatched(launch: int, records: Sequence[Record], why: str) -> Launched:
    return Launched(launch, tuple(Matched(record, None) for record in records), NOT_AT_ALL, why=why)


def _match(launch: int, records: Sequence[Record], graph: Graph) -> Launched:
    nodes = [node for node in graph if node.metric in DEVICE]
    by_id = _by_id(records, nodes)
    if by_id is not None:
        missing = len(nodes) - sum(one.node is not None for one in by_id)
        return Launched(launch, by_id, BY_ID, missing)
    known = set(map(_captured, nodes))
    own = [record for record in records if _key(record) in known or NAMELESS in known]
    why = _difference(own, records, nodes)
    if why is not None:
        return _unmatched(launch, records, why)
    several = len({record.stream for record in own}) > 1
    found = _by_name(own, nodes) if several else dict(zip(map(id, own), map(Matched, own, nodes), strict=True))
    matched = tuple(found.get(id(record), Matched(record, None)) for record in records)
    return Launched(launch, matched, BY_NAME if several else BY_ORDER)


def _key(record: Record) -> Key:
    """Return what a record shares with its node; a copy or fill that was replayed as a kernel is none."""
    return (record.metric, kernel_name(record.name)) if record.metric == "kernels" else MOVED


def _captured(node: Node) -> Key:
    return (node.metric, node.name) if node.metric == "kernels" else MOVED


def _fits(record: Record, node: Node) -> bool:
    """Return whether the record may be the node: a kernel of any name where the bindings did not tell the node's."""
    return _captured(node) in (_key(record), NAMELESS if record.metric == "kernels" else None)


def _by_id(records: Sequence[Record], nodes: Sequence[Node]) -> tuple[Matched, ...] | None:
    """Return the records with the nodes of their ids, or None where ids are missing or do not fit."""
    numbered = {node.number: node for node in nodes if node.number is not None}
    if not records or len(numbered) < len(nodes):
        return None
    found: list[Matched] = []
    for record in records:
        if record.graph_node <= 0:
            return None
        node = numbered.pop(record.graph_node & _LOWER_HALF, None)  # a number is met once in a replay
        if node is not None and not _fits(record, node):
            return None
        found.append(Matched(record, node))
    return tuple(found) if any(one.node for one in found) else None


def _difference(own: Sequence[Record], records: Sequence[Record], nodes: Sequence[Node]) -> str | None:
    """Return None if the records are the nodes, in order where they ran on one stream, else the first difference."""
    several = len({record.stream for record in own}) > 1
    captured = Counter(map(_captured, nodes))
    if NAMELESS not in captured:
        return _another_number(own, records, captured) or (None if several else _another_order(own, nodes))
    if several or len(own) != len(nodes):
        return f"{captured[NAMELESS]} captured kernels have no name; {len(own)} records, {len(nodes)} nodes"
    return _another_order(own, nodes)


def _another_number(own: Sequence[Record], records: Sequence[Record], captured: Counter[Key]) -> str | None:
    seen = Counter(map(_key, own))
    numbers = [
        f"{_words(key)} ran {format_count(seen[key], 'time')}, {count} captured"
        for key, count in captured.items()
        if seen[key] != count
    ]
    if not numbers:
        return None
    others = sorted({record.name for record in records if _key(record) not in captured})
    beside = [f"beside them ran {', '.join(others[:_SHOWN])}"] if others else []
    return "; ".join([*numbers[:_SHOWN], *beside])


def _another_order(own: Sequence[Record], nodes: Sequence[Node]) -> str | None:
    for place, (record, node) in enumerate(zip(own, nodes, strict=True)):
        if not _fits(record, node):
            return f"record {place} is {_words(_key(record))}, {_words(_captured(node))} was captured there"
    return None


def _words(key: Key) -> str:
    return " ".join(word for word in key if word)


def _by_name(records: Sequence[Record], nodes: Sequence[Node]) -> dict[int, Matched]:
    """Match record by record in the order of each name; one stream keeps its order, several may not."""
    found: dict[int, Matched] = {}
    for key in dict.fromkeys(map(_captured, nodes)):
        named = [record for record in records if _key(record) == key]
        meant = [node for node in nodes if _captured(node) == key]
        streams = {record.stream for record in named}
        places = {(node.layer, node.kv_source, node.op) for node in meant}
        unsure = len(streams) > 1 and len(places) > 1
        for record, node in zip(named, meant, strict=True):
            found[id(record)] = Matched(record, None, ambiguous=True) if unsure else Matched(record, node)
    return found
