"""Nsight Systems: the command that records one step so that graph replays can be attributed, and a clean export.

An export of nsys holds the environment of the program and of the machine (tables META_DATA_CAPTURE and
TARGET_INFO_SYSTEM_ENV), its command line, host and user. `keep_settings` leaves what a reader of traces needs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

REPORT, RAW, EXPORT = ".nsys-rep", ".qdstrm", ".sqlite"  # RAW: where the importer of nsys is not installed
NO_NSYS = (
    "nsys is not installed here: install Nsight Systems (packages nsight-systems and nsight-systems-target, or the CUDA"
    " toolkit) and put nsys on the PATH"
)
IMPORT = (
    "this nsys has no importer; elsewhere: QdstrmImporter -i FILE, then nsys export --type sqlite. The file holds the"
    " variables that the program was given (PATH, HOME and the like)"
)
NO_NVTX = "the package nvtx is not installed here, so nsys would record no range: pip install nvtx"
# by the last part of a setting's name; everything else is dropped
_KEPT = {
    "META_DATA_CAPTURE": (
        "CAPTURE_EVENT_TYPE",
        "CUDA_GRAPH_TRACE_OPTIONS:MODE",
        "CUDA_SKIP_SOME_API_CALLS",
        "CUDA_TRACE_SCOPE",
        "START_TRIGGER",
        "NVTX_DOMAIN_FILTER_STRING",
    ),
    "META_DATA_EXPORT": ("EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION", "EXPORT_PRODUCT_DATE", "EXPORT_SCHEMA"),
    "TARGET_INFO_SYSTEM_ENV": ("NvDriverVersion", "CudaDriverVersion"),
}
_EMPTIED = ("ProcessStreams",)  # names of files with what the program printed


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


def keep_settings(path: Path) -> int:
    """Delete from an export what is not a setting of the capture, for good, and return how many rows that were.

    The names of what stays are listed; all other rows of these tables go, environment variables among them.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("PRAGMA secure_delete = ON")
        tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        deleted = 0
        for table in sorted(tables & _KEPT.keys()):
            kept = " AND ".join("(name IS NULL OR instr(name, ?) = 0)" for _ in _KEPT[table])
            deleted += file.execute(f"DELETE FROM {table} WHERE {kept}", _KEPT[table]).rowcount
        for table in tables.intersection(_EMPTIED):
            deleted += file.execute(f"DELETE FROM {table}").rowcount
        file.execute("VACUUM")
        return deleted
