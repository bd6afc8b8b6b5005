"""Capture and replay of a step made of pieces: into CUDA graphs, or on a CPU into tapes with the same semantics.

A piece has a `name`, a `kind` ("segment" or "break") and a `run`. A segment can be captured; a break reads something on
the host and runs eagerly between segments. The caller warms up first, on the stream of the capture (`warm_up`): lazily
loaded modules, compiled kernels and the GEMM library's workspace of that stream must exist before a capture begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, Protocol

import torch

from dsv4bench.errors import CaptureError
from dsv4bench.profiling.capture_engine import CudaEngine, Engine, Graph, on_stream
from dsv4bench.profiling.tape import Operations, TapeEngine
from dsv4bench.profiling.tape_rules import Finding

Kind = Literal["segment", "break"]
Call = Callable[[], None]
ON_A_TAPE = "tape: the semantics of a CUDA graph on a CPU, no GPU time"


class Piece(Protocol):
    """One part of a step."""

    @property
    def name(self) -> str:
        """What an error message calls it."""

    @property
    def kind(self) -> Kind:
        """Whether it can be captured ("segment") or runs eagerly between captures ("break")."""

    @property
    def run(self) -> Call:
        """Launch its work."""


class GraphListener(Protocol):
    """Hears the borders of every graph, from inside its capture."""

    def begin_graph(self) -> None:
        """Hear that a capture has begun on the current stream."""

    def end_graph(self) -> None:
        """Hear that the capture is about to end."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A step that can be replayed; `memory_bytes` is what the allocator reserved more for its graphs.

    `graphs` are its CUDA graphs or tapes, in order.
    """

    kind: str
    calls: tuple[Call, ...]
    segments: int
    breaks: int
    graph_launches: int
    capture_ns: int
    memory_bytes: int
    graphs: tuple[Any, ...] = ()

    def replay(self) -> None:
        """Launch the graphs and run the breaks, in order, on the current stream."""
        for call in self.calls:
            call()

    def free(self) -> None:
        """Free the graphs, after which there is nothing left to replay."""
        for graph in self.graphs:
            graph.reset()


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who hears a capture: `graphs` the borders of every graph, `on_piece` where each piece runs, before it runs."""

    graphs: GraphListener | None = None
    on_piece: Callable[[Kind], None] | None = None

    def piece(self, kind: Kind) -> None:
        """Tell where the next piece runs."""
        if self.on_piece is not None:
            self.on_piece(kind)


DEAF = Listeners()


def run_pieces(pieces: Sequence[Piece], on_piece: Callable[[Kind], None] | None = None) -> None:
    """Run every piece once, telling `on_piece` its kind before."""
    for piece in pieces:
        if on_piece is not None:
            on_piece(piece.kind)
        piece.run()


def warm_up(pieces: Sequence[Piece], stream: torch.cuda.Stream, times: int = 2) -> None:
    """Run the whole step `times` times on the stream that the capture will use, and wait for it."""
    with on_stream(stream):
        for _ in range(times):
            run_pieces(pieces)
    torch.cuda.synchronize()


def capture_breakable(
    pieces: Sequence[Piece], stream: torch.cuda.Stream, pool: Any = None, listeners: Listeners = DEAF
) -> Captured:
    """Capture consecutive segments into one graph each and keep the breaks eager, in the order of `pieces`.

    Each graph is launched once as soon as it is captured, because capturing executes nothing: so every break, which
    runs right there, sees true inputs and later segments see its outputs. After this the graphs are uploaded and the
    step has run once. All graphs share `pool` (a new one by default). Raises CaptureError naming the piece; the stream
    has then left capture mode and the graphs made so far are freed.
    """
    return _capture("breakable", list(_grouped(pieces)), _cuda(stream, pool), listeners)


def capture_full(
    pieces: Sequence[Piece], stream: torch.cuda.Stream, pool: Any = None, listeners: Listeners = DEAF
) -> Captured:
    """Capture all pieces, breaks included, into one graph: good only for the lengths that it was captured with."""
    return _capture("full", [("segment", tuple(pieces))], _cuda(stream, pool), listeners)


