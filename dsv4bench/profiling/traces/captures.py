"""Which calls were made into a graph being captured: they launch nothing, so no operation of theirs is missing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dsv4bench.profiling.traces.columns import NO_ID, Trace
from dsv4bench.profiling.traces.nesting import Nesting

Flags = npt.NDArray[np.bool_]
NEVER = int(np.iinfo(np.int64).max)


def in_capture(trace: Trace, begins: Flags, ends: Flags) -> Flags:
    """Return which launches lie between the begin and the end of a capture on their thread.

    `begins` and `ends` say which launches begin and end one; a capture that does not end lasts to the end of the trace.
    """
    calls = trace.launches
    starts = calls["start_ns"].to_numpy()
    threads = calls["process"].to_numpy().astype(np.int64) << 32 | calls["thread"].to_numpy()
    opening = np.flatnonzero(begins)
    if not len(opening):
        return np.zeros(len(calls), dtype=np.bool_)
    closing = np.full(len(opening), NEVER)
    for thread in np.unique(threads[opening]):
        own = threads[opening] == thread
        last = np.append(np.sort(starts[ends & (threads == thread)]), NEVER)
        closing[own] = last[np.searchsorted(last, starts[opening][own])]
    windows = Nesting(threads[opening], starts[opening], closing)
    return np.asarray(windows.innermost(threads, starts) != NO_ID)
