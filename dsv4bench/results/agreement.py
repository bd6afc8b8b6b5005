"""Whether several ways of counting one step agree: what each found, operation by operation, and what must be equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dsv4bench.results.counts import is_gemm

Key = tuple[str, int | None]  # operation, kv_source
Values = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """One way of counting: calls or launches (one number), or kernels, copies and sets (three)."""

    name: str
    counts: Mapping[Key, Values]

    @property
    def width(self) -> int:
        """How many numbers it has for each operation."""
        return len(next(iter(self.counts.values()), (0,)))

    def at(self, key: Key) -> Values:
        """Return what it found there; nothing is zeros."""
        return self.counts.get(key, (0,) * self.width)

    def of(self, op: str) -> Values:
        """Return what it found of an operation, all kv_sources together."""
        found = [values for (name, _), values in self.counts.items() if name == op]
        return tuple(map(sum, zip(*found, strict=True))) if found else (0,) * self.width


@dataclass(frozen=True, slots=True)
class Agreement:
    """What the sources found of one cell, and `equal`, the names of those that must have found the same.

    `but_products` are such names where a matrix product, which a library may split otherwise, is left out. `absent`
    are lines about sources that this device does not have, `other` sentences about counts that are wrong as a whole.
    """

    cell: Mapping[str, Any]
    sources: tuple[Source, ...]
    equal: tuple[tuple[str, ...], ...]
    but_products: tuple[tuple[str, ...], ...] = ()
    absent: tuple[str, ...] = ()
    other: tuple[str, ...] = ()

    @property
    def ops(self) -> list[str]:
        """The operations that any source found, sorted."""
        return sorted({op for source in self.sources for op, _ in source.counts})

    @property
    def agreed(self) -> bool:
        """Whether nothing differs and something was counted."""
        return bool(self.ops) and not self.other and not any(self.differences(op) for op in self.ops)

    def differences(self, op: str) -> list[str]:
        """Return a sentence for each kv_source and comparison in which sources differ on `op`."""
        return [text for names in self._compared(op) for text in self._differences(op, names)]

    def _compared(self, op: str) -> tuple[tuple[str, ...], ...]:
        return self.equal if is_gemm(op) else (*self.equal, *self.but_products)

    def _differences(self, op: str, names: tuple[str, ...]) -> Iterator[str]:
        compared = [source for source in self.sources if source.name in names]
        keys = dict.fromkeys(key for source in compared for key in source.counts if key[0] == op)
        for key in keys:
            found = [source.at(key) for source in compared]
            if len(set(found)) > 1:
                each = ", ".join(f"{one.name} {words(values)}" for one, values in zip(compared, found, strict=True))
                yield f"{op}{'' if key[1] is None else f' (kv_source {key[1]})'}: {each}"


def words(values: Values) -> str:
    """Return numbers as a table shows them: "6", or "6/0/1" for kernels, copies and sets."""
    return "/".join(map(str, values))
