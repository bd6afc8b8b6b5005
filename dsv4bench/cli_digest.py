"""`dsv4bench kernels --digest`: the same inputs through two source trees, in fresh processes with empty JIT caches."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dsv4bench.cli import FAILED, NOTHING, OK
from dsv4bench.cli_source import source_environment, source_tree
from dsv4bench.dashboards.digest_table import digest_table
from dsv4bench.dashboards.tables import show_tables
from dsv4bench.errors import DsvError, UsageError
from dsv4bench.profiling import digest_child
from dsv4bench.profiling.digest_jobs import digest_cells, save_jobs, subject
from dsv4bench.results.digests import DigestRow, complaints, digest_rows
from dsv4bench.workloads.kernel_cells import KernelArguments, kernel_cells

OWN_ROOT = Path(__file__).resolve().parents[1]
OWN_TREE = "this tree"


def run_digest(typed: KernelArguments, a: str, b: str, control: float | None, form: str) -> int:
    """Print a table (or JSON) of digests; return 1 if some differ or the control does not, 4 if nothing can run."""
    cells, reasons = digest_cells(kernel_cells(typed))
    for reason in reasons:
        print(f"skipped: {reason}", file=sys.stderr)
    if not cells:
        return NOTHING
    with tempfile.TemporaryDirectory(prefix="dsv4bench-digest-") as name:
        folder = Path(name)
        trees = [_tree(text, folder / side, f"--{side}-src") for side, text in (("a", a), ("b", b))]
        save_jobs(cells, folder / "jobs.pt")
        if control is not None:
            save_jobs(cells, folder / "control.pt", control)
        outcomes = [_outcomes(tree, folder, "jobs.pt", side) for side, tree in zip("ab", trees, strict=True)]
        perturbed = None if control is None else _outcomes(trees[1], folder, "control.pt", "control")
    rows = digest_rows([subject(cell) for cell in cells], outcomes[0], outcomes[1], perturbed)
    wrong = complaints(rows, control is not None)
    _print(rows, a or OWN_TREE, b or OWN_TREE, wrong, form)
    return FAILED if wrong else OK


def _print(rows: Sequence[DigestRow], a: str, b: str, wrong: Sequence[str], form: str) -> None:
    if form in ("json", "jsonl"):
        plain = [row.plain() for row in rows]
        lines = [json.dumps(plain, indent=1)] if form == "json" else [json.dumps(one) for one in plain]
        print(*lines, sep="\n")
    else:
        verdict = [] if wrong else ["every output is equal, byte for byte"]
        show_tables([digest_table(rows, a, b, [*wrong, *verdict])], form, sys.stdout)


def _outcomes(tree: Path, folder: Path, jobs: str, name: str) -> list[dict[str, Any]]:
    """Run the child on one tree with caches of its own; DsvError if it does not come back."""
    caches, results = folder / f"caches-{name}", folder / f"results-{name}.json"
    caches.mkdir()
    environment = source_environment(tree, TRITON_CACHE_DIR=str(caches / "triton"), XDG_CACHE_HOME=str(caches))
    command = [sys.executable, digest_child.__file__, str(folder / jobs), str(results)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode or not results.exists():
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DsvError(f"the process on {name} ended with code {done.returncode}: {last}")
    found = json.loads(results.read_text(encoding="utf-8"))
    if (tree / "dsv4bench").is_dir() and Path(found["root"]) != tree.resolve():
        raise DsvError(f"the process on {name} took dsv4bench from {found['root']}, not from {tree}")
    outcomes: list[dict[str, Any]] = found["outcomes"]
    return outcomes


def _tree(text: str, folder: Path, option: str) -> Path:
    """Return the directory of a source tree: this package's own for "", a directory, or a git ref unpacked."""
    if not text:
        return OWN_ROOT
    if Path(text).is_dir():
        return source_tree(Path(text), option).root
    folder.mkdir()
    archive = folder / "tree.tar"
    command = ["git", "-C", str(OWN_ROOT), "archive", "--output", str(archive), text, "dsv4bench"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["git is not there"])[0]
        raise UsageError(f"{option} {text}: neither a directory nor a git ref of this checkout: {reason}")
    unpacked = folder / "tree"
    unpacked.mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(unpacked)], check=True)
    return unpacked
