"""Read columns of integers from the pages of an SQLite file, all rows of many pages at once.

SQLite's own interface hands out one row at a time, which for a million kernels costs more than all that is done with
them. Tables of numbers have simple pages (the format: https://www.sqlite.org/fileformat2.html): leaves of a tree with
records whose head has one byte a column. Whatever is not as simple (a record longer than its page, a long text before a
wanted column) is left to SQLite. A page that is damaged costs its own rows, not those after it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dsv4bench.profiling.traces.columns import NO_ID

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Which = npt.NDArray[np.bool_]
_INTERIOR, _LEAF = 5, 13
_HEAD_BYTES = 100
_DEEPEST = 20
_BEHIND = 8192  # zeros behind the last page: the head of a record, of 2 000 columns at most, is never read outside
_PAGES_AT_ONCE = 128  # what one step touches stays in the cache
_MOST_OVERFLOW = 35  # a record longer than a page less this goes on in other pages
_LONGEST_INTEGER, _ZERO, _ONE, _FIRST_TEXT = 6, 8, 9, 12  # of the types of a value
# bytes of a value of each type that is one byte in the head of a record
_BYTES_OF = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((kind - 12) // 2 for kind in range(12, 128))], np.int32)


@dataclass(frozen=True, slots=True)
class PageRows:
    """What was read of a table: one column a wanted column behind the row numbers, and what could not be."""

    values: Integers
    left_out: int = 0  # rows with something else than whole numbers, or NULL where a number must be
    damaged_pages: int = 0
    damaged_rows: int = 0


class NotSimple(Exception):
    """A table whose pages hold something that only SQLite can read."""


def read_pages(path: Path, root: int, wanted: Sequence[tuple[int, bool]]) -> PageRows:
    """Return (place, may be NULL) columns of the table whose tree begins at page `root`, in the order of its rows.

    NULL is NO_ID where it may be. Raises NotSimple where SQLite must be asked.
    """
    with path.open("rb") as file:
        pages = _Pages(file.fileno())
        leaves, lost = pages.leaves(root)
        parts = [
            _rows_of(*pages.content(leaves[first : first + _PAGES_AT_ONCE]), wanted)
            for first in range(0, len(leaves), _PAGES_AT_ONCE)
        ]
    if not parts:
        return PageRows(np.empty((0, len(wanted) + 1), np.int64), 0, lost, 0)
    return PageRows(
        np.concatenate([part.values for part in parts]),
        sum(part.left_out for part in parts),
        lost + sum(part.damaged_pages for part in parts),
        sum(part.damaged_rows for part in parts),
    )


class _Pages:
    """The pages of an open file."""

    def __init__(self, file: int) -> None:
        head = os.pread(file, _HEAD_BYTES, 0)
        if len(head) < _HEAD_BYTES or head[18] != 1 or head[19] != 1:  # 2: pages may be in a write-ahead log
            raise NotSimple
        self.file = file
        self.bytes = {1: 65536}.get(int.from_bytes(head[16:18]), int.from_bytes(head[16:18]))
        self.usable = self.bytes - head[20]
        if self.bytes < 512 or self.bytes & (self.bytes - 1) or self.usable < 480:
            raise NotSimple

    def read(self, number: int) -> bytes:
        """Return a page, zeros where the file has none."""
        found = os.pread(self.file, self.bytes, (number - 1) * self.bytes) if number > 0 else b""
        return found.ljust(self.bytes, b"\0")

    def leaves(self, root: int) -> tuple[list[int], int]:
        """Return the leaves below a page from left to right, and how many pages of the tree are damaged."""
        depth, page = 0, self.read(root)
        if page[0] not in (_INTERIOR, _LEAF):
            raise NotSimple
        while page[0] == _INTERIOR and depth <= _DEEPEST:
            depth, page = depth + 1, self.read(next(self.children(page), 0))
        level, lost = [root], 0
        for _ in range(depth):  # all leaves are equally deep
            below: dict[int, None] = {}
            for number in level:
                page = self.read(number)
                if page[0] == _INTERIOR:
                    below.update(dict.fromkeys(self.children(page)))
                else:
                    lost += 1
            level = list(below)
        return level, lost

    def children(self, page: bytes) -> Iterator[int]:
        """Yield the pages below an interior one."""
        for cell in range(int.from_bytes(page[3:5])):
            place = int.from_bytes(page[12 + 2 * cell : 14 + 2 * cell])
            yield int.from_bytes(page[place : place + 4])
        yield int.from_bytes(page[8:12])

    def content(self, numbers: Sequence[int]) -> tuple[Bytes, int, int]:
        """Return the bytes of some pages one after another, the bytes of a page and how many of them are used."""
        joined = b"".join([*(self.read(number) for number in numbers), bytes(_BEHIND + self.bytes)])
        return np.frombuffer(joined, np.uint8), self.bytes, self.usable


def _rows_of(data: Bytes, page_bytes: int, usable: int, wanted: Sequence[tuple[int, bool]]) -> PageRows:
    """Return the rows of leaves; `data` holds them, and zeros behind."""
    heads = np.arange(0, len(data) - _BEHIND - page_bytes, page_bytes)
    cells = _word(data, heads + 3)
    # records lie at the end of a page, after a gap: an empty page whose records begin before its end was not empty
    records = (_word(data, heads + 5) - 1) % 65536 + 1
    sound = (data[heads] == _LEAF) & (8 + 2 * cells <= records) & (records <= usable)
    sound &= (cells > 0) | (records == usable)
    heads, cells = heads[sound], cells[sound]
    page = np.repeat(heads, cells)
    within = np.arange(len(page)) - np.repeat(np.cumsum(cells) - cells, cells)
    payload, place = _varint(data, page + np.minimum(_word(data, page + 8 + 2 * within), usable))
    key, record = _varint(data, place)
    if (payload > usable - _MOST_OVERFLOW).any():
        raise NotSimple
    end = record + payload
    whole = (payload > 0) & (end <= page + usable)
    kinds, places, fits = _values_of(data, record[whole], end[whole], 1 + max(column for column, _ in wanted))
    values = np.empty((len(places), len(wanted) + 1), np.int64)
    values[:, 0], good = key[whole][fits], np.ones(len(places), bool)
    for target, (column, may_be_null) in enumerate(wanted, 1):
        values[:, target], allowed = _integers(data, kinds[:, column], places[:, column], may_be_null)
        good &= allowed
    left_out = len(good) - int(good.sum())
    damaged_rows = len(page) - len(places)
    return PageRows(values if not left_out else values[good], left_out, int((~sound).sum()), damaged_rows)


def _values_of(data: Bytes, record: Integers, end: Integers, columns: int) -> tuple[Bytes, Integers, Which]:
    """Return types and places of the first values of those records that end where they must, and which those are."""
    head_bytes = data[record].astype(np.int64)
    kinds = data[record[:, None] + np.arange(1, columns + 1)]
    if ((head_bytes <= columns) | (head_bytes > 127)).any() or (kinds > 127).any():
        raise NotSimple
    sizes = _BYTES_OF[kinds]
    places = (record + head_bytes)[:, None] + np.cumsum(sizes, axis=1) - sizes
    fits = places[:, -1] + sizes[:, -1] <= end
    return (kinds, places, fits) if fits.all() else (kinds[fits], places[fits], fits)


def _integers(data: Bytes, kinds: Bytes, places: Integers, may_be_null: bool) -> tuple[Integers, Which]:
    """Return the values of one column, NO_ID for NULL, and which of them are allowed ones."""
    values = np.full(len(kinds), NO_ID, np.int64)
    good = (kinds <= _LONGEST_INTEGER) | (kinds == _ZERO) | (kinds == _ONE)
    if not may_be_null:
        good &= kinds != 0
    for kind in np.flatnonzero(np.bincount(kinds, minlength=1)):
        if 0 < kind <= _LONGEST_INTEGER:
            of_kind = slice(None) if (kinds == kind).all() else np.flatnonzero(kinds == kind)
            values[of_kind] = _big_endian(data, places[of_kind], int(_BYTES_OF[kind]))
        elif kind in (_ZERO, _ONE):
            values[kinds == kind] = kind - _ZERO
    return values, good


def _big_endian(data: Bytes, places: Integers, size: int) -> Integers:
    value = data[places].view(np.int8).astype(np.int64)
    for byte in range(1, size):
        value = value << 8 | data[places + byte]
    return value


def _word(data: Bytes, places: Integers) -> Integers:
    return data[places].astype(np.int64) << 8 | data[places + 1]


def _varint(data: Bytes, places: Integers) -> tuple[Integers, Any]:
    """Return the numbers of 1 to 8 bytes with 7 bits in each, and the places behind them; longer ones are -1."""
    byte = data[places]
    value, places, more = (byte & 0x7F).astype(np.int64), places + 1, byte > 0x7F
    for _ in range(7):
        if not more.any():
            break
        byte = data[places]
        value = np.where(more, value << 7 | (byte & 0x7F), value)
        places, more = places + more, more & (byte > 0x7F)
    return np.where(more, NO_ID, value), places
