"""What a tape holds: nodes, and the tensors that they read and write, described so that two tapes can be compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from dsv4bench.ranges import Range

Call = Callable[[], None]


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
    innermost that was open.
    """

    name: str
    kernel: bool
    piece: str
    place: str
    range: Range | None
    arguments: tuple[tuple[str, Any], ...]
    results: tuple[Operand, ...]
    run: Call


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


def address(tensor: torch.Tensor) -> int:
    """Return what tells a tensor's storage from every other one that exists."""
    return int(tensor.untyped_storage()._cdata)
