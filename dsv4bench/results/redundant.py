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
