"""`prefill --dep N`: ranks as real processes, started by torch's launcher or found in the environment of a job."""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dsv4bench.cli import FAILED, INTERRUPTED, OK, USAGE
from dsv4bench.cli_dep_rank import screen
from dsv4bench.cli_place import Place, place_of
from dsv4bench.cli_profile import recorder
from dsv4bench.cli_shard import directory_of
from dsv4bench.cli_source import SourceTree
from dsv4bench.errors import DsvError, UsageError
from dsv4bench.profiling import sweep
from dsv4bench.profiling.dep_rank import Job, run_rank, trace_folder
from dsv4bench.profiling.profile_pass import TOOLS, jobs_of
from dsv4bench.profiling.session import Session, open_session
from dsv4bench.results.store import finished_keys, read_records
from dsv4bench.workloads.cells import Group
from dsv4bench.workloads.options import PrefillArguments, PrefillOptions
from dsv4bench.workloads.shard import shard

PORT = "29500"  # of the rendezvous where SLURM names none, as in torch's own examples


@dataclass(frozen=True, slots=True)
class Run:
    """What the user asked for, as far as ranks need it."""

    typed: PrefillArguments
    plan: Sequence[Group]
    out: Path | None
    resume: Path | None
    quiet: bool
    src: SourceTree | None = None
    shard: str = ""
    profile: str = ""
    deadline_ns: int | None = None

    def job(self, directory: Path) -> Job:
        """Return what the ranks are told."""
        argv, src = ("dsv4bench", *sys.argv[1:]), self.src.facts() if self.src else None
        sweep = str(self.resume.resolve()) if self.resume else ""
        told: dict[str, Any] = {
            "quiet": self.quiet,
            "shard": self.shard,
            "sweep": sweep,
            "profile": self.profile,
            "src": src,
            "deadline_ns": self.deadline_ns,
        }
        return Job(self.typed, str(directory.resolve()), argv, **told)

    def directory(self) -> Path:
        """Return the run folder, made where the run is a new one."""
        return directory_of("prefill", self.out, self.resume, shard(self.shard) if self.shard else None)

    def session(self, directory: Path) -> Session:
        """Return a session that knows the code that the ranks ran, and so the keys of cells; devices are theirs."""
        session = open_session("cpu", None, quick=True, src=self.src.facts() if self.src else None)
        records = read_records(directory).records
        return replace(session, environment=records[-1].environment) if records else session

    def left(self, directory: Path) -> list[Group]:
        """Return the groups that have no records yet."""
        session, done = self.session(directory), frozenset(finished_keys(self.resume or directory))
        return [group for group in self.plan if not sweep.finished(group, session, done)]

    def traces(self, directory: Path) -> list[Path]:
        """Return the folders in which traces of the largest cells that are left will lie, if asked for."""
        commit = self.session(directory).commit
        wanted = jobs_of(self.plan, self.left(directory), self.typed, TOOLS[self.profile]) if self.profile else ()
        return [trace_folder(directory, cell, cell.key(commit)) for cell, _ in wanted]


@dataclass(frozen=True, slots=True)
class Ended:
    """How the ranks ended; only one process has a `directory`, whose records it prints.

    `new_records` is how many cells were finished; `untraced`: traces were asked for, and of a cell there is none.
    """

    code: int
    directory: Path | None = None
    new_records: int = 0
    untraced: bool = False


def run_ranks(run: Run, options: PrefillOptions, said: Sequence[str] = ()) -> Ended:
    """Run the plan on the N ranks of `--dep`, of which this process may be one; one of them says what is `said`."""
    (ranks,) = options.ranks
    place = place_of(os.environ)
    if place and place.size != ranks:
        raise UsageError(f"--dep {ranks}: {place.size} processes were started; expected --dep {place.size}")
    _check_devices(ranks, place.local_size if place else ranks, options.device)
    if place and place.rank:
        return Ended(_take_part(run, place, Path()))
    directory = run.directory()
    for line in said:
        print(line, file=sys.stderr, flush=True)
    traces, before = run.traces(directory), finished_keys(directory)
    code = _take_part(run, place, directory) if place else _launch(run, ranks, directory)
    new = len(set(finished_keys(directory)).difference(before))
    return Ended(code, directory, new, untraced=not all(folder.is_dir() for folder in traces))


def _check_devices(ranks: int, here: int, device: str) -> None:
    """Raise UsageError where this machine cannot hold the ranks that are to run on it."""
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        raise UsageError(f"--dep {ranks}: this torch has no torch.distributed")
    if device != "cuda":
        return
    gpus = torch.cuda.device_count()
    if here > gpus:
        raise UsageError(f"--dep {ranks}: this machine has {gpus} GPU{'s' * (gpus != 1)}; expected at most {gpus}")
    if not dist.is_nccl_available():
        raise UsageError(f"--dep {ranks}: this torch has no NCCL; expected a CUDA build of torch, or --device cpu")


def _take_part(run: Run, place: Place, directory: Path) -> int:
    """Be one rank of a run that somebody else has started; rank 0 keeps the records in `directory`."""
    _complete(os.environ, place)
    job = replace(run.job(directory), host=os.environ["MASTER_ADDR"], local_rank=place.local_rank)
    return run_rank(job, screen(place.rank, run.quiet), recorder(job.host))


def _complete(environment: os._Environ[str], place: Place) -> None:
    """Add what torch reads of the rendezvous and srun does not set; UsageError where nobody says where rank 0 is."""
    environment.update(RANK=str(place.rank), WORLD_SIZE=str(place.size), LOCAL_RANK=str(place.local_rank))
    environment.setdefault("MASTER_PORT", PORT)
    if place.local_size == place.size:
        environment.setdefault("MASTER_ADDR", "localhost")
    if "MASTER_ADDR" not in environment:
        raise UsageError(f"--dep {place.size}: MASTER_ADDR is not set; expected the name of the host of rank 0")


def _launch(run: Run, ranks: int, directory: Path) -> int:
    """Start the ranks, again after each loss of one while there is something left; return the exit code."""
    with TemporaryDirectory() as scratch:
        receipt = Path(scratch) / "lost"
        job = replace(run.job(directory), receipt=str(receipt))
        while left := run.left(directory):
            receipt.unlink(missing_ok=True)
            code, reason = _started(job, ranks)
            if code != FAILED:
                return code
            if job.lost and len(left) == len(run.left(directory)):
                raise DsvError(f"--dep {ranks}: {reason}")  # not even the loss before could be kept
            job = replace(job, lost="" if receipt.exists() else reason, profile="")
    return OK


def _started(job: Job, ranks: int) -> tuple[int, str]:
    """Run all ranks once under torch's launcher; return an exit code, and which rank failed first and how, or ""."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable(logging.CRITICAL)  # what failed is said in a record
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # any port that is free, as torchrun --standalone takes
        max_restarts=0,
        local_addr="localhost",
    )
    try:
        elastic_launch(config, sys.executable)("-m", "dsv4bench.cli_dep_rank", str(os.getpid()), job.text())
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        codes = {one.exitcode for one in error.failures.values()}
        return USAGE if USAGE in codes else FAILED, f"rank {rank}: {_ended(failure.exitcode)}"
    except (KeyboardInterrupt, SignalException):
        return INTERRUPTED, "interrupted"
    finally:
        logging.disable(logging.NOTSET)
    return OK, ""


def _ended(exit_code: int) -> str:
    return f"killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exit code {exit_code}"
