"""What `dsv4bench history` does after parsing: read all folders as one frame, choose cells, print."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dsv4bench.dashboards.history_tables import history_tables
from dsv4bench.dashboards.render import show_tables
from dsv4bench.errors import UsageError
from dsv4bench.results.frame_cache import read_frame
from dsv4bench.results.histories import History, histories


def run_history(folders: Sequence[Path], wanted: Mapping[str, Sequence[Any]], form: str) -> None:
    """Print the histories of the cells that are wanted; UsageError where there are no records."""
    reading = read_frame(folders)
    for warning in reading.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if reading.frame.empty:
        raise UsageError(f"{' '.join(map(str, folders))}: no records here")
    found = histories(reading.frame, wanted)
    if form == "json":
        print(json.dumps([_plain(one) for one in found], indent=1, allow_nan=False))
    elif form == "jsonl":
        for one in found:
            print(json.dumps(_plain(one), allow_nan=False))
    else:
        show_tables(history_tables(found), form, sys.stdout)


def _plain(one: History) -> dict[str, Any]:
    """Return a cell and its records as a JSON object."""
    rows = [{**row, "created": None if row["created"] is None else row["created"].isoformat()} for row in one.rows]
    return {**one.cell, "records": rows}
