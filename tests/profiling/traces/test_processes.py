"""Traces of several processes, taken apart."""

import pytest

from dsv4bench.profiling.traces.columns import NO_ID
from dsv4bench.profiling.traces.processes import by_process
from tests.profiling.traces.timed_steps import Timed


def of_processes(*processes):
    """Return a trace in which each of these processes called and ran one kernel of its own."""
    made = Timed()
    for place, process in enumerate(processes):
        made.range("step0", 100 * place, 100 * place + 90, process=process)
        correlation = made.call("cudaLaunchKernel", 100 * place + 10, process=process)
        made.op(f"k{process}", 100 * place + 20, 100 * place + 30, correlation)
        made.rows["operations"][-1]["process"] = process
    return made.trace(processes=("11", "22"))


def test_each_process_becomes_a_rank_with_its_own_rows():
    found = by_process(of_processes(0, 1, 1))
    assert [(one.rank, len(one.operations), len(one.launches), len(one.annotations)) for one in found] == [
        (0, 1, 1, 1),
        (1, 2, 2, 2),
    ]
    assert [one.source for one in found] == ["made (process 11)", "made (process 22)"]
    assert [one.names(one.operations["name"]).tolist() for one in found] == [["k0"], ["k1", "k1"]]


@pytest.mark.parametrize("processes", [(), (0, 0), (0, NO_ID)], ids=["empty", "one", "one-unknown"])
def test_a_trace_that_cannot_be_taken_apart_stays_whole(processes):
    trace = of_processes(*processes)
    assert by_process(trace) == [trace]
