"""The store: a directory of JSON Lines files, one per process, to which finished records are appended.

A record is on the disk when `append` returns: it is written in one piece and flushed with fsync. A process that is
killed can tear at most the line that it was writing, and a reader leaves that line out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from dsv4bench.errors import RecordError, UsageError, nearest_path
from dsv4bench.results.record import Record
from dsv4bench.results.schema import decode, encode

TIME_FORMAT = "%Y%m%dT%H%M%SZ"
NO_TIME_LEFT = "--time-limit was over before it was measured"  # the reason of a record of what is still to be done

Told = TypeVar("Told")


def run_directory(name: str, now: datetime | None = None, root: Path = Path("results")) -> Path:
    """Return where a run called `name` writes by default: results/<UTC time>-<name>."""
    return root / f"{(now or datetime.now(UTC)).strftime(TIME_FORMAT)}-{name}"


def open_store(out: Path) -> Store:
    """Make the directory `out` and this process's file in it; UsageError if it holds something or cannot be written."""
    return Store(new_directory(out))


def new_directory(out: Path) -> Path:
    """Make the directory `out` and return it; UsageError if it holds something or cannot be made."""
    try:
        if out.is_dir() and any(out.iterdir()):
            raise UsageError(f"--out {out}: the directory is not empty (go on with --resume {out}, or name a new one)")
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: cannot make this directory: {error.strerror}") from None
    return out


def begun_directory(directory: Path) -> Path:
    """Return the folder of a run that has begun; UsageError where it is missing."""
    if not directory.is_dir():
        raise UsageError(f"--resume {directory}: no such directory{nearest_path(directory)}")
    return directory


def resume_store(out: Path) -> Store:
    """Open a directory of an earlier run and make a new file for this process in it."""
    return Store(begun_directory(out))


class Store:
    """This process's file in a results directory; use it in a `with` statement or call `close`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path, self._file = _new_file(directory)

    def append(self, record: Record) -> None:
        """Write the record and return when it is on the disk; UsageError if the disk takes no more."""
        line = encode(record).encode("ascii")
        end = os.fstat(self._file).st_size
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, end)  # half a line would make the next record unreadable
            raise UsageError(f"cannot write to {self.path}: {error.strerror}") from None

    def close(self) -> None:
        """Close the file; what was appended is already on the disk."""
        os.close(self._file)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Reading:
    """What a file or a directory holds: records in the order of their making, and warnings to be shown."""

    records: list[Record] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_records(path: Path) -> Reading:
    """Read a .jsonl file, or all such files of a directory and those below it.

    A torn last line gives a warning. RecordError for any other line that is no record, UsageError if `path` is missing.
    """
    reading = Reading()
    for file in record_files(path):
        _read_file(file, reading)
    reading.records.sort(key=lambda record: record.created)
    return reading


def record_files(path: Path) -> list[Path]:
    """Return `path`, or all .jsonl files of a directory and those below it; UsageError if it is missing."""
    if not path.exists():
        raise UsageError(f"{path}: no such file or directory{nearest_path(path)}")
    return sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]


def finished_keys(path: Path) -> set[str]:
    """Return the keys of all cells that have a record under `path`, but for those that a time limit left out."""
    return {record.key for record in read_records(path).records if record.reason != NO_TIME_LEFT}


def _new_file(directory: Path) -> tuple[Path, int]:
    start = f"records-{datetime.now(UTC).strftime(TIME_FORMAT)}-{os.getpid()}"
    repeat = 1
    while True:
        path = directory / f"{start}{f'_{repeat:03}' if repeat > 1 else ''}.jsonl"  # sorted, they are in order
        try:
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
            _flush_directory(directory)
        except FileExistsError:
            repeat += 1  # of this process, or of one with the same number on another machine
        except OSError as error:
            raise UsageError(f"{directory}: cannot write a results file here: {error.strerror}") from None
        else:
            return path, file


def _flush_directory(directory: Path) -> None:
    entry = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(entry)  # the new file's name must survive a crash, as its lines do
    finally:
        os.close(entry)


def _read_file(file: Path, reading: Reading) -> None:
    reading.records.extend(record for _, record in read_lines(file, reading.warnings, decode))


def read_lines(file: Path, warnings: list[str], read: Callable[[bytes, str], Told]) -> Iterator[tuple[bytes, Told]]:
    """Yield every line of a .jsonl file, without its newline, and what `read`, as `schema.decode`, makes of it.

    A torn last line is a warning. RecordError for any other line that is no record.
    """
    for number, whole in enumerate(BytesIO(_bytes_of(file)), start=1):
        line = whole.rstrip(b"\n")
        if not line or line.isspace():
            continue
        try:
            yield line, read(line, f"{file}:{number}")
        except RecordError:
            if line is not whole or not _torn(line):
                raise
            warnings.append(f"{file}:{number}: left out a torn last line ({len(line)} bytes)")


def _torn(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


def _bytes_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from None
