"""What is wrong with a trace as evidence: stable codes, the numbers behind each, and how to record it right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dsv4bench.profiling.traces.doctor_counts import COUNT_RULES, one_of_n_processes
from dsv4bench.profiling.traces.doctor_times import TIME_RULES
from dsv4bench.profiling.traces.placed import Placed
from dsv4bench.results.reviews import Finding


def examine(ranks: Sequence[Placed]) -> list[Finding]:
    """Return the findings of all rules, those that make counts wrong first; of several ranks each names its own."""
    found = [
        finding if len(ranks) == 1 else _of_rank(finding, placed, place)
        for place, placed in enumerate(ranks)
        for rule in (*COUNT_RULES, *TIME_RULES)
        if (finding := rule(placed)) is not None
    ]
    missing = one_of_n_processes(ranks)
    found += [missing] if missing is not None else []
    return sorted(found, key=lambda finding: not finding.wrong)


def _of_rank(finding: Finding, placed: Placed, place: int) -> Finding:
    rank = place if placed.trace.rank is None else placed.trace.rank
    return replace(finding, text=f"rank {rank}: {finding.text}", evidence={"rank": rank, **finding.evidence})
