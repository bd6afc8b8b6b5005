"""Whether a rate can be true: more than a GPU's memory or its tensor cores can give at best is a fault of measuring.

The limit is the GPU's figure in `peaks.toml`, never a ceiling that was measured: a kernel that mostly reads passes an
elementwise copy, and a small one the elementwise operation of its bytes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import ceil

from dsv4bench.errors import UsageError
from dsv4bench.results.peaks import Device, Figure, read_peaks
from dsv4bench.results.record import Record
from dsv4bench.results.speed import speed

IMPLAUSIBLE = "implausible"
NOT_COLD = "cold is not quite cold: the buffer sets together stay below three times the L2"
ARITHMETIC = ("bf16", "fp8", "fp4")  # no cost says in which of them a kernel multiplies: the fastest is the limit


def flagged(record: Record) -> Record:
    """Return the record with the flag that its rate cannot be true, where that is so and not said yet."""
    said = implausible(record)
    return record if said is None or said in record.flags else replace(record, flags=[*record.flags, said])


def implausible(record: Record) -> str | None:
    """Return the flag of a rate beyond the GPU's peak, e.g. "implausible: 417 % of the peak HBM rate (4.8 TB/s)".

    A kernel's rate is its cold one, a step's that of its dequants. None where it can be true, and where nothing says
    so: on a CPU, on a GPU without peaks, and of a kernel whose data may have been in the L2.
    """
    said = next((flag for flag in record.flags if f"{IMPLAUSIBLE}: " in flag), None)
    device = _device(record.machine) if record.engine == "gpu" and said is None else None
    rate, bound = _rate(record)
    limit = _limit(device, bound) if device and rate else None
    if limit is None or rate <= limit[1].value:
        return said
    return f"{IMPLAUSIBLE}: {ceil(100 * rate / limit[1].value)} % of the peak {limit[0]} rate ({limit[1].text})"


def _rate(record: Record) -> tuple[float, str]:
    """Return the rate that was measured and what bounds it; 0 where there is none to judge."""
    if record.kernel is None:
        return float((record.predicted or {}).get("dequant_bytes_per_s") or 0), "memory"
    seen = speed(record) if record.kernel.get("ceilings") and NOT_COLD not in record.flags else None
    return (seen.rate, seen.bound) if seen else (0, "")


def _limit(device: Device, bound: str) -> tuple[str, Figure] | None:
    """Return what is fastest of what bounds a rate, with its name; None where no figure of it is known."""
    names = {"hbm_rate": "HBM"} if bound == "memory" else {name: name for name in ARITHMETIC}
    known = [(said, device.figures[name]) for name, said in names.items() if name in device.figures]
    return max(known, key=lambda one: one[1].value, default=None)


@cache
def _device(machine: str) -> Device | None:
    try:
        return read_peaks().of_machine(machine)
    except UsageError:  # nobody has said what it can do
        return None
