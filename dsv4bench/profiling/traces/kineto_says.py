"""What a torch.profiler file says of its making: devices, rank, versions, and what else it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from dsv4bench.profiling.traces.columns import NO_ID, Device
from dsv4bench.profiling.traces.kineto_events import Category, Document, Head
from dsv4bench.profiling.traces.kineto_numbers import whole_ids

_COUNTED = {
    Category.CPU_OP: "cpu_ops",
    Category.OLD_OPERATOR: "cpu_ops",
    Category.PYTHON_FUNCTION: "python_functions",
    Category.GPU_USER_ANNOTATION: "gpu_user_annotations",
}
_NESTED = ("deviceProperties", "distributedInfo")


def facts_of(document: Document, counts: Mapping[Category, int]) -> dict[str, str]:
    """Return what the file says of itself, by its own keys, and how much it holds that no table has."""
    given = {field.encode_name: getattr(document, field.name) for field in msgspec.structs.fields(Head)}
    facts = {key: str(value) for key, value in given.items() if key not in _NESTED and value is not None}
    distributed = _mapping(document.distributed_info)
    facts |= {key: str(distributed[key]) for key in ("backend", "world_size") if key in distributed}
    for category, name in _COUNTED.items():
        if counts.get(category):
            facts[name] = str(counts[category])
    return facts


def devices_of(document: Document) -> tuple[Device, ...]:
    """Return the devices that the file describes; writers may name none or leave the name empty."""
    given = document.device_properties if isinstance(document.device_properties, list) else []
    found = (_mapping(device) for device in given)
    return tuple(
        Device(
            index=_whole(device.get("id")) if "id" in device else position,
            name=str(device["name"]) if device.get("name") else None,
            multiprocessors=_whole(device["numSms"]) if device.get("numSms") else None,
        )
        for position, device in enumerate(found)
        if device
    )


def rank_of(document: Document) -> int | None:
    """Return the rank of a distributed run, None where the file names none."""
    rank = _whole(_mapping(document.distributed_info).get("rank"))
    return None if rank == NO_ID else rank


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int:
    return int(whole_ids([value], np.int32)[0])
