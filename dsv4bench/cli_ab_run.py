"""What `dsv4bench ab` does after parsing: set up, run pair by pair, keep, print verdicts, write a block, gate."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from dsv4bench.cli import FAILED, INCOMPLETE, NOTHING, OK, output_format
from dsv4bench.cli_ab_plan import print_plan
from dsv4bench.cli_ab_setup import Setup, Typed, set_up
from dsv4bench.cli_gate import added_launches, counted, no_time, slower, tell_gate
from dsv4bench.cli_prefill import exit_code
from dsv4bench.cli_progress import progress
from dsv4bench.cli_resume import resume_command, tell_interrupted
from dsv4bench.dashboards import tables
from dsv4bench.dashboards.cells import batch_text
from dsv4bench.dashboards.pr_block import pr_block
from dsv4bench.dashboards.render import show_tables
from dsv4bench.dashboards.stored_cells import batch_words, cell_words
from dsv4bench.dashboards.trial_cells import trial_kind
from dsv4bench.errors import UsageError
from dsv4bench.profiling.ab_child import Job
from dsv4bench.profiling.ab_experiment import Experiment, find_session, session_name
from dsv4bench.profiling.ab_rule import NARROW, TIME_LIMIT, Budget
from dsv4bench.profiling.ab_run import CodeChanged, Launch, Run, finished_pairs, keys, missing, run_fresh, run_together
from dsv4bench.profiling.session import Session, open_session
from dsv4bench.results.compare import compare, pairs
from dsv4bench.results.noise_floor import noise_floor
from dsv4bench.results.record import Record
from dsv4bench.results.store import NO_TIME_LEFT, Store, open_store, read_records, resume_store, run_directory
from dsv4bench.results.trials import SIDES, trials
from dsv4bench.results.verdict import Verdict, judge
from dsv4bench.workloads.memory import free_bytes, refuse_too_large
from dsv4bench.workloads.sides import in_groups

STDOUT = "-"


def run_typed(typed: Typed) -> int:
    """Run the command that was typed, by its options' names, and return its exit code."""
    form = output_format(typed["form"], typed["as_json"])
    _check(typed)
    with TemporaryDirectory(prefix="dsv4bench-ab-") as scratch:
        setup = set_up(typed, Path(scratch))
        if typed["dry_run"]:
            print_plan(setup, typed["out"] or typed["resume"], form)
            return OK
        return _run(setup, typed, form)


def _check(typed: Typed) -> None:
    """Raise UsageError for options that do not go together."""
    if typed["out"] and typed["resume"] and not typed["dry_run"]:
        raise UsageError(f"--out {typed['out']}: --resume {typed['resume']} already says where records go")
    if typed["strict"] and not typed["gate"]:
        raise UsageError("--strict: says what --gate lets pass; expected --gate too")
    folder = Path(typed["md"]).parent
    if typed["md"] not in ("", STDOUT) and not folder.is_dir():
        raise UsageError(f"--md {typed['md']}: no such directory as {folder}")


def _run(setup: Setup, typed: Typed, form: str) -> int:
    """Measure what is missing, print what there is, and return the exit code."""
    tell = _silent if typed["quiet"] else _tell
    tell(*setup.told)
    if not (setup.experiment.fresh and setup.options.device == "cuda"):  # asking takes a context on the GPU, for good
        cells = [tuple(cell for two in group for cell in (two.a, two.b)) for group in in_groups(setup.twos)]
        refuse_too_large(cells, free_bytes(setup.options.device))
    sessions = _sessions(setup)
    digest = setup.experiment.digest(keys(setup.twos, setup.experiment, sessions))
    with _store(typed) as store:
        earlier = read_records(store.directory).records
        name = find_session(earlier, digest) or session_name(digest)
        experiment = replace(setup.experiment, session=name)
        run = Run(setup.twos, experiment, Budget.of(setup.limit_ns), store)
        try:
            stop = _measure(run, setup, sessions, earlier, tell)
        except KeyboardInterrupt:
            return _interrupted(store, name)
        except CodeChanged as changed:
            _tell(str(changed), f"records: {store.directory}; --resume measures the new code as another experiment")
            return _report(store, name, typed, form) or INCOMPLETE
        tell(*_why(stop, typed["time_limit"], experiment.fresh), f"records: {store.directory}")
        if stop == TIME_LIMIT and (
            experiment.fresh or _never_reached(_of(read_records(store.directory).records, name))
        ):
            tell("what was never reached is measured by", f"  {resume_command(sys.argv[1:], store.directory)}")
        return _report(store, name, typed, form)


def _sessions(setup: Setup) -> dict[str, Session]:
    """Return the session of each side; they differ in the source tree that a record names."""
    options, argv = setup.options, ("dsv4bench", *sys.argv[1:])
    session = open_session(options.device, options.samples, options.quick, argv, setup.notes)
    src = {side: dict(place.facts) if place.facts else None for side, place in setup.places.items()}
    return {side: replace(session, environment=session.environment | {"src": src[side]}) for side in SIDES}


@contextmanager
def _store(typed: Typed) -> Iterator[Store]:
    """Open the run's folder; this process's own file stays there only if it holds a record."""
    with resume_store(typed["resume"]) if typed["resume"] else open_store(typed["out"] or run_directory("ab")) as store:
        try:
            yield store
        finally:
            if store.path.stat().st_size == 0:
                store.path.unlink()


