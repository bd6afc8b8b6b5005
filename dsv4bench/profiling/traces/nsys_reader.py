"""Read the SQLite export of Nsight Systems, of exporters from 2022.1 to 2026.2, into a `Trace`.

What a table is called and which columns it has depends on the exporter (nsys_tables.py). A table that is absent was not
recorded; so was one that is empty, unless others of CUDA have rows: with `--lazy=false` every table is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from dsv4bench.errors import TraceFormatError
from dsv4bench.profiling.traces.columns import COPY, KERNEL, MOST_BYTES, MOST_NS, NO_ID, SET, Trace, table
from dsv4bench.profiling.traces.nsys_annotations import read_annotations
from dsv4bench.profiling.traces.nsys_facts import devices_of, facts_of, gpu_numbers
from dsv4bench.profiling.traces.nsys_names import Code, Ids, Names, call_name, copy_names, set_names
from dsv4bench.profiling.traces.nsys_tables import MAGIC, Integers, Rows, Tables, beyond, counted, open_tables, said

Flags = npt.NDArray[np.bool_]
FORMAT = "nsys"
_ACTIVITY = "CUPTI_ACTIVITY_KIND_"
_EXPORTS = ("StringIds", "META_DATA_EXPORT", "EXPORT_META_DATA", "TARGET_INFO_", _ACTIVITY, "NVTX_EVENTS", "CUDA_GRAPH")
_TIMES = ("start", "end")
_OF_DEVICE = ("deviceId", "streamId", "correlationId", "globalPid", "graphNodeId", "bytes")
_KERNEL_NAME = "demangledName"  # as Kineto writes it
_OTHER_NAMES = ("shortName", "mangledName")
_GREATEST_DEVICE = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of device operations: what `Trace.recorded` calls it, its table, the columns and texts of its names."""

    recorded: str
    code: int
    table: str
    columns: tuple[str, ...]
    names: Callable[[Tables, Rows, Names], Code]


def _kernel_names(tables: Tables, rows: Rows, names: Names) -> Code:
    ids = rows[_KERNEL_NAME]
    if not names.known(ids).all():
        others = tables.integers(rows.table, (), _OTHER_NAMES)
        if np.array_equal(others.keys, rows.keys):
            for column in _OTHER_NAMES:
                ids = np.where(~names.known(ids) & names.known(others[column]), others[column], ids)
    return names.registered(ids, rows.table, "(unnamed kernel)")


_KINDS = (
    _Kind("kernels", KERNEL, f"{_ACTIVITY}KERNEL", (_KERNEL_NAME,), _kernel_names),
    _Kind(
        "copies",
        COPY,
        f"{_ACTIVITY}MEMCPY",
        ("copyKind", "srcKind", "dstKind"),
        lambda _, rows, names: copy_names(rows["copyKind"], rows["srcKind"], rows["dstKind"], names),
    ),
    _Kind("sets", SET, f"{_ACTIVITY}MEMSET", ("memKind",), lambda _, rows, names: set_names(rows["memKind"], names)),
)


