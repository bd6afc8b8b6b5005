"""Read the tables of an nsys export as arrays of integers, whatever its exporter wrote and however much of it is left.

Exporters create a table or a column only where they know it and have rows for it, and rename tables between versions.
So a table is found by the beginning of its name together with its columns, and whatever else is asked of it may be
missing. The file is opened for reading only, and nothing is created in it. What a damaged file still holds is kept, and
a sentence in `repairs` says what was lost.
"""

from __future__ import annotations

import os
import re
import sqlite3
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dsv4bench.errors import TraceFormatError
from dsv4bench.profiling.traces.columns import NO_ID
from dsv4bench.profiling.traces.sqlite_pages import NotSimple, read_pages

Integers = npt.NDArray[np.int64]
MAGIC = b"SQLite format 3\0"
_DAMAGED = (sqlite3.Error, OSError, OverflowError, MemoryError, UnicodeError)  # the last: in SQLite's own messages
_LONGEST = 200
_LATEST_NS = 2**62  # the difference of two such times is a number of 64 bits
_VERSION = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns of one table; `keys` are the row numbers of the file, `readable` is False if no row could be read."""

    table: str
    keys: Integers
    columns: dict[str, Integers]
    readable: bool = True

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, column: str) -> Integers:
        """Return a column, NO_ID throughout where the file lacks it."""
        found = self.columns.get(column)
        return np.full(len(self), NO_ID, dtype=np.int64) if found is None else found


@dataclass(slots=True)
class Tables:
    """The tables of an open file; `repairs` collects a sentence for everything that could not be read."""

    path: Path
    connection: sqlite3.Connection
    names: tuple[str, ...]
    repairs: list[str] = field(default_factory=list)

    def find(self, prefix: str, required: Sequence[str]) -> str | None:
        """Return the table whose name begins with `prefix` and which has all `required` columns, or None.

        Of several, one with rows comes first, then the exact name, then the highest version (`NVTX_EVENTS_V2`).
        """
        able = [name for name in self.names if name.startswith(prefix) and set(required) <= self.columns(name).keys()]
        if not able:
            return None
        ranked = sorted(able, key=lambda name: (not self.filled(name), name != prefix, _newest_first(name, prefix)))
        beside = [name for name in ranked[1:] if self.filled(name)]
        if beside:
            self.repairs.append(f"{said(', '.join(beside))}: not read, beside {said(ranked[0])}")
        return ranked[0]

    def columns(self, table: str) -> dict[str, bool]:
        """Return the columns of a table, and of each whether it may be NULL; none of a table that is unreadable."""
        try:
            found = self.connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
        except _DAMAGED:
            return {}
        return {str(name): not required for _, name, _, required, _, _ in found}

    def filled(self, table: str) -> bool:
        """Return whether a table has a row, or may have one that cannot be read."""
        try:
            return self.connection.execute(f"SELECT 1 FROM {_quoted(table)} LIMIT 1").fetchone() is not None
        except _DAMAGED:
            return True

    def integers(self, table: str, required: Sequence[str], optional: Sequence[str] = ()) -> Rows:
        """Return columns of a table; NULL is NO_ID in an optional one.

        A row whose value is no whole number of 64 bits, or NULL where that is not allowed, is left out. Of a damaged
        file the readable rows are returned.
        """
        known = self.columns(table)
        wanted = dict.fromkeys(required, False)
        wanted.update({column: known[column] for column in optional if column in known})
        try:
            values, left_out, damage = self._pages(table, wanted)
        except (NotSimple, *_DAMAGED):
            values, left_out, damage = self._scan(table, wanted)
        later = values[1:, 0] > np.maximum.accumulate(values[:-1, 0])
        if not later.all():  # an index of pages that leads in a circle, or into another table
            values, damage = values[np.concatenate(([True], later))], damage or "its rows are out of order"
        if left_out:
            self.repairs.append(
                f"{said(table)}: {counted(left_out, 'row')} left out, without whole numbers where they belong"
            )
        if damage:
            self.repairs.append(f"{said(table)}: {self._lost(table, len(values))} ({damage})")
        columns = {column: values[:, place] for place, column in enumerate(wanted, 1)}
        return Rows(table, values[:, 0], columns, readable=bool(len(values)) or not (damage or left_out))

    def texts(self, table: str, key: str, column: str) -> Iterator[tuple[int, str]]:
        """Yield (key, text) of all rows that have a text; a key is a column or `rowid`."""
        query = f"SELECT {key if key == 'rowid' else _quoted(key)}, {_quoted(column)} FROM {_quoted(table)}"
        read = 0
        try:
            for found, text in self.connection.execute(f"{query} WHERE {_quoted(column)} IS NOT NULL"):
                if isinstance(found, int):
                    yield found, text if isinstance(text, str) else repr(text)
                    read += 1
        except _DAMAGED as error:
            self.repairs.append(f"{said(table)}: {self._lost(table, read)} ({said(error)})")

    def records(self, prefix: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return these columns of a small table, None for one that it lacks; no rows where it is absent or damaged."""
        table = self.find(prefix, columns[:1])
        if table is None:
            return []
        known = self.columns(table)
        fields = ", ".join(_quoted(column) if column in known else "NULL" for column in columns)
        with suppress(*_DAMAGED):
            return self.connection.execute(f"SELECT {fields} FROM {_quoted(table)}").fetchall()
        return []

    def _pages(self, table: str, wanted: Mapping[str, bool]) -> tuple[Integers, int, str | None]:
        """Return the rows of {column: may be NULL}, how many were left out and what is damaged, from the file's pages.

        Raises NotSimple where SQLite must read them.
        """
        query = "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?"
        (root,) = self.connection.execute(query, (table,)).fetchone() or (None,)
        stored = self.connection.execute(f"PRAGMA table_xinfo({_quoted(table)})").fetchall()
        if not wanted or not isinstance(root, int) or any(key or generated for *_, key, generated in stored):
            raise NotSimple  # a virtual table, or columns that are not where the others are
        places = {str(column[1]): place for place, column in enumerate(stored)}
        found = read_pages(self.path, root, [(places[column], null) for column, null in wanted.items()])
        damaged = {"page": found.damaged_pages, "row": found.damaged_rows}
        words = " and ".join(counted(count, what) for what, count in damaged.items() if count)
        return found.values, found.left_out, f"{words} damaged" if words else None

    def _scan(self, table: str, wanted: Mapping[str, bool]) -> tuple[Integers, int, str | None]:
        """Return the same row by row through SQLite, which ends at the first damage."""
        fields = [f"IFNULL({_quoted(column)}, {NO_ID})" if null else _quoted(column) for column, null in wanted.items()]
        query, columns = f"SELECT {', '.join(['rowid', *fields])} FROM {_quoted(table)}", len(wanted)
        values, width, left_out, damage = array("q"), columns + 1, 0, None
        try:
            cursor = self.connection.execute(query)
            while True:
                try:
                    values.extend(chain.from_iterable(cursor))
                    break
                except (TypeError, OverflowError):  # a float, a text, NULL: the array takes whole numbers only
                    left_out += 1
                    del values[len(values) // width * width :]
        except _DAMAGED as error:
            damage = said(error)
        del values[len(values) // width * width :]
        return np.frombuffer(values, dtype=np.int64).reshape(-1, width), left_out, damage

    def _lost(self, table: str, read: int) -> str:
        """Say how much of a damaged table was read; the row number of its last row tells how much there was."""
        total = None
        with suppress(*_DAMAGED):
            total = self.connection.execute(f"SELECT MAX(rowid) FROM {_quoted(table)}").fetchone()[0]
        of = f" of about {total}" if isinstance(total, int) and total > read else ""
        return f"only {read}{of} rows can be read" if read else "no row can be read"


@contextmanager
def open_tables(path: Path) -> Iterator[Tables]:
    """Open an SQLite file for reading; TraceFormatError says what is wrong with one that cannot be opened."""
    size_bytes = _size_bytes(path)
    # without a place for a lock file, SQLite opens only what it may take as unchanging
    unchanging = "" if os.access(path.parent, os.W_OK) else "&immutable=1"
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{unchanging}", uri=True)
    except sqlite3.Error as error:
        raise TraceFormatError(f"{path}: {said(error)}") from error
    with closing(connection):
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        yield _read_schema(path, connection, size_bytes)


def _size_bytes(path: Path) -> int:
    try:
        with path.open("rb") as file:
            begins = file.read(len(MAGIC))
        size_bytes = path.stat().st_size
    except OSError as error:
        raise TraceFormatError(f"{path}: {error.strerror}") from error
    if not begins:
        raise TraceFormatError(f"{path}: the file is empty; expected an nsys export (SQLite)")
    if begins != MAGIC:
        raise TraceFormatError(f"{path}: byte 0: expected an SQLite database, found {begins!r}")
    return size_bytes


def _read_schema(path: Path, connection: sqlite3.Connection, size_bytes: int) -> Tables:
    query, repairs, names = "SELECT name FROM sqlite_master WHERE type = 'table'", [], []
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        names = [name for (name,) in connection.execute(query)]
    except _DAMAGED as error:
        repairs.append(f"the database is damaged ({said(error)}{_cut(path, size_bytes)}): read as far as it goes")
        names = []
        with suppress(*_DAMAGED):
            connection.execute("PRAGMA writable_schema = ON")  # only so does SQLite read a file that is cut or bent
            for (name,) in connection.execute(query):
                names.append(name)  # one by one: those before the damage are kept
        if not names:
            raise TraceFormatError(
                f"{path}: the database is damaged ({said(error)}{_cut(path, size_bytes)})"
            ) from error
    return Tables(path, connection, tuple(name for name in names if isinstance(name, str)), repairs)


def _cut(path: Path, size_bytes: int) -> str:
    """Say how much of a file is there that is shorter than its head says."""
    with path.open("rb") as file:
        head = file.read(32)
    page_bytes, pages = int.from_bytes(head[16:18]), int.from_bytes(head[28:32])
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    if page_bytes * pages <= size_bytes:
        return ""
    return f"; {size_bytes} of {page_bytes * pages} bytes are there"


def beyond(times_ns: Integers) -> npt.NDArray[np.bool_]:
    """Return which times no clock could tell: more than 146 years before or after its beginning."""
    return np.asarray((times_ns >= _LATEST_NS) | (times_ns <= -_LATEST_NS))


def said(words: object) -> str:
    """Return a text of the file or of SQLite about it as part of one line, whatever bytes are in it."""
    text = "".join(letter if letter.isprintable() else " " for letter in str(words))
    return " ".join(text.split())[:_LONGEST] or type(words).__name__


def _newest_first(name: str, prefix: str) -> int:
    version = _VERSION.search(name, len(prefix))
    return -int(version.group()) if version else 0


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def counted(count: int, what: str) -> str:
    """Return a number of things in words: `1 row`, `2 rows`."""
    return f"{count} {what}{'s' if count != 1 else ''}"
