"""Whole nanoseconds and ids from what a JSON file holds: numbers, texts, nothing, or something else altogether.

Times are microseconds of up to three decimals. A float64 of less than 2**43 us is within half a nanosecond of its text,
and its whole and its fractional part are both exact, so that rounding the fraction gives the nanosecond of the text
(tests/profiling/traces/test_kineto_numbers.py proves it at the limit). Beyond that the text is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt

from dsv4bench.profiling.traces.columns import NO_ID
from dsv4bench.units import NS_PER_US

EXACT_FLOAT_US = 2.0**43
NO_TIME = np.iinfo(np.int64).min  # no number stands where a time should
_LATEST_NS = 2**62  # so that a start and a duration can be added
Whole = npt.NDArray[np.int64]


def loses_nanoseconds(times_us: Sequence[Any]) -> bool:
    """Return whether one of these times is a float too large to give its nanosecond."""
    types = set(map(type, times_us))
    if float not in types or (types <= {int, float} and max(map(abs, times_us)) < EXACT_FLOAT_US):
        return False
    return any(type(time) is float and not -EXACT_FLOAT_US < time < EXACT_FLOAT_US for time in times_us)


def whole_ns(times_us: Sequence[Any]) -> Whole:
    """Return times in microseconds as whole nanoseconds; NO_TIME where there is none."""
    types = set(map(type, times_us))
    if types == {int} and max(map(abs, times_us)) < _LATEST_NS // NS_PER_US:
        return np.array(times_us, dtype=np.int64) * NS_PER_US
    if types <= {int, float} and max(map(abs, times_us), default=0) < EXACT_FLOAT_US:
        floats = np.array(times_us, dtype=np.float64)
        whole = np.floor(floats)
        return whole.astype(np.int64) * NS_PER_US + np.rint((floats - whole) * NS_PER_US).astype(np.int64)
    return np.array([_exact_ns(time) for time in times_us], dtype=np.int64)


def _exact_ns(time_us: Any) -> int:
    """Return one time as nanoseconds from a number or its text, NO_TIME for anything else."""
    if type(time_us) is int:
        time_ns = time_us * NS_PER_US
    else:
        try:
            time_ns = int((_decimal(time_us) * NS_PER_US).to_integral_value())
        except (InvalidOperation, ValueError, OverflowError, TypeError):
            return NO_TIME
    return time_ns if -_LATEST_NS < time_ns < _LATEST_NS else NO_TIME


def _decimal(number: Any) -> Decimal:
    """Return a number as a Decimal; TypeError where it is none, ValueError where an int of it would be endless."""
    if isinstance(number, bool) or not isinstance(number, (float, Decimal, str)):
        raise TypeError
    decimal = Decimal(number) if isinstance(number, str) else Decimal(str(number))
    if not decimal.is_finite() or decimal.adjusted() > 20:
        raise ValueError
    return decimal


def whole_ids(values: Sequence[Any], dtype: type[np.signedinteger[Any]] = np.int64) -> npt.NDArray[Any]:
    """Return ids as integers of `dtype`, whether numbers or texts; NO_ID where there is none or it does not fit.

    Ids of 64 bits (nodes of graphs) keep their bits, so that they stay different.
    """
    limits = np.iinfo(dtype)
    if set(map(type, values)) <= {int, type(None)}:
        plain = [NO_ID if value is None else value for value in values]
        if not plain or (limits.min <= min(plain) and max(plain) <= limits.max):
            return np.array(plain, dtype=dtype)
    return np.array([_exact_id(value, limits) for value in values], dtype=dtype)


def _exact_id(value: Any, limits: np.iinfo[Any]) -> int:
    """Return one id, NO_ID for what is none."""
    try:
        number = value if isinstance(value, int) else _decimal(value)
        whole = int(number)
    except (InvalidOperation, ValueError, TypeError):
        return NO_ID
    if limits.bits == 64 and limits.max < whole < 2**64:
        whole -= 2**64
    return whole if number - whole in (0, 2**64) and limits.min <= whole <= limits.max else NO_ID


def texts_among(values: Sequence[Any], read: npt.NDArray[np.bool_]) -> int:
    """Return how many of the values that were `read` are texts."""
    if str not in set(map(type, values)):
        return 0
    return sum(type(value) is str and bool(was_read) for value, was_read in zip(values, read, strict=True))
