"""The table of digests: every output's hash from two source trees, and whether they are equal."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4bench.dashboards.table import Cell, Column, Table, cell
from dsv4bench.results.digests import DigestRow

SHOWN_DIGITS = 10
LEFT = (("kernel", "kernel"), ("case", "case"), ("rows", "rows"), ("provider", "provider"), ("output", "output"))
RIGHT = (("A", "a"), ("B", "b"), ("", "equal"), ("control", "control"), ("", "error"))


def digest_table(rows: Sequence[DigestRow], a: str, b: str, notes: Sequence[str]) -> Table:
    """Return the table; "=" where both trees gave the same bytes, "DIFFERENT" where not."""
    columns = (
        *(Column(title, (name,), right=name == "rows") for title, name in LEFT),
        *(Column(title or ("equal" if name == "equal" else ""), (name,), right=False) for title, name in RIGHT),
    )
    return Table(f"Digests of outputs, A {a} and B {b}", columns, tuple(map(_row, rows)), tuple(notes))


def _row(row: DigestRow) -> tuple[Cell, ...]:
    one = row.subject
    verdict = "failed" if row.error else "=" if row.equal else "DIFFERENT"
    differs = "" if row.control is None else f"{'same' if row.control == row.b else 'differs'}: "
    return (
        *(cell(value) for value in (one.kernel, one.case, one.rows, one.provider, row.output)),
        *(cell(digest, (digest or "")[:SHOWN_DIGITS]) for digest in (row.a, row.b)),
        cell(row.equal, verdict),
        cell(row.control, f"{differs}{row.perturbed or ''}"),
        cell(row.error, ""),
    )
