"""Runs one group of cells, pass by pass, and returns a record for every cell, whatever happens to it.

The order is: allocate, verify, time eager, capture and time graph, count, verify again with poisoned storage. A wrong
result ends a cell before it is timed, and running out of memory ends the group's cells but not the sweep. Where ranks
are processes, each does all of this for its own requests, and they agree on what has ended after every pass. What
`--mem-fraction` leaves free is seen right after the allocation, before checks take memory of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from dsv4bench.profiling.group import GroupRun
from dsv4bench.profiling.rank_recording import merged
from dsv4bench.profiling.rank_run import RankRun
from dsv4bench.profiling.recording import records
from dsv4bench.profiling.session import Session
from dsv4bench.profiling.slack import measure_slack
from dsv4bench.results.record import Record
from dsv4bench.workloads.cells import Group
from dsv4bench.workloads.weights import Model

Progress = Callable[[str], None]


def group_run(group: Group, model: Model, session: Session) -> GroupRun:
    """Return the passes of a group: of all its ranks one after another, or of this one where each is a process."""
    return RankRun(group, model, session, session.peers) if session.peers else GroupRun(group, model, session)


def run_group(group: Group, model: Model, session: Session, progress: Progress = lambda _: None) -> list[Record]:
    """Run all passes of a group, telling `progress` each one's name, and return one record per cell."""
    run = group_run(group, model, session)
    passes: tuple[tuple[str, Callable[[], None]], ...] = (
        ("allocate", run.allocate),
        *((("memory", partial(measure_slack, run)),) if group[0].memory else ()),
        ("verify", run.verify),
        ("time eager", run.time_eager),
        ("time graph", run.time_graph),
        ("count", run.count),
        ("verify again", lambda: run.verify(again=True)),
    )
    with torch.no_grad():
        for name, step in passes:
            if run.living():
                progress(name)
                _guarded(run, step)
                run.agree(name)
    found = merged(run, records(run)) if isinstance(run, RankRun) else records(run)
    for cell in run.runs:
        cell.free()
    return found


def _guarded(run: GroupRun, step: Callable[[], None]) -> None:
    """Run a pass; an error that no single cell took ends every cell that was still alive, and never the sweep.

    Errors of Triton's compiler share no base with RuntimeError, so any Exception is one.
    """
    try:
        step()
    except Exception as error:
        if run.strands(error):
            raise
        for cell in run.living():
            cell.fail(error)
