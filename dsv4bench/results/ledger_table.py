"""The capture ledger as a record keeps it: the nodes of every captured graph, in the order of their creation.

A node is one device operation of a replay. Layers, operations and names repeat, so they stand in tables once and a node
is two indices; docs/records.md explains the form. Nothing here needs torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsv4bench.errors import RecordError

_NESTED_NAME = re.compile(r"_ZN?L?(?=\d)")
_PIECE = re.compile(r"L?(\d+)")
_ARGUMENTS = re.compile(r"<[^<>]*>")
_CUT = "\0"  # where template arguments stood
UNKNOWN = "unknown"  # of a kernel whose name the bindings do not tell


@dataclass(frozen=True, slots=True)
class Node:
    """A captured node: where it belongs, its metric ("kernels", "copies", "sets", "others", "dynamic") and its name.

    A node of no range has neither layer nor operation. `number` is the lower half of its id in a trace; None where that
    is not known, in a child graph say.
    """

    layer: int | None
    kv_source: int | None
    op: str | None
    metric: str
    name: str
    number: int | None = None

    @property
    def placed(self) -> bool:
        """Whether it was captured inside a range."""
        return self.layer is not None or self.op is not None


Graph = tuple[Node, ...]


def kernel_name(name: str) -> str:
    """Return a kernel's name without return type, template arguments and parameters, mangled or not.

    `_ZN2at6native13reduce_kernelILi512EEEvT0_` and `void at::native::reduce_kernel<512>(int)` are the same kernel to
    those who list it: bindings give the one form and profilers the other.
    """
    begin = _NESTED_NAME.match(name)
    if begin is not None:
        pieces = list(_pieces(name, begin.end()))
        own = pieces if "N" in begin[0] else pieces[:1]  # else what follows is the type of a parameter
        return "::".join(own) or name
    plain, arguments = name.replace("(anonymous namespace)::", ""), 1
    while arguments:  # from the innermost brackets outwards
        plain, arguments = _ARGUMENTS.subn(_CUT, plain)
    words = plain.partition("(")[0].split()
    return words[-1].partition(_CUT)[0] if words else name


def _pieces(name: str, at: int) -> Iterator[str]:
    """Yield the identifiers of a mangled name from `at` on, up to its template arguments, without anonymous ones."""
    while (found := _PIECE.match(name, at)) is not None:
        at = found.end() + int(found[1])
        piece = name[found.end() : at]
        if not piece.startswith("_GLOBAL__N"):
            yield piece


def to_plain(graphs: Sequence[Graph]) -> dict[str, Any]:
    """Return graphs as the plain values that a record keeps."""
    ops, places, names = _Table(), _Table(), _Table()
    indices = [
        [index for node in graph for index in (places.index(_place(node, ops)), names.index((node.metric, node.name)))]
        for graph in graphs
    ]
    return {
        "ops": ops.values,
        "places": [list(place) for place in places.values],
        "names": [list(name) for name in names.values],
        "graphs": indices,
        "numbers": [_numbers(graph) for graph in graphs],
    }


def read_ledger(plain: Mapping[str, Any]) -> tuple[Graph, ...]:
    """Return the graphs of a record's `capture_ledger`; RecordError where its tables do not fit together."""
    try:
        numbers = plain["numbers"]
        return tuple(tuple(_nodes(plain, indices, numbers[graph])) for graph, indices in enumerate(plain["graphs"]))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RecordError(f"capture_ledger: tables that do not fit together: {error!r}") from None


class _Table:
    """Distinct values in the order of first use."""

    def __init__(self) -> None:
        self._places: dict[Any, int] = {}

    @property
    def values(self) -> list[Any]:
        return list(self._places)

    def index(self, value: Any) -> int:
        return self._places.setdefault(value, len(self._places))


def _place(node: Node, ops: _Table) -> tuple[int | None, int | None, int | None]:
    return node.layer, node.kv_source, None if node.op is None else ops.index(node.op)


def _numbers(graph: Graph) -> list[int | None] | None:
    """Return the numbers of a graph's nodes, or None where they simply count up."""
    numbers = [node.number for node in graph]
    return None if numbers == list(range(len(graph))) else numbers


def _nodes(plain: Mapping[str, Any], indices: Sequence[int], numbers: Sequence[int | None] | None) -> Iterator[Node]:
    pairs = list(zip(indices[::2], indices[1::2], strict=True))
    for (place, name), number in zip(pairs, range(len(pairs)) if numbers is None else numbers, strict=True):
        layer, kv_source, op = plain["places"][place]
        metric, text = plain["names"][name]
        yield Node(layer, kv_source, None if op is None else plain["ops"][op], metric, text, number)
