"""The only place that converts or formats a quantity.

Storage has one unit per quantity: time in `_ns`, memory in `_bytes`, rates in bytes or FLOPs per second.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
KIB = 1024
MIB = 1024**2
GIB = 1024**3

# what one of each unit is, in the unit that is stored
BYTE_RATES = {"TB/s": 1e12, "GB/s": 1e9}
FLOP_RATES = {"TFLOP/s": 1e12, "PFLOP/s": 1e15, "GFLOP/s": 1e9}
SIZES = {"GB": 1e9, "MiB": float(MIB), "GiB": float(GIB), "MB": 1e6, "TB": 1e12}
CLOCKS = {"MHz": 1e6, "GHz": 1e9}
POWERS = {"W": 1.0, "kW": 1e3}
COUNT = {"": 1.0}

# units of a column or an axis of times: nanoseconds in one, and its name
MILLISECONDS = (NS_PER_MS, "ms")
MICROSECONDS = (NS_PER_US, "us")


def time_unit(times_ns: Sequence[float]) -> tuple[int, str]:
    """Return the unit for times that stand together, as its nanoseconds and its name: ms if the longest fills one."""
    return MILLISECONDS if not times_ns or max(times_ns) >= NS_PER_MS else MICROSECONDS


def difference_unit(differences_ns: Iterable[float | None]) -> tuple[int, str]:
    """Return the unit for differences that stand together: us, or ms where one has more than five digits of us."""
    longest_ns = max((abs(ns) for ns in differences_ns if ns is not None), default=0)
    return MILLISECONDS if longest_ns >= 10**5 * NS_PER_US else MICROSECONDS


def in_unit(ns: Any, scale: int) -> Any:
    """Return a time, or an array of them, in the unit of `scale` nanoseconds."""
    return ns / scale


def format_in_unit(ns: float | None, scale: int, signed: bool = False, digits: int = 4) -> str:
    """Format a time as a bare number in the unit of `scale` nanoseconds, of so many significant digits; "" for None."""
    if ns is None:
        return ""
    text = significant(in_unit(ns, scale), digits)
    return f"+{text}" if signed and ns > 0 else text


def format_plus_minus(ns: float, half_width_ns: float, scale: int, signed: bool = False, digits: int = 4) -> str:
    """Format a time and its uncertainty as bare numbers in the unit of `scale` nanoseconds: "12.34 ±0.05".

    As many decimals as `digits` digits of the time need, or the first digit of the bound (to a thousandth of the unit);
    but no more than two digits of the bound need.
    """
    value, half_width = in_unit(ns, scale), in_unit(half_width_ns, scale)
    decimals = _decimals(value, half_width, digits)
    return f"{value:{'+' if signed and value else ''}.{decimals}f} ±{half_width:.{decimals}f}"


def format_interval(ns: float, low_ns: float, high_ns: float, scale: int, digits: int = 4) -> str:
    """Format a difference of times and its bounds as bare, signed numbers in the unit: "-325 [-762, -229]".

    All three have the decimals that `format_plus_minus` gives the difference with the farther bound.
    """
    value, low, high = (in_unit(one, scale) for one in (ns, low_ns, high_ns))
    decimals = _decimals(value, max(value - low, high - value), digits)
    middle, *bounds = (_signed(one, decimals) for one in (value, low, high))
    return f"{middle} [{', '.join(bounds)}]"


def _decimals(value: float, half_width: float, digits: int) -> int:
    decimals = len(significant(value, digits).partition(".")[2])
    if half_width <= 0:
        return decimals
    first_digit = math.ceil(-math.log10(half_width))
    return min(max(decimals, min(first_digit, 3)), max(first_digit + 1, 0))


def _signed(value: float, decimals: int) -> str:
    """Return a number with its sign; what rounds to 0 has none."""
    text = f"{value:+.{decimals}f}"
    return text if text.strip("+-0.") else text[1:]


def format_ns(ns: float | None, digits: int = 4) -> str:
    """Format a time in nanoseconds with the unit that reads best and `digits` significant digits."""
    if ns is None:
        return "-"
    for scale, unit in ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "us")):
        if abs(ns) >= scale:
            return f"{significant(ns / scale, digits)} {unit}"
    return f"{significant(ns, digits)} ns"


def format_bytes(count: float | None) -> str:
    """Format a number of bytes in B, KiB, MiB or GiB."""
    if count is None:
        return "-"
    for scale, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(count) >= scale:
            return f"{significant(count / scale, 4)} {unit}"
    return f"{count:.0f} B"


def format_power(milliwatts: float) -> str:
    """Format a power in whole watts: "700 W"."""
    return f"{milliwatts / 1000:.0f} W"


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun, whose plural ends in s: "1 row", "2 rows"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_rate(bytes_per_s: float | None) -> str:
    """Format a rate in bytes per second as GB/s or TB/s (decimal, as vendors do)."""
    if bytes_per_s is None:
        return "-"
    if bytes_per_s >= 1e12:
        return f"{significant(bytes_per_s / 1e12, 3)} TB/s"
    return f"{significant(bytes_per_s / 1e9, 3)} GB/s"


def format_flop_rate(flops_per_s: float | None) -> str:
    """Format a rate of floating-point operations as TFLOP/s, or GFLOP/s below one of them."""
    if flops_per_s is None:
        return "-"
    if flops_per_s >= 1e12:
        return f"{significant(flops_per_s / 1e12, 3)} TFLOP/s"
    return f"{significant(flops_per_s / 1e9, 3)} GFLOP/s"


def format_percent(share: float | None, signed: bool = False) -> str:
    """Format a share (0.01 is one percent) with two decimals."""
    if share is None:
        return "-"
    return f"{share * 100:+.2f} %" if signed else f"{share * 100:.2f} %"


def format_share(share: float) -> str:
    """Format a share as whole percent: "100%" is all of it, and no more is nearly all."""
    return f"{min(round(share * 100), 100 if share >= 1 else 99)}%"


def parse_quantity(text: str, units: Mapping[str, float]) -> float:
    """Read "4.8 TB/s" in one of `units` (the unit "" is a plain number); ValueError, one sentence, for anything else.

    A quantity is positive.
    """
    number, unit = split_quantity(text)
    names = " or ".join(filter(None, units))
    known = f"a number of {names}" if names else "a plain number"
    try:
        value = float(number) * units[unit]
    except (KeyError, ValueError):
        raise ValueError(f"{text!r}: expected {known}") from None
    if not 0 < value < math.inf:
        raise ValueError(f"{text!r}: expected more than 0")
    return value


def split_quantity(text: str) -> tuple[str, str]:
    """Return the number and the unit of a quantity as they are written, with or without a space between them."""
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ/ ")
    return number, text.strip()[len(number) :].strip()


def significant(value: float, digits: int) -> str:
    """Return `value` with `digits` significant digits and no exponent (1234.5 with 3 is "1234")."""
    if value == 0:
        return "0"
    before = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:.{max(0, digits - before)}f}"
