"""The device operations of one step as objects: a few thousand of them, to be matched with what was captured."""

from __future__ import annotations

from dataclasses import dataclass

from dsv4bench.profiling.traces.columns import COPY, KERNEL, SET, Trace
from dsv4bench.profiling.traces.ranges_of import classes, launch_rows

METRICS = {KERNEL: "kernels", COPY: "copies", SET: "sets"}  # what a ledger calls the kinds of operations


@dataclass(frozen=True, slots=True)
class Record:
    """One device operation: its row in `operations`, its metric after the alias rule, and the row of its launch.

    `launch` and `graph_node` are NO_ID where the trace tells none.
    """

    row: int
    metric: str
    name: str
    start_ns: int
    duration_ns: int
    stream: int
    launch: int
    graph_node: int


def records_of(trace: Trace) -> list[Record]:
    """Return the operations of a trace in the order of their starts."""
    operations = trace.operations
    columns = (
        classes(trace),
        operations["name"],
        operations["start_ns"],
        operations["end_ns"] - operations["start_ns"],
        operations["stream"],
        launch_rows(trace),
        operations["graph_node"],
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    found = [
        Record(row, METRICS[kind], trace.strings[name], start_ns, duration_ns, *others)
        for row, (kind, name, start_ns, duration_ns, *others) in enumerate(rows)
    ]
    return sorted(found, key=lambda record: record.start_ns)
