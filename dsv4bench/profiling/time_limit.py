"""`--time-limit`: when a run should be over, and what is not begun any more."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns

from dsv4bench.errors import UsageError
from dsv4bench.units import NS_PER_S

UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600}
LIMIT = re.compile(r"(\d+\.?\d*|\.\d+)\s*([smh]?)")


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


def deadline_ns(text: str, now_ns: Callable[[], int] = monotonic_ns) -> int | None:
    """Return when the time of `--time-limit` text is over that begins now; None for ""."""
    limit_ns = parse_time_limit(text)
    return None if limit_ns is None else now_ns() + limit_ns


def parse_time_limit(text: str) -> int | None:
    """Return the nanoseconds of `--time-limit` text: "600", "10m", "1.5h"; None for ""."""
    if not text:
        return None
    found = LIMIT.fullmatch(text.strip())
    limit_ns = float(found[1]) * UNITS_S[found[2]] * NS_PER_S if found else 0.0
    if not 1 <= limit_ns < math.inf:
        raise UsageError(f"--time-limit {text}: expected seconds above 0, or minutes or hours as 10m and 1.5h")
    return round(limit_ns)
