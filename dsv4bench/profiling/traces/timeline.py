"""The operations of one step as lanes of a picture: by kv_source and operation, or else by stream and kernel."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dsv4bench.errors import UsageError
from dsv4bench.profiling.traces.columns import NO_ID
from dsv4bench.profiling.traces.placed import Placed
from dsv4bench.results.reviews import StepRow, whole
from dsv4bench.results.timelines import Lane, Timeline

SOURCES, STREAMS = "kv_source and operation", "stream and kernel"


def timeline(placed: Placed, only: tuple[int, int] | None = None) -> Timeline:
    """Return the lanes of the whole step whose span is the median, among those that `only` lets count.

    UsageError if no such step has an operation.
    """
    steps = placed.told
    step = _typical([one for one in steps if only is None or only[0] <= one.number <= only[1]])
    inside = (placed.rows["step"] == steps.index(step)) & (placed.rows["start_ns"] != NO_ID)
    rows = placed.rows[inside].sort_values("start_ns", kind="stable")
    by_source = bool((placed.known("kv_source") | placed.known("op")).any())
    key, what = ("kv_source", "op") if by_source else ("stream", "name")
    names = _names(placed, rows[what], what)
    origin = int(rows["start_ns"].min())
    lanes = [
        Lane(
            _lane(key, int(value)),
            (part["start_ns"] - origin).tolist(),
            (part["end_ns"] - part["start_ns"]).tolist(),
            names[part.index].tolist(),
        )
        for value, part in ((value, rows[rows[key] == value]) for value in np.unique(rows[key]))
    ]
    file = placed.trace.source.rstrip("/").rsplit("/", 1)[-1]
    title = f"{file}: {step.name}"
    return Timeline(title, lanes, SOURCES if by_source else STREAMS)


def _typical(steps: list[StepRow]) -> StepRow:
    """Return the step in the middle of the whole ones, by span."""
    able = sorted((one for one in whole(steps) if one.span_ns), key=lambda one: one.span_ns or 0)
    if not able:
        raise UsageError("--plot: no step here has an operation of the device to draw")
    return able[(len(able) - 1) // 2]


def _names(placed: Placed, codes: pd.Series, column: str) -> pd.Series:
    """Return the texts of codes; "unknown" where there is none."""
    texts = np.asarray([*(placed.trace.strings if column == "name" else placed.ops), "unknown"], dtype=object)
    return pd.Series(texts[codes.to_numpy()], index=codes.index)


def _lane(key: str, value: int) -> str:
    if key == "stream":
        return f"stream {value}"
    return "no kv_source" if value == NO_ID else f"kv_source {value}"
