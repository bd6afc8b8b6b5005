"""`--time-limit`: what is not begun any more, and the reason that its records give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns

NO_TIME_LEFT = "--time-limit was over before it was measured"


@dataclass(slots=True)
class Deadline:
    """The time by which a run of equal pieces (groups of cells, pairs of processes) should be over; None: any time.

    A piece cannot be stopped halfway, so the longest so far is kept back for the next one.
    """

    deadline_ns: int | None = None
    now_ns: Callable[[], int] = monotonic_ns
    _began_ns: int | None = None
    _longest_ns: int = 0

    def may_begin(self) -> bool:
        """Return whether the next piece may begin, as the first always may; the one before it is over."""
        now_ns = self.now_ns()
        if self._began_ns is not None and self.deadline_ns is not None:
            self._longest_ns = max(self._longest_ns, now_ns - self._began_ns)
            if now_ns + self._longest_ns > self.deadline_ns:
                return False
        self._began_ns = now_ns
        return True
