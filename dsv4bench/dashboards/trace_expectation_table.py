"""What came of expectations held against a trace: the verdict with its notes, and a table of what each rank breaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dsv4bench.dashboards.cells import grouped
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
from dsv4bench.dashboards.review_tables import NOT_RECORDED, between, kernel_title
from dsv4bench.dashboards.table import Cell, Column, Table, cell
from dsv4bench.results.expectation_check import Finding, Outcome
from dsv4bench.results.expectations import Values
from dsv4bench.results.trace_steps import TraceStep, numbers, unequal

STEPS = Column("in steps", ("steps",), right=False)
MOST_NAMES = 3  # of kernels without a place


def trace_tables(outcome: Outcome[TraceStep], trusted: Mapping[str, Values], allow_uncounted: bool) -> list[Table]:
    """Return the verdict as a title with notes, and a table of what is broken for each trace.

    `trusted` are the switches of the file that the trace does not tell.
    """
    broken = outcome.broken(allow_uncounted)
    title = verdict(outcome, allow_uncounted, "step")
    notes = [*not_checked(outcome), *_trust(trusted), *(allowed(outcome, NOT_RECORDED) if allow_uncounted else [])]
    notes += [text for same in _traces(outcome.records) for text in unequal(same)]
    tables = [
        _broken_table(same, outcome.findings, [one for one in broken if one.record in same])
        for same in _traces(outcome.records)
    ]
    return [Table(title, (), (), (*notes, *_coverage(outcome.records))), *(one for one in tables if one.rows)]


def trace_plain(outcome: Outcome[TraceStep], trusted: Mapping[str, Values], allow_uncounted: bool) -> dict[str, Any]:
    """Return the outcome as plain values for JSON: that of records, with the steps of a trace for cells."""
    findings = [finding_plain(one, _step_plain(one.record)) for one in outcome.findings]
    said, broken = verdict(outcome, allow_uncounted, "step"), len(outcome.broken(allow_uncounted))
    return {
        **outcome_plain(outcome, said, broken, findings),
        "trusted": {name: list(values) for name, values in trusted.items()},
        "steps": [
            {**_step_plain(one), "operations": one.total, "unplaced": dict(one.unplaced), "outside": one.outside}
            for one in outcome.records
        ],
        "method": _methods(outcome.records),
        "notes": list(dict.fromkeys(note for one in outcome.records for note in one.notes)),
    }


def _traces(steps: Sequence[TraceStep]) -> list[list[TraceStep]]:
    return grouped(steps, lambda step: (step.source, step.rank))


def _broken_table(
    steps: Sequence[TraceStep], findings: Sequence[Finding[TraceStep]], broken: Sequence[Finding[TraceStep]]
) -> Table:
    """Return each broken sum of a trace once, with what its steps have of it and those in which it is broken."""
    own = [one for one in findings if one.record in steps]
    rows = tuple(
        (*finding_cells(same[0], _found([one for one in own if _key(one) == _key(same[0])], steps)), _in(same, steps))
        for same in grouped(broken, _key)
    )
    first = steps[0]
    rank = "" if first.rank is None else f", rank {first.rank}"
    title = f"Broken, {Path(first.source).name}: {first.mode}, {first.device or 'a device without a name'}{rank}"
    return Table(title, (*COLUMNS, STEPS), rows, tuple(because(broken)))


def _key(one: Finding[TraceStep]) -> tuple[int, str, str]:
    return one.entry.number, str(one.place), one.counted


def _found(same: Sequence[Finding[TraceStep]], steps: Sequence[TraceStep]) -> Cell:
    """Return the number that every step has, or the least and the most; a step without a row of it has 0."""
    known = [one.found for one in same if one.found is not None]
    if len(known) < len(same):
        return cell(None, NOT_RECORDED)
    least, most = min(known) if len(same) == len(steps) else 0, max(known)
    value = most if least == most else between(least, most)
    return cell(value, number_text(value, sum(one.rows for one in same)))


def _in(same: Sequence[Finding[TraceStep]], steps: Sequence[TraceStep]) -> Cell:
    """Return the steps in which a sum is broken; of a trace of one step there is nothing to say."""
    text = "all" if len(same) == len(steps) else numbers(one.record.number for one in same)
    return cell(text, "" if len(steps) == 1 else text)


def _trust(trusted: Mapping[str, Values]) -> list[str]:
    """Return what the file says of the trace and the trace does not."""
    said = ", ".join(f"{name} {' or '.join(map(str, values))}" for name, values in trusted.items())
    return [f"taken from the file, since the trace does not tell: {said}"] if said else []


def _coverage(steps: Sequence[TraceStep]) -> list[str]:
    """Return how many operations found their place and how, which kernels did not, and what was left out."""
    total, unplaced = sum(step.total for step in steps), Counter[str]()
    for step in steps:
        unplaced.update(step.unplaced)
    notes = [f"places: {total - unplaced.total()} of {total} operations; method: {_methods(steps)}"]
    notes += [f"without an operation or kv_source of the step: {_names(unplaced)}"] if unplaced else []
    outside = sum(same[0].outside for same in _traces(steps))
    notes += [f"{outside} operations outside of the checked steps are not counted"] if outside else []
    notes += ["the trace marks no steps: all of it is one"] if any(step.number is None for step in steps) else []
    return [*notes, *dict.fromkeys(note for step in steps for note in step.notes)]


def _names(unplaced: Counter[str]) -> str:
    """Return the kernels that most of them are, and how many others there are."""
    most = unplaced.most_common(MOST_NAMES)
    rest = unplaced.total() - sum(count for _, count in most)
    return ", ".join(
        [*(f"{count} {kernel_title(name)}" for name, count in most), *([f"{rest} others"] if rest else [])]
    )


def _methods(steps: Sequence[TraceStep]) -> str:
    return "; ".join(dict.fromkeys(step.how for step in steps))


def _step_plain(step: TraceStep) -> dict[str, Any]:
    return {
        "trace": step.source,
        "rank": step.rank,
        "step": step.number,
        "engine": step.engine,
        "mode": step.mode,
        "variant": dict(step.variant),
    }
