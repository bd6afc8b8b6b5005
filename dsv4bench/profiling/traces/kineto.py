"""Read torch.profiler's Chrome JSON (`.json`, `.json.gz`) into a `Trace`.

Times are microseconds with three decimals, so large that a float would lose the nanosecond: they are parsed from the
text.
"""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal

from dsv4bench.errors import TraceFormatError
from dsv4bench.profiling.traces.model import Annotation, DeviceOp, Launch, Thread, Trace
from dsv4bench.units import NS_PER_US

_GZIP_MAGIC = b"\x1f\x8b"
_HEAD_BYTES = 4096
_FIRST_WORDS = (b'"schemaVersion"', b'"traceEvents"', b'"ph"')
_DEVICE_KINDS: dict[str, Literal["kernel", "copy", "set"]] = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "set",
    "Kernel": "kernel",  # the categories of writers before 2023
    "Memcpy": "copy",
    "Memset": "set",
}
_LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver", "Runtime")


def sniff(path: Path) -> bool:
    """Return whether the file looks like this format, by the first bytes of its text."""
    try:
        with path.open("rb") as file:
            opener: Callable[..., Any] = gzip.open if file.read(2) == _GZIP_MAGIC else open
        with opener(path, "rb") as file:
            head = file.read(_HEAD_BYTES).lstrip()
    except (OSError, EOFError, zlib.error):
        return False
    return head.startswith((b"{", b"[")) and any(word in head for word in _FIRST_WORDS)


def read(path: Path) -> Trace:
    """Read the trace; TraceFormatError names the file, the place and what was expected there."""
    events = _events(_decode(_text(path), path), path)
    operations: list[DeviceOp] = []
    launches: list[Launch] = []
    annotations: list[Annotation] = []
    for index, event in _complete(events):
        place = f"{path}: event {index} ({event.get('name')!r})"
        try:
            _sort_in(event, operations, launches, annotations)
        except KeyError as error:
            raise TraceFormatError(f"{place}: expected a key {error}, found none") from error
        except (AttributeError, TypeError, ValueError, InvalidOperation) as error:
            raise TraceFormatError(f"{place}: expected numbers as times and ids: {error}") from error
    return Trace(str(path), tuple(operations), tuple(launches), tuple(annotations))


def to_ns(microseconds: Any) -> int:
    """Return a time in microseconds (a Decimal, an int or a numeric text) as whole nanoseconds, exactly."""
    return int((Decimal(microseconds) * NS_PER_US).to_integral_value())


def _text(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw.startswith(_GZIP_MAGIC) else raw
    except (OSError, EOFError, zlib.error) as error:
        raise TraceFormatError(f"{path}: cannot be read as a file or gzip stream: {error}") from error


def _decode(text: bytes, path: Path) -> Any:
    """Decode JSON with every fraction as a Decimal; msgspec is many times faster than json where it is installed."""
    try:
        if importlib.util.find_spec("msgspec"):
            decoder = importlib.import_module("msgspec.json").Decoder(float_hook=Decimal)
            return decoder.decode(text)
        return json.loads(text, parse_float=Decimal)
    except ValueError as error:  # msgspec.DecodeError is one too
        raise TraceFormatError(f"{path}: not JSON: {error}") from error


def _events(document: Any, path: Path) -> list[Any]:
    """Return the list of events of a document, which is a mapping with that list or (older writers) the bare list."""
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise TraceFormatError(f"{path}: top level: expected a list of events or a mapping with the list 'traceEvents'")
    return events


def _complete(events: list[Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (index, event) of the events that have a duration; flows, metadata and instants are not needed."""
    for index, event in enumerate(events):
        if isinstance(event, dict) and event.get("ph") == "X":
            yield index, event


def _sort_in(
    event: Mapping[str, Any], operations: list[DeviceOp], launches: list[Launch], annotations: list[Annotation]
) -> None:
    category = event.get("cat", "")
    arguments = event.get("args") or {}
    if category in _DEVICE_KINDS:
        operations.append(_device_op(event, arguments, _DEVICE_KINDS[category]))
    elif category in _LAUNCH_CATEGORIES and "correlation" in arguments:
        launches.append(Launch(event["name"], to_ns(event["ts"]), int(arguments["correlation"]), _thread(event)))
    elif category == "user_annotation":
        start_ns = to_ns(event["ts"])
        annotations.append(Annotation(event["name"], start_ns, start_ns + to_ns(event["dur"]), _thread(event)))


def _device_op(
    event: Mapping[str, Any], arguments: Mapping[str, Any], kind: Literal["kernel", "copy", "set"]
) -> DeviceOp:
    return DeviceOp(
        kind=kind,
        name=event["name"],
        start_ns=to_ns(event["ts"]),
        duration_ns=to_ns(event["dur"]),
        correlation=_integer(arguments.get("correlation")),
        stream=_integer(arguments.get("stream")),
        graph_node_id=_integer(arguments.get("graph node id")) or None,
    )


def _integer(value: Any) -> int | None:
    return None if value is None else int(value)


def _thread(event: Mapping[str, Any]) -> Thread:
    return str(event["pid"]), str(event["tid"])
