"""One rank of `prefill --dep`: its part of every cell; rank 0 keeps the records of all.

A rank that is lost takes the group that ran with it: rank 0 writes that group's cells as failed, or as out of memory
where the rank said so, and ends, and so do the others. What had been finished is on the disk by then.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dsv4bench.errors import UsageError
from dsv4bench.profiling import sweep
from dsv4bench.profiling.cell_run import outcome
from dsv4bench.profiling.lifeline import LOST, Lifeline
from dsv4bench.profiling.peers import Peers, exchange, open_peers
from dsv4bench.profiling.profile_pass import TOOLS, jobs_of, trace_name
from dsv4bench.profiling.rank_traces import Recorder, record_ranks
from dsv4bench.profiling.recording import unmeasured
from dsv4bench.profiling.session import Session, open_session
from dsv4bench.profiling.time_limit import Deadline
from dsv4bench.results.record import Record
from dsv4bench.results.store import Store, finished_keys, resume_store
from dsv4bench.units import format_count
from dsv4bench.workloads.cells import Cell, Group, cells
from dsv4bench.workloads.memory import free_bytes, refuse_small_pools, refuse_too_large
from dsv4bench.workloads.options import PrefillArguments, prefill_options
from dsv4bench.workloads.shard import shard

LINGER_S = 3
FAILED, USAGE = 1, 2  # as of the command line
SAME_FILES = "files of the same content (requests, geometry, kernels)"
# what must be equal on all ranks beside the arguments
SAME = ("dsv4bench", "commit", "diff", "torch", "triton", "cuda", "python", "driver", "gpu", "sglang", "flash_mla")


@dataclass(frozen=True, slots=True)
class Job:
    """What every rank is told: the plan, the run folder (which rank 0 alone needs), and where rank 0 is reached.

    `shard` is the share of the plan that is run ("": all), of a sweep whose records all lie in `sweep` ("": in the run
    folder). `profile` is the tool that records a step of the largest cells ("": none). `lost` is why the ranks before
    these ended without a record of the first unfinished group; a file `receipt` says that such a record was written.
    `src` as in a session. `deadline_ns` is when the run should be over by rank 0's monotonic clock (None: at any time).
    """

    arguments: PrefillArguments
    directory: str
    argv: tuple[str, ...]
    host: str = "localhost"
    local_rank: int = 0
    quiet: bool = False
    shard: str = ""
    sweep: str = ""
    profile: str = ""
    lost: str = ""
    receipt: str = ""
    src: dict[str, Any] | None = None
    deadline_ns: int | None = None

    def text(self) -> str:
        """Return the job as JSON."""
        return json.dumps(asdict(self))


def parse_job(text: str) -> Job:
    """Read a job back from its text."""
    fields = json.loads(text)
    arguments = PrefillArguments(**fields["arguments"])
    return Job(**{**fields, "arguments": arguments, "argv": tuple(fields["argv"])})


@dataclass(frozen=True, slots=True)
class Screen:
    """What a user sees of a rank: the progress through a number of groups, and lines about what went wrong."""

    progress: Callable[[int], AbstractContextManager[sweep.Progress]]
    tell: Callable[[str], None]


class Keeper:
    """Rank 0's records: those of each group as soon as it is over, or of the group that a lost rank took with it."""

    def __init__(self, left: Sequence[Group], session: Session, store: Store, receipt: str) -> None:
        self._left = list(left)
        self._session = session
        self._store = store
        self._receipt = receipt
        self._lock = threading.RLock()  # a rank may be lost while a group is kept

    def keep(self, records: Sequence[Record]) -> None:
        """Keep the records of the next group."""
        with self._lock:
            for cell, record in zip(self._left.pop(0), records, strict=True):
                folder = trace_folder(self._store.directory, cell, record.key)
                self._store.append(replace(record, traces=[folder.name] if folder.is_dir() else []))

    def lose(self, reason: str, status: str = LOST) -> None:
        """Keep the next group's cells with a status and the reason for it, where there is one."""
        with self._lock:
            if self._left:
                self.keep([unmeasured(cell, self._session, status, reason) for cell in self._left[0]])
        if self._receipt:
            Path(self._receipt).touch()


def trace_folder(directory: Path, cell: Cell, key: str) -> Path:
    """Return where the traces of a cell lie in a run folder, a file a rank, where they were recorded."""
    return directory / trace_name(cell, key)


def run_rank(job: Job, screen: Screen, record: Recorder) -> int:
    """Take part in a run and return the exit code: 0 when it is over, 2 where these ranks cannot run together.

    `record` records a step of a cell on this rank, where the job asks for it.
    """
    options = prefill_options(job.arguments)
    if options.device == "cuda":
        torch.cuda.set_device(job.local_rank)
    peers = open_peers(options.device)
    session = open_session(options.device, options.samples, options.quick, job.argv, options.notes, job.src)
    free = min(exchange(peers, "free memory", free_bytes(options.device)))
    session = replace(session, peers=peers, free_bytes=free)
    whole = cells(options)
    plan = shard(job.shard).of(whole) if job.shard else whole
    own = _Rank(job, whole, session, peers, screen, record)
    beside = {"--shard": job.shard, "--profile": job.profile}
    refusal = refused(peers, session, job.arguments, plan, beside)
    if refusal:
        screen.tell(refusal)
        exchange(peers, "told")  # or else a launcher could end rank 0 before it has spoken
        dist.destroy_process_group()  # or else its threads may abort this process, and the exit code is lost
        return USAGE
    if peers.rank == 0:
        with resume_store(Path(job.directory)) as store:
            left = _left(plan, session, frozenset(finished_keys(Path(job.sweep or job.directory))))
            if job.lost and left:
                Keeper(left, session, store, "").lose(job.lost)
            own.run(left[bool(job.lost) :], store)
    else:
        own.run(plan, None)
    dist.destroy_process_group()
    return 0


