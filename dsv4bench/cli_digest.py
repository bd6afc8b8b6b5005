"""`dsv4bench kernels --digest`: the same inputs through two source trees, in fresh processes with empty JIT caches."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dsv4bench.cli import FAILED, NOTHING, OK
from dsv4bench.cli_source import OWN_ROOT, source_environment, source_tree, unpack
from dsv4bench.dashboards.digest_table import digest_table
from dsv4bench.dashboards.render import show_tables
from dsv4bench.errors import DsvError, UsageError
from dsv4bench.profiling import digest_child
from dsv4bench.profiling.child import child_command
from dsv4bench.profiling.digest_jobs import Saved, digest_cells, save_jobs, subject
from dsv4bench.profiling.process import said_last
from dsv4bench.results.digests import DigestRow, Outcome, complaints, digest_rows
from dsv4bench.workloads.kernel_cells import KernelArguments, kernel_cells

OWN_TREE = "this tree"


def run_digest(typed: KernelArguments, a: str, b: str, control: str | None, form: str) -> int:
    """Print a table (or JSON) of digests; return 1 if some differ or the control does not, 4 if nothing can run."""
    epsilon = None if control is None else _epsilon(control)
    cells, reasons = digest_cells(kernel_cells(typed))
    for reason in reasons:
        print(f"skipped: {reason}", file=sys.stderr)
    if not cells:
        return NOTHING
    with tempfile.TemporaryDirectory(prefix="dsv4bench-digest-") as name:
        folder = Path(name)
        trees = [_tree(text, folder / side, f"--{side}-src") for side, text in (("a", a), ("b", b))]
        saved = save_jobs(cells, folder, epsilon)
        outcomes = [_both(saved, tree, folder, side) for side, tree in zip("ab", trees, strict=True)]
        perturbed = None if epsilon is None else _controls(saved, trees[1], folder)
    rows = digest_rows([subject(cell) for cell in cells], outcomes[0], outcomes[1], perturbed)
    wrong = complaints(rows, epsilon is not None)
    _print(rows, a or OWN_TREE, b or OWN_TREE, wrong, form)
    return FAILED if wrong else OK


def _epsilon(text: str) -> float:
    try:
        epsilon = float(text)
    except ValueError:
        epsilon = math.nan
    if not 0 < epsilon < math.inf:
        raise UsageError(f"--control {text}: expected a number above 0")
    return epsilon


def _both(saved: Sequence[Saved], tree: Path, folder: Path, name: str) -> list[Outcome]:
    """Return what came of every job on a tree; an error for one that could not be drawn."""
    found = iter(_outcomes(tree, folder, [one.job for one in saved if one.job], name))
    return [next(found) if one.job else {"error": one.error} for one in saved]


def _controls(saved: Sequence[Saved], tree: Path, folder: Path) -> list[Outcome]:
    """Return what came of every perturbed job, with what was perturbed; nothing for one that has none."""
    found = iter(_outcomes(tree, folder, [one.control for one in saved if one.control], "control"))
    return [{**next(found), "perturbed": one.perturbed} if one.control else {} for one in saved]


def _print(rows: Sequence[DigestRow], a: str, b: str, wrong: Sequence[str], form: str) -> None:
    if form in ("json", "jsonl"):
        plain = [row.plain() for row in rows]
        lines = [json.dumps(plain, indent=1)] if form == "json" else [json.dumps(one) for one in plain]
        print(*lines, sep="\n")
    else:
        verdict = [] if wrong else ["every output is equal, byte for byte"]
        show_tables([digest_table(rows, a, b, [*wrong, *verdict])], form, sys.stdout)


def _outcomes(tree: Path, folder: Path, jobs: Sequence[Path], name: str) -> list[Outcome]:
    """Run jobs on one tree, with caches of its own; one that ends its process is an error, and another one goes on."""
    caches = folder / f"caches-{name}"
    caches.mkdir()
    environment = source_environment(tree, TRITON_CACHE_DIR=str(caches / "triton"), XDG_CACHE_HOME=str(caches))
    found: list[Outcome] = []
    while len(found) < len(jobs):
        found += _process(tree, environment, folder / f"results-{name}", jobs[len(found) :], name)
    return found


def _process(tree: Path, environment: dict[str, str], results: Path, jobs: Sequence[Path], name: str) -> list[Outcome]:
    """Run the child and return the outcomes of the jobs it came to; DsvError if it came to none of this tree."""
    results.unlink(missing_ok=True)
    command = [*child_command(sys.executable, digest_child.__file__), str(results), *map(str, jobs)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    died = f"the process on {name} ended with code {done.returncode}: {said_last(done.stderr) or 'no message'}"
    if not lines:
        raise DsvError(died)
    root, *outcomes = map(json.loads, lines)
    if (tree / "dsv4bench").is_dir() and Path(root["root"]) != tree.resolve():
        raise DsvError(f"the process on {name} took dsv4bench from {root['root']}, not from {tree}")
    return outcomes if outcomes and not done.returncode else [*outcomes, {"error": died}]


def _tree(text: str, folder: Path, option: str) -> Path:
    """Return the directory of a source tree: this package's own for "", a directory, or a git ref unpacked."""
    if not text:
        return OWN_ROOT
    if Path(text).is_dir():
        return source_tree(Path(text), option).root
    reason = unpack(OWN_ROOT, text, folder, "dsv4bench")
    if reason is not None:
        raise UsageError(f"{option} {text}: neither a directory nor a git ref of this checkout: {reason}")
    return folder
