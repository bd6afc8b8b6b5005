"""What was read in a trace, as plain values: totals, steps, groups, findings and how much of it has a range.

None is what the file does not record, which is not 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dsv4bench.results.redundant import InferredRow

Value = int | str | None
Evidence = Mapping[str, int | float | str]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that the doctor found: a stable code, a sentence, the numbers behind it, and how to record it right.

    `wrong` says that counts of this trace must not be used: the exit code of `trace doctor` is then 1.
    """

    code: str
    wrong: bool
    text: str
    evidence: Evidence = field(default_factory=dict)
    command: str | None = None

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Totals:
    """What the whole trace holds, by the trace's own kinds; None where that kind was not recorded."""

    kernels: int | None
    copies: int | None
    sets: int | None
    graph_launches: int | None
    kernels_in_graphs: int | None
    kernel_sum_ns: int | None
    copy_bytes: int | None = None
    set_bytes: int | None = None
    launches: int | None = None


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many device operations have a place (layer, source or operation); the first four are all of them.

    `ambiguous` may be of several ranges, `in_graphs` ran in replays that tell no range, `lost` counts kernel launches
    of which the trace has no kernel. `method` names every way that was needed.
    """

    attributed: int
    unattributed: int
    ambiguous: int
    in_graphs: int
    lost: int
    method: str

    @property
    def total(self) -> int:
        """The number of device operations."""
        return self.attributed + self.unattributed + self.ambiguous + self.in_graphs

    @property
    def share(self) -> float | None:
        """The attributed share of all operations; None where there are none."""
        return self.attributed / self.total if self.total else None

    @property
    def complete(self) -> bool:
        """Whether every operation has its place and no launch lost its kernel."""
        return self.attributed == self.total and not self.lost


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step: what was launched in it, its range on the host, and on the device its span, busy time and kernel sum.

    Busy time is the union of the operations' intervals. `waiting_ns` is how long the device had nothing to do because
    the launch of the next operation had not returned, None where launches were not recorded. `number` is that of its
    name, or else its place; `cut` says why it counts as cut.
    """

    number: int
    name: str
    rank: int | None
    cut: str | None
    kernels: int | None
    copies: int | None
    sets: int | None
    graph_launches: int | None
    kernels_in_graphs: int | None
    host_ns: int | None
    span_ns: int | None
    busy_ns: int | None
    kernel_sum_ns: int | None
    waiting_ns: int | None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Operations with equal `keys`: counts, time, its share of the time of all, and their number in each whole step.

    `per_step` is the smallest and the largest number of operations in a whole step.
    """

    keys: Mapping[str, Value]
    kernels: int
    copies: int
    sets: int
    time_ns: int
    share: float
    bytes: int
    in_graphs: int
    per_step: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank: median GPU span of its whole steps, kernels, and the share of steps in which it was the slowest."""

    rank: int
    source: str
    steps: int
    kernels: int | None
    span_ns: float | None
    slowest: float | None


@dataclass(frozen=True, slots=True)
class Head:
    """Which file, in which format, of which devices and tools, and what was recorded and what not."""

    source: str
    format: str
    devices: Sequence[str]
    facts: Mapping[str, str]
    recorded: Sequence[str]
    not_recorded: Sequence[str]
    graph_mode: str


@dataclass(frozen=True, slots=True)
class Review:
    """Everything that `trace review` says about a trace."""

    head: Head
    totals: Totals
    steps: Sequence[StepRow]
    marked: bool
    by: Mapping[str, Sequence[GroupRow]]
    findings: Sequence[Finding]
    coverage: Coverage
    ranks: Sequence[RankRow] = ()
    notes: Sequence[str] = ()
    repeated: Sequence[InferredRow] = ()

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        by = {axis: [_group(row) for row in rows] for axis, rows in self.by.items()}
        coverage = {**asdict(self.coverage), "share": self.coverage.share, "complete": self.coverage.complete}
        return {**asdict(self), "by": by, "coverage": coverage}


def _group(row: GroupRow) -> dict[str, Any]:
    """Return a group with its keys beside its numbers."""
    rest = asdict(row)
    return {**rest.pop("keys"), **rest}


def whole(steps: Sequence[StepRow]) -> list[StepRow]:
    """Return the steps that were not cut; where all were, all of them."""
    return [step for step in steps if step.cut is None] or list(steps)
