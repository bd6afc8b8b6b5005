"""What `dsv4bench plot` and `dsv4bench report` do after parsing: read, draw, write."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dsv4bench.dashboards.figures import draw
from dsv4bench.errors import UsageError
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
