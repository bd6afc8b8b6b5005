"""Records as pandas frames: one row per record, one per comparison, one per count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import pandas as pd

from dsv4bench.errors import RecordError
from dsv4bench.results.comparability import CHIP
from dsv4bench.results.compare import NOT_RESOLVABLE, Pair, compare, latest, pairs
from dsv4bench.results.counts import DEVICE, add
from dsv4bench.results.outline import Outline
from dsv4bench.results.record import Record
from dsv4bench.results.stats import Interval, median_interval
from dsv4bench.results.verdict import Verdict

SIDES = ("before", "after")
CODE = ("commit", "diff", "src")
VERSIONS = ("torch", "triton", "cuda", "driver")
TEXT = ("key", "group", "reason", "flags", *CODE)
WHOLE = (
    *("ranks", "requests", "extend", "prefix", "rows", "padded_rows", "forwards", "divide", "chunk", "dep-simulated"),
    "dep",
    *("seed", "launches"),
)
TRUTH = ("graph", "dirty")
NO_INTERVAL = Interval(*[float("nan")] * 4)

Columns = dict[str, list[Any]]
Told = Record | Outline


def frame(records: Iterable[Record]) -> pd.DataFrame:
    """Return one row per record: what ran, its status, and each metric's median and bounds.

    Switches are columns by their command-line names ("graph-mode"), memory by its own ("peak_bytes"). A metric m gives
    m_ns, m_low_ns, m_high_ns and m_samples; time_ns, time_low_ns and time_high_ns are those of the step time;
    `launches` are the kernels, copies and sets of a forward; `session` and `side` are those of an A/B. The types
    are those of `typed`.
    """
    return typed(columns(records))


def columns(records: Iterable[Told]) -> Columns:
    """Return the columns of `frame` as lists of plain values; what a record does not say is None."""
    return _columns([{**_cell(record), **_code(record), **_seen(record)} for record in records])


def _columns(rows: Sequence[Mapping[str, Any]]) -> Columns:
    nothing: dict[str, Any] = dict.fromkeys(chain.from_iterable(rows))
    whole = [{**nothing, **row}.values() for row in rows]  # in the order of `nothing`
    return {name: list(values) for name, values in zip(nothing, zip(*whole, strict=True), strict=True)}


def typed(found: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Return columns as a frame: times (_ns) are float64, whole numbers Int64, truths boolean, `created` UTC.

    Keys, reasons, flags and code are strings and all other words categories, sorted. RecordError for a value that does
    not fit its column.
    """
    return pd.DataFrame({name: _typed(name, values) for name, values in found.items()})


