"""What `dsv4bench kernels` does after parsing: plan, check, time, keep, print."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4bench.cli import FAILED, NOTHING, OK
from dsv4bench.cli_resume import finished_before, tell_interrupted
from dsv4bench.cli_shard import directory_of, share_words
from dsv4bench.cli_source import SourceTree
from dsv4bench.dashboards import tables
from dsv4bench.errors import UsageError
from dsv4bench.profiling import kernel_recording
from dsv4bench.profiling.session import Session, open_session
from dsv4bench.results.record import Record
from dsv4bench.results.store import Store, read_records
from dsv4bench.workloads.kernel_cells import KernelArguments, KernelGroup, kernel_cells
from dsv4bench.workloads.shard import shard

MODES = ("once", "ncu", "ncu_report", "digest")  # what else than timing the command does
OF_A_RUN = ("out", "resume", "plot", "shard")
OF_DIGEST = {"a_src": "HEAD", "b_src": "", "control": None}  # with their defaults


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for."""

    typed: KernelArguments
    out: Path | None = None
    resume: Path | None = None
    form: str = "table"
    plot: bool = False
    quiet: bool = False
    src: SourceTree | None = None
    shard: str = ""


def run_kernels(request: Request) -> int:
    """Run the command and return its exit code."""
    if request.out and request.resume:
        raise UsageError(f"--out {request.out}: --resume {request.resume} already says where records go")
    whole, share = kernel_cells(request.typed), shard(request.shard) if request.shard else None
    plan = share.of(whole) if share else whole
    if share and not (plan and request.quiet):
        _tell(share_words(share, whole, plan))
    if not plan:
        return NOTHING
    first = plan[0][0]
    notes = ("a CPU: small shapes and the torch reference, no speed of any kernel",) if first.device == "cpu" else ()
    src = request.src.facts() if request.src else None
    session = open_session(first.device, first.samples, first.quick, ("dsv4bench", *sys.argv[1:]), notes, src)
    session = kernel_recording.kernel_session(session, first.quick)
    done = finished_before(request.resume)
    with Store(directory_of("kernels", request.out, request.resume, share)) as store:
        code = _run(plan, session, store, done, request.quiet)
        return code or _show(store, plan, session, request)


def check_modes(given: Mapping[str, Any]) -> None:
    """Raise UsageError for options of `kernels` that do not go together: one of them would not be heard."""
    modes = [name for name in MODES if given[name]]
    if len(modes) > 1:
        raise UsageError(f"{_option(modes[0])} and {_option(modes[1])}: expected one of them")
    if modes and (idle := [name for name in OF_A_RUN if given[name]]):
        raise UsageError(f"{_option(idle[0])}: {_option(modes[0])} times nothing and keeps no records")
    if modes != ["digest"] and (idle := [name for name, default in OF_DIGEST.items() if given[name] != default]):
        raise UsageError(f"{_option(idle[0])}: an option of --digest, which was not given")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def exit_code(records: Sequence[Record]) -> int:
    """Return 1 if a provider failed or is wrong, 4 if none was timed, else 0."""
    if any(record.status in ("failed", "wrong") for record in records):
        return FAILED
    return OK if any(record.status == "ok" for record in records) else NOTHING


def _run(plan: Sequence[KernelGroup], session: Session, store: Store, done: frozenset[str], quiet: bool) -> int:
    try:
        with _progress(len(plan), quiet) as report:
            for records in kernel_recording.run(plan, session, done, report):
                for record in records:
                    store.append(record)
    except KeyboardInterrupt:
        return tell_interrupted(store.directory, len(read_records(store.path).records))
    return OK


def _show(store: Store, plan: Sequence[KernelGroup], session: Session, request: Request) -> int:
    """Print the records of this plan in its order, draw them where asked, and return the exit code."""
    order = [cell.key(session.commit) for group in plan for cell in group]
    folder = request.resume or store.directory  # of all shards, where one goes on
    found = [record for record in read_records(folder).records if record.key in order]
    records = sorted(found, key=lambda record: order.index(record.key))
    tables.show(records, request.form, sys.stdout)
    if request.plot:
        from dsv4bench.dashboards.figures import draw

        for path in draw(records, store.directory):
            _tell(str(path))
    if not request.quiet:
        _tell(f"records: {store.directory}")
    return exit_code(records)


@contextmanager
def _progress(groups: int, quiet: bool) -> Iterator[kernel_recording.Progress]:
    """Yield a function that tells stderr when a group begins."""
    seen: list[KernelGroup] = []

    def report(group: KernelGroup, name: str) -> None:
        if name == "ceilings":
            _tell("ceilings of this device")
        elif group not in seen:
            seen.append(group)
            first = group[0]
            _tell(f"[{len(seen)}/{groups}] {first.kernel} {first.case} {first.rows or ''}".rstrip())

    yield (lambda _group, _name: None) if quiet else report


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
