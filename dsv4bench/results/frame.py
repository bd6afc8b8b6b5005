"""Records as pandas frames: one row per record, one per comparison, one per count."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from dsv4bench.results.compare import Pair, compare, latest, pairs
from dsv4bench.results.record import Record
from dsv4bench.results.stats import Interval, median_interval

SIDES = ("before", "after")


def frame(records: Iterable[Record]) -> pd.DataFrame:
    """Return one row per record: what ran, its status, and each metric's median and bounds.

    Switches are columns by their command-line names ("graph-mode"), memory by its own ("peak_bytes"). A metric m gives
    m_ns, m_low_ns, m_high_ns and m_samples; time_ns, time_low_ns and time_high_ns are those of the step time.
    """
    return pd.DataFrame([{**_cell(record), **_seen(record)} for record in records])


def comparison_frame(
    records: Iterable[Record], switch: str = "reuse", before: str = "off", after: str = "on"
) -> pd.DataFrame:
    """Return one row per pair of records that differ in `switch`: before, after and their difference.

    Columns before, after and difference end in _ns, _low_ns and _high_ns; `unresolved` says why a difference cannot be
    told from noise; `predicted_ns` is the predicted difference. NaN where a side was not run or has no time.
    """
    rows = []
    for pair in pairs(records, switch, before, after):
        seen = compare(pair)
        numbers = {
            **_bounds("before", seen.before),
            **_bounds("after", seen.after),
            **_bounds("difference", seen.difference),
            "relative": seen.relative,
            "predicted_ns": seen.predicted_ns,
        }
        words = {"unresolved": seen.unresolved, "nothing_added": seen.nothing_added}
        words |= {f"{side}_status": one.status if one else None for side, one in zip(SIDES, _both(pair), strict=True)}
        rows.append({**_cell(pair.any), **{name: _number(value) for name, value in numbers.items()}, **words})
    return pd.DataFrame(rows)


def device_time_frame(records: Iterable[Record]) -> pd.DataFrame:
    """Return one row per device time of every cell's last record: what ran, op, kv_source, where, device_ns."""
    return pd.DataFrame(
        [{**_cell(record), **row} for record in latest(records) for row in (record.device_time or {}).get("rows", ())]
    )


def counts_frame(records: Iterable[Record]) -> pd.DataFrame:
    """Return one row per count of every cell's last record: what ran, op, kv_source, where and the classes."""
    return pd.DataFrame([{**_cell(record), **row} for record in latest(records) for row in record.counts])


def _both(pair: Pair) -> tuple[Record | None, Record | None]:
    return pair.before, pair.after


def _cell(record: Record) -> dict[str, Any]:
    names = ("key", "group", "created", "label", "engine", "machine", "geometry", "ranks", "mode")
    return {**{name: getattr(record, name) for name in names}, **record.batch, **record.variant}


def _seen(record: Record) -> dict[str, Any]:
    intervals = {metric: median_interval(samples) for metric, samples in sorted(record.samples_ns.items())}
    times = {name: value for metric, found in intervals.items() for name, value in _bounds(metric, found).items()}
    sizes = {f"{metric}_samples": len(samples) for metric, samples in record.samples_ns.items()}
    step = intervals.get(record.step_metric or "")
    words = {"status": record.status, "reason": record.reason, "flags": ", ".join(record.flags)}
    predicted = _number((record.predicted or {}).get("saved_ns"))
    return {**words, **_bounds("time", step), **times, **sizes, "predicted_saved_ns": predicted, **record.memory}


def _bounds(name: str, interval: Interval | None) -> dict[str, float]:
    values = (None, None, None) if interval is None else (interval.value, interval.low, interval.high)
    return {f"{name}{end}_ns": _number(value) for end, value in zip(("", "_low", "_high"), values, strict=True)}


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
