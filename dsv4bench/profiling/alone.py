"""Timing of parts of a step by themselves, in a graph of their own so that launch gaps do not count."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4bench.profiling.capture import capture_full, warm_up
from dsv4bench.profiling.graphs import Pool
from dsv4bench.profiling.timing import Call, Clock, Subject
from dsv4bench.workloads.break_forms import COMPRESS
from dsv4bench.workloads.step import Piece, Step

ROUNDS = 5


def compressor_subject(step: Step, rows: int, pool: Pool) -> Subject | None:
    """Return the compressor of the first ratio-2 source over `rows` rows, captured alone; None without such a source.

    It is what a segment holds of it: the compressor proper, the wk GEMM and the index-K store; the projection is a
    break. Its inputs are those of the last run, and stay in the L2 where they fit.
    """
    kind = next((kind for kind in step.geometry.layers if kind.owns_kv and kind.ratio == 2), None)
    if kind is None:
        return None
    pieces = [piece for piece in step.layer(kind, rows) if piece.part == COMPRESS]
    warm_up(pieces, pool.stream)
    return Subject.of(capture_full(pieces, pool.stream, pool.handle).replay, "compressor")


def time_per_round_ns(calls: Sequence[Call], clock: Clock, pool: Pool | None) -> float:
    """Return the time in which all of `calls` are done once, `ROUNDS` rounds in a graph on a GPU, else as they are."""

    def rounds() -> None:
        for call in [*calls] * ROUNDS:
            call()

    rounds()
    clock.synchronize()
    run = rounds
    if pool is not None:
        run = capture_full([Piece("calls", "segment", rounds)], pool.stream, pool.handle).replay
        clock.synchronize()
    return clock.measure(run, ROUNDS)[0] / ROUNDS**2
