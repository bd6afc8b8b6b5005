"""Everything that `trace review` says, computed from one trace or from those of several ranks, as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dsv4bench.errors import UsageError
from dsv4bench.profiling.traces.columns import COPY, KERNEL, RECORDABLE, SET, Device, Trace
from dsv4bench.profiling.traces.groups import group_rows, merged
from dsv4bench.profiling.traces.placed import Placed
from dsv4bench.profiling.traces.ranges_of import graph_launch_rows
from dsv4bench.profiling.traces.repeated import repeated
from dsv4bench.results.ranks import rank_times
from dsv4bench.results.reviews import Coverage, Finding, Head, RankRow, Review, StepRow, Totals, whole
from dsv4bench.units import format_count

_KINDS = (("kernels", KERNEL), ("copies", COPY), ("sets", SET))


def review(
    ranks: Sequence[Placed],
    axes: Sequence[str],
    findings: Sequence[Finding] = (),
    only: tuple[int, int] | None = None,
) -> Review:
    """Return the review of the traces of one run, one a rank, grouped by each of `axes` (of `groups.AXES`).

    `only` are the first and last number of the steps whose operations count in steps and groups; totals are always of
    the whole trace. UsageError if no step has such a number.
    """
    rows, chosen = [placed.told for placed in ranks], chosen_steps(ranks, only)
    by = {axis: merged([_groups(*pair, axis, only) for pair in zip(ranks, rows, strict=True)]) for axis in axes}
    return Review(
        head=head([placed.trace for placed in ranks]),
        totals=_sum([totals(placed) for placed in ranks]),
        steps=[step for own in chosen for step in own],
        marked=all(placed.steps.marked for placed in ranks),
        by=by,
        findings=list(findings),
        coverage=joined_coverage([placed.coverage for placed in ranks]),
        ranks=rank_rows(ranks, chosen) if len(ranks) > 1 else [],
        notes=list(dict.fromkeys(note for placed in ranks for note in (*_disguised(placed), *placed.notes))),
        repeated=repeated(ranks),
    )


def chosen_steps(ranks: Sequence[Placed], only: tuple[int, int] | None) -> list[list[StepRow]]:
    """Return the steps of each trace with these first and last numbers, all for None; UsageError if there is none."""
    rows = [placed.told for placed in ranks]
    chosen = [[step for step in own if only is None or only[0] <= step.number <= only[1]] for own in rows]
    if only is not None and not any(chosen):
        have = sorted({step.number for own in rows for step in own})
        span = f"{have[0]} to {have[-1]}" if have else "none at all"
        raise UsageError(f"--steps {only[0]}-{only[1]}: no such step; this trace has {span}")
    return chosen


def _disguised(placed: Placed) -> list[str]:
    """Return a sentence on copies and fills in a kernel's guise, which only the totals count as kernels."""
    count = int((placed.rows["kind"] != placed.trace.operations["kind"]).sum())
    return [f"{count} kernels of the totals are copies or fills (memcpy128); below they count as such"] if count else []


def head(traces: Sequence[Trace]) -> Head:
    """Return what the files say of themselves; what only some of several files recorded counts as not recorded."""
    first = traces[0]
    recorded = [name for name in RECORDABLE if all(name in trace.recorded for trace in traces)]
    devices = Counter(_device(device) for device in max((trace.devices for trace in traces), key=len))
    return Head(
        source=first.source if len(traces) == 1 else f"{first.source} and {format_count(len(traces) - 1, 'more rank')}",
        format=" and ".join(dict.fromkeys(trace.format for trace in traces)),
        devices=[name if count == 1 else f"{count} x {name}" for name, count in devices.items()],
        facts=dict(first.facts),
        recorded=recorded,
        not_recorded=[name for name in RECORDABLE if name not in recorded],
        graph_mode=_graph_mode(traces),
    )


