"""What the gates of `compare` and `ab` say on stderr: what stops them, and what they let pass, with its cells."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dsv4bench.dashboards.cells import grouped
from dsv4bench.dashboards.stored_cells import together
from dsv4bench.dashboards.table import printable
from dsv4bench.results.stats import Interval
from dsv4bench.units import format_percent


def slower(name: str, ratio: Interval) -> str:
    """Return why a cell that became slower stops a gate; `ratio` is after / before."""
    change, low, high = (format_percent(share - 1, signed=True) for share in (ratio.value, ratio.low, ratio.high))
    return f"SLOWER: {name}: {change} [{low}, {high}]"


def no_time(name: str, reason: str) -> str:
    """Return why a cell that has no time any more stops a gate."""
    return f"no time any more: {name}: {reason}"


def added_launches(name: str, sentences: Sequence[str] | None) -> list[str]:
    """Return why a cell that launches more stops a gate: a line for each sentence of `counts.added`."""
    return [f"added launches: {name}: {sentence}" for sentence in sentences or ()]


def counted(said: Sequence[tuple[str, tuple[str, str]]]) -> list[str]:
    """Return one line for each reason, with its cells, each named as `together` takes it."""
    reasons = grouped(said, lambda pair: pair[0])
    return [f"{same[0][0]}: {together([name for _, name in same])}" for same in reasons]


def tell_gate(stops: Sequence[str], passed: Sequence[str], strict: bool) -> None:
    """Print a line on stderr for all that stops a gate, and for what passes unless it is `strict`."""
    for line in (*stops, *(f"{'' if strict else 'passed: '}{line}" for line in passed)):
        print(f"gate: {printable(line)}", file=sys.stderr, flush=True)
