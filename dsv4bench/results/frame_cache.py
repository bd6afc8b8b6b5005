"""Any number of run folders as one frame, fast: what a file's records say is kept in the user's cache, as parquet.

A file is known by its path, inode, size and times of change, and what is kept by the source that made it: a change of
either reads the records again. The cache may be deleted at any time; where it cannot be written there is none.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dsv4bench.results import counts, frame, migrations, outline, record, schema, stats
from dsv4bench.results.frame import Columns
from dsv4bench.results.outline import decode_outline
from dsv4bench.results.store import read_lines, record_files
from dsv4bench.units import NS_PER_S

MOST_FILES = 32  # of the cache: one for each set of folders that was asked for
SETTLED_NS = 2 * NS_PER_S  # a file that changed later than that may change again within one tick of its clock
FILES, SOURCE = b"dsv4bench files", b"dsv4bench source"


@dataclass(frozen=True, slots=True)
class FrameReading:
    """The records of some folders as a frame in the order of their making, and warnings to be shown."""

    frame: pd.DataFrame
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class _Part:
    """What one file holds; `signature` is None where that must not be kept."""

    signature: str | None
    found: Columns
    warnings: list[str]


def cache_folder() -> Path:
    """Return the folder that keeps frames; it may be deleted at any time."""
    return Path.home() / ".cache" / "dsv4bench" / "frames"


def read_frame(paths: Sequence[Path], cache: Path | None = None) -> FrameReading:
    """Return the `frame` of all records under `paths`, files and directories, each file once.

    A column more, `run`, is the folder of a record's file, below the path by which that was found first; a file among
    `paths` is its own. `cache` is the folder for what is kept, by default `cache_folder()`. Errors are those of
    `read_records`.
    """
    runs = _runs(paths)
    kept_in = (cache or cache_folder()) / f"{_digest(*(str(path.resolve()) for path in paths))}.parquet"
    kept = _load(kept_in)
    parts = [kept.get(_signature(file, file.stat())) or _read(file) for file in runs]
    if any(part.signature and part.signature not in kept for part in parts):
        _save(parts, kept_in)
    places = [run for run, part in zip(runs.values(), parts, strict=True) for _ in part.found.get("key", ())]
    whole = frame.typed({**_joined([part.found for part in parts]), "run": places})
    if not whole.empty:
        whole = whole.sort_values("created", kind="stable", na_position="first", ignore_index=True)
    return FrameReading(whole, [warning for part in parts for warning in part.warnings])


def _runs(paths: Sequence[Path]) -> dict[Path, str]:
    """Return the run of every file under `paths`, which is not part of what is kept: it is as the user named it."""
    found: dict[Path, str] = {}
    for path in paths:
        for file in record_files(path):
            found.setdefault(file.resolve(), str(file.parent if path.is_dir() else path))
    return found


def _signature(file: Path, seen: os.stat_result) -> str:
    return json.dumps([str(file), seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns])


def _read(file: Path) -> _Part:
    """Read a file's records; those of one that is torn or has only just changed are not kept."""
    seen = file.stat()  # before its records: what is appended meanwhile makes it another file
    warnings: list[str] = []
    found = frame.columns(outline for _, outline in read_lines(file, warnings, decode_outline))
    settled = time.time_ns() - max(seen.st_mtime_ns, seen.st_ctime_ns) > SETTLED_NS
    signature = _signature(file, seen) if settled and not warnings else None
    return _Part(signature, found, warnings)


def _joined(found: Sequence[Columns]) -> Columns:
    """Return columns one under the other; what a part lacks is None there."""
    names = dict.fromkeys(name for columns in found for name in columns)
    sizes = [len(columns["key"]) if columns else 0 for columns in found]
    parts = list(zip(found, sizes, strict=True))
    return {
        name: list(chain.from_iterable(columns.get(name, [None] * size) for columns, size in parts)) for name in names
    }


def _load(file: Path) -> dict[str, _Part]:
    """Return what is kept of each file by its signature: nothing if it is of other source, damaged or not there."""
    with suppress(OSError, pa.ArrowException, KeyError, ValueError, TypeError):
        table = pq.read_table(file, page_checksum_verification=True)
        if table.schema.metadata[SOURCE] == _source().encode():
            found, start, parts = table.to_pydict(), 0, {}
            for signature, size in json.loads(table.schema.metadata[FILES]):
                part = {name: values[start : start + size] for name, values in found.items()}
                parts[signature] = _Part(signature, part, [])
                start += size
            return parts
    return {}


def _save(parts: Sequence[_Part], file: Path) -> None:
    """Keep the parts that may be kept, in one piece, and forget the sets that were used longest ago."""
    kept = [part for part in parts if part.signature]
    files = json.dumps([[part.signature, len(part.found.get("key", ()))] for part in kept])
    unfinished = file.with_suffix(f".{os.getpid()}")
    with suppress(OSError, pa.ArrowException, OverflowError):
        table = pa.table(_joined([part.found for part in kept]))
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            table.replace_schema_metadata({FILES: files, SOURCE: _source()}), unfinished, write_page_checksum=True
        )
        unfinished.replace(file)
        for old in sorted(file.parent.glob("*.parquet"), key=lambda one: one.stat().st_mtime_ns)[:-MOST_FILES]:
            old.unlink()
    with suppress(OSError):
        unfinished.unlink(missing_ok=True)


def _source() -> str:
    """Return a hash of the source that decides what is kept."""
    modules = (counts, frame, migrations, outline, record, schema, stats)
    return _digest(*(Path(str(module.__file__)).read_text(encoding="utf-8") for module in modules))


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
