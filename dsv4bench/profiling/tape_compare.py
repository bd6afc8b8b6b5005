"""Two tapes of the same segment, captured with different batches: what differs is baked in, and a replay keeps it.

A graph is good for every batch of its bucket only if each of its nodes would be the same for all of them: the same
work, on the same storages, with the same shapes and numbers. What differs between batches must lie in tensors that
are refreshed in place before a replay (specification 5.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from dsv4bench.profiling.tape import Tape
from dsv4bench.profiling.tape_nodes import Node, Operand
from dsv4bench.profiling.tape_rules import Finding, Rule

NOT_REFRESHED_MEND = "copy it into a tensor of fixed storage before each replay (Step.load)"
SIZE_MEND = "run over the bucket's rows and mask what is past the live ones, or make this part a break"
NUMBER_MEND = "read it from a tensor that is refreshed before each replay, or make this part a break"
WORK_MEND = "do the same work for every batch of a bucket, or make this part a break"


def compare_tapes(first: Sequence[Tape], second: Sequence[Tape]) -> list[Finding]:
    """Return what differs between two captures of the same segments, each root once per node, in order."""
    tainted: set[Any] = set()
    return [
        found for one, other in zip(first, second, strict=True) for found in _compare(one.nodes, other.nodes, tainted)
    ]


def _compare(first: Sequence[Node], second: Sequence[Node], tainted: set[Any]) -> Iterator[Finding]:
    for one, other in zip_longest(first, second):
        if _work(one) != _work(other):
            names = " against ".join("nothing" if node is None else node.name for node in (one, other))
            yield _finding(one or other, Rule("does other work for another batch", WORK_MEND, names))
            return  # from here on the nodes are no pairs
        rule = _difference(one, other, tainted)
        if rule is not None:
            yield _finding(one, rule)
        if one.results != other.results:
            tainted |= {made.storage for made in one.results}


def _work(node: Node | None) -> tuple[str, ...] | None:
    return None if node is None else (node.name, *(name for name, _ in node.arguments))


def _finding(node: Node, rule: Rule) -> Finding:
    return Finding(node.piece, node.place, rule)


def _difference(one: Node, other: Node, tainted: set[Any]) -> Rule | None:
    """Return what differs between two nodes of the same work, the gravest first; not what follows from an earlier one.

    `tainted` are storages that such a node made.
    """
    pairs = [(name, a, b) for (name, a), (_, b) in zip(one.arguments, other.arguments, strict=True)]
    tensors = [(name, a, b) for name, a, b in pairs if isinstance(a, Operand) and isinstance(b, Operand) and a != b]
    roots = [(name, a, b) for name, a, b in tensors if a.storage not in tainted]
    tainted |= {a.storage for _, a, _ in roots if a.made}
    for name, a, b in roots:
        if a.storage != b.storage:
            return Rule(f"reads `{name}` from a tensor that a replay does not refresh", NOT_REFRESHED_MEND)
    for name, a, b in roots:
        if a.shape != b.shape:
            return Rule(f"`{name}` has another shape for another batch", SIZE_MEND, f"{_size(a)} and {_size(b)}")
    for name, a, b in roots:
        what = f"{a.offset} and {b.offset}" if a.offset != b.offset else f"{a.stride} and {b.stride}"
        return Rule(f"`{name}` lies elsewhere for another batch", NUMBER_MEND, what)
    for name, a, b in pairs:
        if not isinstance(a, Operand) and not _same(a, b):
            return Rule(f"bakes in `{name}`", NUMBER_MEND, f"{a} for one batch, {b} for another")
    return None


def _size(operand: Operand) -> str:
    return " x ".join(map(str, operand.shape))


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (one == other or repr(one) == repr(other))  # NaN is not equal to itself
