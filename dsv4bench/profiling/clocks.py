"""What the GPU's clocks, power and temperature were while a cell was timed, read through NVML at block borders.

And who else was at work there: processes on the GPU, or load on a CPU that is timed itself.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

# NVML's clocks-event-reason bits (nvml.h); those that slow a busy GPU down are throttling
REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
THROTTLING = ("sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
TOP_CLOCK_SHARE = 0.95
LEAST_OTHER_LOAD = 0.5  # of a core; what an idle system does on the side is less
_SM_CLOCK, _MEMORY_CLOCK, _GPU_TEMPERATURE = 1, 2, 0  # NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU


@dataclass(frozen=True, slots=True)
class ClockSample:
    """One reading; None where this GPU or driver does not tell."""

    sm_mhz: int | None
    memory_mhz: int | None
    power_mw: int | None
    temperature_celsius: int | None
    reasons: tuple[str, ...]


class Nvml:
    """One GPU seen through the package nvidia-ml-py (`module`); `ask` answers None where NVML refuses."""

    def __init__(self, module: Any, handle: Any) -> None:
        self.module = module
        self.handle = handle

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call `function(handle, *arguments)`; None if this package, driver or GPU does not know it."""
        try:
            return getattr(self.module, function)(self.handle, *arguments)
        except (AttributeError, self.module.NVMLError):
            return None

    def sm_mhz(self) -> int | None:
        """Return the SM clock now; None where NVML does not tell."""
        found = self.ask("nvmlDeviceGetClockInfo", _SM_CLOCK)
        return None if found is None else int(found)

    def other_processes(self) -> int | None:
        """Count the processes that compute on the GPU but for this one; NVML may list it under another number."""
        processes = self.ask("nvmlDeviceGetComputeRunningProcesses")
        return None if processes is None else max(0, len(processes) - 1)

    def uuid(self) -> str | None:
        """Return what tells this GPU from every other one, e.g. "GPU-1c2d..."; None where NVML does not tell."""
        found = self.ask("nvmlDeviceGetUUID")
        return found.decode() if isinstance(found, bytes) else found

    def driver_version(self) -> str | None:
        """Return the driver's version."""
        try:
            return str(self.module.nvmlSystemGetDriverVersion())
        except self.module.NVMLError:
            return None


def open_nvml() -> Nvml | None:
    """Return NVML on torch's current CUDA device, found by its UUID; None without the package, a driver or a device."""
    try:
        module: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        module.nvmlInit()
        uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
        return Nvml(module, module.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
    except (module.NVMLError, RuntimeError, AssertionError):
        return None


class ClockMonitor:
    """Keeps a `ClockSample` for every call of `sample`, and none where `nvml` is None.

    `other_processes` is the most processes of others that `look_around` has seen, None where NVML does not tell.
    `other_load` is the most that it has seen of a CPU's load beyond the `own_threads` of this run, in cores; None on a
    GPU, for which nobody gives their number.
    """

    def __init__(self, nvml: Nvml | None, own_threads: int | None = None) -> None:
        self.samples: list[ClockSample] = []
        self.other_processes: int | None = None
        self.other_load: float | None = None
        self._nvml = nvml
        self._own_threads = own_threads

    @property
    def sm_mhz(self) -> Callable[[], int | None] | None:
        """What reads the SM clock alone, which is soon done; None without NVML."""
        return self._nvml.sm_mhz if self._nvml else None

    def look_around(self) -> None:
        """Count the other processes on the GPU, or see what else the CPU does; too slow for between samples."""
        found = self._nvml.other_processes() if self._nvml else None
        if found is not None:
            self.other_processes = max(found, self.other_processes or 0)
        load = None if self._own_threads is None else load_average()
        if load is not None and self._own_threads is not None:
            self.other_load = max(load - self._own_threads, self.other_load or 0.0)

    def sample(self) -> None:
        """Read clocks, power, temperature and throttle reasons now."""
        if self._nvml is not None:
            self.samples.append(read(self._nvml))

    def summary(self) -> dict[str, Any] | None:
        """Return plain values for a record, or None without a sample; clocks are kept one by one."""
        if not self.samples:
            return None
        powers = [s.power_mw for s in self.samples if s.power_mw is not None]
        temperatures = [s.temperature_celsius for s in self.samples if s.temperature_celsius is not None]
        return {
            "sm_mhz": [s.sm_mhz for s in self.samples],
            "memory_mhz": [s.memory_mhz for s in self.samples],
            "power_mw_max": max(powers, default=None),
            "temperature_celsius_max": max(temperatures, default=None),
            "other_processes": self.other_processes,
            "reasons": sorted({reason for s in self.samples for reason in s.reasons}),
        }

    def flags(self) -> list[str]:
        """Return what is doubtful of these samples: throttling, by their own top clock, and a shared device."""
        others = [f"other processes on the GPU: {self.other_processes}"] if self.other_processes else []
        if (self.other_load or 0.0) >= LEAST_OTHER_LOAD:
            others.append(f"other load on the CPU: {self.other_load:.1f} of {os.cpu_count()} cores")
        return throttle_flags(self.samples) + others


def load_average() -> float | None:
    """Return the threads that ran or waited to run on this machine, over the last minute; None where nobody says."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def read(nvml: Nvml) -> ClockSample:
    """Take one reading."""
    mask = nvml.ask("nvmlDeviceGetCurrentClocksEventReasons")
    if mask is None:  # its name before NVML 12
        mask = nvml.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    return ClockSample(
        sm_mhz=nvml.sm_mhz(),
        memory_mhz=nvml.ask("nvmlDeviceGetClockInfo", _MEMORY_CLOCK),
        power_mw=nvml.ask("nvmlDeviceGetPowerUsage"),
        temperature_celsius=nvml.ask("nvmlDeviceGetTemperature", _GPU_TEMPERATURE),
        reasons=tuple(name for bit, name in REASONS.items() if (mask or 0) & bit),
    )


def throttle_flags(samples: Sequence[ClockSample]) -> list[str]:
    """Return "throttled: ..." flags: NVML's own reasons, and an SM clock under 95 % of the top clock of these samples.

    The yardstick is the run's own top clock, never the GPU's nominal one, which a loaded GPU may not hold. Readings of
    an idle GPU say nothing about the clock under load and are left out.
    """
    busy = [sample for sample in samples if "gpu_idle" not in sample.reasons]
    flags = [f"throttled: {name}" for name in THROTTLING if any(name in sample.reasons for sample in busy)]
    clocks = [sample.sm_mhz for sample in busy if sample.sm_mhz is not None]
    if clocks and min(clocks) < TOP_CLOCK_SHARE * max(clocks):
        flags.append(f"throttled: SM clock fell from {max(clocks)} to {min(clocks)} MHz")
    return flags
