"""One rank's part of a group whose ranks are processes: its own requests, in step with the other ranks.

Every rank makes the same passes over the same cells. What ends a cell on one of them ends it on all, at the end of a
pass at the latest and always before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable

from dsv4bench.profiling.cell_run import CellRun
from dsv4bench.profiling.clocks import ClockMonitor
from dsv4bench.profiling.free_running import free_run
from dsv4bench.profiling.graphs import graph_cell, padded_plan
from dsv4bench.profiling.group import GroupRun
from dsv4bench.profiling.launches import Launched, launched, unlike
from dsv4bench.profiling.lockstep import Lockstep, aligned_run
from dsv4bench.profiling.peers import OutOfStep, Peers, exchange, meet
from dsv4bench.profiling.session import Session
from dsv4bench.profiling.timing import Part, Period
from dsv4bench.workloads.batch import Plan
from dsv4bench.workloads.cells import Group
from dsv4bench.workloads.dep import common_bucket, rank_bucket, renumbered
from dsv4bench.workloads.forward import Forward
from dsv4bench.workloads.memory import room_of
from dsv4bench.workloads.moe import Ranks
from dsv4bench.workloads.pools import Extent
from dsv4bench.workloads.prefill import Beyond, Prefill, prepare
from dsv4bench.workloads.variant import Variant
from dsv4bench.workloads.weights import Model

LEFT_BEHIND = "left behind"  # how the reason of a rank begins that only noticed another's failure


class RankRun(GroupRun):
    """The passes of one rank; `plan` is that of all ranks, `prefill` has the forwards of this one alone."""

    def __init__(self, group: Group, model: Model, session: Session, peers: Peers) -> None:
        self.peers = peers
        self.launched: list[list[Launched]] = []  # of each cell, rank by rank
        self._tied = False  # once steps run that others wait in
        super().__init__(group, model, session)

    @property
    def idle(self) -> bool:
        """Whether this rank has no request at all."""
        return not any(forward.live for forward in self.prefill.all_forwards())

    @property
    def exchanging(self) -> bool:
        """Whether ranks exchange rows inside a step; then every rank runs each step, with or without rows."""
        return self.peers.size > 1 and self.runs[0].cell.variant.moe != "off"

    @property
    def _ranks(self) -> Ranks:
        return self.peers

    def strands(self, error: Exception) -> bool:
        """Return whether others may wait for this rank in a step, so that only the end of its process frees them."""
        return self._tied and not isinstance(error, OutOfStep)

    def _padded(self, group: Group) -> tuple[Plan, dict[int, str]]:
        """Agree with the other ranks on a bucket for each forward, each naming the one that its own rows need."""
        cell = graph_cell(group)
        if not cell.variant.breakable:
            return padded_plan(group)
        own = [rank_bucket(batch, cell.graph_sizes) for batch in cell.plan[self.peers.rank]]
        every = exchange(self.peers, "buckets", own)
        return padded_plan(group, tuple(common_bucket(found) for found in zip(*every, strict=True)))

    def _prepared(self, variant: Variant) -> Prefill:
        longest = max(self.runs[0].cell.load.requests, key=lambda request: request.seq)
        own = (renumbered(self.plan[self.peers.rank]),)
        beyond = Beyond(Extent(longest.prefix, longest.seq), room_of(self.runs[0].cell, self.session.free_bytes))
        return prepare(self.model, variant, own, "torch" in self.compressors, self._break_copies, beyond)

    def agree(self, place: str) -> None:
        """End on every rank the cells that one of them has ended, for that one's reason."""
        self._settle(meet(self.peers, f"the end of {place}", self._states()))
        self._tied = self.exchanging

    def _states(self) -> list[tuple[str, str | None]]:
        return [(run.status, run.reason) for run in self.runs]

    def _settle(self, ranks: list[list[tuple[str, str | None]]]) -> None:
        for run, states in zip(self.runs, zip(*ranks, strict=True), strict=True):
            ends = [(rank, status, str(reason)) for rank, (status, reason) in enumerate(states) if status != "ok"]
            if ends and len(set(states)) > 1:
                causes = [end for end in ends if not end[2].startswith(LEFT_BEHIND)]
                rank, run.status, reason = (causes or ends)[0]
                run.reason = f"rank {rank}: {reason}"

    def verify(self, again: bool = False) -> None:
        """Compare as ever; a rank without requests has nothing but its replays."""
        if not self.idle or self._tied:
            super().verify(again)
        elif again:
            self._verify_replays(again=True)

    def _verify_replays(self, again: bool) -> None:
        if self.exchanging:  # a check that failed here must end the cell on all before they replay it together
            self._settle(exchange(self.peers, "replays", self._states()))
        super()._verify_replays(again)

    def counted(self, run: CellRun) -> Forward:
        """Return the forward whose counts stand for this rank; an idle rank's is one that its graph takes.

        Ranks that exchange rows count the same forward together: the one with most rows of all that a graph takes.
        """
        if self.exchanging:
            forwards = [max(batches, key=lambda batch: batch.rows) for batches in zip(*self.plan, strict=True)]
            places = range(len(forwards))
            largest = max(places, key=lambda place: (forwards[place].bucket is not None, forwards[place].rows))
            return self.prefill.forwards[0][largest]
        if self.idle:
            return max(self.prefill.all_forwards(), key=lambda forward: forward.batch.rows)
        return super().counted(run)

    def _time(self, runs: list[CellRun], part: Callable[[CellRun, Forward], Part], period: Period) -> None:
        """Time the cells that all ranks can still measure, each forward by itself: ranks wait for each other there."""
        self._settle(exchange(self.peers, f"the start of {period}", self._states()))
        runs = [run for run in runs if run.live]
        if not runs:
            return
        monitor = ClockMonitor(self.session.nvml, self.session.own_threads)
        monitor.look_around()
        for run in runs:
            run.timings, run.clocks = [[] for _ in range(self.peers.size)], monitor
        for place, forward in enumerate(self.prefill.forwards[0]):
            self._time_forward(runs, [part(run, forward) for run in runs], period, place, monitor)
        monitor.look_around()

    def _time_forward(
        self, runs: list[CellRun], parts: list[Part], period: Period, place: int, monitor: ClockMonitor
    ) -> None:
        clock = Lockstep(self.session.clock, self.peers, self._tied)
        time = free_run if runs[0].cell.align == "free" else aligned_run
        with self._marked():
            found = time(parts, period, clock, self.session.rule, monitor)
        batches = [forwards[place] for forwards in self.plan]
        ran = [bool(self.exchanging or batch.live or (runs[0].graph and batch.bucket)) for batch in batches]
        for run, ranks in zip(runs, found, strict=True):
            for taken, timing, busy in zip(run.timings, ranks, ran, strict=True):
                taken.append(timing if busy else None)

    def count(self) -> None:
        """Count as ever, and see that every rank launched the same."""
        super().count()
        own = [self._launched(run) for run in self.runs]
        self.launched = [list(ranks) for ranks in zip(*exchange(self.peers, "launches", own), strict=True)]
        for run, ranks in zip(self.runs, self.launched, strict=True):
            difference = unlike(ranks, breaks=run.cell.variant.path == "sparse") if run.live else None
            if difference is not None:
                run.end("failed", f"ranks launched different things: {difference}")

    def _launched(self, run: CellRun) -> Launched:
        forward = self.counted(run)
        return launched(run.counts, forward.batch.bucket if run.graph else None, bool(forward.live))

    def _count(self, run: CellRun) -> None:
        """Count a forward of the cell; a rank that sits it out launches nothing."""
        if self.exchanging or self.counted(run).live or self.graphs.of(run, self.counted(run)) is not None:
            super()._count(run)
