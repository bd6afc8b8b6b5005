"""When the device works and when it waits: unions of intervals, gaps, and whose launch a gap waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dsv4bench.profiling.traces.columns import NO_ID, Trace
from dsv4bench.profiling.traces.steps import Integers


def gaps(trace: Trace, rows: pd.DataFrame, key: str) -> pd.DataFrame:
    """Return one row for each operation, sorted by `key` and start: its gap_ns and waiting_ns, with `key` and ends.

    A gap is the time before an operation in which no earlier one with the same `key` runs. It is waiting where the call
    that launches the operation had not returned when the device ran out of work; `waiting_ns` is 0 where no launch of
    it was recorded. Operations without a start have no row.
    """
    timed = rows[rows["start_ns"] != NO_ID]  # operations are sorted by start
    ordered = timed.iloc[stable_order(timed[key].to_numpy())]
    groups, starts = ordered[key].to_numpy(), ordered["start_ns"].to_numpy()
    latest = ordered["end_ns"].groupby(groups).cummax().to_numpy()
    free_at = np.concatenate([starts[:1], latest[:-1]])
    first = np.concatenate([[True], groups[1:] != groups[:-1]])[: len(groups)]
    gap = np.where(first, 0, np.maximum(starts - free_at, 0))
    late = _launched_at(trace, ordered) > free_at
    found = {key: groups, "start_ns": starts, "end_ns": latest, "gap_ns": gap, "waiting_ns": np.where(late, gap, 0)}
    return pd.DataFrame(found, index=ordered.index)


def spans(trace: Trace, rows: pd.DataFrame, key: str) -> pd.DataFrame:
    """Return span_ns, busy_ns and waiting_ns of the operations with each `key`: busy is the span without its gaps."""
    between = gaps(trace, rows, key).groupby(key)
    span = between["end_ns"].max() - between["start_ns"].min()
    idle, waiting = between["gap_ns"].sum(), between["waiting_ns"].sum()
    return pd.DataFrame({"span_ns": span, "busy_ns": span - idle, "waiting_ns": waiting})


def before_launch_ns(trace: Trace, rows: pd.DataFrame) -> Integers:
    """Return how long before its launch each operation begins, where both times are known; most are negative."""
    launch, starts = rows["launch"].to_numpy(), rows["start_ns"].to_numpy()
    launch, starts = (column[(launch != NO_ID) & (starts != NO_ID)] for column in (launch, starts))
    launched = trace.launches["start_ns"].to_numpy()[launch]
    return np.asarray((launched - starts)[launched != NO_ID])


def waits_told(trace: Trace, rows: pd.DataFrame) -> bool:
    """Return whether launches tell what operations waited for: not if most begin before theirs, as clocks differ."""
    early_ns = before_launch_ns(trace, rows)
    return len(early_ns) > 0 and 2 * int((early_ns > 0).sum()) <= len(early_ns)


def stable_order(codes: npt.NDArray[Any]) -> Integers:
    """Return the order that sorts small numbers and keeps equal ones as they are; numpy sorts 16 bits in one pass."""
    small = codes.astype(np.int16) if len(codes) and codes.min() >= 0 and codes.max() < 1 << 15 else codes
    return np.argsort(small, kind="stable")


def _launched_at(trace: Trace, rows: pd.DataFrame) -> Integers:
    """Return when the launch of each row returned; a time before all others where it was not recorded."""
    launch = rows["launch"].to_numpy()
    never = np.full(len(rows), np.iinfo(np.int64).min)
    return (
        np.where(launch != NO_ID, trace.launches["end_ns"].to_numpy()[launch], never) if len(trace.launches) else never
    )
