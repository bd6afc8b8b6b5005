"""Traces made by hand: rows as tuples of what a test is about, all else as a file without it would have it."""

from dsv4bench.profiling.traces.columns import COPY, KERNEL, NO_ID, PUSH_POP, RECORDABLE, SET, Codes, Trace, table

KINDS = {"kernel": KERNEL, "copy": COPY, "set": SET}


class Made:
    """Collects rows and makes the trace; times are nanoseconds, threads and processes small numbers."""

    def __init__(self):
        self.strings = Codes()
        self.rows = {name: [] for name in ("operations", "launches", "annotations", "graph_nodes")}

    def ran(self, correlation=NO_ID, name="k", kind="kernel", start_ns=10_000, process=0, node=NO_ID, stream=7):
        """Add a device operation of 5 ns."""
        self.rows["operations"].append(
            {
                "kind": KINDS[kind],
                "name": self.strings[name],
                "start_ns": start_ns,
                "end_ns": start_ns + 5,
                "process": process,
                "device": 0,
                "stream": stream,
                "correlation": correlation,
                "graph_node": node,
            }
        )
        return self

    def launched(self, start_ns, correlation, name="cudaLaunchKernel", thread=0, process=0, length_ns=1):
        """Add a call of the host."""
        self.rows["launches"].append(
            {
                "name": self.strings[name],
                "start_ns": start_ns,
                "end_ns": start_ns + length_ns,
                "process": process,
                "thread": thread,
                "correlation": correlation,
            }
        )
        return self

    def opened(self, text, start_ns, end_ns, thread=0, process=0, kind=PUSH_POP):
        """Add an annotation; an end of NO_ID was never written."""
        self.rows["annotations"].append(
            {
                "kind": kind,
                "text": self.strings[text],
                "start_ns": start_ns,
                "end_ns": end_ns,
                "process": process,
                "thread": thread,
                "end_thread": thread,
            }
        )
        return self

    def node(self, node, original, time_ns, thread=0, process=0):
        """Add a row of a graph's node."""
        self.rows["graph_nodes"].append(
            {"node": node, "original": original, "time_ns": time_ns, "process": process, "thread": thread}
        )
        return self

    def trace(self, recorded=RECORDABLE):
        """Return the trace, every table sorted by time."""
        tables = {name: _table(name, rows) for name, rows in self.rows.items()}
        return Trace(
            "made", "made", self.strings.values, **tables, graph_runs=table("graph_runs"), recorded=frozenset(recorded)
        )


def _table(name, rows):
    found = table(name, {column: [row[column] for row in rows] for column in rows[0]} if rows else {})
    by = "time_ns" if name == "graph_nodes" else "start_ns"
    return found.sort_values(by, kind="stable", ignore_index=True)


def texts(trace, rows):
    """Return the texts of rows of annotations, None for none."""
    codes = trace.annotations["text"].tolist()
    return [None if row == NO_ID else trace.strings[codes[row]] for row in rows]
