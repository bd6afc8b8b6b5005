"""Give every device operation of a trace to the range whose code launched or captured it.

The join is: device operation -> launch of the same process and correlation id -> innermost range open on the launching
thread when the launch began. A graph launch is one call for a whole replay, so what a replay runs has the range in
which its node was captured (`graph_chain.py`), or none: then it is "in graphs", known by the range around the launch
only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dsv4bench.profiling.traces.captures import in_capture
from dsv4bench.profiling.traces.columns import COPY, KERNEL, NO_ID, PUSH_POP, SET, START_END, Trace
from dsv4bench.profiling.traces.graph_chain import captured_at
from dsv4bench.profiling.traces.nesting import Nesting
from dsv4bench.profiling.traces.reused_ids import reused

Rows = npt.NDArray[Any]

# the codes of methods: how an operation found its range
NOT_AT_ALL, BY_LAUNCH, BY_CAPTURE, BY_NODE_ID, BY_ORDER, BY_NAME, BY_SEQUENCE = range(7)
METHODS = (
    "none",
    "launch correlation",
    "capture of the graph node",
    "node ids",
    "order (inferred)",
    "order of each name (inferred)",
    "kernel sequence (inferred)",
)
_GRAPH_LAUNCH = re.compile("GraphLaunch")
_KERNEL_LAUNCH = re.compile(r"Launch(Cooperative)?Kernel")
_BEGIN_CAPTURE, _END_CAPTURE = re.compile("StreamBeginCapture"), re.compile("StreamEndCapture")
_WORK = re.compile("Launch|Memcpy|Memset")
# a copy or fill inside a replayed graph is written as a kernel with one of these names (memcpy128, memcpy32_post)
_ALIASES = ((re.compile(r"memcpy\d+(_\w+)?"), COPY), (re.compile(r"memset\d+(_\w+)?"), SET))


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of what the device did has a place: the first four are all operations together.

    `ambiguous` may be of several ranges, `in_graphs` ran in replays that tell no range; `lost` counts kernel launches
    of which the trace has no kernel. `method` names every way that was needed.
    """

    attributed: int
    unattributed: int
    ambiguous: int
    in_graphs: int
    lost: int
    method: str

    @property
    def total(self) -> int:
        """The number of device operations."""
        return self.attributed + self.unattributed + self.ambiguous + self.in_graphs

    @property
    def complete(self) -> bool:
        """Whether every operation has its place and no launch lost its kernel."""
        return self.attributed == self.total and not self.lost


@dataclass(frozen=True, slots=True)
class RangesOf:
    """The range of every operation of a trace: arrays with an entry for each row of `operations`.

    `launch` is the row of the launch, `around` the row of the annotation around the launch (`at_launch`: the same for
    each row of `launches`), `range` that of the
    annotation that the operation belongs to, `method` a code of `METHODS`; NO_ID: none. `parents` has for each
    annotation the one around it. `notes` are sentences on what had to be assumed.
    """

    trace: Trace
    launch: Rows
    around: Rows
    at_launch: Rows
    range: Rows
    method: Rows
    in_graph: Rows
    ambiguous: Rows
    parents: Rows
    lost: int
    notes: tuple[str, ...] = ()

    def coverage(self) -> Coverage:
        """Return how many operations have a range."""
        return coverage(self, self.range != NO_ID, self.method, self.ambiguous)

    def chain(self, innermost: Rows | None = None) -> tuple[Rows, Rows]:
        """Return pairs (operation, annotation) of every range around an operation, from the innermost outwards.

        A count of operations over them is inclusive: an operation is in every range that encloses it. `innermost` is
        `range` if it is not given; with `around` what a graph replays is in the ranges around the graph's launch.
        """
        ranges = self.range if innermost is None else innermost
        operations = np.arange(len(ranges))
        pairs = [(operations[:0], ranges[:0])]
        while len(operations):
            inside = ranges != NO_ID
            operations, ranges = operations[inside], ranges[inside]
            pairs.append((operations, ranges))
            ranges = self.parents[ranges]
        return np.concatenate([one for one, _ in pairs]), np.concatenate([other for _, other in pairs])


