"""What `dsv4bench check counts` does after parsing: read or run the cells, hold expectations against them, print.

Traces are read by `cli_expect_trace.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dsv4bench.cli import FAILED, INCOMPLETE, INTERRUPTED, NOTHING, OK
from dsv4bench.dashboards import expectation_table
from dsv4bench.dashboards.render import show_tables
from dsv4bench.errors import UsageError, nearest
from dsv4bench.results.expectation_check import C, Outcome, check, chosen
from dsv4bench.results.expectations import CELLS, read_expectations
from dsv4bench.results.record import Record
from dsv4bench.results.store import open_store, read_records

FORMATS = ("table", "md", "json")
TRACES = (".sqlite", ".nsys-rep", ".json", ".gz")
# what a run made here needs and records already have
RUN_ONLY = ("batch", "extend", "prefix", "provider", "geometry", "device", "seed", "fault", "out")

Cells = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The options about a trace alone: a file of patterns, whose layers to infer, records, steps, and gaps allowed."""

    map: Path | None = None
    infer: str = "v41-flash"
    ledger: Path | None = None
    steps: str = ""
    allow_unattributed: bool = False

    @property
    def given(self) -> list[str]:
        """The names of the options that were typed."""
        names = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        return [name.replace("_", "-") for name in names]


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for; `typed` are the options that were given, by the names of `prefill`'s arguments."""

    expect: str
    path: Path | None
    typed: Mapping[str, Any]
    out: Path | None = None
    allow_uncounted: bool = False
    form: str = "table"
    quiet: bool = False
    trace: TraceOptions = TraceOptions()


def run_check(request: Request) -> int:
    """Run the command and return its exit code."""
    form = _form(request.form)
    expectations = read_expectations(request.expect)
    cells = {**expectations.cells, **typed_cells(request.typed)}
    asked = {name: value for name, value in request.typed.items() if name in RUN_ONLY}
    if request.path is not None and is_trace(request.path):
        from dsv4bench.cli_expect_trace import run_trace

        return run_trace(request, request.path, expectations, form)
    if request.trace.given:
        raise UsageError(f"--{request.trace.given[0]}: is about a trace; expected the PATH of one")
    if request.path is None:
        try:
            found = _run(asked, cells, request.out, request.quiet)
        except KeyboardInterrupt:
            print("interrupted: nothing was checked", file=sys.stderr)
            return INTERRUPTED
    else:
        found = _read(request.path, cells, asked)
    outcome = check(expectations, found)
    _show(outcome, request.allow_uncounted, form)
    return exit_code(outcome, request.allow_uncounted)


def exit_code(outcome: Outcome[C], allow_uncounted: bool = False) -> int:
    """Return 1 if an expectation is broken or a cell failed, 4 if one found nothing to check, 3 for gaps in counts."""
    if outcome.broken(allow_uncounted) or outcome.failed:
        return FAILED
    if not outcome.findings or len(outcome.unchecked) > len(outcome.other_engine):
        return NOTHING
    return INCOMPLETE if outcome.incomplete else OK


def is_trace(path: Path) -> bool:
    """Return whether a path is a trace or a folder of them; records win, beside which `prefill` lays its traces."""
    records = any(path.rglob("*.jsonl")) if path.is_dir() else path.suffix == ".jsonl"
    if records or not path.exists():
        return False
    from dsv4bench.profiling.traces import open_trace

    return path.suffix in TRACES or open_trace.is_trace(path)


def _form(form: str) -> str:
    if form not in FORMATS:
        raise UsageError(f"--format {form}: expected one of {', '.join(FORMATS)}{nearest(form, FORMATS)}")
    return form


def typed_cells(typed: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the switches that were typed, by their names, each with its values; of "both" there is none to ask for."""
    found: dict[str, tuple[Any, ...]] = {}
    for name in CELLS:
        value = typed.get(name.replace("-", "_"))
        if value is not None:
            words = (value,) if isinstance(value, bool) else _split(value)
            found[name] = () if "both" in words else words
    return found


def _split(texts: list[str]) -> tuple[str, ...]:
    return tuple(word.strip() for text in texts for word in text.split(","))


def _read(path: Path, cells: Cells, asked: Mapping[str, Any]) -> list[Record]:
    """Return the cells of `path` that are to be checked; UsageError for options of a run."""
    if asked:
        raise UsageError(f"--{next(iter(asked))}: {path} has its cells already; expected no PATH beside it")
    reading = read_records(path)
    for warning in reading.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return chosen(reading.records, cells, str(path))


def _run(asked: Mapping[str, Any], cells: Cells, out: Path | None, quiet: bool) -> list[Record]:
    """Run the cells of a prefill on this device, one sample each: counts need no statistics."""
    from dsv4bench import cli_progress
    from dsv4bench.profiling import sweep
    from dsv4bench.profiling.session import open_session
    from dsv4bench.workloads.cells import cells as cells_of
    from dsv4bench.workloads.memory import free_bytes, refuse_too_large
    from dsv4bench.workloads.options import PrefillArguments, prefill_options

    arguments = {name: value for name, value in asked.items() if name != "out"} | _arguments(cells)
    meant = prefill_options(PrefillArguments(**arguments, samples="1", quick=True))
    plan = cells_of(meant)
    refuse_too_large(plan, free_bytes(meant.device))
    session = open_session(meant.device, meant.samples, meant.quick, ("dsv4bench", *sys.argv[1:]), meant.notes)
    found: list[Record] = []
    with open_store(out) if out else nullcontext() as store, cli_progress.progress(len(plan), quiet) as report:
        for records in sweep.run(plan, session, progress=report):
            found += records
            if store is not None:
                for record in records:
                    store.append(record)
    return found


def _arguments(cells: Cells) -> dict[str, Any]:
    """Return the arguments of a run of these cells; without a value every one is meant."""
    found: dict[str, Any] = {}
    for name, values in cells.items():
        if name == "graph":
            found[name] = values[0] if len(set(values)) == 1 else None
        else:
            found[name.replace("-", "_")] = list(map(str, values)) or ["both"]
    return found


def _show(outcome: Outcome[Record], allow_uncounted: bool, form: str) -> None:
    if form == "json":
        print(json.dumps(expectation_table.expectations_plain(outcome, allow_uncounted), indent=1))
    else:
        show_tables(expectation_table.expectation_tables(outcome, allow_uncounted), form, sys.stdout)
