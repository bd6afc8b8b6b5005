"""Calls of a step that had the inputs of an earlier one: the rows of a record's `redundant`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RepeatedRow:
    """One operation and kv_source of a step: its calls, and how many of them had inputs seen before, unchanged.

    Of `redundant` calls, `kept` found the earlier result still where they wrote theirs; the others would need memory of
    their own for it. `bytes_read_again` is the least that the redundant calls had to read.
    """

    op: str
    kv_source: int | None
    kernel: str
    calls: int = 0
    redundant: int = 0
    kept: int = 0
    bytes_read_again: int = 0


@dataclass(frozen=True, slots=True)
class InferredRow:
    """One operation and kv_source of a trace: its kernels, and those that are taken for repetitions of earlier ones.

    `per_step` is the smallest and the largest number of repetitions in a step, `time_ns` the device time of all.
    """

    op: str
    kv_source: int
    kernels: int
    repeated: int
    per_step: tuple[int, int]
    time_ns: int
    method: str = "inferred"
