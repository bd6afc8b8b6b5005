"""Tables of joined run folders: where each session's records came from, and which cells of a plan have none."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from dsv4bench.dashboards.table import Cell, Column, Table, cell
from dsv4bench.results.merged import Merged, MissingGroup, PlanLeft
from dsv4bench.results.record import Record
from dsv4bench.units import format_count

COMMIT_DIGITS = 7


def merge_tables(merged: Merged, files: Sequence[Path], plans: Sequence[PlanLeft]) -> list[Table]:
    """Return the table of the sessions, whose files are now `files`, and one for each plan."""
    return [_sessions(merged, files), *map(_plan, plans)]


def _sessions(merged: Merged, files: Sequence[Path]) -> Table:
    count = format_count(len(merged.records), "record")
    title = f"Joined in {files[0].parent}: {count} of {format_count(len(files), 'session')}"
    columns = (
        Column("file", ("file",), right=False),
        Column("records", ("records",)),
        Column("from", ("from",), False),
    )
    rows = tuple(
        (cell(path.name), cell(len(session.records)), cell(str(session.file), str(session.file.parent)))
        for path, session in zip(files, merged.sessions, strict=True)
    )
    return Table(title, columns, rows, tuple(_notes(merged)))


def _notes(merged: Merged) -> Iterator[str]:
    """Yield what must be read with the sessions."""
    if merged.copies:
        yield f"left out: {format_count(merged.copies, 'line')} that an earlier file holds bit for bit"
    if merged.measured_again:
        yield (
            f"{format_count(len(merged.measured_again), 'cell')} of several sessions: each keeps its records in its own"
            " file, none is averaged; tables show the newest of each machine and command, `dsv4bench history` all"
        )
    for what, found in (("machines", _machine), ("states of the code", _code)):
        seen = Counter(map(found, merged.records))
        if len(seen) > 1:
            yield f"{len(seen)} {what}: {', '.join(f'{name} ({count})' for name, count in seen.most_common())}"
    traces = {name for record in merged.records for name in record.traces}
    if traces:
        yield f"records alone are joined: {format_count(len(traces), 'trace')} left where the run is"


def _machine(record: Record) -> str:
    return record.machine


def _code(record: Record) -> str:
    """Return a commit with what lay over it and the source tree before it, short."""
    here = record.environment
    changes = f"+{here.get('diff') or ''}" if here.get("dirty") else ""
    tree = f", src {here['src'].get('name')} {here['src'].get('commit')}" if here.get("src") else ""
    return f"{str(here.get('commit'))[:COMMIT_DIGITS]}{changes}{tree}"


def _plan(plan: PlanLeft) -> Table:
    command = shlex.join(plan.command) or "no command"
    if plan.reason:
        return Table(f"Plan of {command}: not known, so that cells may be missing", (), (), (plan.reason,))
    count = format_count(plan.cells, "cell")
    if not plan.missing:
        return Table(f"Plan of {command}: {count}, each with a record", (), ())
    columns = (
        Column("of the plan", ("group",), right=False),
        Column("without a record", ("cells", "planned"), right=False),
        Column("shard", ("shard",)),
    )
    title = f"Plan of {command}: {count}, {plan.missing_cells} without a record"
    return Table(title, columns, tuple(map(_missing, plan.missing)))


def _missing(group: MissingGroup) -> tuple[Cell, ...]:
    few = len(group.cells) < group.planned
    text = f"{len(group.cells)} of {group.planned}: {'; '.join(group.cells)}" if few else f"all {group.planned}"
    return cell(group.what), Cell(text, ("; ".join(group.cells), group.planned)), cell(group.shard)
