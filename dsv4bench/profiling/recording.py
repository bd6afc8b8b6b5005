"""From a finished `CellRun` to its `Record`: plain values, with every line that a reader must be told."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime
from statistics import median
from typing import Any

from dsv4bench.profiling import free_running, lockstep
from dsv4bench.profiling.capture import ON_A_TAPE, Captured
from dsv4bench.profiling.cell_run import CellRun
from dsv4bench.profiling.group import GroupRun
from dsv4bench.profiling.session import Session
from dsv4bench.profiling.timing import StopRule, Timing
from dsv4bench.profiling.verify_pass import beside_first_provider
from dsv4bench.results.plausibility import flagged
from dsv4bench.results.record import LAUNCH_BOUND, Record
from dsv4bench.units import format_ns, format_percent
from dsv4bench.workloads.batch import Batch, Request
from dsv4bench.workloads.cells import Cell
from dsv4bench.workloads.late_layers import sparse_layers
from dsv4bench.workloads.model import break_copies, dequants, reuse_saving
from dsv4bench.workloads.step_scope import what_is_in_the_step

LEAST_SAMPLES = 6  # with fewer, not even all samples together bound the median with 95 % confidence
REPLAYED_FOR_BOTH = "replays were compared with eager steps for one of reuse off and on: they differ in breaks alone"
ALIGNMENTS = {"barrier": lockstep.ALIGNMENT, "free": free_running.ALIGNMENT}
BEGIN = {"barrier": "they begin every sample together", "free": "they begin samples apart"}
BEST_CASE = "full graph: best case, nobody ships it; captured for these lengths alone"


def records(group: GroupRun) -> list[Record]:
    """Return one record per cell of a group whose passes are over."""
    return [flagged(record(run, group)) for run in group.runs]


def record(run: CellRun, group: GroupRun) -> Record:
    """Return the record of one cell; only a cell that is ok carries samples."""
    session, cell, ok = group.session, run.cell, run.live
    samples, ranks = _samples(run) if ok else ({}, [])
    if ok and run.compressor:
        samples["compressor"] = run.compressor.samples_ns["compressor"]
    return Record(
        key=cell.key(session.commit),
        group=cell.group,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        status=run.status,
        reason=run.reason,
        label=cell.label,
        engine=_engine(cell, session),
        note=notes(run, group),
        geometry=cell.geometry.name,
        batch=_batch(run, group),
        ranks=cell.ranks,
        variant=cell.switches(),
        providers=group.steps[run.key].ops.ran_on if run.key in group.steps else {},
        samples_ns=samples,
        rank_samples_ns=ranks if ok and (cell.dep or cell.ranks > 1) else None,
        timing=_timing(run, session) if ok else None,
        predicted=group.predicted.get(cell.variant.provider) if ok else None,
        counts=[dict(row) for row in run.counts.rows] if run.counts else [],
        counted_forwards=1 if run.counts else None,
        coverage=_coverage(run),
        graph=_graph(run),
        capture_ledger=run.counts.capture_ledger if run.counts else None,
        device_time=run.counts.device_time if run.counts else None,
        redundant=None if run.redundant is None else [asdict(row) for row in run.redundant],
        checks=[asdict(check) for check in run.checks],
        memory=dict(run.memory),
        clocks=_clocks(run),
        flags=_flags(run, session.rule) if ok else [],
        environment=_environment(cell, session),
        argv=list(session.argv),
    )


def unmeasured(cell: Cell, session: Session, status: str, reason: str) -> Record:
    """Return the record of a cell that never got as far as a run."""
    return Record(
        key=cell.key(session.commit),
        group=cell.group,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        status=status,
        reason=reason,
        label=cell.label,
        engine=_engine(cell, session),
        note=list(session.notes),
        geometry=cell.geometry.name,
        batch=_load(cell),
        ranks=cell.ranks,
        variant=cell.switches(),
        environment=_environment(cell, session),
        argv=list(session.argv),
    )


def _engine(cell: Cell, session: Session) -> str:
    """Return what ran the cell: a GPU, or on a CPU a tape or the reference as it is."""
    if session.device.type == "cuda":
        return "gpu"
    return "tape" if cell.variant.graph else "cpu-reference"


def _environment(cell: Cell, session: Session) -> dict[str, Any]:
    """Return where the cell was made, with the hashes of the files of the user's that it called."""
    return session.environment | ({"own_files": cell.own_files} if cell.own_files else {})


