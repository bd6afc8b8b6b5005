"""A model of a step: what its operations take on one GPU, fitted on measured records, and what they would on another.

Of each operation: time = max(bytes / HBM rate, FLOPs / bf16 rate) / share + launches x a fixed cost. Share and fixed
cost are fitted on the device times of profiled steps. A step takes `steady` times the sum of its operations, or as long
as the host needs to submit it, whichever is longer. Another GPU keeps shares, fixed costs and `steady`; its rates are
those of its peaks. Everything that comes out is `modelled`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np

from dsv4bench.errors import nearest
from dsv4bench.results.counts import incomplete
from dsv4bench.results.peaks import Device
from dsv4bench.results.record import Record
from dsv4bench.units import NS_PER_S

Place = tuple[str, int | None]  # operation and kv_source
Costs = Mapping[Place, tuple[float, float]]  # FLOPs and bytes
Bound = Literal["bytes", "FLOPs", "cycles"]

HOST_BOUND = 0.95  # of the step: from there on the GPU waits for the host
# An operation that reaches less of both ceilings is bound by neither of them, but by how fast SMs issue. On an H200 the
# index kernels reach 0.02 and 0.15, everything else that counts 0.5 and more.
LEAST_SHARE = 1 / 3


@dataclass(frozen=True, slots=True)
class Cell:
    """A measured record with what each of its operations costs at least, or `uncosted`, why that is not known."""

    record: Record
    costs: Costs
    uncosted: str | None = None

    @property
    def partial(self) -> bool:
        """Whether a part of what ran in its profiled step has no place, so that times of its operations are missing."""
        seen = self.record.device_time
        return bool(seen) and (incomplete(self.record.coverage) or bool((seen or {}).get("unattributed_ns")))

    @property
    def timed(self) -> bool:
        """Whether its device times are known, and whole."""
        return bool(self.record.device_time) and not self.partial

    @property
    def launches(self) -> dict[Place, int]:
        """Kernels, copies and sets of each operation and kv_source, whoever launched them."""
        return _launches(self.record.counts)

    @property
    def host_launches(self) -> int:
        """Kernels, copies and sets that the host launches one by one."""
        return sum(_launches(row for row in self.record.counts if row["where"] != "segment").values())

    @property
    def graph_launches(self) -> int:
        """CUDA graphs that the host launches."""
        return int((self.record.graph or {}).get("graph_launches") or 0)

    @property
    def step_ns(self) -> float:
        """The median step time."""
        return median(self.record.step_samples_ns)

    @property
    def host_ns(self) -> float | None:
        """The median time to submit a step, or None where it was not measured."""
        samples = self.record.samples_ns.get("host_submit")
        return median(samples) if samples else None

    @property
    def workload(self) -> tuple[object, ...]:
        """What is computed, however it is launched."""
        names = ("requests", "extend", "prefix", "source")
        return (self.record.geometry, *(self.record.batch.get(name) for name in names))


@dataclass(frozen=True, slots=True)
class Operation:
    """What was fitted of one operation: its share of the ceilings and nanoseconds a launch.

    A share of None: its time does not grow with its work. `timed_ns` is all device time that it was fitted on.
    """

    share: float | None
    launch_ns: float
    bound: Bound
    timed_ns: int


@dataclass(frozen=True, slots=True)
class Host:
    """What one launch and one graph launch cost the host, fitted on `cells` of a machine."""

    machine: str
    kind: str
    launch_ns: float
    graph_launch_ns: float
    cells: int

    def submit_ns(self, cell: Cell) -> float:
        """Return the modelled time to submit a cell's step."""
        return cell.host_launches * self.launch_ns + cell.graph_launches * self.graph_launch_ns


