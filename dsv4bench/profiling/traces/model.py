"""What every trace reader returns: device operations, the host calls that launched them, and host annotations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Thread = tuple[str, str]


@dataclass(frozen=True, slots=True)
class DeviceOp:
    """One row of the device: its class as the trace calls it, before any alias rule."""

    kind: Literal["kernel", "copy", "set"]
    name: str
    start_ns: int
    duration_ns: int
    correlation: int | None
    stream: int | None
    graph_node_id: int | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """One call of the runtime or driver API with a correlation id, on a host thread (process, thread)."""

    name: str
    start_ns: int
    correlation: int
    thread: Thread


@dataclass(frozen=True, slots=True)
class Annotation:
    """One host range that the program opened, on a host thread."""

    name: str
    start_ns: int
    end_ns: int
    thread: Thread


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace; `source` is the file that it was read from, times share one origin."""

    source: str
    operations: tuple[DeviceOp, ...]
    launches: tuple[Launch, ...]
    annotations: tuple[Annotation, ...]
