"""What a step keeps in Python between its calls: a workspace or a table may be made once, a value of a batch may not.

A graph is captured after warm-up runs. So what the first call alone does, it does before any capture: a graph holds the
reads of what was kept, and a replay with another batch reads the value of the first one. An eager run reads it as well,
which is why no comparison with eager runs shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from dsv4bench.profiling.tape import Tape
from dsv4bench.profiling.tape_nodes import Node, address
from dsv4bench.profiling.tape_rules import Finding, Rule

KEPT_MEND = "make it in every call, or keep only what follows from weights"


def kept_values(first: Sequence[Tape], later: Sequence[Tape], changing: Iterable[torch.Tensor]) -> Iterator[Finding]:
    """Yield where the tapes of a later capture read what those of the first one made of a batch, once per tensor.

    `changing` are the tensors that hold the batch and what is made of it; any other that was there before is constant.
    """
    made = _made_of(first, {address(tensor) for tensor in changing})
    for node in _nodes(later):
        for name, operand in node.read():
            if operand.storage in made:
                made.discard(operand.storage)
                what = f"reads `{name}`, which an earlier call made of its batch and kept"
                yield Finding(node.piece, node.place, Rule(what, KEPT_MEND))
        made -= {operand.storage for operand in node.written()}


def _made_of(tapes: Sequence[Tape], changing: set[object]) -> set[object]:
    """Return the addresses of the tensors that tapes made of storages in `changing`, directly or not."""
    found: set[object] = set()
    for node in _nodes(tapes):
        if any(operand.storage in changing or operand.storage in found for _, operand in node.read()):
            found |= {operand.storage for operand in node.written() if operand.made}
    numbers = tapes[0].storages.numbers if tapes else {}
    return {where for where, number in numbers.items() if number in found}


def _nodes(tapes: Sequence[Tape]) -> Iterator[Node]:
    return (node for tape in tapes for node in tape.nodes)