def _let_rank_0_decide(rank: int, last_words: Callable[[str], None]) -> None:
    """Let the signals of a launcher, which ends all ranks when one is lost or on Ctrl-C, end rank 0 alone.

    It lingers, so that its lifeline can keep what a lost rank took with it, which ends it with a word of its own. The
    other ranks end with rank 0, or else one that was asked to stop would look lost. `last_words` get the signal's name.
    """

    def linger(number: int, _: object) -> None:
        time.sleep(LINGER_S)
        try:
            last_words(signal.Signals(number).name)
        finally:  # the signal may have come in the middle of a word
            os._exit(FAILED)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, linger if rank == 0 else signal.SIG_IGN)


def _left(plan: Sequence[Group], session: Session, done: frozenset[str]) -> list[Group]:
    return [group for group in plan if not sweep.finished(group, session, done)]


def refused(
    peers: Peers, session: Session, typed: PrefillArguments, plan: Sequence[Group], said: dict[str, str]
) -> str | None:
    """Return why these ranks cannot run together, or None: other versions or arguments, or too little memory.

    `said` are the options beside `typed`.
    """
    own = {name: session.environment.get(name) for name in SAME}
    typed_words = {f"--{name.replace('_', '-')}": value for name, value in asdict(typed).items()}
    src = " ".join(str(word) for word in (session.environment.get("src") or {}).values() if word)
    every = exchange(peers, "start", own | said | {"--src": src} | typed_words)
    for rank, other in enumerate(every):
        for name, value in every[0].items():
            if other[name] != value:
                return f"--dep {peers.size}: rank {rank} has {name} {_word(other[name])}, rank 0 has {_word(value)}"
    plans = exchange(peers, "plan", [group[0].group for group in plan])
    for rank, other_plan in enumerate(plans):
        if other_plan != plans[0]:
            return f"--dep {peers.size}: rank {rank} plans other cells than rank 0; expected {SAME_FILES}"
    local = max(1, peers.size) if session.device.type == "cpu" else 1  # ranks of a CPU share its memory
    free = min(exchange(peers, "free memory", free_bytes(session.device.type))) // local
    try:
        refuse_too_large(plan, free)
        refuse_small_pools(plan, session.free_bytes)
    except UsageError as error:
        return str(error)
    return None


def _word(value: Any) -> str:
    """Return a value as it was typed."""
    return ",".join(map(str, value)) if isinstance(value, list) else "none" if value in ("", None) else str(value)


@dataclass(frozen=True, slots=True)
class _Rank:
    """A rank that may run: what it was told and with whom; `whole` is the plan of which a share is run."""

    job: Job
    whole: Sequence[Group]
    session: Session
    peers: Peers
    screen: Screen
    record: Recorder

    def run(self, plan: Sequence[Group], store: Store | None) -> None:
        """Run what is left of a plan, which rank 0 knows, and let it keep the records."""
        places = [group[0].group for group in plan]
        wanted = exchange(self.peers, "what is left", places)[0]
        left = [group for group in plan if group[0].group in wanted]
        keeper = Keeper(left, self.session, store, self.job.receipt) if store else None

        def on_loss(rank: int, status: str, reason: str) -> None:
            if keeper:
                keeper.lose(f"rank {rank}: {reason}", status)
            self.screen.tell(f"rank {rank}: {reason}")

        lifeline = Lifeline(self.peers, self.job.host, on_loss)
        _let_rank_0_decide(self.peers.rank, self._last_words)
        try:
            self._trace(left, store)
            limit = Deadline(self.job.deadline_ns)
            with self.screen.progress(len(left)) as report:
                for records in sweep.run(left, self.session, progress=report, deadline=limit):
                    if keeper:
                        keeper.keep(records)
        except Exception as error:
            lifeline.fail(*outcome(error))
            raise
        lifeline.close()

    def _last_words(self, by: str) -> None:
        """Say what a signal leaves, where no launcher of ours says it."""
        if not self.job.receipt:
            self.screen.tell(f"ended by {by}: finished groups are kept in {self.job.directory}; --resume goes on")

    def _trace(self, left: Sequence[Group], store: Store | None) -> None:
        """Record a step of each largest cell that is left on every rank, if asked for; rank 0 says what came of it."""
        job = self.job
        if not job.profile:
            return
        for cell, task in jobs_of(self.whole, left, job.arguments, TOOLS[job.profile], job.local_rank):
            folder = trace_folder(store.directory, cell, cell.key(self.session.commit)) if store else None
            failure = record_ranks(self.peers, cell, task, self.record, folder)
            if failure or not job.quiet:
                self.screen.tell(failure or f"traces of {format_count(self.peers.size, 'rank')}: {folder}")
