"""The operations of one step as lanes of a picture: by kv_source where some is known, or else by stream."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dsv4bench.errors import UsageError
from dsv4bench.profiling.traces.columns import NO_ID
from dsv4bench.profiling.traces.placed import Placed
from dsv4bench.results.reviews import StepRow, whole
from dsv4bench.results.timelines import Lane, Timeline

MOST = 0.5  # of the operations: so many must be known by operation, or bars are kernels
UNKNOWN = "unknown"


def timeline(placed: Placed, only: tuple[int, int] | None = None) -> Timeline:
    """Return the lanes of the whole step whose span is the median, among those that `only` lets count.

    UsageError if no such step has an operation.
    """
    steps = placed.told
    step = _typical([one for one in steps if only is None or only[0] <= one.number <= only[1]])
    inside = (placed.rows["step"] == steps.index(step)) & (placed.rows["start_ns"] != NO_ID)
    rows = placed.rows[inside].sort_values("start_ns", kind="stable")
    by_source = bool(placed.known("kv_source").any())
    what = "op" if by_source or placed.known("op").mean() > MOST else "name"
    names = _names(placed, rows[what], what)
    lanes = _sources(placed, rows) if by_source else _streams(rows)
    origin = int(rows["start_ns"].min())
    order = rows.sort_values(["kv_source"] if by_source else ["device", "stream"], kind="stable").index
    found = [_lane(name, rows[lanes == name], names, origin) for name in dict.fromkeys(lanes[order])]
    file = placed.trace.source.rstrip("/").rsplit("/", 1)[-1]
    by = f"{'kv_source' if by_source else 'stream'} and {'operation' if what == 'op' else 'kernel'}"
    return Timeline(f"{file}: {step.name}", found, by)


def _lane(name: str, rows: pd.DataFrame, names: pd.Series, origin_ns: int) -> Lane:
    starts, lengths = rows["start_ns"] - origin_ns, rows["end_ns"] - rows["start_ns"]
    return Lane(name, starts.tolist(), lengths.tolist(), names[rows.index].tolist())


def _typical(steps: list[StepRow]) -> StepRow:
    """Return the step in the middle of the whole ones, by span."""
    able = sorted((one for one in whole(steps) if one.span_ns), key=lambda one: one.span_ns or 0)
    if not able:
        raise UsageError("--plot: no step here has an operation of the device to draw")
    return able[(len(able) - 1) // 2]


def _names(placed: Placed, codes: pd.Series, column: str) -> pd.Series:
    """Return the texts of codes; "unknown" where there is none."""
    texts = np.asarray([*(placed.trace.strings if column == "name" else placed.ops), UNKNOWN], dtype=object)
    return pd.Series(texts[codes.to_numpy()], index=codes.index)


def _sources(placed: Placed, rows: pd.DataFrame) -> pd.Series:
    """Return the lane of each row by source: that of none, and that of operations whose source is not known."""
    without = np.where(placed.known("kv_source")[rows.index], "no kv_source", "kv_source unknown")
    named = "kv_source " + rows["kv_source"].astype(str)
    return named.where(rows["kv_source"] != NO_ID, without)


def _streams(rows: pd.DataFrame) -> pd.Series:
    """Return the lane of each row by stream; two devices number theirs alike."""
    named = "stream " + rows["stream"].astype(str)
    return named if rows["device"].nunique() < 2 else "device " + rows["device"].astype(str) + ", " + named
