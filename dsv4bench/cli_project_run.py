"""What `dsv4bench project` does after parsing: read, cost, fit, project, keep, print."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dsv4bench.cli import NOTHING, OK
from dsv4bench.dashboards.projection_tables import projection_tables
from dsv4bench.dashboards.render import show_tables
from dsv4bench.dashboards.tables import FORMATS
from dsv4bench.errors import UsageError, nearest
from dsv4bench.results.compare import latest
from dsv4bench.results.peaks import read_peaks
from dsv4bench.results.projected import Model, measured_hosts, models, project, record
from dsv4bench.results.projection import Cell
from dsv4bench.results.record import Record
from dsv4bench.results.schema import encode, to_plain
from dsv4bench.results.store import open_store, read_records, run_directory
from dsv4bench.workloads.operation_costs import recorded_costs


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for."""

    runs: Sequence[Path]
    to: Sequence[str]
    peaks: Path | None
    out: Path | None
    form: str
    quiet: bool


def run_project(request: Request) -> int:
    """Run the command and return its exit code."""
    if request.form not in FORMATS:
        raise UsageError(
            f"--format {request.form}: expected one of {', '.join(FORMATS)}{nearest(request.form, FORMATS)}"
        )
    peaks = read_peaks(request.peaks)
    words = dict.fromkeys(word.strip() for text in request.to for word in text.split(","))
    targets = [peaks.device(word) for word in words]
    cells = [_cell(one) for one in _measured(request.runs)]
    found = models(cells, peaks)
    if not found:
        raise UsageError(
            f"{_named(request.runs)}: no record has whole device times, which the model is fitted on; expected a run of"
            " this version on a GPU, or one beside it, such as results/h200-graph-forms"
        )
    _tell_unused(cells, found)
    hosts = measured_hosts(cells, peaks)
    projected = [one for model in found for target in targets for one in project(model, target, peaks, hosts)]
    created = datetime.now(UTC).isoformat(timespec="seconds")
    records = [record(one, ("dsv4bench", *sys.argv[1:]), created) for one in projected]
    with open_store(request.out or run_directory("project")) as store:
        for one in records:
            store.append(one)
    if request.form == "json":
        print(json.dumps([to_plain(one) for one in records], indent=1, allow_nan=False))
    elif request.form == "jsonl":
        sys.stdout.writelines(map(encode, records))
    else:
        show_tables(projection_tables(projected), request.form, sys.stdout)
    if not request.quiet:
        print(f"records: {store.directory}", file=sys.stderr)
    return OK if any(one.status == "ok" for one in records) else NOTHING


def _tell_unused(cells: Sequence[Cell], found: Sequence[Model]) -> None:
    """Say on stderr of which machines nothing is projected, because nothing was profiled there."""
    used = {model.fit.machine for model in found}
    for machine in dict.fromkeys(cell.record.machine for cell in cells if cell.record.machine not in used):
        print(
            f"warning: {machine}: no whole device times, so only what launches cost its host is used", file=sys.stderr
        )


def _measured(runs: Sequence[Path]) -> list[Record]:
    """Return the measured steps of all runs that a GPU took; UsageError where there is none."""
    found: list[Record] = []
    for path in runs:
        reading = read_records(path)
        for warning in reading.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        found += reading.records
    steps = [one for one in latest(found) if one.kernel is None and one.status == "ok" and one.label == "measured"]
    on_gpu = [one for one in steps if one.engine == "gpu"]
    if not on_gpu:
        what = "steps of a CPU only" if steps else "no measured step"
        raise UsageError(f"{_named(runs)}: {what}; expected a run of `dsv4bench prefill` on a GPU")
    return on_gpu


def _named(runs: Sequence[Path]) -> str:
    return " ".join(map(str, runs))


def _cell(one: Record) -> Cell:
    """Return a record with the costs of its operations, or with the reason why they are not known."""
    try:
        return Cell(one, recorded_costs(one.geometry, one.batch, one.variant, one.ranks))
    except ValueError as error:
        return Cell(one, {}, str(error))
