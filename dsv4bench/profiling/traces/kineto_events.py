"""The events of torch.profiler's JSON, decoded into structures that hold only what a review needs.

A typed decode makes a large file affordable: fields that nobody reads are skipped, categories become members of an
enumeration instead of texts. Times keep the type that the file gives them; `kineto_numbers` makes them nanoseconds.
"""

from __future__ import annotations

from decimal import Decimal
from enum import Enum
from typing import Any, Self

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.json import Decoder


class Category(Enum):
    """What an event is about; the second group are the names of writers before 2022."""

    KERNEL = "kernel"
    COPY = "gpu_memcpy"
    SET = "gpu_memset"
    RUNTIME = "cuda_runtime"
    DRIVER = "cuda_driver"
    USER_ANNOTATION = "user_annotation"
    GPU_USER_ANNOTATION = "gpu_user_annotation"
    CPU_OP = "cpu_op"
    PYTHON_FUNCTION = "python_function"
    FLOW = "ac2g"
    OLD_KERNEL = "Kernel"
    OLD_COPY = "Memcpy"
    OLD_SET = "Memset"
    OLD_RUNTIME = "Runtime"
    OLD_OPERATOR = "Operator"
    OTHER = ""

    __hash__ = object.__hash__  # Enum's own is Python code, and every event is looked up by its category

    @classmethod
    def _missing_(cls, value: object) -> Self:
        return cls("")


class Phase(Enum):
    """The kind of an event in the Chrome format; only a complete event has a start and a duration."""

    COMPLETE = "X"
    FLOW_START = "s"
    FLOW_END = "f"
    OTHER = ""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        return cls("")


class Arguments(Struct, gc=False):
    """The arguments of an event that matter here; writers differ in whether an id is a number or a text."""

    device: Any = None
    stream: Any = None
    correlation: Any = None
    bytes: Any = None
    graph_node: Any = field(default=None, name="graph node id")


class Event(Struct, gc=False):
    """One entry of the list of events; times are microseconds."""

    ph: Phase | None = None
    cat: Category | None = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Arguments | None = None


class Head(Struct, rename="camel"):
    """What a file says of itself, around its list of events; who ran it and where is not read."""

    schema_version: Any = None
    device_properties: Any = None
    distributed_info: Any = None
    display_time_unit: Any = None
    base_time_nanoseconds: Any = None
    trace_name: Any = None
    trace_id: Any = field(default=None, name="trace_id")
    record_shapes: Any = field(default=None, name="record_shapes")
    profile_memory: Any = field(default=None, name="profile_memory")
    with_stack: Any = field(default=None, name="with_stack")
    cuda_driver_version: Any = field(default=None, name="cuda_driver_version")
    cuda_runtime_version: Any = field(default=None, name="cuda_runtime_version")
    cupti_version: Any = field(default=None, name="cupti_version")
    hip_driver_version: Any = field(default=None, name="hip_driver_version")
    hip_runtime_version: Any = field(default=None, name="hip_runtime_version")
    roctracer_version: Any = field(default=None, name="roctracer_version")


class Document(Head):
    """A whole file: its head and its list of events; a file may lack the list or hold null there."""

    trace_events: list[Event] | UnsetType | None = UNSET


class Decoders:
    """The decoders of one file; `exact` keeps every fraction as the Decimal of its text (slower)."""

    def __init__(self, exact: bool) -> None:
        hook = Decimal if exact else None
        self.document = Decoder(Document, float_hook=hook)
        self.events = Decoder(list[Event], float_hook=hook)
        self.event: Decoder[Event] = Decoder(Event, float_hook=hook)
        self.anything: Decoder[Any] = Decoder(float_hook=hook)
