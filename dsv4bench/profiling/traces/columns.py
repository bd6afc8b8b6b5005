"""What a trace file holds, as columns: a million rows are arrays, not objects.

Every reader returns a `Trace`. Times are whole nanoseconds of one origin; ids that a file lacks are -1. Names are
indices into `strings`, processes and threads are codes (`processes`, `threads` hold what the file calls them), so that
a join is arithmetic on integers. A table that the file does not have is not in `recorded`: nothing of that kind was
recorded, which is not the same as none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

NO_ID = -1
KERNEL, COPY, SET = 0, 1, 2  # kinds of device operations, before any alias rule
# 2.4 hours and 8 TiB: larger ones of a single operation are damage, and a million of smaller ones can be added
MOST_NS = MOST_BYTES = 1 << 43
PUSH_POP, START_END, MARK = 0, 1, 2  # kinds of annotations

# the columns of each table and their types
OPERATIONS = {  # a start and an end of NO_ID: it ran and its time is lost, so that it counts and lies in no span
    "kind": np.int8,
    "name": np.int32,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "process": np.int32,
    "device": np.int32,
    "stream": np.int64,
    "correlation": np.int64,
    "graph_node": np.int64,
    "bytes": np.int64,
}
LAUNCHES = {  # calls of the runtime or the driver, one row a call; a call inside another may share its `correlation`
    "name": np.int32,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "process": np.int32,
    "thread": np.int32,
    "correlation": np.int64,
}
ANNOTATIONS = {  # an end of NO_ID was never written; start/end ranges may end on another thread
    "kind": np.int8,
    "text": np.int32,
    "domain": np.int32,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "process": np.int32,
    "thread": np.int32,
    "end_thread": np.int32,
}
GRAPH_NODES = {  # where a node of a CUDA graph was made or cloned; `original` is NO_ID at the root of a chain
    "node": np.int64,
    "original": np.int64,
    "time_ns": np.int64,
    "process": np.int32,
    "thread": np.int32,
}
GRAPH_RUNS = {  # a whole graph as one row: what nsys keeps when it traces graphs and not their nodes
    "start_ns": np.int64,
    "end_ns": np.int64,
    "process": np.int32,
    "device": np.int32,
    "correlation": np.int64,
}
TABLES: dict[str, dict[str, Any]] = {
    "operations": OPERATIONS,
    "launches": LAUNCHES,
    "annotations": ANNOTATIONS,
    "graph_nodes": GRAPH_NODES,
    "graph_runs": GRAPH_RUNS,
}
# what a file may hold or not: the three kinds of operations, then the other tables
RECORDABLE = ("kernels", "copies", "sets", "launches", "annotations", "graph_nodes", "graph_runs")


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as the file describes it; None where it does not say."""

    index: int
    name: str | None = None
    multiprocessors: int | None = None
    l2_bytes: int | None = None
    bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """The tables of one file, with the columns of `TABLES`, sorted by start.

    `facts` are what the file says of its making (tool, versions, capture settings; never an environment variable),
    `repairs` one sentence for everything that had to be mended to read it, `rank` the rank of a distributed run.
    """

    source: str
    format: str
    strings: Sequence[str]
    operations: pd.DataFrame
    launches: pd.DataFrame
    annotations: pd.DataFrame
    graph_nodes: pd.DataFrame
    graph_runs: pd.DataFrame
    processes: Sequence[str] = ()
    threads: Sequence[tuple[str, str]] = ()
    recorded: frozenset[str] = frozenset()
    devices: tuple[Device, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    repairs: tuple[str, ...] = ()
    rank: int | None = None

    def names(self, codes: pd.Series[int]) -> pd.Series[str]:
        """Return the texts of a column of indices into `strings`."""
        return pd.Series(np.asarray(self.strings, dtype=object)[codes.to_numpy()], index=codes.index)


def table(name: str, columns: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """Return the table `name` of these columns, each in its type; a column that is missing is NO_ID throughout.

    No columns are no rows. Raises ValueError for a column that the table does not have.
    """
    given = dict(columns or {})
    rows = max((len(values) for values in given.values()), default=0)
    unknown = given.keys() - TABLES[name].keys()
    if unknown:
        raise ValueError(f"{name}: no such column: {', '.join(sorted(unknown))}")
    return pd.DataFrame(
        {
            column: np.asarray(given[column], dtype=kind) if column in given else np.full(rows, NO_ID, dtype=kind)
            for column, kind in TABLES[name].items()
        }
    )


class Codes:
    """Gives every distinct value a number, in the order in which it was first seen."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._codes: dict[Any, int] = {}

    def __getitem__(self, value: Any) -> int:
        code = self._codes.get(value)
        if code is None:
            code = self._codes[value] = len(self.values)
            self.values.append(value)
        return code
