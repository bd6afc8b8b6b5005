"""What tables of expectations have in common, whether records or the steps of a trace were held against them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dsv4bench.dashboards.cells import grouped
from dsv4bench.dashboards.table import Cell, Column, cell
from dsv4bench.results.expectation_check import C, Finding, Outcome
from dsv4bench.results.expectations import Bound, Expectation

COLUMNS = (
    Column("entry", ("entry",)),
    Column("op", ("op",), right=False),
    Column("kv_source", ("kv_source",)),
    Column("where", ("where",), right=False),
    Column("class", ("class",), right=False),
    Column("expected", ("expected",)),
    Column("found", ("found",)),
)


def verdict(outcome: Outcome[C], allow_uncounted: bool = False, what: str = "cell") -> str:
    """Return one line: how many expectations hold, or how many are broken and in how many cells (or what they are)."""
    name, cells = outcome.expectations.name, _plural(len(outcome.checked), what)
    broken = outcome.broken(allow_uncounted)
    checked = len(outcome.expectations.entries) - len(outcome.unchecked)
    failed = f"; {_plural(len(outcome.failed), what)} failed or wrong" if outcome.failed else ""
    if not checked:
        return f"{name}: nothing to check{failed}"
    if not broken:
        hold = "the expectation holds" if checked == 1 else f"all {checked} expectations hold"
        return f"{name}: {hold}, in {cells}{failed}"
    entries, records = {one.entry.number for one in broken}, {id(one.record) for one in broken}
    return f"{name}: {len(entries)} of {_plural(checked, 'expectation')} broken, in {len(records)} of {cells}{failed}"


def finding_cells(one: Finding[C], found: Cell) -> tuple[Cell, ...]:
    """Return the cells of `COLUMNS`, the last one as it is given."""
    place = (cell(one.entry.number), cell(_op(one)), cell(_source(one)), cell(_where(one)))
    return (*place, cell(one.counted), cell(str(one.bound)), found)


def number_text(number: int | str, rows: int) -> str:
    """Return a sum as it is read: that of no row says so."""
    return str(number) if rows else f"{number} (no row)"


def because(found: Iterable[Finding[C]]) -> list[str]:
    """Return why the entries of these findings were written, each once."""
    entries = [one.entry for one in found if one.entry.because]
    return list(dict.fromkeys(f"entry {entry.number}: {entry.because}" for entry in entries))


def not_checked(outcome: Outcome[C]) -> list[str]:
    """Return which entries nothing was held against, and why."""
    other = outcome.other_engine
    engines = ", ".join(dict.fromkeys(record.engine for record in outcome.records))
    notes = [
        f"not checked: {entries_text(same)}, about {' or '.join(same[0].engines)}; ran on {engines}"
        for same in grouped(other, lambda one: one.engines)
    ]
    rest = [one for one in outcome.unchecked if one not in other]
    return [*notes, *([f"not checked: {entries_text(rest)}; no cell that they speak of was measured"] if rest else [])]


def allowed(outcome: Outcome[C], missing: str) -> list[str]:
    """Return a sentence on the classes that were `missing` (not counted, not recorded) and are let through."""
    if not outcome.uncounted:
        return []
    classes = ", ".join(dict.fromkeys(one.counted for one in outcome.uncounted))
    return [f"{missing} and allowed: {classes} of {entries_text([one.entry for one in outcome.uncounted])}"]


def entries_text(entries: Iterable[Expectation]) -> str:
    """Return "entry 4", or "entries 1, 2"."""
    numbers = list(dict.fromkeys(entry.number for entry in entries))
    return f"{'entry' if len(numbers) == 1 else 'entries'} {', '.join(map(str, numbers))}"


def outcome_plain(outcome: Outcome[C], said: str, broken: int, findings: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the JSON of every outcome has: the file, the verdict, the findings and what was not checked."""
    return {
        "expectations": outcome.expectations.name,
        "verdict": said,
        "findings": findings,
        "broken": broken,
        "unchecked": [{"entry": one.number, "engine": list(one.engines)} for one in outcome.unchecked],
    }


def finding_plain(one: Finding[C], where: dict[str, Any]) -> dict[str, Any]:
    """Return a finding as plain values; `where` says in which cell it was found."""
    return {
        "entry": one.entry.number,
        "cell": where,
        "ops": list(one.entry.ops),
        **one.place,
        "class": one.counted,
        "expected": _bound_plain(one.bound),
        "found": one.found,
        "rows": one.rows,
        "holds": one.holds,
        "because": one.entry.because,
    }


def _plural(count: int, word: str) -> str:
    return f"1 {word}" if count == 1 else f"{count} {word}s"


def _op(one: Finding[C]) -> str:
    ops = (one.place["op"],) if "op" in one.place else one.entry.ops
    if not ops:
        return "every op"
    return str(ops[0]) if len(ops) == 1 else f"{ops[0]} + {len(ops) - 1} more"


def _source(one: Finding[C]) -> str:
    if "kv_source" in one.place:
        source = one.place["kv_source"]
        return "none" if source is None else str(source)
    return " ".join(map(str, one.entry.kv_sources)) or "all"


def _where(one: Finding[C]) -> str:
    return str(one.place["where"]) if "where" in one.place else " ".join(one.entry.wheres)


def _bound_plain(bound: Bound) -> dict[str, int | None]:
    return {"min": bound.least, "max": bound.most}
