"""Small torch.profiler traces to test with: their events, and files that hold them."""

import json

KERNEL = {
    "ph": "X",
    "cat": "kernel",
    "name": "_dequant",
    "pid": 0,
    "tid": 7,
    "ts": 5140677167474.0,
    "dur": 2.048,
    "args": {"device": 0, "stream": 7, "correlation": 5},
}
LAUNCH = {
    "ph": "X",
    "cat": "cuda_driver",
    "name": "cuLaunchKernelEx",
    "pid": 454,
    "tid": 455,
    "ts": 5140677167473.346,
    "dur": 5,
    "args": {"cbid": 652, "correlation": 5},
}
RANGE = {
    "ph": "X",
    "cat": "user_annotation",
    "name": "kv_source=2",
    "pid": 454,
    "tid": 455,
    "ts": 5140677167473.345,
    "dur": 2992.859,
    "args": {"External id": 1},
}
EVENTS = (RANGE, LAUNCH, KERNEL)


def without(event, key):
    """Return the event without one key."""
    return {name: value for name, value in event.items() if name != key}


def document(*events, **head):
    """Return the text of a file with these events."""
    return json.dumps({"schemaVersion": 1, **head, "traceEvents": list(events)})


def written(folder, text, name="trace.json"):
    """Write a file and return its path."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path
