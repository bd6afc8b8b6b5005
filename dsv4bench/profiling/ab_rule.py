"""When an A/B has enough: all its pairs, a difference that is known well enough, or no time left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic_ns

from dsv4bench.profiling.timing import StopRule
from dsv4bench.results.stats import CONFIDENCE
from dsv4bench.results.trials import PairOfSamples, merged
from dsv4bench.results.verdict import NARROW_SHARE, MinEffect
from dsv4bench.results.verdict_stats import log_ratios, medians_ns, pair_interval

# why sampling ended
ALL_PAIRS, NARROW, TIME_LIMIT, CELL_LIMIT = "all pairs", "narrow enough", "time limit", "time of a cell"


@dataclass(slots=True)
class Budget:
    """The time until a deadline, dealt evenly to the `left` timings that have not begun; None: no deadline.

    What a group takes beside its timings (caches, checks, captures, counts) is not dealt: the longest so far is kept
    back for every group to come.
    """

    deadline_ns: int | None = None
    left: int = 1
    now_ns: Callable[[], int] = monotonic_ns
    _groups_after: int = 0
    _began_ns: int | None = None
    _timed_ns: int = 0
    _beside_ns: int = 0

    @classmethod
    def of(cls, limit_ns: int | None, now_ns: Callable[[], int] = monotonic_ns) -> Budget:
        """Return a budget that begins now."""
        return cls(None if limit_ns is None else now_ns() + limit_ns, now_ns=now_ns)

    @property
    def spent(self) -> bool:
        """Whether the deadline is over."""
        return self.deadline_ns is not None and self.now_ns() >= self.deadline_ns

    def begin(self, left: int, groups_after: int) -> None:
        """Say that a group begins: with its own, `left` timings are to come, and `groups_after` groups after it."""
        self.left, self._groups_after = left, groups_after
        if self.deadline_ns is not None:
            now_ns = self.now_ns()
            self._keep_back(now_ns)
            self._began_ns, self._timed_ns = now_ns, 0

    def over(self, elapsed_ns: int) -> bool:
        """Return whether a timing that has taken `elapsed_ns` has had its share; then the next one's begins."""
        if self.deadline_ns is None:
            return False
        began_ns = self.now_ns() - elapsed_ns
        self._keep_back(began_ns)
        return elapsed_ns * max(1, self.left) >= self.deadline_ns - began_ns - self._groups_after * self._beside_ns

    def end(self, elapsed_ns: int) -> None:
        """Say that a timing is over, which took `elapsed_ns`."""
        self.left -= 1
        self._timed_ns += elapsed_ns

    def _keep_back(self, now_ns: int) -> None:
        if self._began_ns is not None:
            self._beside_ns = max(self._beside_ns, now_ns - self._began_ns - self._timed_ns)


@dataclass(frozen=True, slots=True)
class PairsRule(StopRule):
    """Stop where all differences are known well enough, or time is up, or after `samples` if given (whole blocks).

    The subjects are a and b of one cell after another. `cell_ns` is the most time of a cell of both sides, by which no
    fewer than `least_pairs` are taken. Only the width of an interval decides, never where it lies: so stopping favours
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
        if self.budget.over(elapsed_ns):
            return TIME_LIMIT
        count = taken // self.block
        if self.cell_ns and count >= self.least_pairs and elapsed_ns >= self.cell_ns * max(1, len(periods) // 2):
            return CELL_LIMIT
        return NARROW if _looks(count, self.least_pairs) and self._known(periods) else None

    def _known(self, periods: Sequence[Sequence[int]]) -> bool:
        """Return whether the difference of every cell is known well enough."""
        blocks = range(0, len(periods[0]), self.block)
        sides = zip(periods[::2], periods[1::2], strict=False)  # a cell that ended leaves its neighbour over
        pairs = [merged([_block(a, b, start, self.block) for start in blocks]) for a, b in sides]
        return all(narrow(one, self.min_effect) for one in pairs)


def narrow(pairs: Sequence[PairOfSamples], effect: MinEffect) -> bool:
    """Return whether the interval of B against A is so narrow that more pairs would hardly help, wherever it lies."""
    a, b = medians_ns(pairs)
    interval = pair_interval(b - a) if effect.relative is None else pair_interval(log_ratios(pairs))
    least = effect.absolute_ns if effect.relative is None else effect.relative
    return interval.confidence >= CONFIDENCE and interval.half_width <= NARROW_SHARE * (least or 0)


def _looks(pairs: int, least_pairs: int) -> bool:
    """Return whether it is time to look: at the least number of pairs, and then whenever they grew by a quarter."""
    look = least_pairs
    while look < pairs:
        look += max(1, look // 4)
    return look == pairs


def _block(a: Sequence[int], b: Sequence[int], start: int, block: int) -> PairOfSamples:
    return PairOfSamples(tuple(a[start : start + block]), tuple(b[start : start + block]))
