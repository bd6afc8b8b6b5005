"""How values and colours look, on a terminal and in figures."""

from __future__ import annotations

import math

from dsv4bench.results.stats import Interval
from dsv4bench.units import NS_PER_MS, NS_PER_US, significant

HEAD = "bold"
ALARM = "bold red"
# the statuses that must be seen, and a sentence that came out false
ALARM_WORDS = ("WRONG", "wrong", "failed", "out_of_memory", "false")

# from the palette of Okabe and Ito, told apart by colour-blind readers and in grey
BEFORE_COLOUR = "#D55E00"
AFTER_COLOUR = "#0072B2"
PREDICTED_COLOUR = "#555555"
MUTED_COLOUR = "#888888"

TIME_UNITS = ((NS_PER_MS, "ms"), (NS_PER_US, "us"))


def alarms() -> str:
    """Return the pattern of the words that a terminal shows in red."""
    return rf"\b({'|'.join(ALARM_WORDS)})\b"


def time_unit(times_ns: list[float]) -> tuple[int, str]:
    """Return the unit for a column of times, as nanoseconds per unit and its name: ms if the longest is one or more."""
    return TIME_UNITS[0] if not times_ns or max(times_ns) >= NS_PER_MS else TIME_UNITS[1]


def plus_minus(interval: Interval | None, scale: int, signed: bool = False) -> str:
    """Return "12.34 ±0.05" in the unit of `scale` nanoseconds: the median and the distance to its farther bound."""
    if interval is None:
        return ""
    value, half_width = interval.value / scale, interval.half_width / scale
    # as many decimals as four digits of the value need, or the first digit of the bound (to a thousandth of the unit)
    for_bound = math.ceil(-math.log10(half_width)) if half_width > 0 else 0
    decimals = max(len(significant(value, 4).partition(".")[2]), min(for_bound, 3))
    return f"{value:{'+' if signed and value else ''}.{decimals}f} ±{half_width:.{decimals}f}"


def number(value_ns: float | None, scale: int, signed: bool = False) -> str:
    """Return a time in the unit of `scale` nanoseconds with four significant digits; "" for None."""
    if value_ns is None:
        return ""
    text = significant(value_ns / scale, 4)
    return f"+{text}" if signed and value_ns > 0 else text


def arrow(before: object, after: object, *, always: bool = False) -> str:
    """Return "before -> after", or one value where both are the same (unless `always`); "-" for a side not there."""
    sides = ["-" if side is None else str(side) for side in (before, after)]
    if sides == ["-", "-"]:
        return ""
    return sides[0] if sides[0] == sides[1] and not always else " -> ".join(sides)


def yes(value: bool | None, otherwise: str) -> str:
    """Return "true" or "false", or `otherwise` for None."""
    return otherwise if value is None else str(value).lower()