def coverage(found: RangesOf, known: Rows, method: Rows, ambiguous: Rows) -> Coverage:
    """Return the coverage where `known` says which operations have a place and `method` how they found it."""
    unsure = ambiguous & ~known
    graphs = found.in_graph & ~known & ~unsure
    used = np.unique(method[known])
    return Coverage(
        attributed=int(known.sum()),
        unattributed=int((~known & ~unsure & ~graphs).sum()),
        ambiguous=int(unsure.sum()),
        in_graphs=int(graphs.sum()),
        lost=found.lost,
        method=" + ".join(METHODS[code] for code in used if code != NOT_AT_ALL) or METHODS[NOT_AT_ALL],
    )


def ranges_of(trace: Trace, kind: int = PUSH_POP) -> RangesOf:
    """Return the ranges of all operations; `kind` PUSH_POP or START_END says which annotations are ranges.

    A start/end range holds what any thread of its process launches while it is open; where several are open at once
    the operation is ambiguous. Marks hold nothing. A range that was never closed runs to the end of the trace.
    """
    launch = launch_rows(trace)
    in_graph = _in_graph(trace, launch)
    opened = _Opened(trace, kind)
    calls = trace.launches
    launched = launch != NO_ID
    at, unsure = opened.innermost(calls["process"].to_numpy(), calls["thread"].to_numpy(), calls["start_ns"].to_numpy())
    around = np.where(launched, _taken(at, launch), NO_ID)
    ambiguous = launched & _taken(unsure, launch)
    captured = captured_at(trace)
    belongs, doubtful = opened.innermost(captured.process, captured.thread, captured.time_ns)
    ambiguous = np.where(in_graph, False, ambiguous)
    ambiguous[captured.operation] = doubtful
    found = np.where(in_graph, NO_ID, around)
    found[captured.operation] = belongs
    method = np.where(found == NO_ID, NOT_AT_ALL, np.where(in_graph, BY_CAPTURE, BY_LAUNCH)).astype(np.int8)
    found = np.where(ambiguous, NO_ID, found)
    return RangesOf(
        trace=trace,
        launch=launch,
        around=around,
        at_launch=at,
        range=found,
        method=method,
        in_graph=in_graph,
        ambiguous=ambiguous,
        parents=opened.parents,
        lost=_lost(trace, launch),
        notes=opened.notes,
    )


def classes(trace: Trace) -> Rows:
    """Return KERNEL, COPY or SET for each operation; copies and fills in disguise count as what they are."""
    found = trace.operations["kind"].to_numpy().copy()
    names = trace.operations["name"].to_numpy()
    for pattern, kind in _ALIASES:
        found[(found == KERNEL) & matching(trace, names, pattern, full=True)] = kind
    return found


def matching(trace: Trace, names: Rows, pattern: re.Pattern[str], full: bool = False) -> Rows:
    """Return which of `names`, indices into the trace's strings, match a pattern (somewhere, or as a whole)."""
    used, inverse = np.unique(names, return_inverse=True)
    test = pattern.fullmatch if full else pattern.search
    right = [code != NO_ID and test(trace.strings[code]) is not None for code in used]
    found: Rows = np.array(right, dtype=bool)[inverse]
    return found


def graph_launch_rows(trace: Trace) -> Rows:
    """Return the rows of `launches` that launch a graph, of each correlation id one, in the order of the host."""
    calls = trace.launches
    graphs: Rows = np.flatnonzero(matching(trace, calls["name"].to_numpy(), _GRAPH_LAUNCH))
    graphs = graphs[np.argsort(calls["start_ns"].to_numpy()[graphs], kind="stable")]
    found = calls.iloc[graphs]
    again = found.duplicated(["process", "correlation"], keep="last") & (found["correlation"] != NO_ID)
    return np.asarray(graphs[~again.to_numpy()])


def launch_rows(trace: Trace) -> Rows:
    """Return for each operation the row of its launch in `launches`, NO_ID where the trace has none.

    Where several calls share a correlation id a graph launch decides, else a call that launches work, else the
    innermost, which began last; of calls that follow one another none does.
    """
    calls, operations = trace.launches, trace.operations
    if not len(calls):
        return np.full(len(operations), NO_ID, dtype=np.int64)
    names = calls["name"].to_numpy()
    works, (starts, ends) = matching(trace, names, _WORK), (calls[name].to_numpy() for name in ("start_ns", "end_ns"))
    order = np.lexsort((starts, 2 * matching(trace, names, _GRAPH_LAUNCH) + works))  # the best comes last
    keys = _keys(calls, operations)
    rows = pd.Series(order, index=keys[: len(calls)][order])
    best = rows[~rows.index.duplicated(keep="last")]
    best = best.drop(reused(keys[: len(calls)][works], starts[works], ends[works]))
    found = best.reindex(keys[len(calls) :], fill_value=NO_ID).to_numpy()
    return np.where(operations["correlation"].to_numpy() == NO_ID, NO_ID, found)


