"""What `dsv4bench plot` and `dsv4bench report` do after parsing: read, draw, write."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dsv4bench.dashboards.figures import draw
from dsv4bench.dashboards.report import Doctored, report
from dsv4bench.errors import DsvError, UsageError
from dsv4bench.results.record import Record
from dsv4bench.results.store import read_records, record_files


def run_plot(paths: Sequence[Path], folder: Path, with_model: bool) -> None:
    """Draw what the records of all paths can fill and print each file; UsageError where there is nothing to draw."""
    records = [record for _, record in read_all(paths)]
    files = draw(records, folder, with_model)
    first = next(files, None)
    if first is None:
        left = sum(record.label == "modelled" for record in records)
        hint = f"; {left} modelled records are drawn with --with-model" if left and not with_model else ""
        raise UsageError(f"{' '.join(map(str, paths))}: no step and no kernel with a time to draw{hint}")
    for file in (first, *files):
        print(file)


def run_report(paths: Sequence[Path], out: Path, with_model: bool) -> None:
    """Write the page and print where it is; UsageError where there is nothing to show or it cannot be written."""
    found = read_all(paths)
    records = [record for _, record in found]
    if not any(with_model or record.label != "modelled" for record in records):
        hint = f"; {len(records)} modelled ones are shown with --with-model" if records else ""
        raise UsageError(f"{' '.join(map(str, paths))}: no records here{hint}")
    page = report(records, doctored(found), with_model)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {out}: cannot write the page: {error.strerror}") from None
    print(out)


def doctored(found: Sequence[tuple[Path, Record]]) -> list[Doctored]:
    """Return what the doctor says of every trace that a record names, if it lies beside that record's file."""
    named = {(file.parent, name): None for file, record in found for name in record.traces}
    return [_doctored(folder, name) for folder, name in named]


def _doctored(folder: Path, name: str) -> Doctored:
    if Path(name).name != name or not (folder / name).exists():
        return Doctored(name, reason="does not lie beside the records")
    from dsv4bench.cli_trace_run import OFF, Reading
    from dsv4bench.profiling.traces.doctor import examine

    try:
        return Doctored(name, examine(Reading(None, "", OFF, "push-pop").placed(folder / name)))
    except DsvError as error:
        return Doctored(name, reason=f"cannot be read: {error}".replace(str(folder / name), name))


def read_all(paths: Sequence[Path]) -> list[tuple[Path, Record]]:
    """Return the records of all paths with their files, in the order of their making; warnings go to stderr."""
    files = {file.resolve(): file for path in paths for file in record_files(path)}  # each once, as it was named first
    found = []
    for file in files.values():
        reading = read_records(file)
        found += [(file, record) for record in reading.records]
        for warning in reading.warnings:
            print(f"warning: {warning}", file=sys.stderr)
    return sorted(found, key=lambda one: one[1].created)
