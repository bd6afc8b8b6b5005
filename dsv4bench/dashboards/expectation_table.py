"""What came of a check of counts: the verdict with what must be read beside it, and a table of what is broken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dsv4bench.dashboards.cells import cells_text, grouped, heading, settings
from dsv4bench.dashboards.table import Cell, Column, Table, cell
from dsv4bench.results.expectation_check import Finding, Outcome
from dsv4bench.results.expectations import Bound, Expectation
from dsv4bench.results.record import Record

COLUMNS = (
    Column("entry", ("entry",)),
    Column("op", ("op",), right=False),
    Column("kv_source", ("kv_source",)),
    Column("where", ("where",), right=False),
    Column("class", ("class",), right=False),
    Column("expected", ("expected",)),
    Column("found", ("found",)),
)
NOT_COUNTED = "not counted here"


def expectation_tables(outcome: Outcome, allow_uncounted: bool = False) -> list[Table]:
    """Return the verdict as a title with notes, and a table for each set of cells that break the same entries."""
    broken = outcome.broken(allow_uncounted)
    of_cell = [(record, [one for one in broken if one.record is record]) for record in outcome.checked]
    parts = grouped((pair for pair in of_cell if pair[1]), lambda pair: (heading("", pair[0]), *map(_said, pair[1])))
    verdict_table = Table(verdict(outcome, allow_uncounted), (), (), tuple(_notes(outcome, allow_uncounted)))
    return [verdict_table, *(_broken_table([record for record, _ in part], part[0][1]) for part in parts)]


def verdict(outcome: Outcome, allow_uncounted: bool = False) -> str:
    """Return one line: how many expectations hold, or how many are broken and in how many cells."""
    name, cells = outcome.expectations.name, _plural(len(outcome.checked), "cell")
    broken = outcome.broken(allow_uncounted)
    checked = len(outcome.expectations.entries) - len(outcome.unchecked)
    failed = f"; {_plural(len(outcome.failed), 'cell')} failed or wrong" if outcome.failed else ""
    if not checked:
        return f"{name}: nothing to check{failed}"
    if not broken:
        hold = "the expectation holds" if checked == 1 else f"all {checked} expectations hold"
        return f"{name}: {hold}, in {cells}{failed}"
    entries, records = {one.entry.number for one in broken}, {id(one.record) for one in broken}
    return f"{name}: {len(entries)} of {_plural(checked, 'expectation')} broken, in {len(records)} of {cells}{failed}"


def expectations_plain(outcome: Outcome, allow_uncounted: bool = False) -> dict[str, Any]:
    """Return the outcome as plain values for JSON: the verdict, every finding, and what was not checked."""
    return {
        "expectations": outcome.expectations.name,
        "verdict": verdict(outcome, allow_uncounted),
        "findings": [_plain(one) for one in outcome.findings],
        "broken": len(outcome.broken(allow_uncounted)),
        "unchecked": [{"entry": one.number, "engine": list(one.engines)} for one in outcome.unchecked],
        "unmeasured": [{**_cell_plain(one), "status": one.status, "reason": one.reason} for one in outcome.unmeasured],
        "incomplete": [_cell_plain(one) for one in outcome.incomplete],
    }


def _plural(count: int, word: str) -> str:
    return f"1 {word}" if count == 1 else f"{count} {word}s"


def _said(one: Finding) -> tuple[int, str, str, int | None]:
    return one.entry.number, str(one.place), one.counted, one.found


def _broken_table(records: Sequence[Record], broken: Sequence[Finding]) -> Table:
    rows = tuple(
        (
            cell(one.entry.number),
            cell(_op(one)),
            cell(_source(one)),
            cell(_where(one)),
            cell(one.counted),
            cell(str(one.bound)),
            _found(one),
        )
        for one in broken
    )
    notes = [f"{cells_text(same)}; {_settings(same[0])}" for same in grouped(records, _settings)]
    entries = dict.fromkeys(_because(one.entry) for one in broken if one.entry.because)
    return Table(heading("Broken", records[0]), COLUMNS, rows, (*notes, *entries))


def _settings(record: Record) -> str:
    return f"reuse {record.variant.get('reuse')}, {settings(record)}"


def _because(entry: Expectation) -> str:
    return f"entry {entry.number}: {entry.because}"


def _op(one: Finding) -> str:
    ops = (one.place["op"],) if "op" in one.place else one.entry.ops
    if not ops:
        return "every op"
    return str(ops[0]) if len(ops) == 1 else f"{ops[0]} + {len(ops) - 1} more"


def _source(one: Finding) -> str:
    if "kv_source" in one.place:
        source = one.place["kv_source"]
        return "none" if source is None else str(source)
    return " ".join(map(str, one.entry.kv_sources)) or "all"


def _where(one: Finding) -> str:
    return str(one.place["where"]) if "where" in one.place else " ".join(one.entry.wheres)


def _found(one: Finding) -> Cell:
    if one.found is None:
        return cell(None, NOT_COUNTED)
    return cell(one.found, str(one.found) if one.rows else "0 (no row)")


def _notes(outcome: Outcome, allow_uncounted: bool) -> list[str]:
    """Return what was not checked, and why."""
    if not outcome.records:
        return ["no cell of an attention stack is here"]
    other = outcome.other_engine
    engines = ", ".join(dict.fromkeys(record.engine for record in outcome.records))
    notes = [
        f"not checked: {_entries(same)}, about {' or '.join(same[0].engines)}; ran on {engines}"
        for same in grouped(other, lambda one: one.engines)
    ]
    rest = [one for one in outcome.unchecked if one not in other]
    notes += [f"not checked: {_entries(rest)}; no cell that they speak of was measured"] if rest else []
    notes += [
        f"no counts: {cells_text(same)}; {_settings(same[0])} [{same[0].status}] {same[0].reason or ''}".rstrip()
        for same in grouped(outcome.unmeasured, lambda one: (one.status, one.reason, _settings(one)))
    ]
    if allow_uncounted and outcome.uncounted:
        classes = ", ".join(dict.fromkeys(one.counted for one in outcome.uncounted))
        notes.append(f"{NOT_COUNTED} and allowed: {classes} of {_entries([one.entry for one in outcome.uncounted])}")
    if outcome.incomplete:
        notes.append(f"not every device operation found its range: {cells_text(outcome.incomplete)}")
    return notes


def _entries(entries: Iterable[Expectation]) -> str:
    numbers = list(dict.fromkeys(entry.number for entry in entries))
    return f"{'entry' if len(numbers) == 1 else 'entries'} {', '.join(map(str, numbers))}"


def _plain(one: Finding) -> dict[str, Any]:
    return {
        "entry": one.entry.number,
        "cell": _cell_plain(one.record),
        "ops": list(one.entry.ops),
        **one.place,
        "class": one.counted,
        "expected": _bound_plain(one.bound),
        "found": one.found,
        "rows": one.rows,
        "holds": one.holds,
        "because": one.entry.because,
    }


def _bound_plain(bound: Bound) -> dict[str, int | None]:
    return {"min": bound.least, "max": bound.most}


def _cell_plain(record: Record) -> dict[str, Any]:
    return {
        "key": record.key,
        "engine": record.engine,
        "geometry": record.geometry,
        "mode": record.mode,
        "batch": record.batch,
        "variant": record.variant,
    }
