"""Runs an A/B: both sides in one process with their samples in turn, or pair after pair of fresh processes.

Every record is in the store as soon as its group, or its process, is over. A side that cannot be measured is a record
with a status and a reason, and the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsv4bench.errors import DsvError
from dsv4bench.profiling import sweep
from dsv4bench.profiling.ab_child import Job
from dsv4bench.profiling.ab_experiment import CELL_S, Experiment, cell_of
from dsv4bench.profiling.ab_rule import ALL_PAIRS, CELL_LIMIT, NARROW, TIME_LIMIT, Budget, PairsRule
from dsv4bench.profiling.process import run_process
from dsv4bench.profiling.recording import unmeasured
from dsv4bench.profiling.session import Session
from dsv4bench.profiling.time_limit import Deadline
from dsv4bench.results.record import Record
from dsv4bench.results.store import NO_TIME_LEFT, Store, read_records
from dsv4bench.results.trials import SIDES, trials
from dsv4bench.results.verdict import judge
from dsv4bench.units import NS_PER_S, format_count
from dsv4bench.workloads.cells import Cell
from dsv4bench.workloads.sides import Two, in_groups

START_S = 600  # for a process to import, draw its weights and compile its kernels; it is ended when it takes longer


class CodeChanged(DsvError):
    """A process ran other code than its side's processes before it: no pair of the same experiment."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How the processes of a side are started, and the session whose records stand for one that died.

    `keys` are those of the cells under the code that this session saw. None where another installation measures: its
    first process says them.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    session: Session
    keys: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """What is left to be measured, of which experiment, in which time, and where its records go."""

    twos: Sequence[Two]
    experiment: Experiment
    budget: Budget
    store: Store


def run_together(run: Run, session: Session, progress: sweep.Progress = lambda _group, _pass: None) -> str:
    """Measure all cells in this process, the samples of a and b in turn; return why it ended."""
    if not run.twos:
        return ALL_PAIRS
    experiment, in_turn = run.experiment, in_groups(run.twos)
    plan = [tuple(sampled(cell, experiment) for two in group for cell in (two.a, two.b)) for group in in_turn]
    session = replace(session, rule=_rule(run, session))
    found, stops = sweep.run(plan, session, progress=progress), set[str]()
    for place, group in enumerate(in_turn):
        run.budget.begin(sum(map(_timings, in_turn[place:])), *_rows(in_turn[place:]))
        if run.budget.spent:
            records = [unmeasured(cell, session, "skipped", NO_TIME_LEFT) for cell in plan[place]]
        else:
            records = next(found)
        for record, (two, side) in zip(records, [(two, side) for two in group for side in SIDES], strict=True):
            run.store.append(experiment.stamped(record, two, side))
            stops.update((record.timing or {}).get("stop", [TIME_LIMIT] if record.status == "skipped" else []))
    return next((stop for stop in (TIME_LIMIT, CELL_LIMIT, NARROW) if stop in stops), ALL_PAIRS)


def _rows(groups: Sequence[Sequence[Two]]) -> tuple[int, list[int]]:
    """Return the rows of the first group and those of each later one."""
    first, *later = (group[0].a.load.rows for group in groups)
    return first, later


def run_fresh(
    run: Run,
    launches: Mapping[str, Launch],
    job: Callable[[str, int, int], Job],
    done: Collection[int] = (),
    progress: Callable[[int, str], None] = lambda _pair, _side: None,
) -> str:
    """Measure pair after pair, each side in a process of its own (a b, b a, ...); return why it ended.

    `job` makes the job of a side, a pair and a place. The pairs that are `done` are left out. CodeChanged where a
    process ran other code than those before it; its records are taken out of the store.
    """
    known = {side: launch.keys for side, launch in launches.items()}
    left = [pair for pair in range(run.experiment.pairs or run.experiment.least_pairs) if pair not in done]
    deadline = Deadline(run.budget.deadline_ns, run.budget.now_ns)
    for pair in left:
        if not deadline.may_begin():
            return TIME_LIMIT
        for place, side in enumerate(SIDES if pair % 2 == 0 else SIDES[::-1]):
            progress(pair, side)
            files = _run_side(run, job(side, pair, place), launches[side])
            known[side] = _same_code(files, known[side], f"pair {pair + 1}, side {side}", launches[side].session)
        if pair != left[-1] and pair + 1 >= run.experiment.least_pairs and _all_narrow(run):
            return NARROW
    return ALL_PAIRS


def sampled(cell: Cell, experiment: Experiment) -> Cell:
    """Return a cell with as many samples as one process takes of it; None where its own rule says when to stop."""
    pairs = 1 if experiment.fresh else experiment.pairs
    return replace(cell, samples=None if pairs is None else experiment.block * pairs)


