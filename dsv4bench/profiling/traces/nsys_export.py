"""Read a report of Nsight Systems (`.nsys-rep`): an installed nsys exports it, once, into the cache of the user.

What is kept are events and settings; the environments of the processes, which a report holds, are not.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sqlite3
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dsv4bench.errors import TraceFormatError
from dsv4bench.profiling.nsys import keep_events
from dsv4bench.profiling.traces import nsys_reader
from dsv4bench.profiling.traces.columns import Trace
from dsv4bench.profiling.traces.nsys_tables import said

SUFFIXES = (".nsys-rep", ".qdrep")  # the second until 2021
TIMEOUT_S = 600
MOST_BYTES = 20 << 30  # of the cache


def sniff(path: Path) -> bool:
    """Return whether the file is called a report of Nsight Systems; its first bytes differ between versions."""
    return path.suffix in SUFFIXES and path.is_file()


def read(path: Path) -> Trace:
    """Read the report through the export that lies beside it or in the cache, else by exporting it.

    Raises TraceFormatError where there is no nsys, with the command that makes the export elsewhere.
    """
    beside = exported_beside(path)
    trace = nsys_reader.read(beside or export(path, cache_folder()))
    return replace(trace, source=str(path))


def cache_folder() -> Path:
    """Return the folder that keeps exports, up to `MOST_BYTES`; it may be deleted at any time."""
    return Path.home() / ".cache" / "dsv4bench" / "nsys"


def exported_beside(path: Path) -> Path | None:
    """Return the export of a report that lies beside it under the name that nsys gives it, if it is not older."""
    other = path.with_suffix(".sqlite")
    with suppress(OSError):
        if sniff(path) and other.stat().st_mtime_ns >= path.stat().st_mtime_ns:
            return other
    return None


def export(path: Path, folder: Path, timeout_s: float = TIMEOUT_S) -> Path:
    """Return the SQLite export of a report in `folder`, made by the nsys on the PATH unless it is there.

    An export is known by the report's path, size and time of change and by the nsys that made it. A new one takes the
    room of those that were used longest ago. Raises TraceFormatError where there is no nsys, or where it fails or takes
    longer than `timeout_s`.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        command = f"nsys export --type sqlite -o {path.stem}.sqlite {path.name}"
        raise TraceFormatError(f"{path}: only nsys can open it, and there is none on the PATH; elsewhere: {command}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        exported = folder / f"{path.stem}-{_key(path, Path(nsys))}.sqlite"
        if not exported.exists():
            unfinished = exported.with_suffix(f".{os.getpid()}.sqlite")
            try:
                _run(
                    [nsys, "export", "--type", "sqlite", "-f", "true", "-o", str(unfinished), str(path)],
                    path,
                    timeout_s,
                )
                keep_events(unfinished.resolve(strict=True))
                unfinished.replace(exported)
            finally:
                unfinished.unlink(missing_ok=True)
        exported.touch()
        _prune(folder, exported)
    except (OSError, sqlite3.Error) as error:
        raise TraceFormatError(f"{path}: cannot be exported: {said(error)}") from error
    return exported


def _prune(folder: Path, kept: Path) -> None:
    """Delete the exports that were used longest ago until the others and the `kept` one have room."""
    room = MOST_BYTES - kept.stat().st_size
    others = {file: file.stat() for file in folder.glob("*.sqlite") if file != kept}
    for file, status in sorted(others.items(), key=lambda other: -other[1].st_mtime_ns):
        room -= status.st_size
        if room < 0:
            file.unlink(missing_ok=True)


def _key(path: Path, nsys: Path) -> str:
    facts = [str(path.resolve()), str(nsys.resolve())]
    for file in (path, nsys):
        status = file.stat()
        facts += [str(status.st_size), str(status.st_mtime_ns)]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _run(command: list[str], path: Path, timeout_s: float) -> None:
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # nsys works in processes of its own, which end with it
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except BaseException as error:  # Ctrl-C and SIGTERM too
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise TraceFormatError(f"{path}: nsys export did not finish within {timeout_s:g} s") from None
            raise
    if process.returncode:
        lines = output.decode("utf-8", "replace").strip().splitlines() or ["it says nothing"]
        raise TraceFormatError(f"{path}: nsys export failed with {process.returncode}: {said(lines[-1])}")
