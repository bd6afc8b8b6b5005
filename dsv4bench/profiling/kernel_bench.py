"""Times one kernel at one shape by all its providers, side by side; a provider whose result is wrong gets no time.

The order is: check every provider against the reference over poisoned outputs, build buffer sets and loops, time all of
them interleaved with the ceilings of the same bytes, and see that what was timed still does what an eager call does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from dsv4bench.errors import CellSkipped, CellWrong
from dsv4bench.kernels import kernel
from dsv4bench.kernels.contract import Call, Cost, Kernel
from dsv4bench.profiling.buffer_sets import (
    copied,
    l2_bytes,
    restore,
    rotation,
    set_bytes,
    sets_needed,
    touched_bytes,
)
from dsv4bench.profiling.ceilings import Mover, even_mover, large_mover, matmul, mixed_mover
from dsv4bench.profiling.cell_run import ending, outcome
from dsv4bench.profiling.clocks import ClockMonitor
from dsv4bench.profiling.contract_check import Expectation, deviations, expectation, poison
from dsv4bench.profiling.kernel_loops import Loop, loop
from dsv4bench.profiling.session import Session
from dsv4bench.profiling.timing import Part, Period, Subject, Timing, interleave
from dsv4bench.profiling.verify import Check
from dsv4bench.units import NS_PER_S
from dsv4bench.workloads.kernel_cells import KernelCell, KernelGroup

COLD: Period = "kernel_cold"
HOT: Period = "kernel_hot"
Tensors = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Best:
    """What the device gives at best, measured once a run."""

    copy_bytes_per_s: float
    matmul_flops_per_s: float


@dataclass(slots=True)
class Lane:
    """One provider of a group, with its status, checks, loops and timings so far."""

    cell: KernelCell
    status: str = "ok"
    reason: str | None = None
    checks: list[Check] = field(default_factory=list)
    loops: dict[Period, Loop] = field(default_factory=dict)
    timings: dict[Period, Timing] = field(default_factory=dict)
    last_call: Call | None = None  # that of the last buffer set

    @property
    def live(self) -> bool:
        """Whether it can still be measured."""
        return self.status == "ok"

    def fail(self, error: Exception) -> None:
        """End with the status and the reason that the error stands for; the first end counts."""
        if self.live:
            self.status, self.reason = outcome(error)

    def per_call_ns(self, period: Period) -> list[int]:
        """Return the samples of a loop, each divided by the loop's calls."""
        calls = self.loops[period].calls
        return [round(sample / calls) for sample in self.timings[period].samples_ns[period]]


