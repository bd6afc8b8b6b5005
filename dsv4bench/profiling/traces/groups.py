"""Operations of a trace by layer, kv_source, operation, kernel, range or stream: counts, time and counts per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from dsv4bench.profiling.traces.columns import COPY, KERNEL, NO_ID, SET
from dsv4bench.profiling.traces.placed import Placed
from dsv4bench.results.reviews import GroupRow, Value

OP_AND_SOURCE = "op and kv_source"
# what rows have in common -> their columns; "kernel" is the name of an operation
AXES: Mapping[str, tuple[str, ...]] = {
    "layer": ("layer",),
    "kv_source": ("kv_source",),
    "op": ("op",),
    "kernel": ("name",),
    "range": ("range",),
    "stream": ("device", "stream"),
    OP_AND_SOURCE: ("op", "kv_source"),
}
NEEDS_ATTRIBUTION = ("layer", "kv_source", "op")  # whose answer is wrong where something has no place
_KINDS = {"kernels": KERNEL, "copies": COPY, "sets": SET}


def group_rows(placed: Placed, axis: str, whole: Sequence[int], only: Sequence[int] | None = None) -> list[GroupRow]:
    """Return the groups of an axis, the longest time first.

    `whole` are the steps over which counts per step are told, `only` those whose operations count at all (all for
    None, also those outside of every step).
    """
    rows = placed.rows if only is None else placed.rows[placed.rows["step"].isin(only)]
    if not len(rows):
        return []
    keys = list(AXES[axis])
    kinds, lasts = rows["kind"].to_numpy(), (rows["end_ns"] - rows["start_ns"]).to_numpy()
    counted = {name: kinds == kind for name, kind in _KINDS.items()}
    numbers = rows[keys].assign(time_ns=lasts, bytes=rows["bytes"].clip(lower=0), in_graphs=rows["in_graph"], **counted)
    grouped = numbers.groupby(keys, sort=False)
    sums = grouped.sum().sort_values("time_ns", ascending=False, kind="stable")
    steps = _per_step(rows, keys, whole)
    total = max(int(lasts.sum()), 1)
    names = sums.index.tolist()
    return [
        GroupRow(
            keys=dict(zip(key_names(axis), key_values(placed, axis, name), strict=True)),
            **{str(column): int(value) for column, value in record.items()},
            share=int(record["time_ns"]) / total,
            per_step=steps.get(name),
        )
        for name, record in zip(names, sums.to_dict("records"), strict=True)
    ]


def _per_step(rows: pd.DataFrame, keys: list[str], whole: Sequence[int]) -> dict[Any, tuple[int, int]]:
    """Return the least and the most operations that each group has in a whole step; 0 in one where it has none."""
    if not whole:
        return {}
    inside = rows[rows["step"].isin(whole)]
    counts = inside.groupby([*keys, "step"], sort=False).size().groupby(level=list(range(len(keys))), sort=False)
    found = pd.DataFrame({"least": counts.min(), "most": counts.max(), "steps": counts.size()})
    found["least"] = found["least"].where(found["steps"] == len(whole), 0)
    return {
        key: (int(least), int(most))
        for key, least, most in zip(found.index.tolist(), found["least"], found["most"], strict=True)
    }


def key_values(placed: Placed, axis: str, name: Any) -> tuple[Value, ...]:
    """Return the keys of a group, a code or a tuple of codes, as plain values; None for what is not known."""
    codes = name if isinstance(name, tuple) else (name,)
    return tuple(_value(placed, key, int(code)) for key, code in zip(AXES[axis], codes, strict=True))


def key_names(axis: str) -> list[str]:
    """Return what the keys of an axis are called."""
    return ["kernel" if key == "name" else key for key in AXES[axis]]


def _value(placed: Placed, key: str, value: int) -> Value:
    if value == NO_ID:
        return None
    if key in ("name", "range"):
        return str(placed.trace.strings[value])
    return str(placed.ops[value]) if key == "op" else value


def merged(tables: Sequence[Sequence[GroupRow]]) -> list[GroupRow]:
    """Return the groups of several traces as one table: counts add up, counts per step span those of all.

    A group that a trace with other groups lacks has 0 operations in its steps.
    """
    if len(tables) == 1:
        return list(tables[0])
    found: dict[tuple[Value, ...], list[GroupRow]] = {}
    for row in (row for rows in tables for row in rows):
        found.setdefault(tuple(row.keys.values()), []).append(row)
    total = max(sum(row.time_ns for rows in tables for row in rows), 1)
    stepped = sum(any(row.per_step for row in rows) for rows in tables)
    joined = [_joined(rows, total, stepped) for rows in found.values()]
    return sorted(joined, key=lambda row: -row.time_ns)


def _joined(rows: Sequence[GroupRow], total_ns: int, stepped: int) -> GroupRow:
    names = ("kernels", "copies", "sets", "time_ns", "bytes", "in_graphs")
    sums = {name: sum(getattr(row, name) for row in rows) for name in names}
    steps = [row.per_step for row in rows if row.per_step is not None]
    steps += [(0, 0)] * (stepped - len(steps) if steps else 0)
    per_step = (min(low for low, _ in steps), max(high for _, high in steps)) if steps else None
    return GroupRow(keys=rows[0].keys, **sums, share=sums["time_ns"] / total_ns, per_step=per_step)
