"""Traces of several processes, taken apart."""

import pytest

from dsv4bench.profiling.traces.columns import NO_ID
from dsv4bench.profiling.traces.processes import all_ranks, by_process
from tests.profiling.traces.timed_steps import Timed


def of_processes(*processes, make=False):
    """Return a trace in which each of these processes called and ran one kernel of its own, its rows to `make` it."""
    made = Timed()
    for place, process in enumerate(processes):
        made.range("step0", 100 * place, 100 * place + 90, process=process)
        correlation = made.call("cudaLaunchKernel", 100 * place + 10, process=process)
        made.op(f"k{process}", 100 * place + 20, 100 * place + 30, correlation)
        made.rows["operations"][-1]["process"] = process
    return made if make else made.trace(processes=("11", "22"))


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


def launched_alone(made):
    """A third process launches a kernel of which nothing was recorded."""
    made.call("cudaLaunchKernel", 500, process=2)


def graph_alone(made):
    """A third process runs a graph that is recorded as a whole."""
    row = {"start_ns": 520, "end_ns": 590, "process": 2, "device": 0}
    made.rows["graph_runs"].append(row | {"correlation": made.call("cudaGraphLaunch", 500, process=2)})


@pytest.mark.parametrize("ran", [launched_alone, graph_alone])
def test_a_process_of_which_no_operation_was_recorded_is_a_rank_too(ran):
    made = of_processes(0, 1, make=True)
    ran(made)
    found = by_process(made.trace(processes=("11", "22", "33")))
    assert [(len(one.operations), len(one.launches), len(one.graph_runs)) for one in found] == [
        (1, 1, 0),
        (1, 1, 0),
        (0, 1, int(ran is graph_alone)),
    ]


def test_a_process_that_only_asks_the_driver_is_no_rank():
    made = of_processes(0, 1, make=True)
    made.call("cuDeviceGetCount", 500, process=2)
    assert len(by_process(made.trace(processes=("11", "22", "33")))) == 2


def test_processes_of_two_files_have_numbers_of_their_own():
    assert [one.rank for one in all_ranks([of_processes(0, 1), of_processes(0, 1)])] == [0, 1, 2, 3]
    assert [one.rank for one in all_ranks([of_processes(0), of_processes(0, 1)])] == [None, 0, 1]
