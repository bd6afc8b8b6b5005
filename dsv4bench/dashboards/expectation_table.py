"""What came of a check of counts: the verdict with what must be read beside it, and a table of what is broken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsv4bench.dashboards.cells import cells_text, grouped, heading, settings
from dsv4bench.dashboards.expectation_rows import (
    COLUMNS,
    allowed,
    because,
    finding_cells,
    finding_plain,
    not_checked,
    number_text,
    outcome_plain,
    verdict,
)
from dsv4bench.dashboards.table import Cell, Table, cell
from dsv4bench.results.expectation_check import Finding, Outcome
from dsv4bench.results.record import Record

NOT_COUNTED = "not counted here"


def expectation_tables(outcome: Outcome[Record], allow_uncounted: bool = False) -> list[Table]:
    """Return the verdict as a title with notes, and a table for each set of cells that break the same entries."""
    broken = outcome.broken(allow_uncounted)
    of_cell = [(record, [one for one in broken if one.record is record]) for record in outcome.checked]
    parts = grouped((pair for pair in of_cell if pair[1]), lambda pair: (heading("", pair[0]), *map(_said, pair[1])))
    verdict_table = Table(verdict(outcome, allow_uncounted), (), (), tuple(_notes(outcome, allow_uncounted)))
    return [verdict_table, *(_broken_table([record for record, _ in part], part[0][1]) for part in parts)]


def expectations_plain(outcome: Outcome[Record], allow_uncounted: bool = False) -> dict[str, Any]:
    """Return the outcome as plain values for JSON: the verdict, every finding, and what was not checked."""
    findings = [finding_plain(one, _cell_plain(one.record)) for one in outcome.findings]
    said, broken = verdict(outcome, allow_uncounted), len(outcome.broken(allow_uncounted))
    return {
        **outcome_plain(outcome, said, broken, findings),
        "unmeasured": [{**_cell_plain(one), "status": one.status, "reason": one.reason} for one in outcome.unmeasured],
        "incomplete": [_cell_plain(one) for one in outcome.incomplete],
    }


def _said(one: Finding[Record]) -> tuple[int, str, str, int | None]:
    return one.entry.number, str(one.place), one.counted, one.found


def _broken_table(records: Sequence[Record], broken: Sequence[Finding[Record]]) -> Table:
    rows = tuple(finding_cells(one, _found(one)) for one in broken)
    notes = [f"{cells_text(same)}; {_settings(same[0])}" for same in grouped(records, _settings)]
    return Table(heading("Broken", records[0]), COLUMNS, rows, (*notes, *because(broken)))


def _settings(record: Record) -> str:
    return f"reuse {record.variant.get('reuse')}, {settings(record)}"


def _found(one: Finding[Record]) -> Cell:
    if one.found is None:
        return cell(None, NOT_COUNTED)
    return cell(one.found, number_text(one.found, one.rows))


def _notes(outcome: Outcome[Record], allow_uncounted: bool) -> list[str]:
    """Return what was not checked, and why."""
    if not outcome.records:
        return ["no cell of an attention stack is here"]
    notes = not_checked(outcome)
    notes += [
        f"no counts: {cells_text(same)}; {_settings(same[0])} [{same[0].status}] {same[0].reason or ''}".rstrip()
        for same in grouped(outcome.unmeasured, lambda one: (one.status, one.reason, _settings(one)))
    ]
    notes += allowed(outcome, NOT_COUNTED) if allow_uncounted else []
    if outcome.incomplete:
        notes.append(f"not every device operation found its range: {cells_text(outcome.incomplete)}")
    return notes


def _cell_plain(record: Record) -> dict[str, Any]:
    return {
        "key": record.key,
        "engine": record.engine,
        "geometry": record.geometry,
        "mode": record.mode,
        "batch": record.batch,
        "variant": record.variant,
    }
