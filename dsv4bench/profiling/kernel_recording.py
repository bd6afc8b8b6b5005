"""From a finished `KernelRun` to one record per provider, and the sweep over all groups of a plan."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import torch

from dsv4bench.profiling.buffer_sets import TIMES_L2, l2_bytes, touched_bytes
from dsv4bench.profiling.kernel_bench import COLD, Best, KernelRun, Lane, measure_best, run_kernel
from dsv4bench.profiling.recording import LEAST_SAMPLES
from dsv4bench.profiling.session import Session
from dsv4bench.profiling.timing import StopRule
from dsv4bench.results.plausibility import NOT_COLD, flagged
from dsv4bench.results.record import Record
from dsv4bench.units import NS_PER_S, format_ns, format_percent
from dsv4bench.workloads.kernel_cells import KernelGroup

# many short subjects, none of which has to match another's repeats
KERNEL_RULE = StopRule(warm_ups=5, least_ns=NS_PER_S // 4, timeout_ns=4 * NS_PER_S, alike=False)
Progress = Callable[[KernelGroup, str], None]


def kernel_session(session: Session, quick: bool) -> Session:
    """Return the session with the stopping rule of kernels; `quick` keeps its number of samples and one warm-up."""
    rule = replace(session.rule, alike=False) if quick else replace(KERNEL_RULE, samples=session.rule.samples)
    return replace(session, rule=rule)


def run(
    plan: Sequence[KernelGroup],
    session: Session,
    done: frozenset[str] = frozenset(),
    progress: Progress = lambda _group, _pass: None,
) -> Iterator[list[Record]]:
    """Yield the records of each group as soon as it is finished; groups whose cells are all in `done` are left out.

    What the device gives at best is measured first.
    """
    left = [group for group in plan if not finished(group, session, done)]
    if not left:
        return
    progress(left[0], "ceilings")
    with torch.no_grad():
        best = measure_best(session)
    for group in left:
        free(session)
        found = run_kernel(group, session, lambda name, group=group: progress(group, name))  # type: ignore[misc]
        yield [record(lane, found, best) for lane in found.lanes]
        del found


def finished(group: KernelGroup, session: Session, done: frozenset[str]) -> bool:
    """Return whether every cell of a group has its key in `done`."""
    return all(cell.key(session.commit) in done for cell in group)


def free(session: Session) -> None:
    """Give back what a group held before the next one allocates."""
    gc.collect()
    if session.device.type == "cuda":
        torch.cuda.empty_cache()


def record(lane: Lane, run: KernelRun, best: Best) -> Record:
    """Return the record of one provider; only one that is ok carries samples."""
    cell, session = lane.cell, run.session
    found = Record(
        key=cell.key(session.commit),
        group=cell.group,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        status=lane.status,
        reason=lane.reason,
        engine="gpu" if session.device.type == "cuda" else "cpu-reference",
        note=[*session.notes, *(f"sha256 of {cell.provider}: {content}" for content in cell.own_files.values())],
        variant={"provider": cell.provider, "seed": cell.seed},
        providers={cell.kernel: cell.provider},
        kernel=_kernel(lane, run, best),
        samples_ns={period: lane.per_call_ns(period) for period in lane.loops} if lane.live else {},
        timing=_timing(lane, session) if lane.live else None,
        checks=[asdict(check) for check in lane.checks],
        clocks=run.clocks.summary() if lane.live else None,
        flags=_flags(lane, run) if lane.live else [],
        environment=session.environment | ({"own_files": cell.own_files} if cell.own_files else {}),
        argv=list(session.argv),
    )
    return flagged(found)


def _kernel(lane: Lane, run: KernelRun, best: Best) -> dict[str, Any]:
    cell = lane.cell
    found: dict[str, Any] = {
        "name": cell.kernel,
        "case": cell.case,
        "rows": cell.rows,
        "shape": repr(cell.shape),
        "provider": cell.provider,
    }
    if run.cost is not None:
        found |= asdict(run.cost)
    if lane.live and lane.loops:
        found["launches"] = lane.loops[COLD].launches
    if run.sets:
        found |= {"set_bytes": run.set_bytes, "sets": len(run.sets), "l2_bytes": l2_bytes(run.session.device)}
    return found | {"ceilings": {**asdict(best), **run.ceilings}}


def _timing(lane: Lane, session: Session) -> dict[str, Any]:
    return {
        "clock": session.clock.name,
        "cache": {"kernel_cold": f"rotating sets over {TIMES_L2} times the L2", "kernel_hot": "one set"},
        "stop": sorted({timing.stop for timing in lane.timings.values()}),
        "repeat": {period: timing.repeat for period, timing in lane.timings.items()},
        "calls": {period: one.calls for period, one in lane.loops.items()},
        "warm_ups": {period: timing.warm_ups for period, timing in lane.timings.items()},
        "samples": session.rule.samples,
    }


def _flags(lane: Lane, run: KernelRun) -> list[str]:
    found, rule = list(run.clocks.flags()), run.session.rule
    eager = next((one.why_eager for one in lane.loops.values() if one.why_eager), None)
    if eager:
        found.append(f"not in a graph, launch gaps included: {eager}")
    if any(timing.stop == "timeout" for timing in lane.timings.values()):
        bound = format_percent(rule.half_width)
        found.append(f"stopped after {format_ns(rule.timeout_ns, 2)}, some interval wider than {bound}")
    if min(len(lane.per_call_ns(period)) for period in lane.loops) < LEAST_SAMPLES:
        found.append("too few samples")
    assert run.cost is not None, "a lane with times has a cost"
    rotated = len(run.sets) * touched_bytes(run.sets[0], run.cost)
    if rotated < TIMES_L2 * l2_bytes(run.session.device):
        found.append(NOT_COLD)
    return found
