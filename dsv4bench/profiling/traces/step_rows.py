"""The steps of a trace as rows: what each launched and how long host and device took."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dsv4bench.profiling.traces.columns import COPY, KERNEL, NO_ID, SET, Trace
from dsv4bench.profiling.traces.idle import spans, waits_told
from dsv4bench.profiling.traces.ranges_of import graph_launch_rows, launch_rows
from dsv4bench.profiling.traces.steps import Steps, cut_steps
from dsv4bench.results.reviews import StepRow

KINDS = (("kernels", KERNEL), ("copies", COPY), ("sets", SET))
_NUMBER = re.compile(r"(?:step|iter|iteration|replay)[ _:=#-]*(\d{1,18})(?!\d)", re.IGNORECASE)


def step_rows(trace: Trace, rows: pd.DataFrame, steps: Steps) -> list[StepRow]:
    """Return the steps of a trace in the order of time, cut ones marked; `rows` are its operations, joined."""
    frame = steps.frame
    count, has = len(frame), trace.recorded
    step, kinds = rows["step"].to_numpy(), rows["kind"].to_numpy()
    kernels = kinds == KERNEL
    counted = {name: _per_step(step[kinds == kind], count) if name in has else None for name, kind in KINDS}
    lasts = (rows["end_ns"] - rows["start_ns"]).to_numpy()
    launched = steps.of_launches[graph_launch_rows(trace)]
    running = _running(trace, rows[step >= 0], steps)
    by_device = spans(trace, running, "step").reindex(range(count), fill_value=0)
    graphs_tell = "kernels" in has and not len(trace.graph_runs)
    columns: dict[str, Any] = {
        **counted,
        "graph_launches": _per_step(launched, count) if "launches" in has else None,
        "kernels_in_graphs": _per_step(step[kernels & rows["in_graph"].to_numpy()], count) if graphs_tell else None,
        "host_ns": (frame["end_ns"] - frame["start_ns"]).to_numpy() if steps.marked else None,
        "kernel_sum_ns": _per_step(step[kernels], count, lasts[kernels]) if "kernels" in has else None,
        **{name: by_device[name].to_numpy() for name in ("span_ns", "busy_ns", "waiting_ns")},
    }
    if not waits_told(trace, running):
        columns["waiting_ns"] = None
    if not has & {"kernels", "copies", "sets", "graph_runs"}:
        columns["span_ns"] = columns["busy_ns"] = None
    cut = cut_steps(steps, columns["kernels"])
    numbers, names = _numbers(frame["name"].tolist()), frame["name"].tolist()
    return [
        StepRow(
            number=numbers[at],
            name=names[at],
            rank=trace.rank,
            cut=cut[at],
            **{key: None if values is None else _integer(values[at]) for key, values in columns.items()},
        )
        for at in range(count)
    ]


def _running(trace: Trace, rows: pd.DataFrame, steps: Steps) -> pd.DataFrame:
    """Return what kept the device busy in steps: operations and, where a trace has them, graphs as wholes."""
    columns = ["start_ns", "end_ns", "launch", "step"]
    if not len(trace.graph_runs) or not len(trace.launches):
        return rows
    runs = trace.graph_runs
    launch = launch_rows(replace(trace, operations=runs))
    step = np.where(launch == NO_ID, NO_ID, steps.of_launches[launch])
    graphs = runs[["start_ns", "end_ns"]].assign(launch=launch, step=step)
    joined: pd.DataFrame = pd.concat([rows[columns], graphs[step != NO_ID]]).sort_values("start_ns", kind="stable")
    return joined


def _per_step(steps: npt.NDArray[Any], count: int, weights: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    """Return how many entries each step has, or the sum of their whole weights (exact below 2^53)."""
    inside = steps >= 0
    found = np.bincount(steps[inside], None if weights is None else weights[inside], minlength=count)
    return np.rint(found).astype(np.int64)


def _numbers(names: Sequence[str]) -> list[int]:
    """Return the number that each name gives its step if that tells them apart, else their places from 0."""
    found = [_NUMBER.search(name) for name in names]
    numbers = [int(match.group(1)) for match in found if match]
    return numbers if len(set(numbers)) == len(names) else list(range(len(names)))


def _integer(value: Any) -> int | None:
    return None if np.isnan(value) else int(value)
