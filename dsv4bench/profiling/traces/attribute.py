"""Give every device operation of a trace to the range whose code launched it.

The join is: device operation -> launch with the same correlation id -> innermost range of ours open on the launching
thread when the launch began. Operations launched by `cudaGraphLaunch` all carry the correlation of that one call, so a
trace cannot tell their ranges: they are `replayed`, and the capture ledger has counted them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter

from dsv4bench.profiling.ledger import DEVICE_METRICS, Ledger, Where
from dsv4bench.profiling.traces.model import Annotation, DeviceOp, Launch, Thread, Trace
from dsv4bench.ranges import Range, parse_range

METHOD = "launch correlation"
_METRICS = {"kernel": "kernels", "copy": "copies", "set": "sets"}
# a copy or fill inside a replayed graph is written as a kernel with one of these names (memcpy128, memcpy32_post)
_ALIASES = ((re.compile(r"memcpy\d+(_\w+)?"), "copies"), (re.compile(r"memset\d+(_\w+)?"), "sets"))
_GRAPH_LAUNCH = "GraphLaunch"
_KERNEL_LAUNCH = re.compile(r"Launch(Cooperative)?Kernel")


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of what the device did has a range.

    `attributed` lies in a range of ours, `unattributed` in none, `replayed` came from a graph. `outside_ops` is the
    part of `attributed` whose range names no operation; `lost` counts kernel launches of which the trace has no kernel.
    """

    attributed: int
    unattributed: int
    replayed: int
    outside_ops: int
    lost: int
    method: str
    ambiguous: int = 0


@dataclass(frozen=True, slots=True)
class Attribution:
    """The counts per range, how complete they are, and the counts per metric of what graphs replayed."""

    ledger: Ledger
    coverage: Coverage
    replayed: Counter[str]


def attribute(
    trace: Trace, where: Where = "eager", read_range: Callable[[str], Range | None] = parse_range
) -> Attribution:
    """Count the trace's operations per range as having run in `where`; `read_range` reads the names of annotations.

    Sum of attributed, unattributed and replayed is the number of device operations in the trace.
    """
    ledger = Ledger()
    ledger.declare(where, *DEVICE_METRICS, "graph_launches")
    launches = {launch.correlation: launch for launch in _by_rank(trace.launches)}
    ranges = innermost_ranges(launches.values(), trace.annotations, read_range)
    replayed: Counter[str] = Counter()
    for operation in trace.operations:
        launch = launches.get(operation.correlation) if operation.correlation is not None else None
        if launch is not None and _GRAPH_LAUNCH in launch.name:
            replayed[metric(operation)] += 1
        else:
            ledger.add(ranges.get(launch.correlation) if launch else None, where, metric(operation))
    for launch in launches.values():
        if _GRAPH_LAUNCH in launch.name:
            ledger.add(ranges[launch.correlation], where, "graph_launches")
    return Attribution(ledger, _coverage(trace, ledger, launches, replayed), replayed)


def graph_launches(trace: Trace) -> list[Launch]:
    """Return the launches of graphs, one for each correlation id, in the order of the host."""
    launches = {launch.correlation: launch for launch in trace.launches if _GRAPH_LAUNCH in launch.name}
    return sorted(launches.values(), key=attrgetter("start_ns"))


def metric(operation: DeviceOp) -> str:
    """Return the ledger's metric of a device operation; copies and fills in disguise count as what they are."""
    if operation.kind == "kernel":
        return next((name for pattern, name in _ALIASES if pattern.fullmatch(operation.name)), "kernels")
    return _METRICS[operation.kind]


def innermost_ranges(
    launches: Iterable[Launch],
    annotations: Iterable[Annotation],
    read_range: Callable[[str], Range | None] = parse_range,
) -> dict[int, Range | None]:
    """Return correlation -> innermost range of ours open at the launch on its thread, by one sweep per thread."""
    opened: dict[Thread, list[tuple[Annotation, Range]]] = {}
    for annotation in annotations:
        rng = read_range(annotation.name)
        if rng is not None:
            opened.setdefault(annotation.thread, []).append((annotation, rng))
    launched: dict[Thread, list[Launch]] = {}
    for launch in launches:
        launched.setdefault(launch.thread, []).append(launch)
    found: dict[int, Range | None] = {}
    for thread, calls in launched.items():
        _sweep(sorted(calls, key=attrgetter("start_ns")), opened.get(thread, []), found)
    return found


def _sweep(calls: list[Launch], opened: list[tuple[Annotation, Range]], found: dict[int, Range | None]) -> None:
    """Walk the launches of one thread in time with a stack of open ranges, the innermost on top."""
    waiting = sorted(opened, key=lambda pair: (pair[0].start_ns, -pair[0].end_ns), reverse=True)
    stack: list[tuple[Annotation, Range]] = []
    for call in calls:
        while waiting and waiting[-1][0].start_ns <= call.start_ns:
            entering = waiting.pop()
            while stack and stack[-1][0].end_ns <= entering[0].start_ns:
                stack.pop()
            stack.append(entering)
        while stack and stack[-1][0].end_ns < call.start_ns:
            stack.pop()
        found[call.correlation] = stack[-1][1] if stack else None


def _by_rank(launches: Iterable[Launch]) -> list[Launch]:
    """Put graph launches last: where runtime and driver rows share a correlation, the one that says graph decides."""
    return sorted(launches, key=lambda launch: _GRAPH_LAUNCH in launch.name)


def _coverage(trace: Trace, ledger: Ledger, launches: dict[int, Launch], replayed: Counter[str]) -> Coverage:
    total, unattributed = ledger.total(*DEVICE_METRICS), ledger.unattributed(*DEVICE_METRICS)
    seen = {operation.correlation for operation in trace.operations}
    lost = sum(
        1 for launch in launches.values() if _KERNEL_LAUNCH.search(launch.name) and launch.correlation not in seen
    )
    return Coverage(
        attributed=total - unattributed,
        unattributed=unattributed,
        replayed=replayed.total(),
        outside_ops=ledger.outside_ops(*DEVICE_METRICS),
        lost=lost,
        method=METHOD,
    )
