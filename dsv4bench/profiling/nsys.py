"""Nsight Systems: the command that records one step so that graph replays can be attributed, and a clean export.

A report of nsys holds the environment of every process that ran (seen with 2023.4), command lines, host and user. An
export keeps it in settings, in tables of processes, and in strings to which no row points. `keep_events` leaves what a
reader of traces needs, by name, and nothing else.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

REPORT, EXPORT = ".nsys-rep", ".sqlite"
NO_NSYS = (
    "nsys is not installed here: install Nsight Systems (packages nsight-systems and nsight-systems-target, or the CUDA"
    " toolkit) and put nsys on the PATH"
)
NO_NVTX = "the package nvtx is not installed here, so nsys would record no range: pip install nvtx"
NO_REPORT = "nsys wrote no report (a bare collector has no importer: install the package nsight-systems too)"
NO_RANGES = "nsys recorded no range: it is older than the NVTX of the package nvtx; take a newer nsys"
_TABLES = ("StringIds", "ThreadNames", "NVTX_EVENTS", "PROFILER_OVERHEAD", "ANALYSIS_DETAILS")
_TABLES_LIKE = ("CUPTI_ACTIVITY_KIND_", "CUDA_GRAPH", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_", "TARGET_INFO_SESSION_")
_OF_EXPORT = ("EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION", "EXPORT_PRODUCT_DATE", "EXPORT_SCHEMA")
_SETTINGS = {  # by a part of a setting's name
    "META_DATA_CAPTURE": (
        "CAPTURE_EVENT_TYPE",
        "CUDA_GRAPH_TRACE_OPTIONS:MODE",
        "CUDA_SKIP_SOME_API_CALLS",
        "CUDA_TRACE_SCOPE",
        "START_TRIGGER",
        "NVTX_DOMAIN_FILTER_STRING",
    ),
    "META_DATA_EXPORT": _OF_EXPORT,
    "EXPORT_META_DATA": _OF_EXPORT,  # the same until 2022
    "TARGET_INFO_SYSTEM_ENV": ("NvDriverVersion", "CudaDriverVersion"),
}
_NAMES = ("nameId", "textId", "jsonTextId", "demangledName", "shortName", "mangledName")  # columns of string ids
_PROCESS = "CAST(({} >> 24) AS INTEGER)"  # of a global thread or process id
_PUSH_POP = 59
_WARNING = 2  # what is less tells where the program printed


def profile_command(nsys: str, report: Path, program: Sequence[str], device: str) -> list[str]:
    """Return the command that records `program` into `report` (a path without suffix).

    On "cuda" collection lies between profiler start and stop of the program, and nodes of graphs are traced one by one;
    on "cpu" there is no CUDA to start it, so that ranges are recorded throughout. Nothing is sampled.
    """
    what = ["-t", "cuda,nvtx", "--cuda-graph-trace=node", "-c", "cudaProfilerApi", "--capture-range-end=stop"]
    if device != "cuda":
        what = ["-t", "nvtx"]
    return [nsys, "profile", *what, "-s", "none", "--cpuctxsw=none", "-f", "true", "-o", str(report), *program]


def export_command(nsys: str, report: Path) -> list[str]:
    """Return the command that writes the export of `report` (a path without suffix) beside it."""
    export, source = report.with_name(report.name + EXPORT), report.with_name(report.name + REPORT)
    return [nsys, "export", "--type", "sqlite", "-f", "true", "-o", str(export), str(source)]


def keep_events(path: Path) -> int:
    """Delete from an export all but its events and the settings of the capture, for good; return its ranges' number.

    Ranges are those of push and pop. Tables, settings and strings that are kept are listed, so that what another
    version of nsys adds is not kept.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("PRAGMA secure_delete = ON")
        tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()]
        for table in tables:
            if table in _SETTINGS:
                other = " AND ".join("instr(name, ?) = 0" for _ in _SETTINGS[table])
                file.execute(f"DELETE FROM {table} WHERE name IS NULL OR ({other})", _SETTINGS[table])
            elif table == "DIAGNOSTIC_EVENT":
                file.execute(f"DELETE FROM {table} WHERE severity IS NULL OR severity < {_WARNING}")
            elif table not in _TABLES and not table.startswith(_TABLES_LIKE):
                file.execute(f'DROP TABLE "{table}"')
        columns = _columns(file)
        _drop_other_threads(file, columns)
        _drop_unused_strings(file, columns)
        ranges = 0
        if "NVTX_EVENTS" in columns:
            counted = file.execute(f"SELECT count(*) FROM NVTX_EVENTS WHERE eventType = {_PUSH_POP}")
            ((ranges,),) = counted.fetchall()
        file.execute("VACUUM")
        return int(ranges)


def _columns(file: sqlite3.Connection) -> dict[str, list[str]]:
    names = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()]
    return {name: [row[1] for row in file.execute(f"PRAGMA table_info({name})").fetchall()] for name in names}


def _drop_other_threads(file: sqlite3.Connection, columns: dict[str, list[str]]) -> None:
    """Delete the names of threads whose process has no event."""
    busy = [
        f"SELECT {_PROCESS.format(column)} FROM {table}"
        for table, own in columns.items()
        if table == "NVTX_EVENTS" or table.startswith("CUPTI_")
        for column in own
        if column in ("globalTid", "globalPid")
    ]
    events = " UNION ".join(busy) or "SELECT NULL WHERE 0"
    if "globalTid" in columns.get("ThreadNames", ()):
        file.execute(f"DELETE FROM ThreadNames WHERE {_PROCESS.format('globalTid')} NOT IN ({events})")


def _drop_unused_strings(file: sqlite3.Connection, columns: dict[str, list[str]]) -> None:
    """Delete the strings that no event or thread is called by."""
    if "StringIds" not in columns:
        return
    named = [(table, column) for table, own in columns.items() for column in own if column in _NAMES]
    used = [f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL" for table, column in named]
    file.execute(f"DELETE FROM StringIds WHERE id NOT IN ({' UNION '.join(used) or 'SELECT NULL WHERE 0'})")
