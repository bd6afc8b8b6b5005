"""Whether two records of one cell may be compared: the facts that must be equal before a time is a before of another.

Times of two machines stand side by side and are never a regression; of anything else that differs the times say
nothing about the code, and the pair is refused. A fact that a record does not hold is unknown, not different.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from dsv4bench.results.record import Record

Fact = Callable[[Record], Any]
MODELLED = "modelled"
# what tells a machine from another of the same model, by the engine that ran; no older record has it
GPU_CHIP, HOST_ID = "GPU chip", "host id"
CHIP = ("gpu_chip", "host_id")  # the same in an environment
LOCKED = "applications_clocks_setting"  # what NVML says of a GPU whose clocks were set


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact that two records do not share: its name and both values as text."""

    what: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.what}: {self.before} before, {self.after} after"


def differences(before: Record, after: Record) -> list[Difference]:
    """Return the facts that both records hold and that differ, those of the machine first; a model is like nothing."""
    sides = ((name, fact(before), fact(after)) for name, fact in FACTS.items())
    return [
        Difference(name, _text(old), _text(new))
        for name, old, new in sides
        if old is not None and new is not None and (old != new or old == MODELLED)
    ]


def two_machines(found: Sequence[Difference]) -> bool:
    """Return whether records differ in the machine, and else in nothing but what belongs to one."""
    names = {one.what for one in found}
    return bool(names & set(MACHINE)) and names <= {*MACHINE, *STATE}


def unknown(before: Record, after: Record) -> list[str]:
    """Return the facts that only one of two records holds, so that nothing says whether they are equal.

    Among them which chip or host it was, which is unknown too where neither of them says it.
    """
    which = GPU_CHIP if after.engine == "gpu" else HOST_ID
    sides = ((name, fact(before) is None, fact(after) is None) for name, fact in FACTS.items())
    return [name for name, old, new in sides if old != new or (old and name == which)]


def of_one_chip(before: Sequence[Record], after: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Return the records of both sides, or only those of the newest chip or host that both of them know."""
    there = {chip(record) for record in before} - {None}
    shared = next((one for record in reversed(after) if (one := chip(record)) in there), None)
    sides = [[one for one in side if shared is None or chip(one) == shared] for side in (before, after)]
    return sides[0], sides[1]


def chip(record: Record) -> str | None:
    """Return what tells the GPU of a record, or without one its host, from others of the same model."""
    found = record.environment.get(CHIP[record.engine != "gpu"])
    return None if found is None else str(found)


def known(record: Record) -> dict[str, str]:
    """Return the facts that a record holds, as text."""
    return {name: _text(value) for name, fact in FACTS.items() if (value := fact(record)) is not None}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _environment(name: str) -> Fact:
    return lambda record: record.environment.get(name)


def _timing(name: str) -> Fact:
    return lambda record: (record.timing or {}).get(name)


def _batch(name: str) -> Fact:
    return lambda record: record.batch.get(name)


def _power_limit(record: Record) -> str | None:
    limit_mw = record.environment.get("power_limit_mw")
    return None if limit_mw is None else f"{limit_mw / 1000:g} W"


def _driver(record: Record) -> str | None:
    """Return the branch of the driver: its later parts mend faults."""
    driver = record.environment.get("driver")
    return None if driver is None else str(driver).split(".")[0]


def _clock_lock(record: Record) -> str | None:
    """Return at which SM clock the GPU was held, "none" where it was free."""
    clocks = record.clocks or {}
    if LOCKED not in clocks.get("reasons", ()):
        return "none" if "reasons" in clocks else None
    held = [mhz for mhz in clocks.get("sm_mhz") or () if mhz]
    return f"{median(held):.0f} MHz" if held else "at an unknown clock"


def _threads(record: Record) -> int | None:
    """Return the threads of torch where a CPU does the work."""
    return None if record.engine == "gpu" else record.environment.get("cpu_threads")


def _host(record: Record) -> Any:
    """Return the processor that enqueues a GPU's work; without a GPU it is the machine."""
    return record.environment.get("cpu") if record.engine == "gpu" else None


def _profiler(record: Record) -> str | None:
    found = record.environment.get("injected")
    return None if found is None else ", ".join(found) or "none"


MACHINE: dict[str, Fact] = {
    "machine": lambda record: record.machine,
    "SMs": _environment("gpu_sms"),
    "host": _host,
    GPU_CHIP: lambda record: chip(record) if record.engine == "gpu" else None,
    HOST_ID: lambda record: None if record.engine == "gpu" else chip(record),
}
STATE: dict[str, Fact] = {
    "power limit": _power_limit,
    "driver": _driver,
    "CUDA": _environment("cuda"),
    "MIG": _environment("mig"),
    "clock lock": _clock_lock,
    "threads": _threads,
}
MEASURED: dict[str, Fact] = {
    "engine": lambda record: record.engine,
    "label": lambda record: record.label,
    "profiler": _profiler,
    "method": lambda record: record.step_metric,
    "timing clock": _timing("clock"),
    "cache policy": _timing("cache"),
    "alignment": _timing("alignment"),
    **{f"workload ({name})": _batch(name) for name in ("rows", "padded_rows", "rank_rows", "forwards", "divide")},
    "workload (shape)": lambda record: (record.kernel or {}).get("shape"),
}
FACTS = {**MACHINE, **STATE, **MEASURED}
