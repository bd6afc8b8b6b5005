"""A table as data, before anyone knows whether it becomes text, markdown or CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: the text that is read, and the plain values that CSV gets (one for each name of the column)."""

    text: str
    values: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title in text and markdown (empty: only in CSV), its names in CSV, and its alignment."""

    title: str
    names: tuple[str, ...]
    right: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """A title, columns, rows of cells and the notes that must be read with them."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def shown(self) -> tuple[list[Column], list[list[str]]]:
        """Return the columns and texts to be read: those with a title and something in them."""
        places = [
            place
            for place, column in enumerate(self.columns)
            if column.title and any(row[place].text for row in self.rows)
        ]
        return [self.columns[place] for place in places], [[row[place].text for place in places] for row in self.rows]


def cell(value: object, text: str | None = None) -> Cell:
    """Make a cell of one value; its text is the value's own unless given, and "" for None."""
    own = "" if value is None else str(value)
    return Cell(own if text is None else text, (value,))


def empty(width: int = 1) -> Cell:
    """Make a cell of nothing, in a column with `width` names in CSV."""
    return Cell("", (None,) * width)


def joined(words: Sequence[object]) -> str:
    """Return the distinct words with spaces between them, in their order."""
    return " ".join(dict.fromkeys(map(str, words)))


def shortened(name: str, letters: int) -> str:
    """Return a name, one of more letters with its middle left out."""
    half = (letters - 2) // 2
    return name if len(name) <= letters else f"{name[: letters - 2 - half]}..{name[-half:]}"


def printable(text: str) -> str:
    """Return a text without what moves a cursor or colours a terminal; names in a trace may hold anything."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else " " for sign in text)
