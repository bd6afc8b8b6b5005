"""What an nsys export says of its making: tool, capture settings, GPUs, warnings of the profiler.

The export also holds the environment of the profiled program and its command line. Nothing is copied from there: only
settings that are named here are taken.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from dsv4bench.profiling.traces.columns import Device
from dsv4bench.profiling.traces.nsys_tables import Tables

_EXPORT = {"EXPORT_PRODUCT_VERSION": "nsys", "EXPORT_SCHEMA_VERSION": "schema"}
# the last part of a setting's name in the capture's table -> our name; sessions and processes may both have one
_CAPTURE = {
    "MODE": "cuda_graph_trace",
    "CUDA_SKIP_SOME_API_CALLS": "api_calls_skipped",
    "CUDA_TRACE_SCOPE": "cuda_trace_scope",
    "START_TRIGGER": "start_trigger",
    "NVTX_DOMAIN_FILTER_STRING": "nvtx_domain_filter",
}
_WARNING = 2  # DIAGNOSTIC_EVENT.severity of a warning; an error is 3
_MOST_WARNINGS = 20


def facts_of(tables: Tables) -> dict[str, str]:
    """Return what the file says of its making.

    `nsys` and `schema` (versions of the exporter), `collected` (event types, comma-separated: `Cuda, NvtxEvents`),
    `cuda_graph_trace` (`node`, `graph`), `api_calls_skipped`, `duration_ns`, `driver`, `warnings` (a line each); a fact
    that the file lacks is absent.
    """
    exported = dict(_pairs(tables, "META_DATA_EXPORT") or _pairs(tables, "EXPORT_META_DATA"))
    captured = _pairs(tables, "META_DATA_CAPTURE")
    facts = {ours: exported[theirs] for theirs, ours in _EXPORT.items() if theirs in exported}
    collected = sorted({value for name, value in captured if name == "CAPTURE_EVENT_TYPE"})
    facts["collected"] = ", ".join(collected)
    for name, value in captured:
        ours = _CAPTURE.get(name.rsplit(":", 1)[-1])
        if ours == "cuda_graph_trace":
            value = value.lower() if "CUDA_GRAPH_TRACE_OPTIONS" in name else ""
        if ours is not None and value:
            facts.setdefault(ours, value)
    facts["duration_ns"] = "".join(str(value) for (value,) in tables.records("ANALYSIS_DETAILS", ["duration"])[:1])
    facts["driver"] = _driver(tables)
    facts["warnings"] = "\n".join(_warnings(tables))
    return {name: value for name, value in facts.items() if value}


def devices_of(tables: Tables) -> tuple[Device, ...]:
    """Return the NVIDIA GPUs; `index` counts as the `device` of the operations does (see `gpu_numbers`)."""
    columns = ("id", "name", "smCount", "l2CacheSize", "memoryBandwidth", "cuDevice")
    gpus = [gpu for gpu in tables.records("TARGET_INFO_GPU", columns) if isinstance(gpu[0], int) and gpu[2] != 0]
    ordinals = [gpu[5] for gpu in gpus]
    if gpu_numbers(tables) or not all(isinstance(one, int) for one in ordinals) or len(set(ordinals)) < len(ordinals):
        ordinals = [gpu[0] for gpu in gpus]
    return tuple(
        sorted(
            (
                Device(ordinal, None if name is None else str(name), *(_positive(one) for one in sizes))
                for ordinal, (_, name, *sizes, _) in zip(ordinals, gpus, strict=True)
            ),
            key=lambda device: device.index,
        )
    )


def gpu_numbers(tables: Tables) -> dict[tuple[int, int], int]:
    """Return {(process id, device as that process counts): number of the GPU}; empty where the file does not say.

    Two processes that see one GPU each both call it device 0.
    """
    rows = tables.records("TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId", "pid"))
    return {(pid, device): gpu for gpu, device, pid in rows if all(isinstance(one, int) for one in (gpu, device, pid))}


def _pairs(tables: Tables, prefix: str) -> list[tuple[str, str]]:
    return [(str(name), str(value)) for name, value in tables.records(prefix, ("name", "value")) if value is not None]


def _driver(tables: Tables) -> str:
    """Return the driver's version; the file writes 525.105.17 as 52510517 and 580.159.03 as 58015903."""
    rows: list[Any] = [
        value
        for name, value in tables.records("TARGET_INFO_SYSTEM_ENV", ("name", "value"))
        if name == "NvDriverVersion"
    ]
    digits = str(rows[0]) if rows else ""
    return f"{digits[:3]}.{digits[3:-2]}.{digits[-2:]}" if digits.isdigit() and len(digits) > 6 else ""


def _warnings(tables: Tables) -> list[str]:
    found = Counter(
        " ".join(str(text).split())
        for text, severity in tables.records("DIAGNOSTIC_EVENT", ("text", "severity"))
        if isinstance(severity, int) and severity >= _WARNING
    )
    return [text if times == 1 else f"{text} ({times} times)" for text, times in found.most_common(_MOST_WARNINGS)]


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
