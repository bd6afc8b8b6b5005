"""`--resume DIR`: what an earlier run has finished, and how one that was stopped goes on."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from dsv4bench.cli import INTERRUPTED
from dsv4bench.results.compare import PLACE, without
from dsv4bench.results.store import begun_directory, finished_keys
from dsv4bench.units import format_count


def finished_before(resume: Path | None) -> frozenset[str]:
    """Return the keys of the cells that the run to go on with has finished; UsageError where that is missing."""
    return frozenset() if resume is None else frozenset(finished_keys(begun_directory(resume)))


def tell_interrupted(directory: Path, kept: int, what: str = "new record") -> int:
    """Say on stderr what is kept after Ctrl-C, and how to go on; return the exit code."""
    print(f"interrupted: kept in {directory}: {format_count(kept, what)}; go on with", file=sys.stderr)
    print(f"  {resume_command(sys.argv[1:], directory)}", file=sys.stderr, flush=True)
    return INTERRUPTED


def resume_command(arguments: Sequence[str], directory: Path) -> str:
    """Return the command that goes on with a stopped run: the same one, with --resume in place of --out."""
    return shlex.join(["dsv4bench", *without(arguments, PLACE), "--resume", str(directory)])
