"""A trace of several processes as one trace each: nsys records all ranks of a host into one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dsv4bench.profiling.traces.columns import NO_ID, TABLES, Trace
from dsv4bench.profiling.traces.ranges_of import graph_launch_rows, kernel_launches


def all_ranks(traces: Sequence[Trace]) -> list[Trace]:
    """Return the traces of all processes of these files; where two files' count alike each has its place as rank."""
    found = [own for trace in traces for own in by_process(trace)]
    told = [trace.rank for trace in found if trace.rank is not None]
    if len(set(told)) == len(told):
        return found
    return [replace(trace, rank=place) for place, trace in enumerate(found)]


def by_process(trace: Trace) -> list[Trace]:
    """Return a trace for each process that ran something, its rank the place of that process; all share one clock.

    A process that launched kernels or graphs ran something, also where no operation of it was recorded. A trace that
    names its rank, has operations of no process, or of one process only is returned as it is.
    """
    launched = np.append(np.flatnonzero(kernel_launches(trace)), graph_launch_rows(trace))
    ran = np.unique(
        np.concatenate(
            [
                *(table["process"].to_numpy() for table in (trace.operations, trace.graph_runs)),
                trace.launches["process"].to_numpy()[launched],
            ]
        )
    )
    if trace.rank is not None or len(ran) < 2 or NO_ID in ran:
        return [trace]
    return [_only(trace, int(process), rank) for rank, process in enumerate(ran)]


def _only(trace: Trace, process: int, rank: int) -> Trace:
    tables = {name: getattr(trace, name) for name in TABLES}
    own = {name: rows[rows["process"] == process].reset_index(drop=True) for name, rows in tables.items()}
    return replace(trace, **own, rank=rank, source=f"{trace.source} (process {trace.processes[process]})")
