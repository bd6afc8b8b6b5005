"""The graphs of one group: padded plans, captures, and the proof that a replay does what an eager run does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dsv4bench.errors import CaptureError
from dsv4bench.profiling import verify
from dsv4bench.profiling.capture import (
    Captured,
    capture_breakable,
    capture_full,
    run_pieces,
    tape_breakable,
    tape_full,
    warm_up,
)
from dsv4bench.profiling.cell_run import CellRun
from dsv4bench.profiling.counting import GraphCounter
from dsv4bench.profiling.digest import digest_all
from dsv4bench.profiling.live_rows import compare_live_rows
from dsv4bench.profiling.moe_check import check_moe
from dsv4bench.profiling.verify import Check, Seen
from dsv4bench.workloads.batch import Batch, Plan, Request
from dsv4bench.workloads.break_forms import form_of
from dsv4bench.workloads.buckets import Refusal
from dsv4bench.workloads.cells import Cell, Group
from dsv4bench.workloads.dep import pad_to
from dsv4bench.workloads.forward import Forward
from dsv4bench.workloads.prefill import Prefill
from dsv4bench.workloads.step import Piece, Step

NO_GRAPH = 0


def graph_cell(group: Group) -> Cell:
    """Return the cell whose graph decides how the group is padded: a breakable one where there is any."""
    breakable = (cell for cell in group if cell.variant.graph and cell.variant.graph_mode == "breakable")
    return next(breakable, group[0])


def padded_plan(group: Group, agreed: Sequence[int | Refusal] | None = None) -> tuple[Plan, dict[int, str]]:
    """Return the group's plan with the forwards that a graph takes padded to their bucket, and the refusals by forward.

    A group without a breakable graph is not padded. `agreed` is what ranks agreed on for each forward.
    """
    cell = graph_cell(group)
    padded = cell.graph_forwards if agreed is None else tuple(map(pad_to, cell.forwards, agreed))
    refusals = {number: found.reason for number, found in enumerate(padded) if isinstance(found, Refusal)}
    both = zip(cell.forwards, padded, strict=True)
    run = [eager if isinstance(found, Refusal) else found for eager, found in both]
    return tuple(zip(*run, strict=True)), refusals


@dataclass(frozen=True, slots=True)
class Pool:
    """The stream and the memory pool that the graphs of one cell share; a failed capture may spoil both."""

    stream: torch.cuda.Stream
    handle: Any


def open_pool(device: torch.device) -> Pool | None:
    """Make the pool of a CUDA device; None for any other, and CaptureError where CUDA has no graphs."""
    if device.type != "cuda":
        return None
    try:
        return Pool(torch.cuda.Stream(), torch.cuda.graph_pool_handle())  # type: ignore[no-untyped-call]
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise CaptureError(f"this device has no CUDA graphs ({error})") from error


def capture_alone(run: CellRun, step: Step, pieces: list[Piece], pool: Pool | None) -> Captured:
    """Capture the pieces with nobody counting, without a pool on a tape; with one, the caller has warmed up."""
    if pool is None:
        record = tape_full if run.full else tape_breakable
        return record(pieces, step.ops)
    capture = capture_full if run.full else capture_breakable
    return capture(pieces, pool.stream, pool.handle)


def _capture(run: CellRun, step: Step, pieces: list[Piece], pool: Pool | None) -> Captured:
    """Capture the pieces; the first CUDA graph of a cell is the one whose nodes are counted."""
    if pool is None:
        return capture_alone(run, step, pieces, None)
    warm_up(pieces, pool.stream)
    if run.counts is not None:
        return capture_alone(run, step, pieces, pool)
    capture = capture_full if run.full else capture_breakable
    with GraphCounter(step) as counter:
        captured = capture(pieces, pool.stream, pool.handle, counter.listeners)
    run.counts = counter.count(counter.profile(captured))
    return captured


@dataclass(frozen=True, slots=True)
class Graphs:
    """Captures and replays over the shared storage of one group; on a CPU the captures are tapes.

    `tied`: ranks exchange rows inside a step, so each makes as many runs of it as the others, one without rows too.
    """

    prefill: Prefill
    device: torch.device
    tied: bool = False

    def key(self, run: CellRun, forward: Forward) -> int:
        """Return which graph of the cell this forward replays: its bucket, or for a full graph the forward's own."""
        if run.full:
            return -1 - list(self.prefill.all_forwards()).index(forward) if forward.live else NO_GRAPH
        return forward.batch.bucket or NO_GRAPH

    def of(self, run: CellRun, forward: Forward) -> Captured | None:
        """Return the graph that this forward replays, or None where it runs eagerly."""
        return run.captured.get(self.key(run, forward))

    def capture(self, run: CellRun, step: Step, first: Forward) -> None:
        """Capture what the cell's forwards need, that of `first` before all others: its nodes are the cell's counts.

        Where one cannot be captured, those before it are freed: the cell is over, and others need the memory.
        """
        pool = open_pool(self.device)
        others = sorted(self.prefill.all_forwards(), key=lambda forward: -forward.batch.rows)
        try:
            for forward in (first, *others):
                key = self.key(run, forward)
                if key != NO_GRAPH and key not in run.captured:
                    step.load(forward)
                    pieces = self.pieces(run, step, forward)
                    run.captured[key] = _capture(run, step, pieces, pool)
        except BaseException:
            run.free()
            raise

    def pieces(self, run: CellRun, step: Step, forward: Forward) -> list[Piece]:
        """Return what the forward's graph holds: live rows in a full graph, the bucket's rows otherwise."""
        return step.live_pieces(forward) if run.full else step.padded_pieces(forward, form_of(run.cell.variant))

    def checks(self, run: CellRun, step: Step, again: bool) -> Iterator[Check]:
        """Replay each graph with its own forward and with other batches; all must equal eager runs byte for byte.

        `again`, after timing, one batch is enough: the graph has not changed. A full graph is good for no other.
        """
        done: set[int] = set()
        with_rows = {self.key(run, forward) for forward in self.prefill.all_forwards() if forward.live}
        for forward in self.prefill.all_forwards():
            key, captured = self.key(run, forward), self.of(run, forward)
            empty = not (forward.live or self.tied)
            if captured is None or key in done or (key in with_rows and empty):
                continue
            done.add(key)
            if empty:  # nobody has rows here: a rank that is a process of its own and has no request
                yield self._empty(step, forward.batch, captured)
                continue
            yield self._check("replay against eager", run, step, forward, captured)
            if step.moe is not None:
                yield check_moe(step, step.moe, None if run.full else forward.batch.rows)
            if not (run.full or again):
                yield from self._other_batches(run, step, forward.batch, captured)

    def _other_batches(self, run: CellRun, step: Step, batch: Batch, captured: Captured) -> Iterator[Check]:
        other, first = verify.other_batch(batch) or (batch if self.tied else None), batch.requests[0]
        if other is not None:
            newest = replace(batch, requests=(Request(first.index, first.seq - 1, 1),))
            second, single = self.prefill.forward(other), self.prefill.forward(newest, draw=1)
            yield self._check("replay of another batch against eager", run, step, second, captured)
            yield compare_live_rows(step, second, form_of(run.cell.variant))
            yield self._check("replay of one live row against eager", run, step, single, captured)
        yield self._empty(step, batch, captured)

    def _empty(self, step: Step, batch: Batch, captured: Captured) -> Check:
        """Check that a replay without a live row writes no cache and no ring."""
        step.pools.restore_rings()
        before = Seen((), digest_all(step.pools.written()))
        forward = self.prefill.forward(replace(batch, requests=()))
        seen, _ = verify.observe(step, [forward], lambda _: captured.replay())
        return verify.compare("replay without a live row", replace(seen, layers=()), before)

    def _check(self, name: str, run: CellRun, step: Step, forward: Forward, captured: Captured) -> Check:
        pieces = self.pieces(run, step, forward)

        def replay(_: Any) -> None:
            captured.replay()

        def eager(_: Any) -> None:
            run_pieces(pieces)

        wanted, _ = verify.observe(step, [forward], eager)
        replayed, _ = verify.observe(step, [forward], replay)
        if len(replayed.layers) < len(
            wanted.layers
        ):  # a full graph has no eager break to look from: its output remains
            wanted = Seen(wanted.layers[-1:], wanted.caches)
        return verify.compare(name, replayed, wanted)
