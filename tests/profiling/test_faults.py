"""Each planted fault turns red what docs/faults.md says; without one the same cells are right."""

from dataclasses import replace

import pytest

from dsv4bench.profiling import sweep
from dsv4bench.profiling.session import open_session
from dsv4bench.results.frame import comparison_frame
from dsv4bench.workloads.cells import cells
from dsv4bench.workloads.geometry import V41_FLASH_MINI
from dsv4bench.workloads.options import PrefillArguments, prefill_options

# two sources of one ratio, so that the second can be given the first one's rows, and one of the other
SMALL = replace(
    V41_FLASH_MINI,
    name="five layers",
    ratios=(0, 2, 2, 2, 1),
    kv_sources=(1, 2, 4),
    index_sources=(1, 2, 4),
    candidate_source=4,
)


def run(fault: str):
    """Return the records of reuse off and on with a fault planted, and their comparison."""
    typed = PrefillArguments(batch="1", graph=False, device="cpu", fault=fault)
    plan = cells(replace(prefill_options(typed), geometry=(SMALL,)))
    records = [one for group in sweep.run(plan, open_session("cpu", samples=1, quick=True)) for one in group]
    return {record.variant["reuse"]: record for record in records}, comparison_frame(records).iloc[0]


def failed(record) -> set[str]:
    return {check["name"] for check in record.checks if not check["passed"]}


def test_without_a_fault_all_is_equal_and_nothing_is_added():
    records, pair = run("")
    assert [records[reuse].status for reuse in ("off", "on")] == ["ok", "ok"]
    assert pair["nothing_added"]
    assert failed(records["on"]) == set()


@pytest.mark.parametrize(
    ("fault", "reason"),
    # layer 2 should dequantise its own rows and layer 3 reuse them; with the stale head both reuse those of source 1
    [("stale-head", "2 of 2 reused heads differ, first in layer 2"), ("wrong-row", "1 of 1 reused heads differ")],
)
def test_a_head_that_holds_other_rows_makes_the_cell_wrong(fault, reason):
    records, pair = run(fault)
    assert records["on"].status == "wrong"
    assert reason in records["on"].reason
    assert {"reused heads", "outputs, reuse on and off"} <= failed(records["on"])
    assert records["on"].samples_ns == {}
    assert records["off"].status == "ok"
    assert pair["after_ns"] != pair["after_ns"]  # a wrong cell has no time


def test_an_added_copy_leaves_every_byte_right_and_is_seen_by_the_counts():
    records, pair = run("extra-copy")
    assert [records[reuse].status for reuse in ("off", "on")] == ["ok", "ok"]
    assert not pair["nothing_added"]
