"""Markdown as GitHub reads it: tables, and names that stay text whatever is in them; the same input, the same bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dsv4bench.dashboards.table import Column, Table, printable

UNLINK = "&#8203;"  # a space of no width: what follows is no longer a mention, a reference, a link or an emoji
SIGNS = re.compile(r"[\\|*_<`\[~]|&(?=#?\w+;)")
# where GitHub makes a link or a picture of plain text: @name, #12, GH-12, https://, www., :name:
LINKS = re.compile(r"@(?=\w)|#(?=\d)|\bGH-(?=\d)|:(?=//)|\bwww(?=\.)|:(?=[\w+-]+:)", re.IGNORECASE)
# what begins a heading, a list or a quotation
BEGINS = re.compile(r"^\d{1,9}(?=[.)](?:\s|$))|^(?=[-+#]+(?:\s|$)|>)")
PLAIN_IN_CODE = re.compile(r"[^A-Za-z0-9\s=.,/+-]")


def markdown(table: Table) -> str:
    """Return the table as markdown: a bold title, the table, its notes as a list."""
    columns, texts = table.shown()
    lines = [f"**{prose(table.title)}**", ""]
    if columns:
        lines += [*table_lines(columns, [list(map(prose, row)) for row in texts]), ""]
    lines += map(item, table.notes)
    return "\n".join(lines).rstrip() + "\n"


def table_lines(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose cells are markdown already."""
    head = [prose(column.title) for column in columns]
    return [_row(line) for line in (head, ["---:" if column.right else "---" for column in columns], *rows)]


def prose(text: str) -> str:
    """Return a text that GitHub shows as it is: no markup, no HTML, and no mention or link made by accident."""
    text = SIGNS.sub(r"\\\g<0>", printable(text).strip())
    return LINKS.sub(rf"\g<0>{UNLINK}", text).replace("$", "<span>$</span>")


def item(text: str) -> str:
    """Return a text as one point of a list, whatever it begins with."""
    return "- " + BEGINS.sub(r"\g<0>\\", prose(text))


def code(text: str) -> str:
    """Return a name as code, in which GitHub links nothing; in a table, too."""
    text = printable(text)
    if text.strip() == text != "" and not set("|`") & set(text):
        return f"`{text}`"
    return f"<code>{PLAIN_IN_CODE.sub(lambda sign: f'&#{ord(sign[0])};', text)}</code>"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
