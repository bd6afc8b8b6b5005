"""What `dsv4bench prefill` does after parsing: plan, refuse what cannot be, run, keep, print."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from dsv4bench import cli_dep
from dsv4bench.cli import FAILED, INCOMPLETE, INTERRUPTED, NOTHING, OK
from dsv4bench.cli_profile import Profiles, check_profile, profile_largest
from dsv4bench.cli_progress import progress
from dsv4bench.cli_resume import finished_before, resume_command, tell_interrupted
from dsv4bench.cli_shard import directory_of, share_words
from dsv4bench.cli_source import SourceTree
from dsv4bench.dashboards import tables
from dsv4bench.dashboards.plan_table import plan_tables
from dsv4bench.dashboards.render import show_tables
from dsv4bench.errors import UsageError
from dsv4bench.profiling import sweep
from dsv4bench.profiling.profile_pass import TOOLS
from dsv4bench.profiling.session import Session, open_session
from dsv4bench.profiling.time_limit import Deadline, deadline_ns
from dsv4bench.results.compare import compare, pairs
from dsv4bench.results.counts import incomplete
from dsv4bench.results.record import Record
from dsv4bench.results.store import NO_TIME_LEFT, Store, read_records
from dsv4bench.units import format_count
from dsv4bench.workloads.cells import Group, cells
from dsv4bench.workloads.dry_run import as_plain, plan_notes, planned
from dsv4bench.workloads.memory import free_bytes, refuse_small_pools, refuse_too_large
from dsv4bench.workloads.memory_options import refuse_given_memory
from dsv4bench.workloads.options import PrefillArguments, PrefillOptions, prefill_options
from dsv4bench.workloads.shard import shard


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for."""

    typed: PrefillArguments
    out: Path | None
    resume: Path | None
    dry_run: bool
    form: str
    quiet: bool
    src: SourceTree | None = None
    profile: str = ""
    shard: str = ""
    time_limit: str = ""


def run_typed(params: Mapping[str, Any], src: SourceTree | None, form: str) -> int:
    """Run the command with the parameters that were typed and return its exit code."""
    typed = {field.name: params[field.name] for field in fields(PrefillArguments)}
    rest = {name: params[name] for name in ("out", "resume", "dry_run", "quiet", "profile", "shard", "time_limit")}
    return run_prefill(Request(PrefillArguments(**typed), form=form, src=src, **rest))


def run_prefill(request: Request) -> int:
    """Run the command and return its exit code."""
    if request.out and request.resume:
        raise UsageError(f"--out {request.out}: --resume {request.resume} already says where records go")
    options, until_ns = prefill_options(request.typed), deadline_ns(request.time_limit)
    whole, share = cells(options), shard(request.shard) if request.shard else None
    plan = share.of(whole) if share else whole
    said = [share_words(share, whole, plan)] if share else []
    if not plan:
        _tell(*said)
        return NOTHING
    note = check_profile(request.profile, options.device) if request.profile else None
    if request.dry_run:
        refuse_small_pools(plan, free_bytes(options.device))
        _print_plan(plan, replace(options, notes=(*options.notes, *said)), request.form)
        return OK
    refuse_given_memory(options.memory, options.device)
    if options.dep:
        refuse_small_pools(plan, 0)
        run = _rank_run(request, plan, until_ns)
        return _run_ranks(request, options, run, [*filter(None, [note]), *said])
    free = free_bytes(options.device)
    refuse_too_large(plan, free)
    refuse_small_pools(plan, free)
    if not request.quiet:
        _tell(*filter(None, [note]), *said)
    done = finished_before(request.resume)
    argv, src = ("dsv4bench", *sys.argv[1:]), request.src.facts() if request.src else None
    session = open_session(options.device, options.samples, options.quick, argv, options.notes, src)
    with Store(directory_of("prefill", request.out, request.resume, share)) as store:
        left = [group for group in plan if not sweep.finished(group, session, done)]
        try:
            profiles = _profile(whole, left, session, store, request)
            _run(left, session, store, profiles, request.quiet, Deadline(until_ns))
        except KeyboardInterrupt:
            return tell_interrupted(store.directory, len(read_records(store.path).records))
        code = print_run(store.directory, plan, session, request)
        return FAILED if profiles.failures else code


