"""Open a trace of any format that is known, a file or a folder with one file a rank."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from dsv4bench.errors import TraceFormatError, UsageError, nearest_path
from dsv4bench.profiling.traces import kineto_reader, nsys_export, nsys_reader, nsys_tables
from dsv4bench.profiling.traces.columns import Trace
from dsv4bench.profiling.traces.trace_text import head_of
from dsv4bench.ranges import PREFIX
from dsv4bench.units import format_count

READERS: Sequence[ModuleType] = (kineto_reader, nsys_reader, nsys_export)  # by content first, then by name
_FORMATS = "an SQLite export of nsys or the JSON of torch.profiler"
_RANK = re.compile(r"(?:^|[^a-z])(?:rank|worker|tp|dp|ep)[-_]?(\d+)(?!\d)", re.IGNORECASE)
_RANK_OF_OURS = re.compile(rf"{PREFIX}.* rank=(\d{{1,9}})$")
_MARKS = {
    nsys_tables.MAGIC: "a gzipped SQLite database",
    b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "a zstd stream",
    b"\x7fELF": "a program",
}
_TAR_MARK = slice(257, 262)


def open_trace(path: Path) -> list[Trace]:
    """Return the traces of a file or of a folder of files, one a rank, in the order of ranks.

    Raises UsageError for what is not there, TraceFormatError for what is no trace or cannot be read.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such file or directory{nearest_path(path)}")
    return read_folder(path) if path.is_dir() else [read_any(path)]


def is_trace(path: Path) -> bool:
    """Return whether a file, or one of those in a folder, looks like a trace, whatever its name."""
    files = [file for file in path.iterdir() if file.is_file()] if path.is_dir() else [path]
    return any(_reader_of(file) is not None for file in files)


def read_any(path: Path) -> Trace:
    """Return the trace of one file by the reader that knows its first bytes.

    Raises TraceFormatError for a file that is missing, is no trace, or cannot be read.
    """
    reader = _reader_of(path)
    if reader is None:
        raise TraceFormatError(f"{path}: byte 0: expected {_FORMATS}, found {_what_it_is(path)}")
    trace: Trace = reader.read(path)
    return trace


def read_folder(path: Path) -> list[Trace]:
    """Return the traces of the files of a folder that are any, in the order of ranks, then of names.

    A file that does not name its rank has the one that its own name tells ("rank3", "TP-3"), if no other one has it, or
    where no name tells any that of our ranges in it. Raises TraceFormatError where no file is a trace, or two are of
    one rank.
    """
    files = sorted(file for file in path.iterdir() if file.is_file() and not nsys_export.exported_beside(file))
    traces = [read_any(file) for file in files if _reader_of(file) is not None]
    if not traces:
        raise TraceFormatError(f"{path}: expected a trace a rank, found none in {format_count(len(files), 'file')}")
    named = [_with_rank(trace) for trace in traces]
    told = [trace.rank for trace in named if trace.rank is not None]
    if len(set(told)) == len(told):
        traces = named if told else [_with_rank_of_ranges(trace) for trace in traces]
    _check_ranks(path, traces)
    return sorted(traces, key=lambda trace: (trace.rank is None, trace.rank or 0, trace.source))


def _reader_of(path: Path) -> ModuleType | None:
    return next((reader for reader in READERS if reader.sniff(path)), None)


def _with_rank(trace: Trace) -> Trace:
    """Return the trace with the rank that the name of its file tells, where it does not tell one itself."""
    found = _RANK.search(Path(trace.source).name)
    return trace if trace.rank is not None or found is None else replace(trace, rank=int(found.group(1)))


def _with_rank_of_ranges(trace: Trace) -> Trace:
    """Return the trace with the rank that all ranges of ours in it have."""
    ranks = {int(found.group(1)) for text in trace.strings if (found := _RANK_OF_OURS.match(text))}
    return replace(trace, rank=ranks.pop()) if len(ranks) == 1 else trace


def _check_ranks(path: Path, traces: Sequence[Trace]) -> None:
    """Raise TraceFormatError for two traces that say that they are of one rank."""
    seen: dict[int, Trace] = {}
    for trace in traces:
        if trace.rank is None:
            continue
        other = seen.setdefault(trace.rank, trace)
        if other is not trace:
            names = " and ".join(Path(one.source).name for one in (other, trace))
            raise TraceFormatError(f"{path}: expected one file a rank, found {names} of rank {trace.rank}: name one")


def _what_it_is(path: Path) -> str:
    """Return what a file that is no trace looks like, for a message."""
    head = head_of(path)
    if not head:
        return "nothing that can be read" if path.stat().st_size else "an empty file"
    if head[_TAR_MARK] == b"ustar":
        return "a tar archive: unpack it and name the folder"
    known = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    return f"{known}: unpack it first" if known else repr(head.lstrip()[:30].decode("utf-8", "replace"))