def notes(run: CellRun, group: GroupRun) -> list[str]:
    """Return the lines that must be shown with a cell."""
    cell = run.cell
    forward = next(f for f in group.plan[0] if f.live)
    scope = what_is_in_the_step(cell.forwards[0], cell.variant)
    found = [*group.session.notes, scope, *_recipe(cell, forward)]
    if run.graph and group.session.device.type != "cuda":
        found += [ON_A_TAPE, *([REPLAYED_FOR_BOTH] if run.live and not run.full else [])]
    if run.full:
        found.append(BEST_CASE)
    if run.graph and not run.full and run.live and group.refusals:
        reason = next(iter(group.refusals.values()))
        found.append(
            f"{len(group.refusals)} of {len(group.plan[0])} forwards run eagerly, refused by the graph: {reason}"
        )
    if cell.label == "simulated":
        found.append(f"simulated: {cell.ranks} ranks one after another on one device; the step is the slowest rank's")
    if cell.dep:
        found.append(_processes(cell))
    found += [*_own(run, group), *beside_first_provider(group, run)]
    if run.live and run.timings and (warm := _unsettled(run)) is not None:
        found.append(warm)
    return found


def _processes(cell: Cell) -> str:
    """Return how the processes of real ranks take their samples; one has no other to wait for."""
    if cell.ranks == 1:
        return "1 rank, a process of its own"
    return f"{cell.ranks} ranks, a process each: {BEGIN[cell.align]}; the step is the slowest rank's"


def _own(run: CellRun, group: GroupRun) -> list[str]:
    """Return a line about files of the user's, and one about kernels that were given a provider but never called."""
    files = [f"{name} {content}" for name, content in run.cell.own_files.items()]
    found = [f"sha256 of your files: {', '.join(files)}"] if files else []
    step = group.steps.get(run.key)
    idle = step.ops.not_called if step and run.live else {}
    asked = ", ".join(f"{name}={provider}" for name, provider in idle.items())
    return found + ([f"not called in this step: {asked}"] if idle else [])


def _recipe(cell: Cell, batch: Batch) -> list[str]:
    """Return a line saying what the recipe's own replay of the late layers would run instead (specification 1.2)."""
    geometry, variant = cell.geometry, cell.variant
    if variant.replay == "on" or geometry.late_start is None:
        return []
    replayed = replace(variant, replay="on", reuse="off")
    before, saved = len(dequants(geometry, batch, replayed)), reuse_saving(geometry, batch, replayed).calls
    windows = len(sparse_layers(geometry, replayed, batch))
    return [
        f"replay off, path {variant.path}: the recipe's default is --replay on, {before} -> {before - saved} compressed"
        f" dequants and {windows} of windows"
    ]


def _unsettled(run: CellRun) -> str | None:
    """Return a line about warm-up that never settled, or None."""
    unsettled = [timing for timing in _timings(run) if not timing.settled and timing.warm_ups > 1]
    return f"warm-up had not settled after {unsettled[0].warm_ups} steps" if unsettled else None


def _timings(run: CellRun) -> list[Timing]:
    return [timing for rank in run.timings for timing in rank if timing]


def _timing(run: CellRun, session: Session) -> dict[str, Any] | None:
    """Return how a cell was timed: clock, cache policy, why sampling stopped, steps a sample, warm-ups."""
    timings = _timings(run)
    if not timings:
        return None
    return {
        "clock": session.clock.name,
        "cache": "natural",
        "stop": sorted({timing.stop for timing in timings}),
        "repeat": [timing.repeat for timing in timings],
        "warm_ups": [timing.warm_ups for timing in timings],
        "samples": session.rule.samples,
        **({"alignment": ALIGNMENTS[run.cell.align]} if session.peers else {}),
    }


def _load(cell: Cell) -> dict[str, Any]:
    load = cell.load
    return {
        "requests": len(load.requests),
        "extend": load.extend,
        "prefix": load.prefix,
        "rows": load.rows,
        "source": load.source,
        "divide": load.divide,
        "forwards": max(len(rank) for rank in cell.plan),
    }


