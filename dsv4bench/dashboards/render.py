"""A table as text: the same lines for a pipe and, coloured by rich, for a terminal; and as CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TextIO

from dsv4bench.dashboards.markdown import markdown
from dsv4bench.dashboards.style import HEAD, highlights
from dsv4bench.dashboards.table import Column, Table, printable, shortened

WIDTH = 80
GAP = 2
LEAST_LETTERS = 16  # of a name that is cut


def plain(table: Table, width: int = WIDTH) -> str:
    """Return the table as plain text for `width` columns, without colours or lines."""
    return "".join(f"{line}\n" for line, _ in _lines(table, width))


def write_terminal(tables: Iterable[Table], stream: TextIO) -> None:
    """Write the tables to a terminal in colours, as wide as it is; NO_COLOR is honoured."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    for number, table in enumerate(tables):
        if number:
            console.print()
        for line, style in _lines(table, console.width):
            text = Text(line, style=style)
            for words, colour in highlights().items():
                text.highlight_regex(words, colour)
            console.print(text, soft_wrap=True)


def show_tables(found: Sequence[Table], form: str, stream: TextIO) -> None:
    """Write tables as "table", "md" or "csv"; each of markdown stands alone, in text what all say is said once."""
    if form == "csv":
        stream.write(csv_text(found))
    elif form == "md":
        stream.write("\n".join(map(markdown, found)))
    elif stream.isatty():
        write_terminal(said_once(found), stream)
    else:
        stream.write("\n".join(map(plain, said_once(found))))


def said_once(found: Sequence[Table]) -> list[Table]:
    """Return the tables without the notes that all of them have, and these behind them."""
    common = [note for note in found[0].notes if all(note in table.notes for table in found)] if found[1:] else []
    if not common:
        return list(found)
    kept = [replace(table, notes=tuple(note for note in table.notes if note not in common)) for table in found]
    return [*kept, Table("Of all these tables:", (), (), tuple(common))]


def csv_text(tables: Iterable[Table]) -> str:
    """Return the tables as CSV blocks with a blank line between them; a title and notes are lines that start with #."""
    return "\n".join(_csv_block(table) for table in tables)


def _csv_block(table: Table) -> str:
    block = io.StringIO()
    block.write(f"# {table.title}\n")
    writer = csv.writer(block, lineterminator="\n")
    writer.writerow([name for column in table.columns for name in column.names])
    for row in table.rows:
        writer.writerow([_csv_value(value) for cell in row for value in cell.values])
    block.writelines(f"# {note}\n" for note in table.notes)
    return block.getvalue()


def _csv_value(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return value


def _lines(table: Table, width: int) -> list[tuple[str, str]]:
    """Return the table's lines, each with the style that it has on a terminal."""
    columns, texts, notes = _fitted(table, width)
    widths = _widths(columns, texts)
    # a table that is a little too wide comes closer together rather than losing figures
    gap = GAP if sum(widths) + GAP * (len(widths) - 1) <= width else 1
    head = _line(columns, widths, [column.title for column in columns], gap)
    found = [(line, HEAD) for line in textwrap.wrap(table.title, width, break_on_hyphens=False)]
    found += [(head, "dim"), *((_line(columns, widths, row, gap), "") for row in texts)] if columns else []
    for note in notes:
        found += [(line, "") for line in textwrap.wrap(note, width, subsequent_indent="  ", break_on_hyphens=False)]
    return [(printable(line), style) for line, style in found]


def _fitted(table: Table, width: int) -> tuple[list[Column], list[list[str]], tuple[str, ...]]:
    """Return the columns, texts and notes to be read.

    Of a table that is too wide a note says what all rows share, from the right on; then its longest names are cut.
    """
    columns, texts = table.shown()
    shared: list[str] = []
    for place in range(len(columns) - 1, 0, -1):
        if _excess(columns, texts, width) > 0 and len({row[place] for row in texts}) == 1:
            shared.insert(0, f"{columns[place].title} {texts[0][place]}")
            columns = columns[:place] + columns[place + 1 :]
            texts = [row[:place] + row[place + 1 :] for row in texts]
    notes = (f"in every row: {', '.join(shared)}", *table.notes) if shared else table.notes
    return columns, _cut(columns, texts, _excess(columns, texts, width)), notes


def _cut(columns: Sequence[Column], texts: list[list[str]], excess: int) -> list[list[str]]:
    """Return the texts without `excess` letters of the longest names, unless too little of them would be left."""
    names = [(width, place) for place, width in enumerate(_widths(columns, texts)) if not columns[place].right]
    longest, place = max(names, default=(0, 0))
    if excess <= 0 or longest - excess < LEAST_LETTERS:
        return texts
    letters = longest - excess
    return [[shortened(text, letters) if at == place else text for at, text in enumerate(row)] for row in texts]


def _excess(columns: Sequence[Column], texts: Sequence[Sequence[str]], width: int) -> int:
    """Return by how many columns a table is wider than `width`, its columns as close as they may be."""
    widths = _widths(columns, texts)
    return sum(widths) + len(widths) - 1 - width


def _widths(columns: Sequence[Column], texts: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, parts)) for parts in zip([one.title for one in columns], *texts, strict=True)]


def _line(columns: list[Column], widths: list[int], texts: list[str], gap: int) -> str:
    parts = [
        text.rjust(width) if column.right else text.ljust(width)
        for column, width, text in zip(columns, widths, texts, strict=True)
    ]
    return (" " * gap).join(parts).rstrip()
