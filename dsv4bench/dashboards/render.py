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
from dsv4bench.dashboards.table import Column, Table, printable

WIDTH = 80
GAP = 2


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
    columns, texts = table.shown()
    widths = [max(map(len, parts)) for parts in zip([one.title for one in columns], *texts, strict=True)]
    # a table that is a little too wide comes closer together rather than losing figures
    gap = GAP if sum(widths) + GAP * (len(widths) - 1) <= width else 1
    head = _line(columns, widths, [column.title for column in columns], gap)
    found = [(line, HEAD) for line in textwrap.wrap(table.title, width, break_on_hyphens=False)]
    found += [(head, "dim"), *((_line(columns, widths, row, gap), "") for row in texts)] if columns else []
    for note in table.notes:
        found += [(line, "") for line in textwrap.wrap(note, width, subsequent_indent="  ", break_on_hyphens=False)]
    return [(printable(line), style) for line, style in found]


def _line(columns: list[Column], widths: list[int], texts: list[str], gap: int) -> str:
    parts = [
        text.rjust(width) if column.right else text.ljust(width)
        for column, width, text in zip(columns, widths, texts, strict=True)
    ]
    return (" " * gap).join(parts).rstrip()