def _run_ranks(request: Request, options: PrefillOptions, run: cli_dep.Run, said: Sequence[str]) -> int:
    """Run the plan on several processes; the one that has the records prints them, and before that `said`."""
    ended = cli_dep.run_ranks(run, options, () if request.quiet else said)
    if ended.code == INTERRUPTED and ended.directory:
        return tell_interrupted(ended.directory, ended.new_records)
    if ended.code != OK or ended.directory is None:
        return ended.code
    code = print_run(ended.directory, run.plan, run.session(ended.directory), request)
    return FAILED if ended.untraced else code


def _rank_run(request: Request, plan: Sequence[Group], until_ns: int | None) -> cli_dep.Run:
    names = ("typed", "out", "resume", "quiet", "src", "shard", "profile")
    return cli_dep.Run(plan=plan, deadline_ns=until_ns, **{name: getattr(request, name) for name in names})


def _profile(
    plan: Sequence[Group], left: Sequence[Group], session: Session, store: Store, request: Request
) -> Profiles:
    """Record a step of each largest cell that is left, if asked for, and say what came of it."""
    if not request.profile:
        return Profiles({}, ())
    tool, folder = TOOLS[request.profile], store.directory
    found = profile_largest(plan, left, request.typed, tool, folder, lambda cell: cell.key(session.commit))
    names = [name for files in found.files.values() for name in files]
    if not request.quiet:
        _tell(*(f"trace: {folder / name}" for name in names))
    _tell(*found.failures)
    return found


def _run(
    left: Sequence[Group], session: Session, store: Store, profiles: Profiles, quiet: bool, deadline: Deadline
) -> None:
    """Run what is left, keeping each group's records at once, with the names of their traces."""
    with progress(len(left), quiet) as report:
        for records in sweep.run(left, session, progress=report, deadline=deadline):
            for record in records:
                store.append(replace(record, traces=list(profiles.files.get(record.key, ()))))


def print_run(directory: Path, plan: Sequence[Group], session: Session, request: Request) -> int:
    """Print the records of this plan in its order, those of an earlier run included, and return the exit code.

    What the time limit left out makes it 3, unless something graver does.
    """
    cells_in_order = [cell for group in plan for cell in group]
    place = {cell.key(session.commit): number for number, cell in enumerate(cells_in_order)}
    folder = request.resume or directory  # of all shards, where one goes on
    found = [record for record in read_records(folder).records if record.key in place]
    records = sorted(found, key=lambda record: place[record.key])
    tables.show(records, request.form, sys.stdout)
    if not request.quiet:
        _tell(f"records: {directory}")
    left_out = {record.key for record in records} - {one.key for one in records if one.reason != NO_TIME_LEFT}
    if left_out:
        what = f"{format_count(len(left_out), 'cell')} not measured"
        _tell(f"stopped at --time-limit {request.time_limit}: {what}; go on with")
        _tell(f"  {resume_command(sys.argv[1:], directory)}")
    return exit_code(records) or (INCOMPLETE if left_out else OK)


def exit_code(records: Sequence[Record]) -> int:
    """Return the code that the records of a run earn; the gravest one counts."""
    if any(record.status in ("failed", "wrong") for record in records) or _something_added(records):
        return FAILED
    if not any(record.status == "ok" for record in records):
        return NOTHING
    return INCOMPLETE if any(incomplete(record.coverage) for record in records) else OK


def _something_added(records: Sequence[Record]) -> bool:
    """Return whether reuse launched anything more than its before."""
    return any(compare(pair).added for pair in pairs(records, "reuse", "off", "on"))


def _print_plan(plan: Sequence[Group], options: PrefillOptions, form: str) -> None:
    """Print the plan as tables, or as plain objects: one array ("json"), one a line ("jsonl")."""
    free = free_bytes(options.device)
    rows = [one for group in plan for one in planned(group, options.samples, free)]
    plain = [as_plain(row) for row in rows]
    if form == "json":
        print(json.dumps(plain, indent=1, allow_nan=False))
    elif form == "jsonl":
        for one in plain:
            print(json.dumps(one, allow_nan=False))
    else:
        show_tables(plan_tables(plain, [*options.notes, *plan_notes(rows)]), form, sys.stdout)


def _tell(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr)