def _measure(
    run: Run, setup: Setup, sessions: Mapping[str, Session], earlier: Sequence[Record], tell: Callable[..., None]
) -> str:
    """Measure what no earlier record holds; return why it ended."""
    if not run.experiment.fresh:
        left = missing(run.twos, run.experiment, sessions["a"], earlier)
        with progress(len(in_groups(left)), tell is _silent) as report:
            return run_together(replace(run, twos=left), sessions["a"], report)

    def job(side: str, pair: int, place: int) -> Job:
        directory, session = str(run.store.directory.resolve()), sessions[side]
        own = (session.argv, session.notes, setup.places[side].facts_now())
        return Job(run.experiment, setup.arguments, setup.switches, side, pair, place, directory, *own)

    expected = frozenset(keys(setup.twos, run.experiment, sessions))
    launches = {
        side: Launch(place.command, place.environment(), sessions[side], None if place.measures_itself else expected)
        for side, place in setup.places.items()
    }
    done = finished_pairs(run.twos, run.experiment, earlier)
    return run_fresh(run, launches, job, done, lambda pair, side: tell(_title(run.experiment, pair, side)))


def _title(experiment: Experiment, pair: int, side: str) -> str:
    what = experiment.sides[side]
    return f"[pair {pair + 1}/{experiment.pairs}] {side}{f': {what}' if what else ''}"


def _why(stop: str, limit: str, fresh: bool) -> list[str]:
    """Return lines about an end before all pairs, or none; in one process a cell's pairs are taken at one go."""
    if stop == TIME_LIMIT:
        said = f"stopped at --time-limit {limit}: cells have fewer pairs than were asked for, or none"
        final = "a cell that has pairs takes no more of them: for more, give more time in another folder"
        return [said] if fresh else [said, final]
    return ["stopped: the interval of every cell is narrower than half of the least effect"] if stop == NARROW else []


def _interrupted(store: Store, session: str) -> int:
    """Say what is kept of the session after Ctrl-C, and how to go on."""
    return tell_interrupted(store.directory, len(_of(read_records(store.directory).records, session)), "record")


def _report(store: Store, session: str, typed: Typed, form: str) -> int:
    """Print the verdicts, write the block, and return the exit code that the session's records earn."""
    records = [record for record in read_records(store.directory).records if record.ab is not None]
    found = trials(records)
    verdicts, floors = judge(found), noise_floor(found)
    block = pr_block(records, verdicts, floors) if typed["md"] else ""
    if typed["md"] not in ("", STDOUT):
        Path(typed["md"]).write_text(block, encoding="utf-8")
    if typed["md"] == STDOUT:
        sys.stdout.write(block)
    elif form in ("json", "jsonl"):
        tables.show(records, form, sys.stdout)
    else:
        show_tables(tables.verdicts(records), form, sys.stdout)
    own = [verdict for verdict in verdicts if (verdict.trial.any.ab or {})["session"] == session]
    code = exit_code(_of(records, session)) or (INCOMPLETE if _never_reached(_of(records, session)) else OK)
    return gated(code, own, typed["gate"], typed["strict"])


def _never_reached(records: Sequence[Record]) -> set[str]:
    """Return the keys of the cells that a time limit left out and nobody has measured since."""
    return {one.key for one in records} - {one.key for one in records if one.reason != NO_TIME_LEFT}


def gated(code: int, verdicts: Sequence[Verdict], gate: bool, strict: bool) -> int:
    """Return the exit code with what a gate adds to it, and say on stderr why; the gravest counts: 1, then 4, then 3.

    Verdicts on A/A trials pass.
    """
    if not gate:
        return code
    stops = {id(verdict): _stops(verdict) for verdict in verdicts}
    undecided = [one for one in verdicts if not one.trial.aa and not stops[id(one)] and _undecided(one)]
    red = [*_added(verdicts), *(line for lines in stops.values() for line in lines)]
    names = [(trial_kind(one.trial), batch_words(one.trial.any)) for one in undecided]
    reasons = [one.word or one.reason for one in undecided]
    tell_gate(red, counted(list(zip(reasons, names, strict=True))), strict)
    if red or code == FAILED:
        return FAILED
    if code == NOTHING:
        return NOTHING
    return INCOMPLETE if strict and undecided else code


def _stops(verdict: Verdict) -> list[str]:
    """Return why a cell stops the gate: it is slower, fits or runs on side a alone, or a process of it failed."""
    trial = verdict.trial
    name = f"{trial_kind(trial)} {batch_text(trial.any)}"
    a, b = _statuses(verdict)
    if not trial.aa and a == "ok" and b in ("failed", "wrong", "out_of_memory"):
        return [no_time(name, verdict.reason)]
    found = [slower(name, verdict.ratio)] if verdict.word == "SLOWER" and verdict.ratio and not trial.aa else []
    lost = next((one for one in trial.processes if one.status in ("failed", "wrong")), None)
    return [*found, f"{lost.status}: {name}: {(lost.ab or {})['side']}: {lost.reason}"] if lost else found


def _added(verdicts: Sequence[Verdict]) -> list[str]:
    """Return what reuse launched more than its before, which is an exit code of 1 in any case."""
    ran = [record for verdict in verdicts for record in verdict.trial.processes]
    found = [(pair.any, compare(pair).added) for pair in pairs(ran, "reuse", "off", "on")]
    return [line for record, added in found for line in added_launches(cell_words(record), added)]


def _undecided(verdict: Verdict) -> bool:
    """Return whether a cell that could run has no verdict that tells anything."""
    return verdict.word == "INCONCLUSIVE" or (
        verdict.word is None and _statuses(verdict) not in (["refused"] * 2, ["out_of_memory"] * 2)
    )


def _statuses(verdict: Verdict) -> list[str]:
    """Return the statuses of both sides of a cell."""
    return [one.status if one else "not run" for one in (verdict.trial.a, verdict.trial.b)]


def _of(records: Sequence[Record], session: str) -> list[Record]:
    return [record for record in records if record.ab is not None and record.ab["session"] == session]


def _tell(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)


def _silent(*lines: str) -> None:
    """Say nothing."""
