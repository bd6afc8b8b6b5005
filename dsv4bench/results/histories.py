"""Histories: the records of one cell over time and commits, from the frame of any number of run folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dsv4bench.errors import UsageError, nearest
from dsv4bench.results.comparability import CHIP
from dsv4bench.results.compare import reached
from dsv4bench.results.migrations import SWITCHES
from dsv4bench.results.stats import median_interval

# what makes a cell and where it was measured, by the columns of a frame
PLACE = ("label", "engine", "machine")
CELL = (
    *("geometry", "ranks", "requests", "extend", "prefix", "source", *SWITCHES, "chunk", "seed"),
    *("dep", "align", "mem-fraction", "recipe", "device-memory"),  # only where they were given
    *("kernel", "case", "rows"),
)
NAMES = {"batch": "requests"}  # the columns of options that are called otherwise
SEEN = (
    *("key", "created", "commit", "dirty", "src", "torch", "triton", "cuda", "driver", *CHIP),
    *("mode", "status", "reason", "flags", "time_ns", "time_low_ns", "time_high_ns", "launches"),
    *("run", "session", "side"),
)


@dataclass(frozen=True, slots=True)
class History:
    """A cell by the columns of `PLACE` and `CELL` that it has, and its records, oldest first, by those of `SEEN`.

    The processes of one side of an A/B are one row, its time their median: `processes` says how many they were.
    """

    cell: dict[str, Any]
    rows: list[dict[str, Any]]


def histories(frame: pd.DataFrame, wanted: Mapping[str, Sequence[Any]]) -> list[History]:
    """Return the cells that have one of the values `wanted` of each option, those with most records first.

    An option is called as its column, but for --batch. UsageError for a value that no record has, with the nearest.
    """
    for option, values in wanted.items():
        frame = _with(frame, option, values)
    whole = frame.reindex(columns=[*PLACE, *CELL, *SEEN])
    whole["source"] = whole["source"].astype(object).map(lambda text: str(text).rsplit("/", 1)[-1], na_action="ignore")
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in _plain(whole):
        found.setdefault(tuple(row[name] for name in (*PLACE, *CELL)), []).append(row)
    return sorted(map(_history, found.values()), key=lambda one: -len(one.rows))


def _history(rows: Sequence[dict[str, Any]]) -> History:
    """Return a cell's history; what a time limit left out gives way to what was measured under the same key."""
    cell = {name: value for name, value in rows[0].items() if name not in SEEN and value is not None}
    stand = reached(rows, lambda row: row["key"], lambda row: row["reason"])
    return History(cell, _sides([{name: row[name] for name in SEEN} for row in stand]))


def _sides(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with all processes of one side of an A/B in one, at the place of the first."""
    found: dict[Any, list[dict[str, Any]]] = {}
    for place, row in enumerate(rows):
        one = [row[name] for name in ("run", "session", "side", "status", "reason")]
        found.setdefault(place if row["session"] is None else tuple(one), []).append(row)
    return [_side(same) for same in found.values()]


def _side(same: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = same[0] | {"processes": None if same[0]["session"] is None else len(same)}
    times = [row["time_ns"] for row in same if row["time_ns"] is not None]
    if len(times) < 2:
        return first
    whole = median_interval(times)
    return first | {"time_ns": whole.value, "time_low_ns": whole.low, "time_high_ns": whole.high}


def _with(frame: pd.DataFrame, option: str, values: Sequence[Any]) -> pd.DataFrame:
    """Return the records that have one of the values; the options before have already left their own out."""
    name = NAMES.get(option, option)
    there = frame[name].dropna().unique().tolist() if name in frame else []
    known = [str(one) for one in sorted(there)]
    strange = [value for value in values if value not in there]
    if len(strange) == len(values) or any(isinstance(value, str) for value in strange):  # a range may reach too far
        said = f"there are: {', '.join(known)}" if known else "these have none"
        raise UsageError(f"--{option} {strange[0]}: no such record{nearest(str(strange[0]), known)}; {said}")
    return frame[frame[name].isin(list(values))]


def _plain(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows with None for what is not there."""
    columns = {name: frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame.columns}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
