"""How fast a kernel was: from its samples, its cost and the ceilings of its run to a rate and a share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsv4bench.results.record import Record
from dsv4bench.results.stats import Interval, median_interval
from dsv4bench.units import NS_PER_S

COLD, HOT = "kernel_cold", "kernel_hot"
OWN = ("triton", "torch")


@dataclass(frozen=True, slots=True)
class Speed:
    """A kernel's times and rate, cold: bytes per second where memory binds, FLOPs per second where arithmetic does.

    `least_ns` is what the work takes at the ceiling that binds, `share` that time over the measured one; `intensity` is
    in FLOPs per byte.
    """

    cold: Interval
    hot: Interval
    bound: str
    rate: float
    ceiling: float
    share: float
    intensity: float

    @property
    def least_ns(self) -> float:
        """What the work takes at the ceiling."""
        return self.cold.value * self.share


def speed(record: Record) -> Speed | None:
    """Return how fast the kernel of a record was, or None where it has no time."""
    found = record.kernel
    if found is None or not record.samples_ns:
        return None
    cold, hot = (median_interval(record.samples_ns[name]) for name in (COLD, HOT))
    moved, flops = int(found["bytes_read"]) + int(found["bytes_written"]), int(found["flops"])
    memory, compute = memory_ceiling(found), float(found["ceilings"]["matmul_flops_per_s"])
    bound, work, ceiling = ("memory", moved, memory)
    if flops / compute > moved / memory:
        bound, work, ceiling = ("compute", flops, compute)
    rate = work * NS_PER_S / max(cold.value, 1.0)
    return Speed(cold, hot, bound, rate, ceiling, rate / ceiling, flops / max(1, moved))


def memory_ceiling(kernel: dict[str, Any]) -> float:
    """Return the bytes per second that an elementwise operation moved at this kernel's bytes: the faster of the two."""
    ceilings = kernel["ceilings"]
    return float(max(ceilings["even_bytes_per_s"], ceilings["mixed_bytes_per_s"]))


def peer(records: list[Record]) -> Record | None:
    """Return whom a group is compared with: the first other project's provider that has a time, else torch's."""
    timed = [record for record in records if record.status == "ok"]
    others = [record for record in timed if provider(record) not in OWN]
    return next(iter(others), next((record for record in timed if provider(record) == "torch"), None))


def provider(record: Record) -> str:
    """Return whose kernel a record is of."""
    return str((record.kernel or {}).get("provider"))


def ratio(record: Record, other: Record | None) -> Interval | None:
    """Return how many times faster `record` is than `other`, cold: the median of the ratios of neighbouring samples."""
    if other is None or other is record or not record.samples_ns:
        return None
    theirs, ours = other.samples_ns[COLD], record.samples_ns[COLD]
    if len(theirs) != len(ours) or other.group != record.group:
        return None
    return median_interval([b / max(a, 1) for a, b in zip(ours, theirs, strict=True)])