@dataclass(frozen=True, slots=True)
class Fit:
    """The model of one GPU. `providers` are those whose kernels were timed; `cells` had device times."""

    device: Device
    machine: str
    operations: Mapping[str, Operation]
    steady: float
    providers: Mapping[str, str]
    cells: int

    def why_not(self, cell: Cell) -> str | None:
        """Return one sentence saying why a cell cannot be predicted, or None if it can."""
        if cell.uncosted:
            return cell.uncosted
        if not cell.launches:
            return "the record does not say how many kernels ran"
        ran = cell.record.providers
        if not ran:
            return "the record does not say whose kernels ran (an older version), so the fit may be of others"
        for name, provider in ran.items():
            if self.providers.get(name, provider) != provider:
                return f"{name} ran on {provider}, the fit is of {self.providers[name]}"
        for op, source in cell.launches:
            if op not in self.operations:
                known = tuple(self.operations)
                return f"operation {op} was in no profiled step of the fit{nearest(op, known)}"
            if (op, source) not in cell.costs:
                return f"the model has no cost of operation {op} of kv_source {source}"
        return None


@dataclass(frozen=True, slots=True)
class Prediction:
    """A modelled step; `operations` are device times of (operation, kv_source), with what bounds each."""

    step_ns: float
    device_ns: float
    host_ns: float
    operations: Mapping[Place, tuple[float, Bound]]

    @property
    def launch_bound(self) -> bool:
        """Whether the GPU waits for the host."""
        return self.host_ns >= HOST_BOUND * self.step_ns


def _launches(rows: Iterable[Mapping[str, object]]) -> dict[Place, int]:
    found: dict[Place, int] = {}
    for row in rows:
        place = (str(row["op"]), row["kv_source"])
        number = sum(int(row.get(name) or 0) for name in ("kernels", "copies", "sets"))  # type: ignore[call-overload]
        if number:
            found[place] = found.get(place, 0) + number  # type: ignore[index, arg-type]
    return found


def ceiling_ns(cost: tuple[float, float], device: Device) -> tuple[float, Bound]:
    """Return the time that FLOPs and bytes take at a device's ceilings, and which of them it is."""
    flops_ns, bytes_ns = cost[0] / device.value("bf16") * NS_PER_S, cost[1] / device.value("hbm_rate") * NS_PER_S
    return (flops_ns, "FLOPs") if flops_ns > bytes_ns else (bytes_ns, "bytes")


def fit(cells: Sequence[Cell], device: Device) -> Fit | None:
    """Fit the model of `device` on cells that are `alike`, or return None where none has whole device times."""
    timed = [cell for cell in cells if cell.timed]
    if not timed:
        return None
    rows: dict[str, list[tuple[Cell, Place, int, int]]] = {}
    for cell in timed:
        for place, (spent, launches) in _device_times(cell).items():
            if place in cell.costs:
                rows.setdefault(place[0], []).append((cell, place, spent, launches))
    operations = {op: _operation(found, device) for op, found in rows.items()}
    providers = {name: ran for cell in timed for name, ran in cell.record.providers.items()}
    first = Fit(device, timed[0].record.machine, operations, 1.0, providers, len(timed))
    return Fit(device, first.machine, operations, _steady(cells, first), providers, len(timed))


def _device_times(cell: Cell) -> dict[Place, tuple[int, int]]:
    found: dict[Place, tuple[int, int]] = {}
    for row in (cell.record.device_time or {})["rows"]:
        spent, launches = found.get((row["op"], row["kv_source"]), (0, 0))
        found[row["op"], row["kv_source"]] = (spent + row["device_ns"], launches + row["operations"])
    return found


def _operation(rows: Sequence[tuple[Cell, Place, int, int]], device: Device) -> Operation:
    """Fit time = ceiling / share + launches x fixed, with the least squares of relative errors."""
    ceilings = [ceiling_ns(cell.costs[place], device) for cell, place, _, _ in rows]
    times = [spent for _, _, spent, _ in rows]
    slope, fixed_ns = two_terms([ns for ns, _ in ceilings], [launches for *_, launches in rows], times)
    share = 1 / slope if slope else None
    by_flops = sum(ns for ns, bound in ceilings if bound == "FLOPs") > sum(ns for ns, _ in ceilings) / 2
    bound: Bound = "cycles" if share is not None and share < LEAST_SHARE else "FLOPs" if by_flops else "bytes"
    return Operation(share, fixed_ns, bound, sum(times))


