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
    """A tensor as a node sees it; `storage` is a number in the order of making, or an address where it was there."""

    made: bool
    storage: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Node:
    """One thing that a replay does again: a kernel's call or a torch operation.

    `arguments` are (name, value) in order, tensors as `Operand`; `range` is the innermost that was open.
    """

    name: str
    kernel: bool
    piece: str
    place: str
    range: Range | None
    arguments: tuple[tuple[str, Any], ...]
    run: Call


@dataclass(slots=True)
class Storages:
    """The storages that the tapes of one capture have made, numbered; holding them keeps their addresses their own."""

    numbers: dict[int, int] = field(default_factory=dict)
    held: list[torch.Tensor] = field(default_factory=list)

    def make(self, tensor: torch.Tensor) -> None:
        """Number the storage of a new tensor."""
        self.numbers.setdefault(address(tensor), len(self.numbers))
        self.held.append(tensor)

    def operand(self, tensor: torch.Tensor) -> Operand:
        """Describe a tensor."""
        where = address(tensor)
        number = self.numbers.get(where)
        return Operand(
            made=number is not None,
            storage=where if number is None else number,
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
