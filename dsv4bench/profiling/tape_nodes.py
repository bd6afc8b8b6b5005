"""What a tape holds: nodes, and the tensors that they read and write, described so that two tapes can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from dsv4bench.kernels.contract import Kernel, Provider
from dsv4bench.ranges import Range

Call = Callable[[], None]
_WHOLE = (torch.ops.aten.copy_, torch.ops.aten.fill_, torch.ops.aten.zero_)


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor as a node sees it.

    `storage` is its address; (tape, number) for one that the capture made, by the order of making.
    """

    storage: int | tuple[int, int]
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def made(self) -> bool:
        """Whether the capture made it; else it was there before."""
        return isinstance(self.storage, tuple)


@dataclass(frozen=True, slots=True)
class Node:
    """One thing that a replay does again: a kernel's call or a torch operation.

    `arguments` are (name, value) in order, tensors as `Operand`, and `results` the tensors that it made; `range` is the
    innermost that was open. `writes` names the arguments that it writes, `unread` those of them whose contents before
    change nothing.
    """

    name: str
    kernel: bool
    piece: str
    place: str
    range: Range | None
    arguments: tuple[tuple[str, Any], ...]
    results: tuple[Operand, ...]
    run: Call
    writes: frozenset[str] = frozenset()
    unread: frozenset[str] = frozenset()

    def read(self) -> Iterator[tuple[str, Operand]]:
        """Yield the tensors whose contents make a difference, with their names."""
        for name, value in self.arguments:
            if isinstance(value, Operand) and name not in self.unread:
                yield name, value

    def written(self) -> Iterator[Operand]:
        """Yield the tensors that it writes, those that it made too."""
        yield from self.results
        for name, value in self.arguments:
            if isinstance(value, Operand) and name in self.writes:
                yield value


@dataclass(slots=True)
class Storages:
    """The storages that the tapes of one capture have made, numbered; holding them keeps their addresses their own."""

    numbers: dict[int, tuple[int, int]] = field(default_factory=dict)
    held: list[torch.Tensor] = field(default_factory=list)
    _tape: int = 0
    _first: int = 0

    def begin_tape(self) -> None:
        """Number what follows from 0, as made by another tape."""
        self._tape, self._first = self._tape + 1, len(self.numbers)

    def make(self, tensor: torch.Tensor) -> None:
        """Number the storage of a new tensor."""
        self.numbers.setdefault(address(tensor), (self._tape, len(self.numbers) - self._first))
        self.held.append(tensor)

    def operand(self, tensor: torch.Tensor) -> Operand:
        """Describe a tensor."""
        where = address(tensor)
        return Operand(
            storage=self.numbers.get(where, where),
            offset=int(tensor.storage_offset()),
            shape=tuple(tensor.shape),
            stride=tensor.stride(),
            dtype=tensor.dtype,
        )

    @property
    def bytes(self) -> int:
        """Bytes of all storages that were made."""
        return sum({address(one): one.untyped_storage().nbytes() for one in self.held}.values())


@dataclass(frozen=True, slots=True)
class Writes:
    """Which arguments a call writes (`all`), and which of them it never reads (`unread`)."""

    all: frozenset[str]
    unread: frozenset[str]


def writes_of_kernel(kernel: Kernel) -> Writes:
    """Return what a call of a catalogue kernel writes."""
    return Writes(frozenset(kernel.outputs), frozenset(kernel.outputs) - frozenset(kernel.updates))


def writes_of_exchange(tensors: Mapping[str, torch.Tensor]) -> Writes:
    """Return what a collective writes: "out", which it reads too where it is also the "rows"."""
    out = frozenset({"out"})
    return Writes(out, frozenset() if tensors["out"] is tensors["rows"] else out)


def writes_of_operation(func: Any) -> Writes:
    """Return what a torch operation writes by its schema; an `out=`, and `self` of a copy or a fill, it never reads."""
    written = [one for one in func._schema.arguments if one.alias_info is not None and one.alias_info.is_write]
    whole = func.overloadpacket in _WHOLE
    return Writes(
        frozenset(one.name for one in written), frozenset(one.name for one in written if whole or one.kwarg_only)
    )


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Return the tensors of nested arguments or results, in order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def into(made: list[torch.Tensor], call: Callable[[], Any]) -> Call:
    """Return a call whose results are copied into the tensors that capture made."""
    made = [one.detach() for one in made]

    def run() -> None:
        for mine, result in zip(made, tensors_of(call()), strict=True):
            mine.copy_(result)

    return run


def address(tensor: torch.Tensor) -> int:
    """Return what tells a tensor's storage from every other one that exists."""
    return int(tensor.untyped_storage()._cdata)


def stands_for_a_kernel(kernel: Kernel, provider: Provider) -> bool:
    """Return whether a call is the reference of a kernel that others provide, so that it means one launch."""
    return provider.name == "torch" and any(one.name != "torch" for one in kernel.providers)