def keys(twos: Sequence[Two], experiment: Experiment, sessions: Mapping[str, Session]) -> list[str]:
    """Return the keys of all cells of both sides."""
    return [sampled(cell_of(two, side), experiment).key(sessions[side].commit) for two in twos for side in SIDES]


def missing(twos: Sequence[Two], experiment: Experiment, session: Session, records: Iterable[Record]) -> list[Two]:
    """Return the cells of the groups that one process has not finished in this experiment's session.

    What a time limit left out is not finished.
    """
    seen = {(said["side"], record.key) for record, said in _own(records, experiment) if record.reason != NO_TIME_LEFT}
    finished = {
        (two.a.group, (side, sampled(cell_of(two, side), experiment).key(session.commit)) in seen)
        for two in twos
        for side in SIDES
    }
    return [two for two in twos if (two.a.group, False) in finished]


def finished_pairs(twos: Sequence[Two], experiment: Experiment, records: Iterable[Record]) -> set[int]:
    """Return the pairs of fresh processes of which both sides have a record of every cell."""
    keys: dict[tuple[int, str], set[str]] = {}
    for record, said in _own(records, experiment):
        keys.setdefault((said["pair"], said["side"]), set()).add(record.key)
    whole = {place for place, found in keys.items() if len(found) == len(twos)}
    return {pair for pair, _ in whole if {(pair, side) for side in SIDES} <= whole}


def _own(records: Iterable[Record], experiment: Experiment) -> Iterator[tuple[Record, dict[str, Any]]]:
    """Yield the records of the experiment's session, each with what it says of itself."""
    for record in records:
        if record.ab is not None and record.ab["session"] == experiment.session:
            yield record, record.ab


def _rule(run: Run, session: Session) -> PairsRule:
    """Return the rule of a process that takes all pairs; the strictest least effect decides what is narrow enough."""
    effects = [run.experiment.min_effect_of(two) for two in run.twos]
    return PairsRule(
        samples=None if run.experiment.pairs is None else run.experiment.pairs * run.experiment.block,
        warm_ups=session.rule.warm_ups,
        sample_ns=session.rule.sample_ns,
        block=run.experiment.block,
        least_pairs=run.experiment.least_pairs,
        cell_ns=CELL_S * NS_PER_S if run.experiment.pairs is None else None,
        min_effect=min(effects, key=lambda effect: (effect.relative or 0, effect.absolute_ns or 0)),
        budget=run.budget,
    )


def _timings(group: Sequence[Two]) -> int:
    """Return how often the cells of a group are timed: eager and graph apart, and where ranks wait, each forward."""
    plan = group[0].a.plan
    stretches = sum(map(len, plan)) if len(plan) > 1 else 1
    return stretches * len({two.a.variant.graph for two in group})


def _run_side(run: Run, job: Job, launch: Launch) -> set[Path]:
    """Run the process of a side and return its files; cells that it leaves without a record get one that says why."""
    before = _files(run.store)
    try:
        run_process([*launch.command, job.text()], launch.environment, START_S + 2 * CELL_S * len(run.twos))
    except DsvError as error:
        kept = sum(len(read_records(file).records) for file in _files(run.store) - before)
        ordered = [two for group in in_groups(run.twos) for two in group]
        for two in ordered[kept:]:
            cell = sampled(cell_of(two, job.side), run.experiment)
            record = unmeasured(cell, launch.session, "failed", f"its process: {error}")
            run.store.append(run.experiment.stamped(record, two, job.side, job.pair, job.place))
    return _files(run.store) - before


def _same_code(files: Collection[Path], known: frozenset[str] | None, where: str, session: Session) -> frozenset[str]:
    """Return the keys that a side's processes must have; CodeChanged, without these files, if theirs are others."""
    records = [record for file in files for record in read_records(file).records]
    found = frozenset(record.key for record in records)
    if known is None or found <= known:
        return known or found
    for file in files:
        file.unlink()
    what = _changed(session.environment, records[0].environment)
    left_out = format_count(len(records), "record")
    raise CodeChanged(f"stopped: {what} changed before {where}; left out: {left_out} of it")


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return whose code two environments say differently."""
    own = any(before.get(name) != after.get(name) for name in ("commit", "dirty", "diff"))
    tree = after.get("src") if before.get("src") != after.get("src") else None
    return "dsv4bench" if own else f"the source tree {tree['name']}" if tree else "a provider's file"


def _files(store: Store) -> set[Path]:
    return set(store.directory.glob("*.jsonl"))


def _all_narrow(run: Run) -> bool:
    """Return whether the difference of every cell is known well enough by the pairs so far."""
    records = read_records(run.store.directory).records
    return all(
        verdict.narrow_enough for verdict in judge(trials(record for record, _ in _own(records, run.experiment)))
    )