def _keys(*tables: pd.DataFrame) -> Rows:
    """Return one number for each (process, correlation) of the tables' rows, one table after the other."""
    columns = [
        np.concatenate([t[name].to_numpy(dtype=np.int64) for t in tables]) for name in ("process", "correlation")
    ]
    (process, _), (correlation, distinct) = (pd.factorize(column) for column in columns)
    found: Rows = process.astype(np.int64) * len(distinct) + correlation
    return found


def _in_graph(trace: Trace, launch: Rows) -> Rows:
    """Return which operations ran in a graph: those with a node's id, and those that a graph launch launched."""
    graphs = matching(trace, trace.launches["name"].to_numpy(), _GRAPH_LAUNCH)
    found: Rows = (trace.operations["graph_node"].to_numpy() > 0) | ((launch != NO_ID) & _taken(graphs, launch))
    return found


def kernel_launches(trace: Trace) -> Rows:
    """Return which launches start one kernel, those into a graph being captured left out: they start none."""
    names = trace.launches["name"].to_numpy()
    begins, ends = (matching(trace, names, pattern) for pattern in (_BEGIN_CAPTURE, _END_CAPTURE))
    return matching(trace, names, _KERNEL_LAUNCH) & ~in_capture(trace, begins, ends)


def _lost(trace: Trace, launch: Rows) -> int:
    """Return how many kernel launches have no operation; two calls of one correlation id are one launch."""
    if "kernels" not in trace.recorded:
        return 0
    calls = trace.launches[kernel_launches(trace)]
    keys = pd.Index(_keys(calls, trace.launches.iloc[launch[launch != NO_ID]]))
    launched, ran, nameless = keys[: len(calls)], keys[len(calls) :], calls["correlation"].to_numpy() == NO_ID
    return int(launched[~launched.isin(ran) & ~nameless].nunique()) + int(nameless.sum())


def _taken(values: Rows, rows: Rows) -> Rows:
    """Return `values[rows]`, whatever it is where a row is NO_ID; no values are zeros."""
    return values[rows] if len(values) else np.zeros(len(rows), dtype=values.dtype)


class _Opened:
    """The annotations of one kind as ranges."""

    def __init__(self, trace: Trace, kind: int) -> None:
        self._by_process = kind == START_END
        table = trace.annotations
        self._rows = np.flatnonzero(table["kind"].to_numpy() == kind)
        own = table.iloc[self._rows]
        ends = own["end_ns"].to_numpy()
        unclosed = ends == NO_ID
        ends = np.where(unclosed, np.maximum(_last_ns(trace), own["start_ns"].to_numpy()), ends)
        groups = self._groups(own["process"].to_numpy(), own["thread"].to_numpy())
        self._nesting = Nesting(groups, own["start_ns"].to_numpy(), ends)
        self.parents = np.full(len(table), NO_ID, dtype=np.int64)
        if not self._by_process:
            self.parents[self._rows] = self._to_table(self._nesting.parents())
        count = int(unclosed.sum())
        self.notes = (f"{count} ranges were never closed: taken to run to the end of the trace",) if count else ()

    def innermost(self, processes: Rows, threads: Rows, times_ns: Rows) -> tuple[Rows, Rows]:
        """Return the row of the annotation open at each time, and whether another could be meant as well."""
        groups = self._groups(processes, threads)
        found = self._to_table(self._nesting.innermost(groups, times_ns))
        if not self._by_process:
            return found, np.zeros(len(found), dtype=bool)
        return found, self._nesting.open_count(groups, times_ns) > 1

    def _groups(self, processes: Rows, threads: Rows) -> Rows:
        """Return the number of whatever ranges belong to; a thread of another process is another one."""
        return processes.astype(np.int64) << 32 | (0 if self._by_process else threads.astype(np.int64))

    def _to_table(self, found: Rows) -> Rows:
        return np.where(found == NO_ID, NO_ID, _taken(self._rows, found))


def _last_ns(trace: Trace) -> int:
    """Return the last moment that any table tells of."""
    tables = (trace.operations, trace.launches, trace.annotations, trace.graph_runs)
    return max((int(t[["start_ns", "end_ns"]].to_numpy().max()) for t in tables if len(t)), default=NO_ID)
