"""When an A/B has enough: all its pairs, a difference that is known well enough, or no time left."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic_ns

from dsv4bench.profiling.timing import StopRule
from dsv4bench.results.min_effect import MinEffect
from dsv4bench.results.trials import PairOfSamples, merged
from dsv4bench.results.verdict import narrow
from dsv4bench.results.verdict_stats import medians_ns, pair_interval, ratio_interval

# why sampling ended
ALL_PAIRS, NARROW, TIME_LIMIT, CELL_LIMIT = "all pairs", "narrow enough", "time limit", "time of a cell"


@dataclass(slots=True)
class Budget:
    """The time until a deadline, dealt evenly to the `left` timings that have not begun; None: no deadline.

    What a group takes beside its timings (caches, checks, captures, counts) is not dealt but kept back for every group
    to come, as much as the groups so far took for the root of their rows: from 2 048 to 8 192 rows it was seen to
    double (docs/measured-facts.md). The first group is no measure for others once these have begun: it also compiles.
    """

    deadline_ns: int | None = None
    left: int = 1
    now_ns: Callable[[], int] = monotonic_ns
    _later_roots: float = 0
    _root: float = 1
    _began_ns: int | None = None
    _timed_ns: int = 0
    _beside_ns: list[float] = field(default_factory=list)  # of each group so far, for a root of one row

    @classmethod
    def of(cls, limit_ns: int | None, now_ns: Callable[[], int] = monotonic_ns) -> Budget:
        """Return a budget that begins now."""
        return cls(None if limit_ns is None else now_ns() + limit_ns, now_ns=now_ns)

    @property
    def spent(self) -> bool:
        """Whether the deadline is over."""
        return self.deadline_ns is not None and self.now_ns() >= self.deadline_ns

    def begin(self, left: int, rows: int, later_rows: Sequence[int] = ()) -> None:
        """Say that a group of `rows` begins: with its own, `left` timings are to come, and groups of `later_rows`."""
        now_ns = self.now_ns()
        if self._began_ns is not None:
            self._beside_ns.append(self._beside_so_far_ns(now_ns))
        self.left, self._root, self._later_roots = left, math.sqrt(rows), sum(map(math.sqrt, later_rows))
        self._began_ns, self._timed_ns = now_ns, 0

    def over(self, elapsed_ns: int) -> bool:
        """Return whether a timing that has taken `elapsed_ns` has had its share; then the next one's begins."""
        if self.deadline_ns is None:
            return False
        began_ns = self.now_ns() - elapsed_ns
        kept_ns = self._later_roots * max(self._beside_so_far_ns(began_ns), *self._beside_ns[1:], 0)
        return elapsed_ns * max(1, self.left) >= self.deadline_ns - began_ns - kept_ns

    def end(self, elapsed_ns: int) -> None:
        """Say that a timing is over, which took `elapsed_ns`."""
        self.left -= 1
        self._timed_ns += elapsed_ns

    def _beside_so_far_ns(self, now_ns: int) -> float:
        """Return what this group has taken beside its timings, for a root of one row."""
        return 0 if self._began_ns is None else (now_ns - self._began_ns - self._timed_ns) / self._root


@dataclass(frozen=True, slots=True)
class PairsRule(StopRule):
    """Stop where all differences are known well enough, or time is up, or after `samples` if given (whole blocks).

    The subjects are a and b of one cell after another. `cell_ns` is the most time of a cell of both sides. Neither that
    nor a share of the budget takes fewer than `least_pairs`, with which no verdict could name anything; its end does.
    Only the width of an interval decides, never where it lies: so stopping favours
    no verdict. It is looked at whenever the pairs have grown by a quarter, as the GPU rests meanwhile.
    """

    least_pairs: int = 1
    cell_ns: int | None = None
    min_effect: MinEffect = field(default_factory=MinEffect)
    budget: Budget = field(default_factory=Budget)

    def reason(self, periods: Sequence[Sequence[int]], elapsed_ns: int) -> str | None:
        """Return why to stop, at the end of a block, or None."""
        taken = len(periods[0])
        if taken % self.block:
            return None
        reason = self._reason(periods, taken, elapsed_ns)
        if reason is not None:
            self.budget.end(elapsed_ns)
        return reason

    def _reason(self, periods: Sequence[Sequence[int]], taken: int, elapsed_ns: int) -> str | None:
        if self.samples is not None and taken >= self.samples:
            return ALL_PAIRS
        count = taken // self.block
        if (count >= self.least_pairs or self.budget.spent) and self.budget.over(elapsed_ns):
            return TIME_LIMIT
        if self.cell_ns and count >= self.least_pairs and elapsed_ns >= self.cell_ns * max(1, len(periods) // 2):
            return CELL_LIMIT
        return NARROW if _looks(count, self.least_pairs) and self._known(periods) else None

    def _known(self, periods: Sequence[Sequence[int]]) -> bool:
        """Return whether the difference of every cell is known well enough."""
        blocks = range(0, len(periods[0]), self.block)
        sides = zip(periods[::2], periods[1::2], strict=False)  # a cell that ended leaves its neighbour over
        pairs = [merged([_block(a, b, start, self.block) for start in blocks]) for a, b in sides]
        return all(known(one, self.min_effect) for one in pairs)


def known(pairs: Sequence[PairOfSamples], effect: MinEffect) -> bool:
    """Return whether the difference of B from A is known well enough, as the verdict on these pairs will see it."""
    a, b = medians_ns(pairs)
    return narrow(pair_interval(b - a) if effect.relative is None else ratio_interval(pairs), effect)


def _looks(pairs: int, least_pairs: int) -> bool:
    """Return whether it is time to look: at the least number of pairs, and then whenever they grew by a quarter."""
    look = least_pairs
    while look < pairs:
        look += max(1, look // 4)
    return look == pairs


def _block(a: Sequence[int], b: Sequence[int], start: int, block: int) -> PairOfSamples:
    return PairOfSamples(tuple(a[start : start + block]), tuple(b[start : start + block]))