def two_terms(first: Sequence[float], second: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    """Return a, b >= 0 of times = a x first + b x second with the least squares of relative errors; no time is 0."""
    columns = np.stack([first, second], axis=1) / np.asarray(times, dtype=np.float64)[:, None]
    ones = np.ones(len(times))
    both = np.linalg.lstsq(columns, ones, rcond=None)[0]
    if (both >= 0).all():
        return float(both[0]), float(both[1])
    alone = [float(column.sum() / (column @ column)) for column in columns.T]  # the best with the other at 0
    left = [float(((column * factor - 1) ** 2).sum()) for column, factor in zip(columns.T, alone, strict=True)]
    return (alone[0], 0.0) if left[0] <= left[1] else (0.0, alone[1])


def _steady(cells: Sequence[Cell], found: Fit) -> float:
    """Return the median of step time over the sum of its operations, where the GPU does not wait for the host.

    It holds what lies between operations and that a GPU which never rests is warmer and slower than a profiled one.
    """
    ratios = [
        cell.step_ns / sum(_operations_ns(cell, found, found.device).values())
        for cell in cells
        if found.why_not(cell) is None and (cell.host_ns or 0) < HOST_BOUND * cell.step_ns
    ]
    return median(ratios) if ratios else 1.0


def fit_host(cells: Sequence[Cell], kind: str) -> Host | None:
    """Fit what launches cost the host of one machine, or return None where nothing was measured."""
    timed = [cell for cell in cells if cell.host_ns and (cell.host_launches or cell.graph_launches)]
    if not timed:
        return None
    launch, graph = two_terms(
        [cell.host_launches for cell in timed],
        [cell.graph_launches for cell in timed],
        [cell.host_ns or 0 for cell in timed],
    )
    return Host(timed[0].record.machine, kind, launch, graph, len(timed))


def predict(cell: Cell, found: Fit, host: Host, target: Device) -> Prediction:
    """Return the modelled step of a cell on `target`, submitted by `host`; `found.why_not(cell)` must be None."""
    times = _operations_ns(cell, found, target)
    device_ns = found.steady * sum(times.values())
    host_ns = host.submit_ns(cell)
    rows = {place: (ns, _bound(cell, place, found, target)) for place, ns in times.items()}
    return Prediction(max(device_ns, host_ns), device_ns, host_ns, rows)


def _operations_ns(cell: Cell, found: Fit, target: Device) -> dict[Place, float]:
    return {
        place: operation_ns(found.operations[place[0]], cell.costs[place], launches, found.device, target)
        for place, launches in cell.launches.items()
    }


def operation_ns(one: Operation, cost: tuple[float, float], launches: int, device: Device, target: Device) -> float:
    """Return what an operation that was fitted on `device` takes on `target`, of FLOPs and bytes."""
    at_ceiling_ns, _ = ceiling_ns(cost, device if one.bound == "cycles" else target)
    if one.bound == "cycles":
        at_ceiling_ns *= device.cycles_per_s / target.cycles_per_s
    return (at_ceiling_ns / one.share if one.share else 0.0) + launches * one.launch_ns


def _bound(cell: Cell, place: Place, found: Fit, target: Device) -> Bound:
    one = found.operations[place[0]]
    return "cycles" if one.bound == "cycles" else ceiling_ns(cell.costs[place], target)[1]


def alike(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Return the cells of each machine apart, and of a machine those apart whose kernels ran on other providers."""
    found: list[tuple[str, dict[str, str], list[Cell]]] = []
    for cell in cells:
        machine, ran = cell.record.machine, cell.record.providers
        same = [
            one for one in found if one[0] == machine and all(one[1].get(name, by) == by for name, by in ran.items())
        ]
        if not same:
            found.append((machine, {}, []))
            same = found[-1:]
        same[0][1].update(ran)
        same[0][2].append(cell)
    return [group for _, _, group in found]