def sniff(path: Path) -> bool:
    """Return whether the file is an SQLite database, or is called one (and damaged)."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC or path.suffix == ".sqlite"
    except OSError:
        return False


def read(path: Path) -> Trace:
    """Read the export; TraceFormatError says what is wrong with a file that is none, or of which nothing is left."""
    with open_tables(path) as tables:
        if not any(name.startswith(_EXPORTS) for name in tables.names):
            found = said(", ".join(tables.names[:5])) if tables.names else "none"
            raise TraceFormatError(f"{path}: an SQLite database, but no nsys export; its tables: {found}")
        trace = _read(tables)
    if trace.repairs and not trace.recorded:
        raise TraceFormatError(f"{path}: nothing of it can be read: {'; '.join(trace.repairs)}")
    return trace


def _read(tables: Tables) -> Trace:
    names, ids = Names(tables), Ids()
    launches, recorded = _launches(tables, names, ids)
    operations = _operations(tables, names, ids, recorded)
    _fill_processes(tables, operations, launches)
    annotations, annotated = read_annotations(tables, names, ids)
    graph_nodes = _graph_nodes(tables, ids)
    graph_runs = _graph_runs(tables, ids)
    _fill_processes(tables, graph_runs, launches)
    _count_gpus_across_processes(tables, ids, operations, graph_runs)
    rows = {"annotations": annotated, "graph_nodes": len(graph_nodes) > 0, "graph_runs": len(graph_runs) > 0}
    return Trace(
        source=str(tables.path),
        format=FORMAT,
        strings=names.codes.values,
        operations=operations,
        launches=launches,
        annotations=annotations,
        graph_nodes=graph_nodes,
        graph_runs=graph_runs,
        processes=ids.process_texts(),
        threads=ids.thread_texts(),
        recorded=frozenset(recorded | {name for name, there in rows.items() if there}),
        devices=devices_of(tables),
        facts=facts_of(tables),
        repairs=tuple(dict.fromkeys(tables.repairs)),
    )


def _launches(tables: Tables, names: Names, ids: Ids) -> tuple[pd.DataFrame, set[str]]:
    rows = _rows(tables, f"{_ACTIVITY}RUNTIME", _TIMES, ("globalTid", "correlationId", "nameId"))
    if rows is None or not len(rows):
        return table("launches"), set()
    frame = {
        "name": names.registered(rows["nameId"], rows.table, "(unnamed call)", call_name),
        **_times(tables, rows),
        "process": ids.processes(rows["globalTid"]),
        "thread": ids.threads(rows["globalTid"]),
        "correlation": rows["correlationId"],
    }
    return _sorted(table("launches", frame)), {"launches"}


def _operations(tables: Tables, names: Names, ids: Ids, recorded: set[str]) -> pd.DataFrame:
    """Return the kernels, copies and sets; adds to `recorded` which of them were."""
    found = {kind: _rows(tables, kind.table, _TIMES, (*_OF_DEVICE, *kind.columns)) for kind in _KINDS}
    there = {kind: rows for kind, rows in found.items() if rows is not None and rows.readable}
    if recorded or any(len(rows) for rows in there.values()):
        recorded |= {kind.recorded for kind in there}
    parts = [_operation_rows(tables, kind, rows, names, ids) for kind, rows in there.items() if len(rows)]
    if not parts:
        return table("operations")
    return _sorted(pd.concat(parts, ignore_index=True))


def _operation_rows(tables: Tables, kind: _Kind, rows: Rows, names: Names, ids: Ids) -> pd.DataFrame:
    node, size = rows["graphNodeId"], rows["bytes"]
    times = _times(tables, rows)
    endless = times["end_ns"] - times["start_ns"] > MOST_NS
    _say(tables, rows, endless, "lasted more than two hours: read as 0 ns")
    _say(tables, rows, size > MOST_BYTES, "moved more than 8 TiB: its bytes read as missing")
    return table(
        "operations",
        {
            "kind": np.full(len(rows), kind.code, dtype=np.int8),
            "name": kind.names(tables, rows, names),
            "start_ns": times["start_ns"],
            "end_ns": np.where(endless, times["start_ns"], times["end_ns"]),
            "process": ids.processes(rows["globalPid"]),
            "device": _devices(rows["deviceId"]),
            "stream": rows["streamId"],
            "correlation": rows["correlationId"],
            "graph_node": np.where(node == 0, NO_ID, node),
            "bytes": np.where(size > MOST_BYTES, NO_ID, size),
        },
    )


def _graph_nodes(tables: Tables, ids: Ids) -> pd.DataFrame:
    # CUDA_GRAPH_NODE_EVENTS of new exporters is CUDA_GRAPH_EVENTS in 2023, which in new ones has rows of whole graphs
    required, original = ("start", "globalTid", "graphNodeId"), ("originalGraphNodeId",)
    rows = _rows(tables, "CUDA_GRAPH", required, original, present=original)
    if rows is None:
        return table("graph_nodes")
    frame = {
        "node": rows["graphNodeId"],
        "original": rows["originalGraphNodeId"],
        "time_ns": rows["start"],
        "process": ids.processes(rows["globalTid"]),
        "thread": ids.threads(rows["globalTid"]),
    }
    return _sorted(table("graph_nodes", frame), "time_ns")


def _graph_runs(tables: Tables, ids: Ids) -> pd.DataFrame:
    rows = _rows(tables, f"{_ACTIVITY}GRAPH_TRACE", _TIMES, ("deviceId", "correlationId", "globalPid"))
    if rows is None:
        return table("graph_runs")
    frame = {
        **_times(tables, rows),
        "process": ids.processes(rows["globalPid"]),
        "device": _devices(rows["deviceId"]),
        "correlation": rows["correlationId"],
    }
    return _sorted(table("graph_runs", frame))


def _rows(
    tables: Tables, prefix: str, required: Sequence[str], optional: Sequence[str], present: Sequence[str] = ()
) -> Rows | None:
    """Return the rows of the table with these columns, or None; `present` columns must be there but may be NULL."""
    name = tables.find(prefix, (*required, *present))
    if name is not None:
        return tables.integers(name, required, optional)
    if not present and (other := tables.find(prefix, ())) and tables.filled(other):
        lacking = ", ".join(column for column in required if column not in tables.columns(other))
        tables.repairs.append(f"{said(other)}: left out, it has no column {lacking}")
    return None


def _times(tables: Tables, rows: Rows) -> dict[str, Integers]:
    """Return the starts and ends; one before its start becomes the start, a row of no possible time has none."""
    start_ns, end_ns = rows["start"], rows["end"]
    wild = beyond(start_ns) | beyond(end_ns)
    _say(tables, rows, wild, "without a time that could be one: counted and without time")
    start_ns, end_ns = (np.where(wild, NO_ID, times) for times in (start_ns, end_ns))
    _say(tables, rows, end_ns < start_ns, "ended before it began")
    return {"start_ns": start_ns, "end_ns": np.maximum(start_ns, end_ns)}


def _say(tables: Tables, rows: Rows, which: Flags, what: str) -> None:
    """Count rows among the repairs."""
    if which.any():
        tables.repairs.append(f"{said(rows.table)}: {counted(int(which.sum()), 'row')} {what}")


def _devices(numbers: Integers) -> Integers:
    return np.where((numbers < 0) | (numbers > _GREATEST_DEVICE), NO_ID, numbers)


def _sorted(frame: pd.DataFrame, by: str = "start_ns") -> pd.DataFrame:
    return frame if frame[by].is_monotonic_increasing else frame.sort_values(by, kind="stable", ignore_index=True)


def _fill_processes(tables: Tables, frame: pd.DataFrame, launches: pd.DataFrame) -> None:
    """Give rows without a process that of the calls, where all calls are of one; some exports have no such column."""
    nowhere = frame["process"] == NO_ID
    known = [process for process in launches["process"].unique() if process != NO_ID]
    if not nowhere.any() or not known:
        return
    if len(known) == 1:
        frame.loc[nowhere, "process"] = known[0]
        said = "taken for the only one that made calls"
    else:
        said = f"unknown among {len(known)}, so that they belong to no call"
    tables.repairs.append(f"the process of {int(nowhere.sum())} device rows is missing: {said}")


def _count_gpus_across_processes(tables: Tables, ids: Ids, *frames: pd.DataFrame) -> None:
    """Replace each process's own number of a GPU by the number of the GPU, where the file tells both."""
    numbers = gpu_numbers(tables)
    if not numbers:
        return
    pids = ids.process_ids()
    for frame in frames:
        processes, own = frame["process"].to_numpy(), frame["device"].to_numpy()
        counted = own.copy()
        for process, device in frame[["process", "device"]].drop_duplicates().itertuples(index=False):
            gpu = numbers.get((pids[process], device), device) if process != NO_ID else device
            if gpu != device:
                counted[(processes == process) & (own == device)] = gpu
        frame["device"] = counted
