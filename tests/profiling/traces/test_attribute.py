from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.profiling.traces.attribute import Coverage, attribute, innermost_ranges, metric
from dsv4bench.profiling.traces.kineto import read
from dsv4bench.profiling.traces.model import Annotation, DeviceOp, Launch, Trace
from dsv4bench.ranges import Range
from tests.profiling.traces.shared_traces import FOLDER, needs_traces

HERE, THERE = ("1", "1"), ("1", "2")
STEP, ROPE, STORE = Range(), Range(layer=1, op="rope"), Range(layer=1, op="store", kv_source=2)


def opened(rng, start_ns, end_ns, thread=HERE):
    return Annotation(rng if isinstance(rng, str) else rng.text(), start_ns, end_ns, thread)


def launched(start_ns, correlation, name="cudaLaunchKernel", thread=HERE):
    return Launch(name, start_ns, correlation, thread)


def ran(correlation, name="k", kind="kernel"):
    return DeviceOp(kind, name, 10_000, 5, correlation, 7)


def trace(operations=(), launches=(), annotations=()):
    return Trace("t", tuple(operations), tuple(launches), tuple(annotations))


def counted(attribution):
    return {
        rng and (rng.op or "other"): {name: count for name, count in counts.items() if count}
        for rng, _, counts in attribution.ledger.entries()
    }


@pytest.mark.parametrize(
    ("at_ns", "thread", "expected"),
    [
        (5, HERE, None),
        (10, HERE, STEP),
        (25, HERE, ROPE),
        (35, HERE, STORE),
        (45, HERE, ROPE),
        (50, HERE, STORE),
        (55, HERE, STORE),
        (75, HERE, STEP),
        (101, HERE, None),
        (35, THERE, None),
        (65, THERE, ROPE),
    ],
    ids=[
        "before all",
        "at the start of a range",
        "in a range",
        "in a range within",
        "after the inner one",
        "where one ends and the next begins",
        "in the next",
        "between",
        "after all",
        "open on another thread only",
        "open on the other thread",
    ],
)
def test_the_innermost_range_of_ours_on_the_launching_thread(at_ns, thread, expected):
    annotations = [
        opened(STEP, 10, 100),
        opened(ROPE, 20, 50),
        opened(STORE, 30, 40),
        opened("somebody else's", 22, 28),
        opened("ProfilerStep#3", 0, 200),
        opened(STORE, 50, 60),
        opened(ROPE, 60, 70, THERE),
    ]
    assert innermost_ranges([launched(at_ns, 1, thread=thread)], annotations) == {1: expected}


@given(st.data())
def test_the_sweep_finds_what_looking_at_every_range_finds(data):
    borders = sorted(data.draw(st.sets(st.integers(0, 60), min_size=8, max_size=8)))
    a, b, c, d, e, f, g, h = borders
    nested = [(a, h), (b, e), (c, d), (f, g)]
    annotations = [opened(Range(layer=i), *span) for i, span in enumerate(nested)]
    launches = [launched(time_ns, i) for i, time_ns in enumerate(data.draw(st.lists(st.integers(0, 60))))]
    order = data.draw(st.permutations(annotations))
    for launch in launches:
        spans = [(start, i) for i, (start, end) in enumerate(nested) if start <= launch.start_ns <= end]
        expected = Range(layer=max(spans)[1]) if spans else None
        assert innermost_ranges(launches, order)[launch.correlation] == expected


def test_operations_are_counted_by_class_under_the_range_of_their_launch():
    found = attribute(
        trace(
            [ran(1), ran(2), ran(3, kind="copy"), ran(4, kind="set"), ran(5), ran(None), ran(77)],
            [launched(11, 1), launched(21, 2), launched(22, 3), launched(23, 4), launched(500, 5)],
            [opened(STEP, 10, 100), opened(ROPE, 20, 30)],
        )
    )
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
    found = attribute(
        trace(
            [ran(1), *[ran(9)] * 5, ran(9, "memcpy128")],
            [launched(21, 1), launched(25, 9, "cudaGraphLaunch"), launched(24, 9, "cuGraphLaunch")],
            [opened(ROPE, 20, 30)],
        ),
        where="break",
    )
    assert counted(found) == {"rope": {"kernels": 1, "graph_launches": 1}}
    assert found.replayed == Counter(kernels=5, copies=1)
    assert found.coverage == Coverage(1, 0, 6, 0, 0, "launch correlation")
    assert [row["where"] for row in found.ledger.rows()] == ["break"]


def test_a_launch_with_a_runtime_and_a_driver_row_is_one_launch():
    found = attribute(trace([ran(1)], [launched(21, 1), launched(22, 1, "cuLaunchKernel")], [opened(ROPE, 20, 30)]))
    assert counted(found) == {"rope": {"kernels": 1}}


def test_launches_without_a_kernel_are_lost_and_other_calls_are_not():
    names = [
        "cudaLaunchKernel",
        "cuLaunchKernelEx",
        "cudaLaunchCooperativeKernel",
        "cudaMemcpyAsync",
        "cudaStreamIsCapturing",
    ]
    calls = [launched(i, i, name) for i, name in enumerate(names)]
    assert attribute(trace([ran(0)], calls)).coverage.lost == 2


def test_what_was_looked_for_and_not_found_is_zero():
    (row,) = attribute(trace([ran(1)], [launched(21, 1)], [opened(ROPE, 20, 30)])).ledger.rows()
    assert (row["calls"], row["kernels"], row["copies"], row["sets"], row["aten_ops"]) == (None, 1, 0, 0, None)


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("kernel", "memcpy128", "copies"),
        ("kernel", "memcpy32_post", "copies"),
        ("kernel", "memset64", "sets"),
        ("kernel", "memcpy_kernel_of_ours", "kernels"),
        ("kernel", "my_memcpy128", "kernels"),
        ("kernel", "_dequant", "kernels"),
        ("copy", "Memcpy DtoD", "copies"),
        ("set", "Memset", "sets"),
    ],
)
def test_copies_and_sets_in_disguise(kind, name, expected):
    assert metric(ran(1, name, kind)) == expected


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
