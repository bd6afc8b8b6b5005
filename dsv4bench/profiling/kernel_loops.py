"""What is timed of a kernel: many calls in one CUDA graph, so that launch gaps do not count; on a CPU the calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dsv4bench.errors import CaptureError
from dsv4bench.profiling.capture import capture_full, warm_up
from dsv4bench.profiling.graphs import open_pool
from dsv4bench.profiling.timing import Call
from dsv4bench.workloads.step import Piece

LEAST_CALLS = {"cuda": 32, "cpu": 1}  # of a loop: what one graph launch costs is shared by so many calls


@dataclass(frozen=True, slots=True)
class Loop:
    """`run` makes `rounds` rounds of all calls, together `calls`; `why_eager` says why a GPU runs them uncaptured.

    `kept` are the calls themselves: a graph holds addresses only, so whoever replays it keeps their tensors alive.
    """

    run: Call
    calls: int
    rounds: int
    kept: tuple[Call, ...]
    why_eager: str | None = None


def loop(calls: Sequence[Call], device: torch.device) -> Loop:
    """Return a loop over the calls, on a GPU as one graph; where a graph cannot hold them, they run one by one."""
    rounds = math.ceil(LEAST_CALLS[device.type] / len(calls))
    count = rounds * len(calls)

    def run() -> None:
        for call in [*calls] * rounds:
            call()

    pool = open_pool(device)  # its own: a capture that fails may spoil a pool that others use
    if pool is None:
        return Loop(run, count, rounds, tuple(calls))
    pieces = [Piece("calls", "segment", run)]
    warm_up(pieces, pool.stream, times=1)
    try:
        captured = capture_full(pieces, pool.stream, pool.handle)
    except CaptureError as error:
        return Loop(run, count, rounds, tuple(calls), str(error).splitlines()[0])
    return Loop(captured.replay, count, rounds, tuple(calls))
