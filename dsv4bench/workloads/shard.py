"""One share of a plan: `--shard 2/4` runs the second of four, so that any scheduler can spread a sweep over machines.

Groups are dealt in turn, in the order of their content keys, and stay whole. Every process that plans the same sweep
deals alike, in whatever order its axes were typed, and no two shares differ by more than one group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from dsv4bench.errors import UsageError

WRITTEN = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


class Grouped(Protocol):
    """A cell, which knows what its group is called."""

    @property
    def group(self) -> str:
        """The content key that the cells of one group share; no part of it is the commit."""


AnyCell = TypeVar("AnyCell", bound=Grouped)


@dataclass(frozen=True, slots=True)
class Shard:
    """The share `number` of `count`, from 1 on."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, plan: Sequence[tuple[AnyCell, ...]]) -> tuple[tuple[AnyCell, ...], ...]:
        """Return the groups of `plan` that are this share's, in the order of the plan; perhaps none."""
        numbers = dealt((group[0].group for group in plan), self.count)
        return tuple(group for group in plan if numbers[group[0].group] == self.number)


def dealt(keys: Iterable[str], count: int) -> dict[str, int]:
    """Return which of `count` shares each group belongs to, by its key."""
    return {key: place % count + 1 for place, key in enumerate(sorted(set(keys)))}


def shard(text: str) -> Shard:
    """Return what `--shard` means; UsageError, one line with the nearest right one, for anything but I/N."""
    written = WRITTEN.fullmatch(text)
    if written is None:
        raise UsageError(f"--shard {text}: expected I/N, e.g. 2/4 for the second of four shares")
    number, count = map(int, written.groups())
    if not 1 <= number <= count:
        near = f"{min(max(number, 1), max(count, 1))}/{max(count, 1)}"
        raise UsageError(f"--shard {text}: expected I/N with I from 1 to N, e.g. {near}")
    return Shard(number, count)
