"""One step of one cell for somebody's profiler, in a process of its own: never one that is timed.

`python -m dsv4bench.profiling.profile_pass JOB` takes a `Job` as JSON. Under torch.profiler it writes a Chrome trace of
one step or replay. For nsys, which runs this process, it starts and stops the collection itself, with the capture of a
graph inside, so that the nodes of its replays can be traced back to ranges.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from dsv4bench.errors import CellSkipped, DsvError
from dsv4bench.profiling.capture import run_pieces, warm_up
from dsv4bench.profiling.cell_run import CellRun
from dsv4bench.profiling.child import end_with
from dsv4bench.profiling.graphs import capture_alone, open_pool
from dsv4bench.profiling.leave import leave_after
from dsv4bench.profiling.passes import group_run
from dsv4bench.profiling.peers import Peers, exchange, open_peers
from dsv4bench.profiling.session import open_session
from dsv4bench.profiling.timing import nothing
from dsv4bench.ranges import Mark, Range, RecordFunction, Several, Silent, TorchNvtx, timing_mark
from dsv4bench.workloads.cells import Cell, Group, cells
from dsv4bench.workloads.options import PrefillArguments, prefill_options
from dsv4bench.workloads.step import Piece, Step
from dsv4bench.workloads.weights import make_model

Tool = Literal["torch", "nsys"]
TOOLS: Mapping[str, Tool] = {"torch": "torch", "nsys": "nsys"}
Call = Callable[[], None]
WARM_UPS = 2
STARTER_S = 1
_NAMES = re.compile(rb'("(?:host_name|traceName)": ")[^"]*')  # of a machine, and of a path on it


@dataclass(frozen=True, slots=True)
class Job:
    """Which cell of the plan that `arguments` mean, by places, and the file to write (empty where nsys writes one).

    `local_rank` is the GPU of a rank, whose number among how many is in the environment; None: there are no others.
    `starter` is the process that waits for this one to be done; 0: none does.
    """

    arguments: PrefillArguments
    group: int
    cell: int
    tool: Tool
    file: str = ""
    local_rank: int | None = None
    starter: int = 0

    def text(self) -> str:
        """Return the job as JSON."""
        return json.dumps(asdict(self))


def parse_job(text: str) -> Job:
    """Read a job back from its text."""
    fields = json.loads(text)
    return Job(**{**fields, "arguments": PrefillArguments(**fields["arguments"])})


def jobs_of(
    plan: Sequence[Group], left: Sequence[Group], typed: PrefillArguments, tool: Tool, local_rank: int | None = None
) -> list[tuple[Cell, Job]]:
    """Return the cells of the group of most rows among those that are `left` of a plan, each with its job."""
    largest = max(left, key=lambda group: group[0].load.rows, default=())
    return [
        (cell, Job(typed, plan.index(largest), place, tool, local_rank=local_rank))
        for place, cell in enumerate(largest)
    ]


def trace_name(cell: Cell, key: str) -> str:
    """Return what the trace of a cell is called, without suffix."""
    return f"{in_words(cell).replace(' ', '-')}-{key[:8]}"


def in_words(cell: Cell) -> str:
    """Return what tells a cell of a group apart, e.g. "breakable reuse on"."""
    variant = cell.variant
    return f"{variant.graph_mode if variant.graph else 'eager'} reuse {variant.reuse}"


def profile_cell(cell: Cell, tool: Tool, file: Path | None, peers: Peers | None = None) -> None:
    """Run one step (a graph cell: one replay) of the cell's counted forward under a profiler, on all ranks at once.

    Raises CellSkipped with the reason where the cell cannot run here.
    """
    session = replace(open_session(cell.device, None, quick=True), peers=peers).with_free_bytes()
    run = group_run((cell,), make_model(cell.geometry, session.device, cell.seed), session)
    begin = partial(exchange, peers, "step") if peers else nothing
    with torch.no_grad():
        run.allocate()
        run.agree("allocate")
        (one,) = run.runs
        if not one.live:
            raise CellSkipped(one.reason or one.status)
        step, forward = run.steps[one.key], run.counted(one)
        step.load(forward)
        graph = run.graphs.key(one, forward) if one.graph else 0
        pieces = run.graphs.pieces(one, step, forward) if graph else step.live_pieces(forward)
        if tool == "torch":
            assert file is not None, "torch.profiler writes where it is told"
            _under_torch(one if graph else None, step, pieces, file, begin)
        else:
            _under_nsys(one if graph else None, step, pieces, begin)


def _under_torch(
    graph: CellRun | None, step: Step, pieces: list[Piece], file: Path, begin: Callable[[], Any] = nothing
) -> None:
    device = step.inputs.positions.device
    call = _warm(graph, step, pieces, device)()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with _heard(step, RecordFunction()) as mark, profile(activities=activities, acc_events=True) as profiler:
        begin()
        _one_step(call, mark, step.ops.rank)
        _settle(device)
    with TemporaryDirectory() as folder:
        plain = Path(folder) / "step.json"
        profiler.export_chrome_trace(str(plain))
        file.write_bytes(gzip.compress(_NAMES.sub(rb"\1", plain.read_bytes()), mtime=0))


def _under_nsys(graph: CellRun | None, step: Step, pieces: list[Piece], begin: Callable[[], Any] = nothing) -> None:
    device = step.inputs.positions.device
    make = _warm(graph, step, pieces, device)
    own, _ = timing_mark()  # torch's ranges are enough where the package nvtx is missing
    with _heard(step, Several(own, TorchNvtx()) if device.type == "cuda" else own) as mark, _collected(device):
        call = make()  # nsys must see the capture of a graph, or its nodes have no range
        _settle(device)
        begin()
        _one_step(call, mark, step.ops.rank)


def _warm(graph: CellRun | None, step: Step, pieces: list[Piece], device: torch.device) -> Callable[[], Call]:
    """Run what loads and compiles; return what makes the call of a step, which captures where there is a graph."""
    pool = open_pool(device) if graph else None
    if pool is not None:
        warm_up(pieces, pool.stream, WARM_UPS)
    else:
        for _ in range(WARM_UPS):
            run_pieces(pieces)
    _settle(device)
    return (lambda: capture_alone(graph, step, pieces, pool).replay) if graph else (lambda: partial(run_pieces, pieces))


def _one_step(call: Call, mark: Mark, rank: int) -> None:
    """Make the call inside the range that marks a step."""
    mark.enter(Range(rank=rank))
    call()
    mark.exit(Range(rank=rank))


@contextmanager
def _heard(step: Step, mark: Mark) -> Iterator[Mark]:
    """Let `mark` hear the ranges of the step."""
    step.ops.mark = mark
    try:
        yield mark
    finally:
        step.ops.mark = Silent()


@contextmanager
def _collected(device: torch.device) -> Iterator[None]:
    """Let nsys collect; on a CPU it does so all the time."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]  # torch's own gap
    try:
        yield
        torch.cuda.synchronize()
    finally:
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main(text: str) -> int:
    """Do a job; what cannot run here is one line on stderr and exit code 1."""
    job = parse_job(text)
    if job.starter:
        end_with(job.starter, STARTER_S, exit_code=1)
    cell = cells(prefill_options(job.arguments))[job.group][job.cell]
    file = Path(job.file) if job.file else None
    try:
        if job.local_rank is None:
            profile_cell(cell, job.tool, file)
        else:
            _as_a_rank(cell, job.tool, file, job.local_rank)
    except (DsvError, torch.OutOfMemoryError) as error:
        sys.stderr.write(f"{error}\n".splitlines()[0] + "\n")
        return 1
    return 0


def _as_a_rank(cell: Cell, tool: Tool, file: Path | None, local_rank: int) -> None:
    """Profile with the other ranks, which have each been started as this process was."""
    if cell.device == "cuda":
        torch.cuda.set_device(local_rank)
    peers = open_peers(cell.device)
    profile_cell(cell, tool, file, peers)
    exchange(peers, "recorded")  # a rank that left early would take the others' rendezvous with it
    dist.destroy_process_group()  # or else its threads may abort this process, and the exit code is lost


if __name__ == "__main__":
    run = partial(main, sys.argv[1])
    if parse_job(sys.argv[1]).tool == "torch":
        leave_after(run)
    raise SystemExit(run())  # nsys may have to write when a process ends; no group of ranks stays there
