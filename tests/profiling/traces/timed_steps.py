"""Traces made by hand with the times of every row: calls, operations and the ranges of steps."""

import json
from dataclasses import replace

from dsv4bench.profiling.traces.columns import COPY, KERNEL, NO_ID, PUSH_POP, SET, Codes, Device, Trace, table

KINDS = {"kernel": KERNEL, "copy": COPY, "set": SET}
OURS = "dsv4bench:step=0 layer={layer} ratio=1 kv_source={source} op=dequant_compressed rank=0"
ALL = frozenset({"kernels", "copies", "sets", "launches", "annotations"})


class Timed:
    """Collects rows; `trace` makes a Trace of them."""

    def __init__(self):
        self.strings = Codes()
        self.rows = {name: [] for name in ("operations", "launches", "annotations", "graph_nodes", "graph_runs")}
        self.last = 0

    def range(self, text, start, end, thread=0, kind=PUSH_POP, process=0):
        """Open a range from `start` to `end` (NO_ID: never closed)."""
        row = {"kind": kind, "text": self.strings[text], "domain": 0, "start_ns": start, "end_ns": end}
        self.rows["annotations"].append(row | {"process": process, "thread": thread, "end_thread": thread})
        return self

    def call(self, name, start, thread=0, length=10, process=0):
        """Call the API at `start` and return its correlation id."""
        self.last += 1
        row = {"name": self.strings[name], "start_ns": start, "end_ns": start + length, "process": process}
        self.rows["launches"].append(row | {"thread": thread, "correlation": self.last})
        return self.last

    def op(self, name, start, end, correlation=NO_ID, kind="kernel", stream=7, size=NO_ID, device=0, node=NO_ID):
        """Run an operation from `start` to `end`."""
        row = {"kind": KINDS[kind], "name": self.strings[name], "start_ns": start, "end_ns": end, "process": 0}
        more = {"device": device, "stream": stream, "correlation": correlation, "bytes": size, "graph_node": node}
        self.rows["operations"].append(row | more)
        return self

    def launched(self, name, call_at, start, end, **more):
        """Launch a kernel at `call_at` that runs from `start` to `end`."""
        thread = more.pop("thread", 0)
        call = {"copy": "cudaMemcpyAsync", "set": "cudaMemsetAsync"}.get(more.get("kind", ""), "cudaLaunchKernel")
        return self.op(name, start, end, self.call(call, call_at, thread), **more)

    def trace(self, recorded=ALL, **more):
        """Return the trace, its tables sorted by start."""
        tables = {name: _table(name, rows) for name, rows in self.rows.items()}
        fields = {"source": "made", "format": "kineto", "recorded": frozenset(recorded)}
        made = Trace(**fields, strings=self.strings.values, **tables, devices=(Device(0, "NVIDIA H200"),))
        return replace(made, **more)


def _table(name, rows):
    columns = {column: [row[column] for row in rows] for column in (rows[0] if rows else ())}
    found = table(name, columns)
    return found.sort_values("start_ns", kind="stable", ignore_index=True) if "start_ns" in found else found


def dequants(layers, steps=3, source=2, length=100):
    """Return steps in which each of `layers` dequantises `source` with a kernel of `length` ns, in our ranges."""
    made = Timed()
    for step in range(steps):
        begin = 10_000 * step
        made.range(f"step{step}", begin, begin + 9_000)
        for at, layer in enumerate(layers):
            opens = begin + 1_000 * (at + 1)
            made.range(OURS.format(layer=layer, source=source), opens, opens + 900)
            made.launched("dequant", opens + 10, opens + 100, opens + 100 + length)
    return made


def steps_of(count, kernels=2, gap=1_000, name="step{}", last_kernels=None):
    """Return a Timed of `count` steps, each `gap` ns after the one before, of kernels of 100 ns, 100 ns apart."""
    made = Timed()
    for step in range(count):
        begin = step * gap
        number = last_kernels if last_kernels is not None and step == count - 1 else kernels
        made.range(name.format(step), begin, begin + gap - 100)
        for at in range(number):
            made.launched(f"kernel{at}", begin + 10 + 20 * at, begin + 100 + 200 * at, begin + 200 + 200 * at)
    return made


def kineto_text(trace, device="NVIDIA H200"):
    """Return a trace as the JSON that torch.profiler writes; calls and ranges are of process 1."""
    kinds = {KERNEL: "kernel", COPY: "gpu_memcpy", SET: "gpu_memset"}
    events = [
        _event(trace, kinds[row.kind], row.name, row, 0, row.stream)
        | {"args": {"device": row.device, "stream": row.stream, "correlation": row.correlation, "bytes": row.bytes}}
        for row in trace.operations.itertuples()
    ]
    events += [
        _event(trace, "cuda_runtime", row.name, row, 1, row.thread) | {"args": {"correlation": row.correlation}}
        for row in trace.launches.itertuples()
    ]
    ranges = trace.annotations.itertuples()
    events += [_event(trace, "user_annotation", row.text, row, 1, row.thread) for row in ranges]
    rank = {} if trace.rank is None else {"distributedInfo": {"rank": trace.rank, "world_size": 2}}
    devices = [{"id": 0, "name": device, "numSms": 132}]
    return json.dumps({"schemaVersion": 1, "deviceProperties": devices, **rank, "traceEvents": events})


def _event(trace, category, name, row, pid, tid):
    times = {"ts": row.start_ns / 1_000, "dur": (row.end_ns - row.start_ns) / 1_000}
    return {"ph": "X", "cat": category, "name": trace.strings[name], "pid": pid, "tid": tid, **times}
