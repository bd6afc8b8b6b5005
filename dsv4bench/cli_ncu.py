"""`dsv4bench kernels --once | --ncu | --ncu-report FILE`: one kernel under Nsight Compute, and its report read back."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dsv4bench.cli import NOTHING, OK
from dsv4bench.dashboards.ncu_table import ncu_table
from dsv4bench.dashboards.render import show_tables
from dsv4bench.errors import CellSkipped, TraceFormatError, UsageError
from dsv4bench.kernels.layout import LAYOUTS
from dsv4bench.profiling.kernel_once import call_once
from dsv4bench.results.ncu import read_ncu
from dsv4bench.workloads.kernel_cells import KernelArguments, KernelCell, kernel_cells

NO_NCU = (
    "ncu is not installed here (Nsight Compute): run the command where it is, then read its report with --ncu-report"
)


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for: one of the three."""

    typed: KernelArguments
    once: bool
    ncu: bool
    report: Path | None
    form: str
    src: Path | None = None


def run_ncu(request: Request) -> int:
    """Read a report, print the commands, or make the one call; return the exit code."""
    if request.report is not None:
        return _show_report(request.report, request.form)
    # the command is for a machine with a GPU, wherever it is printed
    groups = kernel_cells(request.typed, elsewhere=request.ncu)
    cells = [cell for group in groups for cell in group]
    if request.ncu:
        for cell in [cell for cell in cells if cell.provider != "torch"] or cells:
            print(ncu_command(cell, request.src))
        if shutil.which("ncu") is None:
            print(NO_NCU, file=sys.stderr)
        return OK
    if len(cells) != 1:
        raise UsageError(f"--once: {len(cells)} calls; expected one: say --rows, --kv or --case, and --provider")
    try:
        call_once(cells[0])
    except CellSkipped as error:
        print(f"skipped: {error}", file=sys.stderr)
        return NOTHING
    return OK


def ncu_command(cell: KernelCell, src: Path | None = None) -> str:
    """Return the command that profiles every launch of one call of `cell` on the tree `src`, its warm-up left out."""
    words = [cell.kernel, *_case(cell), *([] if cell.rows is None else ["--rows", str(cell.rows)])]
    words += ["--provider", cell.provider, "--seed", str(cell.seed), *(["--src", str(src)] if src else []), "--once"]
    ncu = ["ncu", "--profile-from-start", "off", "--set", "full", "--export", report_name(cell), "--force-overwrite"]
    return shlex.join([*ncu, "python", "-m", "dsv4bench", "kernels", *words])


def report_name(cell: KernelCell) -> str:
    """Return the name of a report's file, without its ending."""
    words = [cell.kernel, cell.case, str(cell.rows or ""), cell.provider]
    return "-".join("".join(sign if sign.isalnum() else "_" for sign in word) for word in words if word)


def _case(cell: KernelCell) -> Sequence[str]:
    if not cell.case:
        return []
    return ["--kv", cell.case] if cell.case in LAYOUTS else ["--case", cell.case]


def _show_report(path: Path, form: str) -> int:
    try:
        launches = read_ncu(_report_text(path), str(path))
    except TraceFormatError as error:
        raise UsageError(f"--ncu-report {error}") from error
    if form in ("json", "jsonl"):
        rows = json.loads(launches.to_json(orient="records"))
        lines = [json.dumps(rows, indent=1)] if form == "json" else [json.dumps(row) for row in rows]
        print(*lines, sep="\n")
    else:
        show_tables([ncu_table(launches, f"Nsight Compute: {path.name}")], form, sys.stdout)
    return OK if len(launches) else NOTHING


def _report_text(path: Path) -> str:
    """Return the raw CSV: of the file itself, or what ncu prints of its report."""
    if not path.is_file():
        raise UsageError(f"--ncu-report {path}: no such file")
    if path.suffix == ".csv":
        return path.read_text(encoding="utf-8", errors="replace")
    if shutil.which("ncu") is None:
        raise UsageError(f"--ncu-report {path}: {NO_NCU.split(':')[0]}; a CSV of `ncu --csv --page raw` needs no ncu")
    command = ["ncu", "--import", str(path), "--csv", "--page", "raw"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"--ncu-report {path}: ncu says: {(done.stdout + done.stderr).strip().splitlines()[-1:]}")
    return done.stdout
