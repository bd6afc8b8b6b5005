"""CUDA graph capture and replay of a step made of pieces, and the CPU's stand-in with the same interface.

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

Kind = Literal["segment", "break"]
Call = Callable[[], None]
STATIC = "static buffers, no CUDA graph on a CPU"


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
    """A step that can be replayed; `memory_bytes` is what the allocator reserved more for its graphs."""

    kind: str
    calls: tuple[Call, ...]
    segments: int
    breaks: int
    graph_launches: int
    capture_ns: int
    memory_bytes: int

    def replay(self) -> None:
        """Launch the graphs and run the breaks, in order, on the current stream."""
        for call in self.calls:
            call()


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


def static_replay(pieces: Sequence[Piece]) -> Captured:
    """Return the CPU's stand-in: a replay runs the pieces again over the same buffers."""
    kinds = [kind for kind, _ in _grouped(pieces)]
    return Captured(STATIC, tuple(piece.run for piece in pieces), kinds.count("segment"), kinds.count("break"), 0, 0, 0)


def warm_up(pieces: Sequence[Piece], stream: torch.cuda.Stream, times: int = 2) -> None:
    """Run the whole step `times` times on the stream that the capture will use, and wait for it."""
    with _on(stream):
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
    return _capture("breakable CUDA graph", list(_grouped(pieces)), stream, pool, listeners)


def capture_full(
    pieces: Sequence[Piece], stream: torch.cuda.Stream, pool: Any = None, listeners: Listeners = DEAF
) -> Captured:
    """Capture all pieces, breaks included, into one graph: good only for the lengths that it was captured with."""
    return _capture("full CUDA graph", [("segment", tuple(pieces))], stream, pool, listeners)


def _grouped(pieces: Sequence[Piece]) -> Iterator[tuple[Kind, tuple[Piece, ...]]]:
    """Join consecutive segments; a break stays alone."""
    for kind, members in groupby(pieces, key=lambda piece: piece.kind):
        if kind == "segment":
            yield kind, tuple(members)
        else:
            yield from ((kind, (piece,)) for piece in members)


def _capture(
    kind: str,
    groups: list[tuple[Kind, tuple[Piece, ...]]],
    stream: torch.cuda.Stream,
    pool: Any,
    listeners: Listeners,
) -> Captured:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    reserved_bytes, started_ns = torch.cuda.memory_reserved(), time.perf_counter_ns()
    recorder = _Recorder(pool if pool is not None else torch.cuda.graph_pool_handle(), listeners)
    try:
        with _on(stream):
            for group_kind, members in groups:
                recorder.add(group_kind, members)
        torch.cuda.synchronize()
    except BaseException:
        recorder.free()
        raise
    return Captured(
        kind=kind,
        calls=tuple(recorder.calls),
        segments=len(recorder.graphs),
        breaks=len(recorder.calls) - len(recorder.graphs),
        graph_launches=len(recorder.graphs),
        capture_ns=time.perf_counter_ns() - started_ns,
        memory_bytes=torch.cuda.memory_reserved() - reserved_bytes,
    )


class _Recorder:
    """The graphs captured so far and the calls that a replay makes."""

    def __init__(self, pool: Any, listeners: Listeners) -> None:
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self.calls: list[Call] = []
        self._pool = pool
        self._listeners = listeners

    def add(self, kind: Kind, members: tuple[Piece, ...]) -> None:
        """Capture and launch a group of segments, or run a break."""
        if kind == "break":
            self._listeners.piece("break")
            with _named(members[0].name):
                members[0].run()
            self.calls.append(members[0].run)
            return
        graph = torch.cuda.CUDAGraph()
        self.graphs.append(graph)
        self._record(graph, members)
        graph.replay()
        self.calls.append(graph.replay)

    def free(self) -> None:
        """Wait for the device and free the graphs made so far; one whose capture failed has nothing to free."""
        with suppress(RuntimeError):
            torch.cuda.synchronize()
        for graph in self.graphs:
            with suppress(RuntimeError):
                graph.reset()

    def _record(self, graph: torch.cuda.CUDAGraph, members: tuple[Piece, ...]) -> None:
        with _capturing(graph, self._pool, f"{members[0].name} .. {members[-1].name}"):
            if self._listeners.graphs:
                self._listeners.graphs.begin_graph()
            for piece in members:
                self._listeners.piece("segment")
                with _named(piece.name):
                    piece.run()
            if self._listeners.graphs:
                self._listeners.graphs.end_graph()


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any, name: str) -> Iterator[None]:
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


@contextmanager
def _on(stream: torch.cuda.Stream) -> Iterator[None]:
    """Make `stream` the current one, after what is queued on the current stream, which then waits for it."""
    around = torch.cuda.current_stream()
    stream.wait_stream(around)
    with torch.cuda.stream(stream):
        yield
    around.wait_stream(stream)