def _table(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    return typed(_columns([*rows]))


def comparison_frame(
    records: Iterable[Record], switch: str = "reuse", before: str = "off", after: str = "on"
) -> pd.DataFrame:
    """Return one row per pair of records that differ in `switch`: before, after and their difference.

    Columns before, after and difference end in _ns, _low_ns and _high_ns; `unresolved` says why a difference cannot be
    told from noise; `predicted_ns` is the predicted difference. NaN where a side was not run or has no time. The types
    are those of `typed`.
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
        what = {**_cell(pair.any), **_code(pair.any)}
        rows.append({**what, **{name: _number(value) for name, value in numbers.items()}, **words})
    return _table(rows)


def verdict_frame(verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """Return one row per verdict, with the columns of `comparison_frame`: before is A, after is B.

    `before_side` and `after_side` say what they are; change, change_low and change_high are B / A - 1 with its
    interval, `least` the least effect that a verdict may name, as a share of A's time.
    """
    return _table(_verdict_row(verdict) for verdict in verdicts)


def _verdict_row(one: Verdict) -> dict[str, Any]:
    trial, ratio = one.trial, one.ratio
    mode = " -> ".join(dict.fromkeys(side.mode for side in (trial.a, trial.b) if side))
    least = None if one.a_ns is None else one.min_effect.of_ns(one.a_ns.value) / max(one.a_ns.value, 1.0)
    change = (None, None, None) if ratio is None else (ratio.value - 1, ratio.low - 1, ratio.high - 1)
    numbers = {
        **_bounds("before", one.a_ns),
        **_bounds("after", one.b_ns),
        **_bounds("difference", one.difference_ns),
        **dict(zip(("change", "change_low", "change_high"), map(_number, change), strict=True)),
        "predicted_ns": _number(one.predicted_ns),
        "least": _number(least),
    }
    unresolved = NOT_RESOLVABLE if NOT_RESOLVABLE in one.marks else None
    words = {"verdict": one.word, "marks": ", ".join(one.marks), "unresolved": unresolved, "aa": trial.aa}
    words |= {"session": (trial.any.ab or {}).get("session"), "mode": mode}
    for side, record, name in zip(SIDES, (trial.a, trial.b), trial.sides, strict=True):
        words |= {f"{side}_side": name, f"{side}_status": record.status if record else None}
    return {**_cell(trial.any), **_code(trial.any), **numbers, **words}


def device_time_frame(records: Iterable[Record]) -> pd.DataFrame:
    """Return one row per device time of every cell's last record: what ran, op, kv_source, where, device_ns."""
    return _table(
        {**_cell(record), **row} for record in latest(records) for row in (record.device_time or {}).get("rows", ())
    )


def counts_frame(records: Iterable[Record]) -> pd.DataFrame:
    """Return one row per count of every cell's last record: what ran, op, kv_source, where and the classes."""
    return _table({**_cell(record), **row} for record in latest(records) for row in record.counts)


def _both(pair: Pair) -> tuple[Record | None, Record | None]:
    return pair.before, pair.after


def _cell(record: Told) -> dict[str, Any]:
    names = ("key", "group", "created", "label", "engine", "machine", "geometry", "ranks", "mode")
    batch = {name: value for name, value in record.batch.items() if not isinstance(value, list)}
    found = {**{name: getattr(record, name) for name in names}, **batch, **record.variant}
    if record.kernel:
        found |= {"kernel": record.kernel.get("name"), **{name: record.kernel.get(name) for name in ("case", "rows")}}
    return found


def _code(record: Told) -> dict[str, Any]:
    """Return what measured: commit, changes, source tree and versions, and on which chip or host."""
    found = {name: record.environment.get(name) for name in (*CODE, "dirty", *VERSIONS, *CHIP)}
    tree = found["src"]
    return {**found, "src": f"{tree['name']} {tree['commit']}" if tree else None}


def _seen(record: Told) -> dict[str, Any]:
    intervals = {metric: median_interval(samples) for metric, samples in sorted(record.samples_ns.items())}
    times = {name: value for metric, found in intervals.items() for name, value in _bounds(metric, found).items()}
    sizes = {f"{metric}_samples": len(samples) for metric, samples in record.samples_ns.items()}
    step = intervals.get(record.step_metric or "")
    words = {"status": record.status, "reason": record.reason, "flags": ", ".join(map(str, record.flags))}
    predicted = _number((record.predicted or {}).get("saved_ns"))
    numbers = {"predicted_saved_ns": predicted, "launches": _launches(record)}
    words |= {name: (record.ab or {}).get(name) for name in ("session", "side")}
    return {**words, **_bounds("time", step), **times, **sizes, **numbers, **record.memory}


def _launches(record: Told) -> int | None:
    """Return the kernels, copies and sets of a forward; None where they were not all counted."""
    if isinstance(record, Outline):
        return record.launches
    return add(row.get(name) for row in record.counts for name in DEVICE) if record.counts else None


def _bounds(name: str, interval: Interval | None) -> dict[str, float]:
    found = interval or NO_INTERVAL
    return {f"{name}_ns": found.value, f"{name}_low_ns": found.low, f"{name}_high_ns": found.high}


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _typed(name: str, values: Sequence[Any]) -> Any:
    """Return one column in the type that its name asks for; an unknown one is typed by its values."""
    try:
        if name == "created":
            times = pd.to_datetime(pd.Series(values, dtype=object), utc=True, format="ISO8601", errors="coerce")
            return times.astype("datetime64[ns, UTC]")
        kind: Any = _kind(name, values)
        if kind == "category":
            words = [None if value is None else str(value) for value in values]
            return pd.Categorical(words, categories=sorted({word for word in words if word is not None}))
        return pd.array(values, dtype=kind)
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordError(f"{name} of a record: {error}") from None


def _kind(name: str, values: Sequence[Any]) -> str:
    if name in TEXT:
        return "string"
    if name.endswith("_ns"):
        return "float64"
    if name in WHOLE or name.endswith(("_samples", "_bytes")):
        return "Int64"
    kinds = {type(value) for value in values if value is not None}
    if name in TRUTH or kinds == {bool}:
        return "boolean"
    return "Int64" if kinds == {int} else "float64" if kinds and kinds <= {int, float} else "category"
