"""Where a record was measured: machine, software and source, as plain values without names of hosts, users or paths."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dsv4bench import __version__
from dsv4bench.profiling.clocks import Nvml, open_nvml

_SOURCE_ROOT = Path(__file__).resolve().parents[2]
_SOURCE = ("dsv4bench", "pyproject.toml")  # what measures
_DIFF_DIGITS = _CHIP_DIGITS = 12
_PACKAGES = {"sglang": "sglang", "flash_mla": "sgl-flash-mla", "deep_gemm": "sgl-deep-gemm"}  # of the extra "upstream"
_CPU_INFO = Path("/proc/cpuinfo")
_MAPS = Path("/proc/self/maps")
_MACHINE_ID = Path("/etc/machine-id")  # stays when the machine starts again


def environment(device: str) -> dict[str, Any]:
    """Return the facts that a comparison needs; `gpu` facts are None on "cpu", each unknown one is None."""
    return {
        **_software(),
        **_host(),
        **source_state(_SOURCE_ROOT, _SOURCE),
        **(_gpu() if device == "cuda" else {"gpu": None, "host_id": anonymous(machine_id(_MACHINE_ID))}),
    }


def source_state(root: Path, paths: Sequence[str]) -> dict[str, Any]:
    """Return the `commit` of the checkout that keeps `paths` of `root`, and whether they are `dirty` (`diff`: a hash).

    All are None where no checkout does: an installed package may lie inside somebody else's.
    """
    if not _git(root, "ls-files", "--", *paths):
        return {"commit": None, "dirty": None, "diff": None}
    changes = _git(root, "status", "--porcelain", "--", *paths)
    return {
        "commit": _git(root, "rev-parse", "HEAD"),
        "dirty": None if changes is None else bool(changes),
        "diff": _difference(root, paths) if changes else None,
    }


def _difference(root: Path, paths: Sequence[str]) -> str | None:
    """Return a hash of how the source differs from the commit, files that git does not know included."""
    diff = _git(root, "diff", "HEAD", "--binary", "--no-color", "--no-ext-diff", "--", *paths)
    new = _git(root, "ls-files", "--others", "--exclude-standard", "--", *paths)
    if diff is None or new is None:
        return None
    found = hashlib.sha256(diff.encode())
    for name in new.splitlines():
        found.update(f"{name}\n{_git(root, 'hash-object', '--', name)}\n".encode())
    return found.hexdigest()[:_DIFF_DIGITS]


def cpu_model(info: str) -> str | None:
    """Return the first model name of a /proc/cpuinfo text."""
    pairs = (line.split(":", 1) for line in info.splitlines() if ":" in line)
    return next((value.strip() for key, value in pairs if key.strip() == "model name"), None)


def machine_id(file: Path) -> str | None:
    """Return the id of a /etc/machine-id; None where there is none, as in many containers, or not yet."""
    try:
        found = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return None if found in ("", "uninitialized") else found


def anonymous(name: str | None) -> str | None:
    """Return the start of a name's SHA-256: it tells names apart without saying them."""
    return None if name is None else hashlib.sha256(name.encode()).hexdigest()[:_CHIP_DIGITS]


def injected(maps: str) -> list[str]:
    """Return the libraries in a /proc/PID/maps text that a profiler put there: Nsight's are called "...Injection...".

    Every launch of such a process takes longer.
    """
    names = {line.split(maxsplit=5)[-1].rsplit("/", 1)[-1] for line in maps.splitlines()}
    return sorted(name for name in names if "injection" in name.lower())


def _git(root: Path, *arguments: str) -> str | None:
    """Return what git prints, or None where it is missing or refuses."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _software() -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "triton": _version("triton"),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "dsv4bench": __version__,
        **{provider: _version(package) for provider, package in _PACKAGES.items()},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _host() -> dict[str, Any]:
    info = _CPU_INFO.read_text(encoding="utf-8", errors="replace") if _CPU_INFO.exists() else ""
    return {
        "os": f"{platform.system()} {platform.release()}",
        "cpu": cpu_model(info) or platform.processor() or platform.machine(),
        "cpu_cores": os.cpu_count(),
        "cpu_threads": torch.get_num_threads(),
        "injected": injected(_MAPS.read_text(encoding="utf-8", errors="replace")) if _MAPS.exists() else None,
    }


def _gpu() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    facts = {
        "gpu": properties.name,
        "gpu_sms": properties.multi_processor_count,
        "gpu_l2_bytes": properties.L2_cache_size,
        "gpu_memory_bytes": properties.total_memory,
        "gpu_capability": f"{properties.major}.{properties.minor}",
    }
    return {**facts, **_nvml_facts(open_nvml())}


def _nvml_facts(nvml: Nvml | None) -> dict[str, Any]:
    keys = ("gpu_chip", "driver", "power_limit_mw", "ecc", "mig", "gpu_other_processes")
    if nvml is None:
        return dict.fromkeys(keys)
    ecc = nvml.ask("nvmlDeviceGetEccMode")
    mig = nvml.ask("nvmlDeviceGetMigMode")
    values = (
        anonymous(nvml.uuid()),
        nvml.driver_version(),
        nvml.ask("nvmlDeviceGetEnforcedPowerLimit"),
        None if ecc is None else bool(ecc[0]),
        None if mig is None else bool(mig[0]),
        nvml.other_processes(),
    )
    return dict(zip(keys, values, strict=True))
