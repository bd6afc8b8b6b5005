"""Runs a plan: group after group, each group's records handed over as soon as its passes are over."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch

from dsv4bench.errors import CellError
from dsv4bench.profiling.cell_run import out_of_memory_reason
from dsv4bench.profiling.passes import run_group
from dsv4bench.profiling.peers import exchange
from dsv4bench.profiling.recording import unmeasured
from dsv4bench.profiling.session import Session
from dsv4bench.profiling.time_limit import Deadline
from dsv4bench.results.record import Record
from dsv4bench.results.store import NO_TIME_LEFT
from dsv4bench.workloads.cells import Cell, Group
from dsv4bench.workloads.memory import own_weight_bytes, pools_of
from dsv4bench.workloads.weights import Model, make_model, reserve

Progress = Callable[[Group, str], None]


def run(
    plan: Sequence[Group],
    session: Session,
    done: frozenset[str] = frozenset(),
    progress: Progress = lambda _group, _pass: None,
    deadline: Deadline | None = None,
) -> Iterator[list[Record]]:
    """Yield the records of each group of `plan` as soon as it is finished.

    Cells whose key is in `done` are left out; a comparison needs both sides, so their group runs again unless all of it
    is done. Weights are drawn once per geometry. Groups that may not begin before the `deadline` are records of that.
    """
    model: Model | None = None
    deadline = deadline or Deadline()
    session = session.with_free_bytes()
    for group in plan:
        if finished(group, session, done):
            continue
        if not _may_begin(deadline, session):
            yield [unmeasured(cell, session, "skipped", NO_TIME_LEFT) for cell in group]
            continue
        reason = None
        try:
            reserved_bytes = _reserved_bytes(group[0], session)
            if model is not None and not _is_of(model, group[0], reserved_bytes):
                model = None  # before another is made: both may not fit
                _free(session)
            model = model or _made(group[0], session, reserved_bytes)
        except (torch.OutOfMemoryError, CellError) as error:
            reason = out_of_memory_reason(error)
        reason = _of_any_rank(reason, session)
        if reason is not None:
            yield [unmeasured(cell, session, "out_of_memory", reason) for cell in group]
            continue
        yield run_group(group, cast("Model", model), session, lambda name, group=group: progress(group, name))  # type: ignore[misc]
        _free(session)


def _may_begin(deadline: Deadline, session: Session) -> bool:
    """Return whether the next group may begin; of ranks the first one's clock decides."""
    own = deadline.may_begin()
    return own if session.peers is None else bool(exchange(session.peers, "time", own)[0])


def _of_any_rank(reason: str | None, session: Session) -> str | None:
    """Return why this rank, or else the first other one, has no weights; None where all have them."""
    if session.peers is None:
        return reason
    every = enumerate(exchange(session.peers, "weights", reason))
    return next((f"rank {rank}: {found}" for rank, found in every if found is not None), None)


def finished(group: Group, session: Session, done: frozenset[str]) -> bool:
    """Return whether every cell of a group has its key in `done`."""
    return all(cell.key(session.commit) in done for cell in group)


def _is_of(model: Model, cell: Cell, reserved_bytes: int) -> bool:
    held_bytes = 0 if model.reserved is None else model.reserved.numel()
    return (model.geometry, model.seed, held_bytes) == (cell.geometry, cell.seed, reserved_bytes)


def _made(cell: Cell, session: Session, reserved_bytes: int) -> Model:
    return reserve(make_model(cell.geometry, session.device, cell.seed), reserved_bytes)


def _reserved_bytes(cell: Cell, session: Session) -> int:
    """Return what a rank's weights take beside those that the cell holds; 0 on a CPU, whose figures are modelled."""
    size = pools_of(cell, session.free_bytes) if session.device.type != "cpu" else None
    return size.weights_bytes - own_weight_bytes(cell) if size else 0


def _free(session: Session) -> None:
    """Give back what a group held before the next one allocates."""
    gc.collect()
    if session.device.type == "cuda":
        torch.cuda.empty_cache()
