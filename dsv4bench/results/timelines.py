"""One step of a trace as bars on lanes, plain values for a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane: its name, and for each bar start and length (ns from the start of the step) and what it is."""

    name: str
    starts_ns: Sequence[int]
    lengths_ns: Sequence[int]
    whats: Sequence[str]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The lanes of one step: a lane a kv_source or a stream, with bars by operation or kernel."""

    title: str
    lanes: Sequence[Lane]
    by: str
