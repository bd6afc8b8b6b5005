from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.profiling.traces.attribute import Coverage, attribute
from dsv4bench.profiling.traces.kineto_reader import read
from dsv4bench.ranges import Range
from tests.profiling.traces.made_rows import Made
from tests.profiling.traces.shared_traces import FOLDER, needs_traces

STEP, ROPE, STORE = Range(), Range(layer=1, op="rope"), Range(layer=1, op="store", kv_source=2)


def counted(attribution):
    return {
        rng and (rng.op or "other"): {name: count for name, count in counts.items() if count}
        for rng, _, counts in attribution.ledger.entries()
    }


@pytest.mark.parametrize(
    ("at_ns", "thread", "expected"),
    [
        (5, 0, None),
        (15, 0, "other"),
        (21, 0, "rope"),
        (25, 0, "rope"),
        (35, 0, "store"),
        (75, 0, "other"),
        (101, 0, None),
        (35, 1, None),
    ],
    ids=[
        "before all, in a range that is not ours",
        "in the step",
        "in a range",
        "in a range within that is not ours",
        "in a range of ours within",
        "between",
        "after all",
        "on another thread",
    ],
)
def test_an_operation_is_counted_under_the_innermost_range_of_ours(at_ns, thread, expected):
    made = Made().opened("ProfilerStep#3", 0, 200).opened(STEP.text(), 10, 100).opened(ROPE.text(), 20, 50)
    made.opened("somebody else's", 22, 28).opened("theirs too", 23, 27).opened(STORE.text(), 30, 40)
    found = attribute(made.launched(at_ns, 1, thread=thread).ran(1).trace())
    assert counted(found) == {expected: {"kernels": 1}}


@given(st.lists(st.integers(0, 70), min_size=1))
def test_every_operation_is_counted_once(starts):
    made = Made().opened(STEP.text(), 10, 60).opened(ROPE.text(), 20, 40)
    for correlation, at_ns in enumerate(starts):
        made.launched(at_ns, correlation, "cudaGraphLaunch" if at_ns % 7 == 0 else "cuLaunchKernel").ran(correlation)
    found = attribute(made.trace()).coverage
    assert found.attributed == sum(10 <= at_ns <= 60 and at_ns % 7 != 0 for at_ns in starts)
    assert found.attributed + found.unattributed + found.replayed == len(starts)


def test_operations_are_counted_by_class_under_the_range_of_their_launch():
    made = Made().opened(STEP.text(), 10, 100).opened(ROPE.text(), 20, 30)
    for correlation, (at_ns, kind) in enumerate([(11, "kernel"), (21, "kernel"), (22, "copy"), (23, "set")]):
        made.launched(at_ns, correlation).ran(correlation, kind=kind)
    made.launched(500, 5).ran(5).ran().ran(77)
    found = attribute(made.trace())
    assert counted(found) == {
        "other": {"kernels": 1},
        "rope": {"kernels": 1, "copies": 1, "sets": 1},
        None: {"kernels": 3},
    }
    assert found.coverage == Coverage(4, 3, 0, 1, 0, "launch correlation")
    assert [(r["op"], r["where"], r["kernels"]) for r in found.ledger.rows()] == [
        ("other", "eager", 1),
        ("rope", "eager", 1),
    ]


def test_what_a_graph_replayed_has_no_range_and_its_launch_has():
    made = Made().opened(ROPE.text(), 20, 30).launched(21, 1).ran(1)
    made.launched(25, 9, "cudaGraphLaunch").launched(24, 9, "cuGraphLaunch").ran(9, "memcpy128")
    for _ in range(5):
        made.ran(9)
    found = attribute(made.trace(), where="break")
    assert counted(found) == {"rope": {"kernels": 1, "graph_launches": 1}}
    assert found.replayed == Counter(kernels=5, copies=1)
    assert found.coverage == Coverage(1, 0, 6, 0, 0, "launch correlation")
    assert [row["where"] for row in found.ledger.rows()] == ["break"]


def test_launches_without_a_kernel_are_lost_and_other_calls_are_not():
    made = Made().ran(0)
    names = ["cudaLaunchKernel", "cuLaunchKernelEx", "cudaLaunchCooperativeKernel", "cudaMemcpyAsync", "cudaFree"]
    for correlation, name in enumerate(names):
        made.launched(correlation, correlation, name)
    assert attribute(made.trace()).coverage.lost == 2


def test_what_was_looked_for_and_not_found_is_zero():
    (row,) = attribute(Made().opened(ROPE.text(), 20, 30).launched(21, 1).ran(1).trace()).ledger.rows()
    assert (row["calls"], row["kernels"], row["copies"], row["sets"], row["aten_ops"]) == (None, 1, 0, 0, None)


def probe_range(name):
    """The probe's ranges are older than ours: EAGER, REPLAY0, kv_source=2."""
    if name.startswith("kv_source="):
        return Range(kv_source=int(name.split("=")[1]), op="probe")
    return Range(op=name) if name in ("EAGER", "REPLAY0", "REPLAY1") else None


@needs_traces
def test_the_probe_of_an_h200_has_five_kernels_and_a_copy_per_source():
    found = attribute(read(FOLDER / "h200" / "probe_kineto.json.gz"), read_range=probe_range)
    rows = {row["kv_source"]: (row["kernels"], row["copies"], row["sets"]) for row in found.ledger.rows()}
    assert rows == dict.fromkeys((2, 8, 14, 20), (5, 1, 0))
    launches = {
        rng.op: counts["graph_launches"] for rng, _, counts in found.ledger.entries() if counts["graph_launches"]
    }
    assert launches == {"REPLAY0": 1, "REPLAY1": 1}
    # a replay has 24 rows called kernels, four of them copies in disguise: the same 20 + 4 as the eager step
    assert found.replayed == Counter(kernels=2 * 20, copies=2 * 4)
    assert found.coverage == Coverage(24, 0, 48, 0, 0, "launch correlation")
