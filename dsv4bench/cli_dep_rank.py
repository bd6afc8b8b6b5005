"""One rank that `prefill --dep` has started: `python -m dsv4bench.cli_dep_rank LAUNCHER JOB`, under torch's launcher.

Nothing heavy is imported before the process can end with its launcher, and on Ctrl-C without a word.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from dsv4bench.cli import FAILED, USAGE
from dsv4bench.errors import DsvError, UsageError
from dsv4bench.profiling.child import end_with
from dsv4bench.profiling.leave import leave_after

if TYPE_CHECKING:
    from dsv4bench.profiling.dep_rank import Screen

LAUNCHER_S = 5


def screen(rank: int, quiet: bool) -> Screen:
    """Return what a user sees of a rank: everything of rank 0, nothing of the others."""
    from dsv4bench.cli_progress import progress
    from dsv4bench.profiling.dep_rank import Screen

    return Screen(partial(progress, quiet=quiet or rank > 0), _tell if rank == 0 else _silent)


def _tell(line: str) -> None:
    print(f"dsv4bench: {line}", file=sys.stderr, flush=True)


def _silent(_line: str) -> None:
    """Say nothing."""


def main(launcher: int, text: str) -> int:
    """Do a job as the rank that the environment names; `launcher` is the process that started it."""
    rank = int(os.environ["RANK"])
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # rank 0 looks more often, and the others end with it: one that ended first would look lost
    end_with(launcher, LAUNCHER_S if rank == 0 else 4 * LAUNCHER_S, FAILED)
    from dsv4bench.cli_profile import recorder
    from dsv4bench.profiling.dep_rank import parse_job, run_rank

    job = replace(parse_job(text), local_rank=int(os.environ["LOCAL_RANK"]))
    seen = screen(rank, job.quiet)
    try:
        return run_rank(job, seen, recorder(job.host))
    except DsvError as error:
        seen.tell(str(error))
        return USAGE if isinstance(error, UsageError) else FAILED


if __name__ == "__main__":
    leave_after(partial(main, int(sys.argv[1]), sys.argv[2]))
