"""Run folders joined into one: every record as its file holds it, and a file for each file that was read.

A session is a process of a run, and has written one file (`results/store.py`). A cell that two sessions measured keeps
both records, each in the file of its session, and nothing is averaged. What another file holds bit for bit is a copy of
the same record, not a second measurement, and is joined once.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsv4bench.errors import UsageError
from dsv4bench.results.record import Record
from dsv4bench.results.schema import decode
from dsv4bench.results.store import read_lines, record_files


@dataclass(slots=True)
class Session:
    """What is joined of one file: its records, and their lines without the newline."""

    file: Path
    lines: list[bytes] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)


@dataclass(slots=True)
class Merged:
    """The sessions of some run folders in the order of these, and what was left out of them.

    `copies` counts lines that an earlier file holds bit for bit; `warnings` name torn last lines.
    """

    sessions: list[Session] = field(default_factory=list)
    copies: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def records(self) -> list[Record]:
        """All records, session after session."""
        return [record for session in self.sessions for record in session.records]

    @property
    def measured_again(self) -> list[str]:
        """The keys that more than one session has a record of."""
        sessions = Counter(key for session in self.sessions for key in {record.key for record in session.records})
        return sorted(key for key, count in sessions.items() if count > 1)


@dataclass(frozen=True, slots=True)
class MissingGroup:
    """A group of a plan of whose cells some, `cells`, have no record.

    `what` tells it from other groups, `planned` counts its cells, and `shard` is whose share it is where that is known.
    """

    what: str
    cells: tuple[str, ...]
    planned: int
    shard: str | None = None


@dataclass(frozen=True, slots=True)
class PlanLeft:
    """What has no record of the plan of one command; `reason` says why that plan is not known."""

    command: tuple[str, ...]
    cells: int = 0
    missing: tuple[MissingGroup, ...] = ()
    reason: str = ""

    @property
    def missing_cells(self) -> int:
        """How many cells have no record."""
        return sum(len(group.cells) for group in self.missing)


def read_sessions(folders: Sequence[Path]) -> Merged:
    """Read run folders or .jsonl files; UsageError where one is missing or none has a record, RecordError as always."""
    merged, seen = Merged(), set[bytes]()
    for file in (file for folder in folders for file in record_files(folder)):
        session = Session(file)
        for line, record in read_lines(file, merged.warnings, decode):
            if line in seen:
                merged.copies += 1
                continue
            seen.add(line)
            session.lines.append(line)
            session.records.append(record)
        if session.lines:
            merged.sessions.append(session)
    if not merged.sessions:
        raise UsageError(f"{' '.join(map(str, folders))}: no records here")
    return merged


def write_sessions(sessions: Sequence[Session], out: Path) -> list[Path]:
    """Write a file for each session in the new or empty folder `out` and return their paths, in order.

    A file keeps its name; where two have the same, the later one gets a number. UsageError if `out` cannot be written;
    what was begun is then removed.
    """
    written: list[Path] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for session in sessions:
            path = _free(out / session.file.name)
            written.append(path)
            with path.open("xb") as file:
                file.writelines(line + b"\n" for line in session.lines)
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise UsageError(f"--out {out}: cannot write {error.filename or written[-1]}: {error.strerror}") from None
    return written


def check_place(out: Path, folders: Sequence[Path]) -> None:
    """Raise UsageError where run folders cannot be joined: a folder that holds something, or one inside one of them."""
    if out.is_dir() and any(out.iterdir()):
        raise UsageError(f"--out {out}: the directory is not empty; expected a new one")
    for folder in folders:
        if folder.is_dir() and out.resolve().is_relative_to(folder.resolve()):
            raise UsageError(f"--out {out}: lies in {folder}, which would hold its records twice; expected one outside")


def _free(path: Path) -> Path:
    """Return a path that no file has yet: records.jsonl, records-2.jsonl, ..."""
    found, number = path, 2
    while found.exists():
        found, number = path.with_stem(f"{path.stem}-{number}"), number + 1
    return found