def totals(placed: Placed) -> Totals:
    """Return the totals of a trace by its own kinds of operations, without the alias rule."""
    trace = placed.trace
    kinds, has = trace.operations["kind"].to_numpy(), trace.recorded
    counts = {name: int((kinds == kind).sum()) if name in has else None for name, kind in _KINDS}
    kernels = kinds == KERNEL
    lasts = (trace.operations["end_ns"] - trace.operations["start_ns"]).to_numpy()
    graphs_tell = "kernels" in has and not len(trace.graph_runs)  # a graph as a whole hides its kernels
    replayed = int((kernels & placed.rows["in_graph"].to_numpy()).sum())
    return Totals(
        **counts,
        graph_launches=len(graph_launch_rows(trace)) if "launches" in has else None,
        kernels_in_graphs=replayed if graphs_tell and ("launches" in has or replayed) else None,
        kernel_sum_ns=int(lasts[kernels].sum()) if "kernels" in has else None,
        copy_bytes=_bytes(trace, COPY) if "copies" in has else None,
        set_bytes=_bytes(trace, SET) if "sets" in has else None,
        launches=len(trace.launches) if "launches" in has else None,
    )


def chosen_operations(placed: Placed, only: tuple[int, int] | None) -> npt.NDArray[np.bool_]:
    """Return which operations belong to the steps with these first and last numbers; all for None."""
    if only is None:
        return np.ones(len(placed.rows), dtype=np.bool_)
    places = [at for at, step in enumerate(placed.told) if only[0] <= step.number <= only[1]]
    return placed.rows["step"].isin(places).to_numpy()


def rank_rows(ranks: Sequence[Placed], steps: Sequence[Sequence[StepRow]]) -> list[RankRow]:
    """Return the ranks with the share of common whole steps in which each had the longest GPU span."""
    spans_of = [{step.number: step.span_ns for step in own if step.cut is None and step.span_ns} for own in steps]
    common = sorted(set.intersection(*(set(own) for own in spans_of)))
    shares: Sequence[float | None] = [None] * len(ranks)
    if common:
        shares = rank_times([[own[number] for number in common] for own in spans_of]).slowest
    return [
        RankRow(
            rank=place if placed.trace.rank is None else placed.trace.rank,
            source=placed.trace.source,
            steps=len(steps[place]),
            kernels=totals(placed).kernels,
            span_ns=float(np.median(list(spans_of[place].values()))) if spans_of[place] else None,
            slowest=shares[place],
        )
        for place, placed in enumerate(ranks)
    ]


def joined_coverage(found: Sequence[Coverage]) -> Coverage:
    """Return the coverage of several traces together."""
    names = ("attributed", "unattributed", "ambiguous", "in_graphs", "lost")
    methods = dict.fromkeys(one.method for one in found)
    return Coverage(**{name: sum(getattr(one, name) for one in found) for name in names}, method="; ".join(methods))


def _groups(placed: Placed, steps: Sequence[StepRow], axis: str, only: tuple[int, int] | None) -> Any:
    places = [at for at, step in enumerate(steps) if only is None or only[0] <= step.number <= only[1]]
    good = {id(step) for step in whole(steps)}
    uncut = [at for at in places if id(steps[at]) in good] if placed.steps.marked else []
    return group_rows(placed, axis, uncut, None if only is None else places)


def _sum(found: Sequence[Totals]) -> Totals:
    """Return the totals of several traces; what one of them did not record is not known of all."""
    values = {name: [getattr(one, name) for one in found] for name in Totals.__dataclass_fields__}
    return Totals(**{name: None if None in parts else sum(parts) for name, parts in values.items()})


def _graph_mode(traces: Sequence[Trace]) -> str:
    """Return how the traces were launched: "eager", "graphs" (where any was), as wholes, or that they do not say."""
    if any(len(trace.graph_runs) for trace in traces):
        return "graphs, traced as wholes"
    if not any("launches" in trace.recorded for trace in traces):
        nodes = any((trace.operations["graph_node"] > 0).any() for trace in traces)
        return "graphs" if nodes else "not recorded"
    return "graphs" if any(len(graph_launch_rows(trace)) for trace in traces) else "eager"


def _device(device: Device) -> str:
    words = [device.name or "a device without a name"]
    words += [f"{device.multiprocessors} SMs"] if device.multiprocessors else []
    return ", ".join(words)


def _bytes(trace: Trace, kind: int) -> int | None:
    """Return the bytes of all operations of a kind; None where the file names none."""
    found = trace.operations["bytes"].to_numpy()[trace.operations["kind"].to_numpy() == kind]
    return int(found[found >= 0].sum()) if (found >= 0).any() or not len(found) else None
