"""Two traces side by side, as plain values: whether they are alike, what each step launches, and what it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dsv4bench.results.reviews import Coverage, Finding, Value


@dataclass(frozen=True, slots=True)
class Likeness:
    """One thing that is compared first; `refuses` says that a difference makes the numbers incomparable."""

    what: str
    before: str
    after: str
    refuses: bool

    @property
    def alike(self) -> bool:
        """Whether both sides say the same."""
        return self.before == self.after


@dataclass(frozen=True, slots=True)
class Span:
    """A number of every whole step: its median, smallest and largest."""

    median: float
    least: int
    most: int

    @property
    def exact(self) -> int | None:
        """The number, if every step has the same; else None."""
        return self.least if self.least == self.most else None


@dataclass(frozen=True, slots=True)
class DiffRow:
    """Operations with equal `keys` in a step of each trace: their launches, time and share of the step's time."""

    keys: Mapping[str, Value]
    before: Span
    after: Span
    before_ns: Span
    after_ns: Span
    before_share: float
    after_share: float

    @property
    def changed(self) -> bool:
        """Whether the number of launches differs."""
        return (self.before.least, self.before.most) != (self.after.least, self.after.most)


@dataclass(frozen=True, slots=True)
class KernelChange:
    """A kernel or copy that a step of one trace launches more often than a step of the other."""

    name: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class TraceDiff:
    """Everything that `trace diff` says; `totals` are numbers of whole steps, name -> (before, after).

    `steps` is how many whole steps each side has, 1 where it marks none and its numbers are those of the whole trace.
    """

    before: str
    after: str
    axis: str
    steps: tuple[int, int]
    likeness: Sequence[Likeness]
    totals: Mapping[str, tuple[Span | None, Span | None]]
    rows: Sequence[DiffRow]
    new: Sequence[KernelChange]
    gone: Sequence[KernelChange]
    more: Sequence[KernelChange]
    findings: Mapping[str, Sequence[Finding]]
    coverage: Mapping[str, Coverage]
    notes: Sequence[str] = ()

    @property
    def unlike(self) -> list[Likeness]:
        """What differs and makes the numbers incomparable."""
        return [one for one in self.likeness if one.refuses and not one.alike]

    @property
    def nothing_added(self) -> bool | None:
        """Whether no kernel or copy runs in a step of after that did not run as often in one of before.

        None where a side tells nothing of kernels.
        """
        if None in self.totals.get("kernels", (None, None)):
            return None
        return not self.new and not self.more

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        rows = [{**one.pop("keys"), **one} for one in map(asdict, self.rows)]
        likeness = [{**asdict(one), "alike": one.alike} for one in self.likeness]
        coverage = {side: {**asdict(one), "share": one.share} for side, one in self.coverage.items()}
        rest = {"nothing_added": self.nothing_added, "comparable": not self.unlike}
        return {**asdict(self), "rows": rows, "likeness": likeness, "coverage": coverage, **rest}
