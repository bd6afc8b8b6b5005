"""What `dsv4bench check counts` does with a trace: open it, count each whole step, hold expectations against those."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dsv4bench.cli import INCOMPLETE, NOTHING, OK
from dsv4bench.cli_expect import RUN_ONLY, Request, exit_code, typed_cells
from dsv4bench.cli_trace_run import Reading, steps_asked
from dsv4bench.dashboards.render import show_tables
from dsv4bench.dashboards.trace_expectation_table import trace_plain, trace_tables
from dsv4bench.errors import TraceFormatError, UsageError
from dsv4bench.profiling.traces.doctor import examine
from dsv4bench.profiling.traces.placed import Placed
from dsv4bench.profiling.traces.review import chosen_steps
from dsv4bench.profiling.traces.step_counts import count_steps, sources_told
from dsv4bench.results.expectation_check import Outcome, check, having
from dsv4bench.results.expectations import Expectations, Values
from dsv4bench.results.reviews import whole
from dsv4bench.results.store import read_records
from dsv4bench.results.trace_steps import TraceStep, asks_sources, refuse_calls, refuse_untold, taken

ACCEPTS = "--allow-unattributed accepts that"


def run_trace(request: Request, path: Path, expectations: Expectations, form: str) -> int:
    """Run the command on a trace and return its exit code."""
    reading = _reading(request, path)
    if not request.allow_uncounted:
        refuse_calls(expectations)
    try:
        ranks = reading.placed(path)
    except TraceFormatError as error:
        raise UsageError(str(error)) from None
    steps = _steps(ranks, request, reading, asks_sources(expectations))
    why = _unusable(ranks, steps, request, asks_sources(expectations))
    if why is not None:
        print(f"{path}: {why[1]}", file=sys.stderr)
        return why[0]
    typed = typed_cells(request.typed)
    refuse_untold(expectations, [name for name, values in typed.items() if values], steps)
    cells = {**expectations.cells, **typed}
    trusted = taken(cells, steps)
    told = {name: values for name, values in cells.items() if name not in trusted}
    outcome = check(expectations, having(steps, told, str(path)))
    _show(outcome, trusted, request, form)
    code = exit_code(outcome, request.allow_uncounted)
    return code if code != INCOMPLETE else _incomplete(steps, request.trace.allow_unattributed)


def _incomplete(steps: Sequence[TraceStep], allow: bool) -> int:
    """Say how many operations have no place, and return 3 unless that is allowed."""
    if allow:
        return OK
    missing, total = sum(sum(step.unplaced.values()) for step in steps), sum(step.total for step in steps)
    print(f"{missing} of {total} operations have no place: {ACCEPTS}", file=sys.stderr)
    return INCOMPLETE


def _reading(request: Request, path: Path) -> Reading:
    """Return how the trace is to be read; UsageError for options of a run."""
    typed, options = dict(request.typed), request.trace
    geometries = typed.pop("geometry", None) or [""]
    asked = next((name for name in RUN_ONLY if name in typed), None)
    if asked is not None:
        raise UsageError(f"--{asked}: {path} is a trace, of a run that was made; expected no such option beside it")
    if len(geometries) > 1:
        raise UsageError(f"--geometry {','.join(geometries)}: expected one for a trace")
    return Reading(options.map, geometries[0], options.infer, "push-pop", options.ledger)


def _steps(ranks: Sequence[Placed], request: Request, reading: Reading, sources: bool) -> list[TraceStep]:
    """Return the whole steps of all ranks."""
    chosen = chosen_steps(ranks, steps_asked(request.trace.steps))
    variants = [_variant(placed, reading.ledger) for placed in ranks]
    counted = [
        count_steps(placed, whole(own), sources, variant)
        for placed, own, variant in zip(ranks, chosen, variants, strict=True)
    ]
    return [step for own in counted for step in own]


def _variant(placed: Placed, ledger: Path | None) -> Mapping[str, Any]:
    """Return the switches of the record that names this trace as its own, none where there is not one."""
    if ledger is None:
        return {}
    name = Path(placed.trace.source).name
    found = [record.variant for record in read_records(ledger).records if name in record.traces]
    return found[-1] if found else {}


def _unusable(
    ranks: Sequence[Placed], steps: Sequence[TraceStep], request: Request, sources: bool
) -> tuple[int, str] | None:
    """Return an exit code and why nothing can be held against the trace, or None where it can."""
    wrong = [one for one in examine(ranks) if one.wrong]
    if not any(step.total for step in steps):
        codes = ", ".join(one.code for one in wrong)
        return NOTHING, f"nothing to check: no device operation in a whole step{f' ({codes})' if codes else ''}"
    if wrong and not request.trace.allow_unattributed:
        return INCOMPLETE, f"its counts are wrong ({wrong[0].code}: {wrong[0].text}); {ACCEPTS}"
    if sources and not any(map(sources_told, ranks)):
        notes = "".join(f"; {note}" for note in ranks[0].notes)
        return INCOMPLETE, f"no operation of it has a kv_source, which entries ask for{notes}"
    return None


def _show(outcome: Outcome[TraceStep], trusted: Mapping[str, Values], request: Request, form: str) -> None:
    if form == "json":
        print(json.dumps(trace_plain(outcome, trusted, request.allow_uncounted), indent=1))
    else:
        show_tables(trace_tables(outcome, trusted, request.allow_uncounted), form, sys.stdout)
