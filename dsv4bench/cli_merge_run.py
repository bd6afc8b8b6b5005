"""What `dsv4bench merge` does after parsing: read, join, work out what is missing, print."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dsv4bench.cli import INCOMPLETE, OK
from dsv4bench.cli_merge_plan import plans_left
from dsv4bench.dashboards.merge_tables import merge_tables
from dsv4bench.dashboards.render import show_tables
from dsv4bench.results.merged import Merged, PlanLeft, check_place, read_sessions, write_sessions


def run_merge(folders: Sequence[Path], out: Path, form: str) -> int:
    """Run the command and return its exit code."""
    check_place(out, folders)
    merged = read_sessions(folders)
    files = write_sessions(merged.sessions, out)
    _tell(*(f"warning: {warning}" for warning in merged.warnings))
    plans = plans_left(merged.records)
    if form in ("json", "jsonl"):
        print(json.dumps(_plain(merged, files, plans), indent=1 if form == "json" else None, allow_nan=False))
    else:
        show_tables(merge_tables(merged, files, plans), form, sys.stdout)
    left = [plan for plan in plans if plan.missing]
    for plan in left:
        _tell("what is missing runs with", f"  {shlex.join([*plan.command, '--resume', str(out)])}")
    return INCOMPLETE if left else OK


def _plain(merged: Merged, files: Sequence[Path], plans: Sequence[PlanLeft]) -> dict[str, Any]:
    """Return what was joined and what is missing as a JSON object."""
    sessions = [
        {"file": path.name, "from": str(session.file), "records": len(session.records)}
        for path, session in zip(files, merged.sessions, strict=True)
    ]
    return {
        "out": str(files[0].parent),
        "sessions": sessions,
        "copies": merged.copies,
        "warnings": merged.warnings,
        "measured_again": merged.measured_again,
        "plans": [asdict(plan) for plan in plans],
    }


def _tell(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr)