def tape_breakable(
    pieces: Sequence[Piece], ops: Operations, listeners: Listeners = DEAF, findings: list[Finding] | None = None
) -> Captured:
    """Record consecutive segments on one tape each and keep the breaks eager, as `capture_breakable` does.

    Recording runs what it records, so the step has run once. `ops` is where the step calls its operations. What a CUDA
    graph would refuse is added to `findings`, or else a CaptureError; nothing listens any more then.
    """
    return _capture("breakable", list(_grouped(pieces)), TapeEngine(ops, findings), listeners)


def tape_full(pieces: Sequence[Piece], ops: Operations, listeners: Listeners = DEAF) -> Captured:
    """Record all pieces, breaks included, on one tape: good only for the lengths that it was recorded with."""
    return _capture("full", [("segment", tuple(pieces))], TapeEngine(ops), listeners)


def _cuda(stream: torch.cuda.Stream, pool: Any) -> CudaEngine:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return CudaEngine(stream, pool if pool is not None else torch.cuda.graph_pool_handle())


def _grouped(pieces: Sequence[Piece]) -> Iterator[tuple[Kind, tuple[Piece, ...]]]:
    """Join consecutive segments; a break stays alone."""
    for kind, members in groupby(pieces, key=lambda piece: piece.kind):
        if kind == "segment":
            yield kind, tuple(members)
        else:
            yield from ((kind, (piece,)) for piece in members)


def _capture(mode: str, groups: list[tuple[Kind, tuple[Piece, ...]]], engine: Engine, listeners: Listeners) -> Captured:
    reserved_bytes, started_ns = engine.reserved_bytes(), time.perf_counter_ns()
    recorder = _Recorder(engine, listeners)
    try:
        with engine.around():
            for group_kind, members in groups:
                recorder.add(group_kind, members)
        engine.settle()
    except BaseException:
        recorder.free()
        raise
    return Captured(
        kind=f"{mode} {engine.noun}",
        calls=tuple(recorder.calls),
        segments=len(recorder.graphs),
        breaks=len(recorder.calls) - len(recorder.graphs),
        graph_launches=len(recorder.graphs),
        capture_ns=time.perf_counter_ns() - started_ns,
        memory_bytes=engine.reserved_bytes() - reserved_bytes,
        graphs=tuple(recorder.graphs),
    )


class _Recorder:
    """The graphs captured so far and the calls that a replay makes."""

    def __init__(self, engine: Engine, listeners: Listeners) -> None:
        self.graphs: list[Graph] = []
        self.calls: list[Call] = []
        self._engine = engine
        self._listeners = listeners

    def add(self, kind: Kind, members: tuple[Piece, ...]) -> None:
        """Capture a group of segments and see that it has run, or run a break."""
        if kind == "break":
            self._listeners.piece("break")
            with _named(members[0].name):
                members[0].run()
            self.calls.append(members[0].run)
            return
        with _named(members[0].name):
            graph = self._engine.graph()
        self.graphs.append(graph)
        self._record(graph, members)
        if not self._engine.executes:
            graph.replay()
        self.calls.append(graph.replay)

    def free(self) -> None:
        """Wait for the device and free the graphs made so far; one whose capture failed has nothing to free."""
        with suppress(RuntimeError):
            self._engine.settle()
        for graph in self.graphs:
            with suppress(RuntimeError):
                graph.reset()

    def _record(self, graph: Graph, members: tuple[Piece, ...]) -> None:
        with _capturing(graph, self._engine.pool, f"{members[0].name} .. {members[-1].name}"):
            if self._listeners.graphs:
                self._listeners.graphs.begin_graph()
            for piece in members:
                self._listeners.piece("segment")
                self._engine.hear(piece.name)
                with _named(piece.name):
                    piece.run()
            if self._listeners.graphs:
                self._listeners.graphs.end_graph()


@contextmanager
def _capturing(graph: Graph, pool: Any, name: str) -> Iterator[None]:
    """Capture the body; whatever happens in it, the stream leaves capture mode."""
    with _named(name):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        yield
    except BaseException:
        # an invalidated capture makes the end fail too; the first error is the one that says why
        with suppress(RuntimeError):
            graph.capture_end()
        raise
    with _named(name):
        graph.capture_end()


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Turn any error of the body into a CaptureError that names the piece; running out of memory stays what it is."""
    try:
        yield
    except (torch.OutOfMemoryError, CaptureError):
        raise
    except Exception as error:
        raise CaptureError(f"{name}: {error}") from error
