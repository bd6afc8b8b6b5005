"""What one call of `dsv4bench ab` measures, and what its records say of it (`ab`, see `results/trials.py`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import Any

from dsv4bench.results.min_effect import MinEffect, default_min_effect
from dsv4bench.results.record import Record
from dsv4bench.results.trials import SIDES
from dsv4bench.workloads.cells import Cell
from dsv4bench.workloads.sides import Two

HASH_DIGITS = 8
CELL_S = 60  # the most seconds of samples of a cell, of both sides together


@dataclass(frozen=True, slots=True)
class Experiment:
    """Both sides and how they are measured: `pairs` of `block` samples of each side, `least_pairs` at the least.

    `pairs` None: in one process as many as it takes to know every difference well enough, for `CELL_S` at the most.
    `min_effect` None: the default of how a cell is launched. `session` names the call; one that is resumed keeps it.
    """

    session: str
    sides: dict[str, str]
    aa: bool
    min_effect: MinEffect | None
    pairs: int | None
    least_pairs: int
    block: int
    fresh: bool

    def min_effect_of(self, two: Two) -> MinEffect:
        """Return the least difference that a verdict on these cells may name."""
        return self.min_effect or default_min_effect(two.a.variant.graph and two.b.variant.graph)

    def digest(self, keys: Sequence[str]) -> str:
        """Return a hash of what is measured, of cells with these keys: a resumed call must be the same."""
        effect = _plain(self.min_effect) if self.min_effect else None
        content = [self.sides, self.aa, effect, self.block, self.fresh, *keys]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:HASH_DIGITS]

    def stamped(self, record: Record, two: Two, side: str, pair: int | None = None, place: int | None = None) -> Record:
        """Return the record of one side of `two` with its field `ab`; pair and place of fresh processes only."""
        said = {
            "session": self.session,
            "side": side,
            "sides": self.sides,
            "pair": pair,
            "place": place,
            "block": self.block,
            "aa": self.aa,
            "min_effect": _plain(self.min_effect_of(two)),
            "sm_mhz": block_clocks(record, self.block),
        }
        return replace(record, ab=said)


def session_name(digest: str, now: datetime | None = None) -> str:
    """Return the name of a new session: when it began, and what it measures."""
    return f"{(now or datetime.now(UTC)).strftime('%Y%m%dT%H%M%SZ')}-{digest}"


def find_session(records: Sequence[Record], digest: str) -> str | None:
    """Return the last session among the records that measures the same, or None."""
    names = [record.ab["session"] for record in records if record.ab is not None]
    return next((name for name in reversed(names) if str(name).endswith(f"-{digest}")), None)


def cell_of(two: Two, side: str) -> Cell:
    """Return the cell of side "a" or "b"."""
    return two.a if side == SIDES[0] else two.b


def block_clocks(record: Record, block: int) -> list[float | None] | None:
    """Return the median SM clock in MHz around each block of a record's samples, or None where NVML did not tell."""
    clocks = (record.clocks or {}).get("sample_sm_mhz")
    if not clocks:
        return None
    blocks = [clocks[start : start + block] for start in range(0, len(clocks), block)]
    known = [[mhz for mhz in one if mhz is not None] for one in blocks]
    return [float(median(one)) if one else None for one in known]


def _plain(effect: MinEffect) -> dict[str, Any]:
    """Return the one of both that is given, by its name."""
    if effect.relative is not None:
        return {"relative": effect.relative}
    return {"absolute_ns": effect.absolute_ns}
