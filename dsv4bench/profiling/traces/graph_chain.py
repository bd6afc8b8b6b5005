"""Where the nodes of CUDA graphs were captured: the chain of clones that nsys writes down, followed to its root.

An instantiated graph is a clone of the captured one, so a replayed operation has the id of a clone. Every clone has a
row that names its original; the root's row has the time and thread of the capture. Exporters of 2023 write a second row
of a clone that names no original, so a node is a root only if none of its rows has one. A node whose chain leaves the
file (captured before the recording began) or runs in a circle has no place: nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dsv4bench.profiling.traces.columns import NO_ID, Trace

Rows = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Captured:
    """The operations whose node's capture is known: their rows, and process, thread and time of that capture."""

    operation: Rows
    process: Rows
    thread: Rows
    time_ns: Rows


def captured_at(trace: Trace) -> Captured:
    """Return where the nodes of the trace's replayed operations were captured, as far as the file tells."""
    rows, nodes = trace.graph_nodes, trace.operations["graph_node"].to_numpy()
    replayed = np.flatnonzero(nodes > 0)
    processes = trace.operations["process"].to_numpy()[replayed]
    created_in = rows["process"].to_numpy()
    made, original, wanted, count = _numbered(
        (created_in, rows["node"].to_numpy()), (created_in, rows["original"].to_numpy()), (processes, nodes[replayed])
    )
    original = np.where(rows["original"].to_numpy() == NO_ID, NO_ID, original)
    first = _first_rows(made, rows["time_ns"].to_numpy(), count)
    root = _roots(made, original, first, count)[wanted]
    known = root != NO_ID
    source = rows.iloc[first[root[known]]]
    return Captured(
        replayed[known], source["process"].to_numpy(), source["thread"].to_numpy(), source["time_ns"].to_numpy()
    )


def _numbered(*pairs: tuple[Rows, Rows]) -> tuple[Rows, Rows, Rows, int]:
    """Return a number for each (process, node) of three columns of them, and how many numbers there are."""
    process, _ = pd.factorize(np.concatenate([pair[0] for pair in pairs]))
    node, distinct = pd.factorize(np.concatenate([pair[1] for pair in pairs]))
    numbers, keys = pd.factorize(process.astype(np.int64) * max(len(distinct), 1) + node)
    made, original, wanted = np.split(numbers, np.cumsum([len(pair[0]) for pair in pairs])[:-1])
    return made, original, wanted, len(keys)


def _first_rows(made: Rows, times_ns: Rows, count: int) -> Rows:
    """Return the row in which each node was made first; NO_ID for one that has no row."""
    found = np.full(count, NO_ID, dtype=np.int64)
    latest_first = np.argsort(-times_ns, kind="stable")
    found[made[latest_first]] = latest_first
    return found


def _roots(made: Rows, original: Rows, first: Rows, count: int) -> Rows:
    """Return the root of each node's chain; NO_ID where it leaves the file, runs in a circle or is told in two ways."""
    nowhere = count
    following = np.append(np.where(first == NO_ID, nowhere, np.arange(count)), nowhere)
    cloned = original != NO_ID
    following[made[cloned]] = original[cloned]
    told_otherwise = (following[made] != original) | (made == original)
    following[made[cloned & told_otherwise]] = nowhere
    end = following
    for _ in range(count.bit_length()):  # twice as far along the chain each time
        end = end[end]
    return np.where((following[end] == end) & (end != nowhere), end, NO_ID)[:count]
