"""One group of cells on one device: what its passes do; `passes.py` says in which order.

Cells of a group differ only in switches. They share weights, pools, buffers and forwards; each (reuse, compressor,
provider) has one step with a workspace of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from dsv4bench.errors import CaptureError, CellError
from dsv4bench.profiling import counting
from dsv4bench.profiling.capture import run_pieces
from dsv4bench.profiling.cell_run import CellRun, Several, Side, StepError, StepKey, by, ending, naming
from dsv4bench.profiling.clocks import ClockMonitor
from dsv4bench.profiling.compressor_pass import time_compressors
from dsv4bench.profiling.contract_check import check_choice
from dsv4bench.profiling.graphs import Graphs, open_pool, padded_plan
from dsv4bench.profiling.ledger import Where
from dsv4bench.profiling.predict import peak_bytes, predict
from dsv4bench.profiling.redundancy import repeated
from dsv4bench.profiling.session import Session
from dsv4bench.profiling.timing import Call, Part, Period, Subject, Timing, interleave
from dsv4bench.profiling.verify import Seen
from dsv4bench.profiling.verify_pass import AFTER_TIMING, verify_side
from dsv4bench.ranges import Silent
from dsv4bench.workloads.batch import Plan
from dsv4bench.workloads.break_forms import form_of
from dsv4bench.workloads.cells import Group
from dsv4bench.workloads.forward import Forward
from dsv4bench.workloads.memory import room_of
from dsv4bench.workloads.moe import Alone, Ranks, stand_in
from dsv4bench.workloads.prefill import Beyond, Prefill, prepare
from dsv4bench.workloads.providers import parse
from dsv4bench.workloads.step import Step
from dsv4bench.workloads.variant import Variant
from dsv4bench.workloads.weights import Model


class GroupRun:
    """The passes of one group; each leaves what it found in `runs`."""

    def __init__(self, group: Group, model: Model, session: Session) -> None:
        self.runs = [CellRun(cell) for cell in group]
        self.session = session
        self.model = model
        self.plan, self.refusals = self._padded(group)
        self.steps: dict[StepKey, Step] = {}
        self.predicted: dict[str, dict[str, Any] | None] = {}  # by provider
        self.seen: dict[StepKey, Seen] = {}
        self._prefill: Prefill | None = None
        self._graphs: Graphs | None = None

    @property
    def graphs(self) -> Graphs:
        """The graphs over the shared storage; `allocate` makes them."""
        assert self._graphs is not None, "allocate first"
        return self._graphs

    @property
    def prefill(self) -> Prefill:
        """What the cells share; `allocate` makes it."""
        assert self._prefill is not None, "allocate first"
        return self._prefill

    @property
    def compressors(self) -> tuple[str, ...]:
        """The compressors of the cells, in order."""
        return tuple(dict.fromkeys(run.cell.variant.compressor for run in self.runs))

    @property
    def sides(self) -> dict[Side, list[CellRun]]:
        """The cells that can still be measured, by what their steps share but for reuse."""
        return by(lambda run: run.side, self.living())

    @property
    def _break_copies(self) -> bool:
        return any(form_of(run.cell.variant).copies for run in self.runs)

    @property
    def _on_gpu(self) -> bool:
        return self.session.device.type == "cuda"

    @property
    def exchanging(self) -> bool:
        """Whether ranks exchange rows inside a step."""
        return False

    @property
    def _ranks(self) -> Ranks | Alone:
        return Alone()

    def strands(self, error: Exception) -> bool:
        """Return whether an error leaves other ranks waiting inside a step."""
        return False

    def living(self, graph: bool | None = None) -> list[CellRun]:
        """Return the cells that can still be measured: all, or the eager or the graph ones."""
        return [run for run in self.runs if run.live and graph in (None, run.graph)]

    def _padded(self, group: Group) -> tuple[Plan, dict[int, str]]:
        return padded_plan(group)

    def _prepared(self, variant: Variant) -> Prefill:
        beyond = Beyond(room=room_of(self.runs[0].cell, self.session.free_bytes))
        return prepare(self.model, variant, self.plan, "torch" in self.compressors, self._break_copies, beyond)

    def agree(self, place: str) -> None:
        """Nobody else runs this group."""

    def allocate(self) -> None:
        """Allocate pools and buffers, write the prefix, make the steps; a cell whose graph is refused ends here."""
        self._end_absent_providers()
        self._share()
        if not self.living():
            return
        variant = self.living()[0].cell.variant
        self._graphs = Graphs(self.prefill, self.session.device, self.exchanging)
        moe = stand_in(self.model, variant, self._ranks, self.plan)
        # reuse off is what every output is compared with, also where only reuse on is measured
        reuses = dict.fromkeys(("off", *(run.cell.variant.reuse for run in self.runs)))
        for side, runs in self.sides.items():
            for reuse in reuses:
                step = self.prefill.step(replace(runs[0].cell.variant, reuse=reuse))
                self.steps[reuse, side], step.moe = step, moe
        if len(self.refusals) == len(self.plan[0]):
            for run in self.living(graph=True):
                if not run.full:
                    run.end("refused", self.refusals[0])
        reason = counting.why_not_captured() if self._on_gpu and self.living(graph=True) else None
        if reason is not None:
            for run in self.living(graph=True):
                run.end("skipped", reason)

    def _share(self) -> None:
        """Make what the cells share; a provider that cannot write the prefix ends its own cells alone."""
        while self._prefill is None and self.living():
            variant = self.living()[0].cell.variant
            try:
                self._prefill = self._prepared(variant)
            except CellError as error:
                self._end_provider(variant.provider, error)

    def _end_provider(self, provider: str, error: Exception) -> None:
        Several([run for run in self.runs if run.provider == provider]).fail(error)

    def _end_absent_providers(self) -> None:
        """End the cells of a provider that cannot run here, or whose kernel breaks its contract."""
        device = self.session.device.type
        for provider, runs in by(lambda run: run.provider, self.runs).items():
            with ending(Several(runs)):
                check_choice(parse(provider, device), device)

    def verify(self, again: bool = False) -> None:
        """Compare heads, outputs and (the first time) kernels; `again` repeats it after timing and counting."""
        for side, runs in self.sides.items():
            with ending(Several(runs), self.strands):
                verify_side(self, side, again)
        if again:
            self._verify_replays(again=True)

    def time_eager(self) -> None:
        """Time the eager cells, interleaved."""
        self._time(self.living(graph=False), self._eager_part, "step_period")

    def time_graph(self) -> None:
        """Capture the graph cells, check replays against eager runs, and time them, interleaved."""
        for run in self.living(graph=True):
            with ending(run, self.strands):
                self.graphs.capture(run, self.steps[run.key], self.counted(run))
        self._verify_replays(again=False)
        self._time(self.living(graph=True), self._graph_part, "graph_replay" if self._on_gpu else "step_period")
        time_compressors(self)

    def _verify_replays(self, again: bool) -> None:
        suffix = AFTER_TIMING if again else ""
        runs = self.living(graph=True)
        if not self._on_gpu:  # reuse changes nothing but breaks, which Python runs: one cell shows it for both
            runs = [] if again else list({run.tape_form: run for run in runs}.values())
        for run in runs:
            for check in self.graphs.checks(run, self.steps[run.key], again):
                run.add(replace(check, name=check.name + suffix))

    def _time(self, runs: list[CellRun], part: Callable[[CellRun, Forward], Part], period: Period) -> None:
        """Time cells in turn; one whose step raises ends with all of its provider, and the others are timed again."""
        while runs:
            try:
                self._take_turns(runs, part, period)
            except StepError as failed:
                self._end_provider(failed.run.provider, failed.error)
                for run in runs:
                    run.timings.clear()
                runs = [run for run in runs if run.live]
            else:
                return

    def _take_turns(self, runs: list[CellRun], part: Callable[[CellRun, Forward], Part], period: Period) -> None:
        """Time the cells of each rank, one rank after another; where there are several, each forward by itself."""
        monitor = ClockMonitor(self.session.nvml, self.session.own_threads)
        monitor.look_around()
        several = len(self.prefill.forwards) > 1
        for forwards in self.prefill.forwards:
            stretches = [(forward,) for forward in forwards] if several else [forwards]
            taken = [self._stretch(runs, part, period, stretch, monitor) for stretch in stretches]
            for run, timings in zip(runs, zip(*taken, strict=True), strict=True):
                run.timings.append(list(timings))
                run.clocks = monitor
        monitor.look_around()

    def _stretch(
        self,
        runs: list[CellRun],
        part: Callable[[CellRun, Forward], Part],
        period: Period,
        forwards: Sequence[Forward],
        monitor: ClockMonitor,
    ) -> Sequence[Timing | None]:
        """Time the cells over some forwards of a rank, interleaved; a rank without requests sits an eager step out."""
        busy = [forward for forward in forwards if forward.live or (runs[0].graph and forward.batch.bucket)]
        if not busy:
            return [None] * len(runs)
        subjects = [Subject(tuple(naming(run, part(run, forward)) for forward in busy), period) for run in runs]
        with self._marked():
            return interleave(subjects, self.session.clock, self.session.rule, monitor.sample, monitor.sm_mhz)

    @contextmanager
    def _marked(self) -> Iterator[None]:
        """Let the session's mark hear what is timed."""
        for step in self.steps.values():
            step.ops.mark = self.session.mark
        try:
            yield
        finally:
            for step in self.steps.values():
                step.ops.mark = Silent()

    def _eager_part(self, run: CellRun, forward: Forward) -> Part:
        step = self.steps[run.key]
        return Part(partial(run_pieces, step.live_pieces(forward)), partial(step.load, forward))

    def _graph_part(self, run: CellRun, forward: Forward) -> Part:
        captured = self.graphs.of(run, forward)
        if captured is None:
            return self._eager_part(run, forward)
        return Part(captured.replay, partial(self.steps[run.key].load, forward))

    def counted(self, run: CellRun) -> Forward:
        """Return the forward whose counts stand for the cell: its largest, of those in a graph where it has one."""
        live = [forward for forward in self.prefill.all_forwards() if forward.live]
        padded = [forward for forward in live if forward.batch.bucket]
        return max(padded or live, key=lambda forward: forward.batch.rows)

    def count(self) -> None:
        """Count one forward of every living cell, its memory, and what reuse should save."""
        for run in self.living():
            with ending(run, self.strands):
                self._count(run)
        reusing = [run for run in self.living() if run.cell.variant.reuse == "on"]
        for provider, runs in by(lambda run: run.provider, reusing).items():
            rank = max(self.prefill.forwards, key=lambda forwards: sum(f.workspace_rows for f in forwards))
            step = self.steps["off", runs[0].side]
            # without graphs there is no rate, and the cells are none the worse for it
            with suppress(CaptureError), self._marked():
                self.predicted[provider] = predict(step, rank, self.session.clock, open_pool(self.session.device))

    def _count(self, run: CellRun) -> None:
        step, forward = self.steps[run.key], self.counted(run)
        step.load(forward)
        captured = self.graphs.of(run, forward) if run.graph else None
        pieces = self.graphs.pieces(run, step, forward) if captured else step.live_pieces(forward)
        if not self._on_gpu:
            taped: Where | None = "segment" if run.full else None  # a full graph has no breaks
            run.counts = counting.count_on_cpu(step, pieces, "eager" if captured is None else taped)
        else:
            eager = counting.count_eager(step, pieces)
            run.counts = eager if run.counts is None else counting.agreed(run.counts, eager)
        run.redundant = repeated(step.ops, partial(run_pieces, pieces))
        call: Call = captured.replay if captured else partial(run_pieces, pieces)
        run.memory["peak_bytes"] = peak_bytes(call, self.session.device)
        run.memory |= self.prefill.held_bytes(self.steps[run.key])