class KernelRun:
    """The passes of one group; each leaves what it found in `lanes`."""

    def __init__(self, group: KernelGroup, session: Session) -> None:
        self.lanes = [Lane(cell) for cell in group]
        self.session = session
        self.kernel: Kernel = kernel(group[0].kernel)
        self.shape = group[0].shape
        self.cost: Cost | None = None
        self.sets: list[Tensors] = []
        self.clocks = ClockMonitor(session.nvml, session.own_threads)
        self.ceilings: dict[str, float] = {}
        self._pure: set[str] = set()
        self._movers: dict[str, tuple[Mover, Loop]] = {}

    @property
    def set_bytes(self) -> int:
        """Bytes of one buffer set."""
        return set_bytes(self.sets[0]) if self.sets else 0

    def living(self) -> list[Lane]:
        """Return the lanes that can still be measured."""
        return [lane for lane in self.lanes if lane.live]

    def check(self) -> None:
        """Run every provider that can run over poisoned outputs and compare it with the reference."""
        expected = expectation(self.kernel, self.shape, self.session.device.type)
        self.kernel.check_values(expected.before)
        self.cost, self._pure = self.kernel.cost(expected.before), expected.pure
        for lane in self.lanes:
            with ending(lane):
                self._check(lane, expected)

    def _check(self, lane: Lane, expected: Expectation) -> None:
        provider = lane.cell.of()
        refusal = provider.refuses(expected.before)
        if refusal is not None:
            raise CellSkipped(refusal)
        if provider.name == "torch":  # the definition
            return
        found = deviations(self.kernel, self.shape, provider, expected, self.session.device.type)
        detail = "; ".join(f"{name}: {text}" for name, text in found.items())
        lane.checks.append(Check("against torch", not found, detail or f"{', '.join(self.kernel.outputs)} as expected"))
        if found:
            raise CellWrong(f"against torch: {detail}")

    def build(self) -> None:
        """Make the buffer sets, a cold and a hot loop of every provider, and the loops of the ceilings."""
        device, cost = self.session.device, self._cost()
        first = self.kernel.inputs(self.shape, torch.Generator(device).manual_seed(self.lanes[0].cell.seed))
        self.sets = rotation(first, sets_needed(first, touched_bytes(first, cost), l2_bytes(device), device))
        for lane in self.living():
            with ending(lane):
                calls = [lane.cell.of().to_time(tensors) for tensors in self.sets]
                lane.last_call = calls[-1]
                lane.loops = {COLD: loop(calls, device), HOT: loop(calls[:1], device)}
        for name, mover in (("even", even_mover(cost.bytes_moved)), ("mixed", mixed_mover(cost))):
            self._movers[name] = mover, mover_loop(mover, device)

    def time(self) -> None:
        """Time every loop, interleaved."""
        lanes = self.living()
        # a hot loop runs once before it is timed: what ran before it has filled the L2 with other data
        subjects = [
            Subject((Part(one.run, one.run) if period == HOT else Part(one.run),), period)
            for lane in lanes
            for period, one in lane.loops.items()
        ]
        subjects += [Subject.of(one.run, "ceiling") for _, one in self._movers.values()]
        self.clocks.look_around()
        timings = iter(interleave(subjects, self.session.clock, self.session.rule, self.clocks.sample))
        self.clocks.look_around()
        for lane in lanes:
            lane.timings = {period: next(timings) for period in lane.loops}
        for (name, (mover, one)), timing in zip(self._movers.items(), timings, strict=True):
            self.ceilings[f"{name}_bytes_per_s"] = rate(mover.bytes_moved, one, timing)
            self.ceilings[f"{name}_read_share"] = mover.read_share

    def check_again(self) -> None:
        """See that the cold loop leaves behind what eager calls do, over the last set with outputs poisoned."""
        pristine = copied(self.kernel.inputs(self.shape, self._generator()))
        for lane in self.living():
            with ending(lane):
                self._check_again(lane, pristine)

    def _check_again(self, lane: Lane, pristine: Tensors) -> None:
        last, one, call = self.sets[-1], lane.loops[COLD], lane.last_call
        assert call is not None, "build first"
        self._reset(last, pristine)
        for _ in range(one.rounds):
            call()
        want = {name: last[name].clone() for name in self.kernel.outputs}
        self._reset(last, pristine)
        one.run()
        for name, tolerance in self.kernel.outputs.items():
            text = tolerance.deviation(last[name], want[name])
            if text is not None:
                lane.checks.append(Check("timed calls against eager ones", False, f"{name}: {text}"))
                raise CellWrong(f"timed calls against eager ones: {name}: {text}")
        lane.checks.append(Check("timed calls against eager ones", True, "within tolerance"))

    def _reset(self, tensors: Tensors, pristine: Tensors) -> None:
        restore(tensors, pristine)
        for name in self._pure:
            tensors[name].copy_(poison(tensors[name]))

    def _generator(self) -> torch.Generator:
        return torch.Generator(self.session.device).manual_seed(self.lanes[0].cell.seed)

    def _cost(self) -> Cost:
        assert self.cost is not None, "check first"
        return self.cost


def run_kernel(group: KernelGroup, session: Session, progress: Callable[[str], None]) -> KernelRun:
    """Run all passes of a group; an error that no provider took ends all that were still alive."""
    run = KernelRun(group, session)
    passes = (("check", run.check), ("build", run.build), ("time", run.time), ("check again", run.check_again))
    with torch.no_grad():
        for name, step in passes:
            if run.living():
                progress(name)
                try:
                    step()
                except Exception as error:
                    for lane in run.living():
                        lane.fail(error)
    return run


def measure_best(session: Session) -> Best:
    """Measure what memory and matrix units give at best, side by side."""
    mover = large_mover(session.device)
    product, flops = matmul(session.device)
    loops = [loop([mover.build(mover.tensors(session.device))], session.device), loop([product], session.device)]
    subjects = [Subject.of(one.run, "ceiling") for one in loops]
    moved, multiplied = interleave(subjects, session.clock, session.rule)
    return Best(rate(mover.bytes_moved, loops[0], moved), rate(flops, loops[1], multiplied))


def mover_loop(mover: Mover, device: torch.device) -> Loop:
    """Return a mover's loop over buffer sets that exceed the L2, as a kernel's cold loop does."""
    first = mover.tensors(device)
    sets = rotation(first, sets_needed(first, set_bytes(first), l2_bytes(device), device))
    return loop([mover.build(tensors) for tensors in sets], device)


def rate(amount: int, one: Loop, timing: Timing) -> float:
    """Return the bytes or FLOPs of a call in a second, by the median of a ceiling's samples."""
    return amount * one.calls * NS_PER_S / median(timing.samples_ns["ceiling"])
