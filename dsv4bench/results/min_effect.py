"""The least difference that a verdict may name: what a user asks for, and what holds where nothing was asked."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from dsv4bench.errors import UsageError, nearest
from dsv4bench.units import NS_PER_MS, NS_PER_S, NS_PER_US, format_ns

GRAPH_MIN_EFFECT, EAGER_MIN_EFFECT = 0.005, 0.01
TIMES = {"ns": 1, "us": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S}


@dataclass(frozen=True, slots=True)
class MinEffect:
    """The least difference that a verdict may name: a share of A's time, or nanoseconds; exactly one is given."""

    relative: float | None = None
    absolute_ns: float | None = None

    @property
    def text(self) -> str:
        """The least difference as a reader writes it: "0.5 %" or "50 us"."""
        return format_ns(self.absolute_ns, 2) if self.absolute_ns else f"{(self.relative or 0.0) * 100:.3g} %"

    def of_ns(self, time_ns: float) -> float:
        """Return the least difference in nanoseconds where A takes `time_ns`."""
        return self.absolute_ns if self.absolute_ns is not None else (self.relative or 0.0) * time_ns


def default_min_effect(graph: bool) -> MinEffect:
    """Return the least effect where the user gives none: 0.5 % in a graph, 1 % eager."""
    return MinEffect(relative=GRAPH_MIN_EFFECT if graph else EAGER_MIN_EFFECT)


def parse_min_effect(text: str) -> MinEffect:
    """Return the least effect that "0.5%" or "50us" says; UsageError with the nearest right form."""
    number, unit = re.fullmatch(r"\s*([0-9.+-]*)\s*(.*?)\s*", text, re.DOTALL).groups()  # type: ignore[union-attr]
    unit = re.sub("[\u00b5\u03bc]s", "us", unit)  # micro and mu
    known = ("%", *TIMES)
    try:
        value = float(number)
    except ValueError:
        raise UsageError(f"--min-effect {text}: expected a share or a time, e.g. 0.5% or 50us") from None
    if not unit and not value > 0:
        raise UsageError(f"--min-effect {text}: expected above 0, e.g. 0.5% or 50us")
    if unit not in known:
        hint = nearest(unit, known) if unit else f" (did you mean '{number}%'?)" if value < 100 else ""
        raise UsageError(f"--min-effect {text}: expected a number and one of {', '.join(known)}, e.g. 0.5%{hint}")
    if not 0 < value < (100 if unit == "%" else math.inf):
        limits = "above 0% and below 100%" if unit == "%" else "a time above 0"
        raise UsageError(f"--min-effect {text}: expected {limits}, e.g. 0.5% or 50us")
    return MinEffect(relative=value / 100) if unit == "%" else MinEffect(absolute_ns=value * TIMES[unit])