def _batch(run: CellRun, group: GroupRun) -> dict[str, Any]:
    padded = run.graph and not run.full  # eager cells and full graphs run the live rows of a padded plan
    batches = [batch for rank in group.plan for batch in rank]
    return _load(run.cell) | {
        "padded_rows": sum(batch.rows if padded else batch.live for batch in batches),
        "rank_rows": [sum(batch.live for batch in rank) for rank in group.plan],
    }


def _samples(run: CellRun) -> tuple[dict[str, list[int]], list[dict[str, list[int]]]]:
    """Return (the samples of the step, those of every rank), as many as the stretch with fewest has.

    Ranks wait for each other in every forward, so a step lasts as long as the slowest rank of each of its stretches
    together; a rank that had nothing to run took no time.
    """
    taken = [[timing.samples_ns if timing else {} for timing in rank] for rank in run.timings]
    every = [samples for rank in taken for samples in rank if samples]
    count = min(len(values) for samples in every for values in samples.values())

    def column(samples: dict[str, list[int]], metric: str, place: int) -> int:
        return samples[metric][place] if samples else 0

    step: dict[str, list[int]] = {}
    ranks: list[dict[str, list[int]]] = [{} for _ in taken]
    for metric in every[0]:
        times = [
            [[column(s, metric, i) for i in range(count)] for s in rank] for rank in taken
        ]  # rank, stretch, sample
        for own, rank in zip(ranks, times, strict=True):
            own[metric] = [sum(values) for values in zip(*rank, strict=True)]
        slowest = [[max(values) for values in zip(*stretch, strict=True)] for stretch in zip(*times, strict=True)]
        step[metric] = [sum(values) for values in zip(*slowest, strict=True)]
    return step, ranks


def _coverage(run: CellRun) -> dict[str, Any] | None:
    if run.counts is None or run.counts.coverage is None:
        return None
    return run.counts.coverage | {"disagreement": run.counts.disagreement}


def _graph(run: CellRun) -> dict[str, Any] | None:
    if not run.captured:
        return None
    graphs = list(run.captured.values())
    first = graphs[0]
    return {
        "kind": first.kind,
        "segments": first.segments,
        "breaks": first.breaks,
        "graph_launches": first.graph_launches,
        "graphs": len(graphs),
        "capture_ns": sum(graph.capture_ns for graph in graphs),
        "memory_bytes": sum(graph.memory_bytes for graph in graphs),
        "each": [_one_graph(run.cell, key, graph) for key, graph in run.captured.items()],
    }


def _one_graph(cell: Cell, key: int, graph: Captured) -> dict[str, Any]:
    """Return what is known of one graph; a full one has no bucket. The first is the one that was counted."""
    bucket = key if key > 0 else None
    full = Batch((Request(0, 0, bucket or 0),), bucket=bucket)
    copied = break_copies(cell.geometry, full, cell.variant)
    names = ("segments", "breaks", "graph_launches", "capture_ns", "memory_bytes")
    return {"bucket": bucket} | {name: getattr(graph, name) for name in names} | {"copied_bytes": copied.bytes_written}


def _clocks(run: CellRun) -> dict[str, Any] | None:
    """Return what NVML said, with the SM clock of every sample: the median of its stretches."""
    summary = run.clocks.summary() if run.clocks else None
    if summary is None:
        return None
    stretches = zip(*(timing.sm_mhz for timing in _timings(run)), strict=False)
    known = [[mhz for mhz in sample if mhz is not None] for sample in stretches]
    return summary | {"sample_sm_mhz": [round(median(mhz)) if mhz else None for mhz in known]}


def _flags(run: CellRun, rule: StopRule) -> list[str]:
    timings = _timings(run)
    found = list(run.clocks.flags()) if run.clocks else []
    if any(timing.launch_bound for timing in timings):
        found.append(LAUNCH_BOUND)
    if any(timing.stop == "timeout" for timing in timings):
        found.append(
            f"stopped after {format_ns(rule.timeout_ns, 2)}, interval wider than {format_percent(rule.half_width)}"
        )
    if any(len(next(iter(timing.samples_ns.values()))) < LEAST_SAMPLES for timing in timings):
        found.append("too few samples")
    return found
