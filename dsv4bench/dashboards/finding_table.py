"""What the doctor found, as sentences with their numbers and the command that would record it right."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4bench.dashboards.table import Cell, Column, Table, cell
from dsv4bench.results.reviews import Finding

COLUMNS = tuple(Column("", (name,)) for name in ("code", "wrong", "text", "evidence", "command"))  # read as notes


def finding_table(findings: Sequence[Finding]) -> Table:
    """Return one note for each finding, "wrong" before those that make counts unusable."""
    wrong = sum(one.wrong for one in findings)
    title = f"Findings: {len(findings)}, {wrong} of which make counts wrong" if findings else "Findings: none"
    notes = [line for one in findings for line in _lines(one)]
    return Table(title, COLUMNS, tuple(map(_row, findings)), tuple(notes))


def evidence_text(finding: Finding) -> str:
    """Return the numbers behind a finding, e.g. "graph_runs=10 kernel_rows=30"."""
    return " ".join(f"{name}={value}" for name, value in finding.evidence.items())


def _lines(finding: Finding) -> list[str]:
    grade = "wrong" if finding.wrong else "note"
    evidence = f" [{evidence_text(finding)}]" if finding.evidence else ""
    return [
        f"{grade}: {finding.code}: {finding.text}{evidence}",
        *([f"  -> {finding.command}"] if finding.command else []),
    ]


def _row(finding: Finding) -> tuple[Cell, ...]:
    plain = (finding.code, finding.wrong, finding.text, evidence_text(finding), finding.command)
    return tuple(cell(value) for value in plain)
