"""Published figures of single operations on other GPUs, and the error of predicting them from a fit.

`published.toml` beside this file holds them, each with its source and date.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsv4bench.results.peaks import Peaks
from dsv4bench.results.projection import Fit, operation_ns
from dsv4bench.units import FLOP_RATES, NS_PER_S, NS_PER_US, SIZES, parse_quantity

FILE = Path(__file__).with_name("published.toml")
TIMES = {"us": float(NS_PER_US)}


@dataclass(frozen=True, slots=True)
class Published:
    """One figure: how long a device took for FLOPs or bytes in a number of launches, and where that stands."""

    device: str
    op: str
    flops: float
    moved_bytes: float
    launches: int
    time_ns: float
    source: str
    date: str


def read_published() -> list[Published]:
    """Return the figures that come with this package."""
    return [_published(one) for one in tomllib.loads(FILE.read_text("utf-8"))["figure"]]


def _published(table: Mapping[str, str]) -> Published:
    """Read one figure; a rate is that of one second of work, beside which a launch does not count."""
    device, op, source, date = (table[name] for name in ("device", "op", "source", "date"))
    if "rate" in table:
        return Published(device, op, parse_quantity(table["rate"], FLOP_RATES), 0, 0, NS_PER_S, source, date)
    moved, time_ns = parse_quantity(table["bytes"], SIZES), parse_quantity(table["time"], TIMES)
    return Published(device, op, 0, moved, 1, time_ns, source, date)


def errors_elsewhere(found: Fit, peaks: Peaks, figures: Sequence[Published]) -> list[tuple[Published, float]]:
    """Return predicted / published time - 1 of every figure whose operation was fitted on another GPU than its own."""
    errors = []
    for one in figures:
        target, fitted = peaks.devices.get(one.device), found.operations.get(one.op)
        if target and fitted and fitted.share and target.word != found.device.word:
            time_ns = operation_ns(fitted, (one.flops, one.moved_bytes), one.launches, found.device, target)
            errors.append((one, time_ns / one.time_ns - 1))
    return errors
