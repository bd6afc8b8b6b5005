"""The plan of a cell before it runs: forwards, refusals, times and savings add up over forwards and ranks."""

from dataclasses import replace

import pytest

from dsv4bench.workloads.batch import Batch, Request, equal_requests
from dsv4bench.workloads.cells import Cell, Load
from dsv4bench.workloads.dry_run import planned
from dsv4bench.workloads.geometry import V41_FLASH
from dsv4bench.workloads.memory import estimate
from dsv4bench.workloads.model import H200_CEILINGS, forward_ns, reuse_saving
from dsv4bench.workloads.variant import Variant

ONE = Cell(V41_FLASH, Load(equal_requests(1, 8192, 0, 8192)), 8192, Variant(), device="cuda")


def ns(*requests, bucket=None):
    return forward_ns(V41_FLASH, Batch(requests, bucket=bucket), Variant(), H200_CEILINGS)


def test_one_forward():
    (found,) = planned((ONE,), samples=12)
    assert (found.rows, found.forwards, found.refusals) == (8192, 1, ())
    assert found.step_ns == ns(Request(0, 0, 8192))
    assert found.cell_ns == pytest.approx(20 * found.step_ns)
    assert (found.saved_rows, found.saved_bytes) == (237_568 - 20_480, (237_568 - 20_480) * 1312)
    assert found.memory == estimate((ONE,))


def test_sampling_by_its_own_rule_takes_ten():
    assert planned((ONE,), None)[0].cell_ns == planned((ONE,), 10)[0].cell_ns


def test_forwards_add_up_and_graph_refusals_are_told():
    load = Load((Request(0, 0, 20_480),))
    cell = replace(ONE, load=load, variant=Variant(graph=True))
    (found,) = planned((cell,), 3)
    chunks = [Request(0, 0, 8192), Request(0, 8192, 8192), Request(0, 16_384, 4096)]
    assert found.refusals == ("context 20480 is over the graph's limit of 16384",)
    assert found.step_ns == pytest.approx(sum(ns(chunk) for chunk in chunks))
    extra = cell.variant.kv.extra
    assert found.saved_rows == sum(reuse_saving(V41_FLASH, Batch((c,)), extra).rows for c in chunks)


def test_ranks_run_one_after_another_and_the_slowest_makes_the_step():
    load = Load((Request(0, 0, 8192), Request(1, 0, 1024), Request(2, 0, 512)))
    (found,) = planned((replace(ONE, load=load, ranks=4),), samples=2)
    times = [ns(request) for request in load.requests]
    assert found.step_ns == max(times)
    assert found.cell_ns == pytest.approx(10 * sum(times))


def test_a_graph_runs_the_rows_of_its_bucket():
    cell = replace(ONE, load=Load((Request(0, 0, 4200),)), variant=Variant(graph=True))
    assert planned((cell,), 1)[0].step_ns == ns(Request(0, 0, 4200), bucket=4608)
