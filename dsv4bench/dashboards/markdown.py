"""A table as GitHub markdown; the same input gives the same bytes."""

from __future__ import annotations

from dsv4bench.dashboards.table import Table, printable


def markdown(table: Table) -> str:
    """Return the table as markdown: a bold title, the table, its notes as a list."""
    columns, texts = table.shown()
    lines = [f"**{_escaped(table.title)}**", ""]
    if columns:
        lines.append(_row([column.title for column in columns]))
        lines.append(_row(["---:" if column.right else "---" for column in columns]))
        lines += [_row(row) for row in texts]
        lines.append("")
    lines += [f"- {_escaped(note)}" for note in table.notes]
    return "\n".join(lines).rstrip() + "\n"


def _row(texts: list[str]) -> str:
    return f"| {' | '.join(map(_escaped, texts))} |"


def _escaped(text: str) -> str:
    for sign in "\\|*_<":
        text = text.replace(sign, f"\\{sign}")
    return printable(text)
