"""Each planted fault turns red what docs/faults.md says; without one the same cells are right."""

import math

import pytest

from dsv4bench.profiling import sweep
from dsv4bench.results.frame import comparison_frame
from tests.profiling.small_groups import groups, session


def run(fault: str):
    """Return the records of reuse off and on with a fault planted, and their comparison."""
    records = [one for group in sweep.run(groups(graph=False, fault=fault), session()) for one in group]
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
    [
        # layer 3 should dequantise its own rows; with the stale head it takes those of source 1
        ("stale-head", "1 of 3 reused heads differ, first in layer 3"),
        ("wrong-row", "2 of 2 reused heads differ, first in layer 2"),
    ],
    ids=["stale-head", "wrong-row"],
)
def test_a_head_that_holds_other_rows_makes_the_cell_wrong(fault, reason):
    records, pair = run(fault)
    assert records["on"].status == "wrong"
    assert reason in records["on"].reason
    assert {"reused heads", "outputs, reuse on and off"} <= failed(records["on"])
    assert records["on"].samples_ns == {}
    assert records["off"].status == "ok"
    assert math.isnan(pair["after_ns"])


def test_an_added_copy_leaves_every_byte_right_and_is_seen_by_the_counts():
    records, pair = run("extra-copy")
    assert [records[reuse].status for reuse in ("off", "on")] == ["ok", "ok"]
    assert failed(records["on"]) == set()
    assert not pair["nothing_added"]
