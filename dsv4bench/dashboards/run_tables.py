"""Tables of what was run: by which commands, on what, when and with which outcome; and the facts of each machine."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

from dsv4bench.dashboards.cells import grouped
from dsv4bench.dashboards.table import Cell, Column, Table, cell
from dsv4bench.results.compare import without_place
from dsv4bench.results.record import Record

COMMIT_CHARACTERS = 12
CODE = ("commit", "diff", "src")


def run_table(records: Sequence[Record]) -> Table:
    """Return a row for each command on each machine and state of the code."""
    columns = (
        Column("machine", ("machine",), right=False),
        Column("label", ("label",), right=False),
        Column("commit", ("commit", "dirty"), right=False),
        Column("records", ("records", "status"), right=False),
        Column("made", ("first", "last"), right=False),
        Column("command", ("command",), right=False),
    )
    runs = grouped(records, lambda one: (*_state(one), one.label, tuple(without_place(one.argv))))
    return Table("What ran", columns, tuple(_run_row(same) for same in runs))


def environment_table(records: Sequence[Record]) -> Table:
    """Return a row for each fact and a column for each machine and state of the code; values that differ are listed."""
    states = grouped(records, _state)
    names = dict.fromkeys(name for one in records for name, value in one.environment.items() if value is not None)
    columns = (
        Column("fact", ("fact",), right=False),
        *(Column(_name(same[0]), (_name(same[0]),), right=False) for same in states),
    )
    rows = [
        (cell(name), *(cell(_joined([one.environment.get(name) for one in same])) for same in states)) for name in names
    ]
    return Table("Environment", columns, tuple(rows))


def _joined(values: Sequence[Any]) -> str:
    """Return the distinct values that are known, with commas between them."""
    known = [_plain(value) for value in values if value is not None]
    return ", ".join(dict.fromkeys(known))


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={_plain(inner)}" for name, inner in value.items() if inner is not None)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _state(record: Record) -> tuple[Hashable, ...]:
    return (record.machine, *(str(record.environment.get(name)) for name in CODE))


def _name(record: Record) -> str:
    """Return a machine with the commit that ran on it."""
    return f"{record.machine}, {_commit(record)}"


def _commit(record: Record) -> str:
    commit = record.environment.get("commit")
    changes = " with changes" if record.environment.get("dirty") else ""
    return f"{str(commit)[:COMMIT_CHARACTERS]}{changes}" if commit else "no commit"


def _run_row(same: Sequence[Record]) -> tuple[Cell, ...]:
    first, statuses = same[0], Counter(one.status for one in same)
    times = sorted(one.created for one in same)
    said = ", ".join(f"{count} {status}" for status, count in statuses.items())
    return (
        cell(first.machine),
        cell(first.label),
        Cell(_commit(first), (first.environment.get("commit"), first.environment.get("dirty"))),
        Cell(said, (len(same), said)),
        Cell(_span(times[0], times[-1]), (times[0], times[-1])),
        cell(shlex.join(without_place(first.argv))),
    )


def _span(first: str, last: str) -> str:
    """Return "2026-11-30 08:29 to 08:31", with the day once where both are of it."""
    day, begin = first[:10], first[11:16]
    end = last[11:16] if last[:10] == day else f"{last[:10]} {last[11:16]}"
    return f"{day} {begin}" if end == begin else f"{day} {begin} to {end}"
