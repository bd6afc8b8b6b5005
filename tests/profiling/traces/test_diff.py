"""Comparisons of made traces: alike or not, exact launches, times over steps, what is new, gone or more."""

from dataclasses import replace

import pytest

from dsv4bench.profiling.traces.columns import Device
from dsv4bench.profiling.traces.diff import diff
from dsv4bench.profiling.traces.groups import OP_AND_SOURCE
from dsv4bench.profiling.traces.labels import label
from dsv4bench.profiling.traces.placed import place
from dsv4bench.profiling.traces.ranges_of import ranges_of
from tests.profiling.traces.timed_steps import ALL, Timed, dequants, steps_of


def placed(made, **more):
    trace = made.trace(**more)
    found = ranges_of(trace)
    return place(found, label(trace, found))


def compared(before, after, axis="kernel"):
    return diff(before, after, axis, {})


def slow(step):
    """Return four steps of one dequant each, one of which takes three times as long."""
    made = dequants((2,), steps=4)
    made.rows["operations"][step]["end_ns"] += 200
    return made


def test_launches_of_a_step_are_counted_exactly_per_op_and_source():
    found = compared(placed(dequants((2, 3, 4))), placed(dequants((2,))), OP_AND_SOURCE)
    (row,) = found.rows
    assert row.keys == {"op": "dequant_compressed", "kv_source": 2}
    assert (row.before.exact, row.after.exact) == (3, 1)
    assert (row.before_ns.median, row.after_ns.median) == (300, 100)
    assert row.changed
    assert found.unlike == []


def test_times_are_medians_over_steps_with_the_farthest():
    found = compared(placed(slow(2)), placed(dequants((2,))))
    (row,) = found.rows
    assert (row.before_ns.median, row.before_ns.least, row.before_ns.most) == (100, 100, 300)


def test_reuse_adds_no_kernel_and_undoing_it_does():
    before, after = placed(dequants((2, 3, 4))), placed(dequants((2,)))
    assert compared(before, after).nothing_added
    back = compared(after, before)
    assert not back.nothing_added
    assert [(one.name, one.before, one.after) for one in back.more] == [("dequant", 1, 3)]


@pytest.mark.parametrize(
    ("before", "after", "more"),
    [
        ((2, 2, 4), (4, 4, 4), [(2, 4)]),
        ((1, 0, 1), (1, 1, 1), [(0, 1)]),
        ((2, 2, 4), (2, 4, 5), [(4, 5)]),
        ((2, 4, 4), (2, 2, 4), []),
    ],
    ids=["every step as many as one", "steps without it", "one step more", "no step more"],
)
def test_a_kernel_that_only_some_steps_launched_more_often_is_added_too(before, after, more):
    def uneven(counts):
        made = Timed()
        for step, count in enumerate(counts):
            made.range(f"step{step}", 1_000 * step, 1_000 * step + 900)
            for at in range(count):
                made.launched("a", 1_000 * step + at, 1_000 * step + 100 + at, 1_000 * step + 101 + at)
            made.launched("b", 1_000 * step + 50, 1_000 * step + 200, 1_000 * step + 201)
        return placed(made)

    found = compared(uneven(before), uneven(after))
    assert [(one.before, one.after) for one in found.more] == more
    assert found.nothing_added is (not more)


def test_another_number_of_graphs_a_step_is_told():
    def segments(count):
        made = Timed().range("step0", 0, 900)
        for at in range(count):
            made.op("a", 100 + 20 * at, 110 + 20 * at, made.call("cudaGraphLaunch", 10 * at))
        return placed(made)

    found = compared(segments(7), segments(1))
    assert {one.what: (one.before, one.after) for one in found.likeness if not one.alike} == {
        "graph launches a step": ("7", "1")
    }


def test_new_and_gone_kernels_are_named_with_their_number_a_step():
    before, after = steps_of(3, kernels=2), steps_of(3, kernels=1)
    for step in range(3):
        after.launched("fused", 1_000 * step + 50, 1_000 * step + 700, 1_000 * step + 710)
    found = compared(placed(before), placed(after))
    assert [(one.name, one.before, one.after) for one in found.new] == [("fused", 0, 1)]
    assert [(one.name, one.before, one.after) for one in found.gone] == [("kernel1", 1, 0)]
    assert not found.nothing_added


def test_a_copy_that_is_added_is_seen_too():
    after = steps_of(3)
    for step in range(3):
        after.launched("Memcpy DtoD", 1_000 * step + 50, 1_000 * step + 700, 1_000 * step + 710, kind="copy")
    found = compared(placed(steps_of(3)), placed(after))
    assert not found.nothing_added
    assert [one.name for one in found.new] == ["Memcpy DtoD"]


def test_a_trace_does_not_differ_from_itself():
    found = compared(placed(steps_of(4)), placed(steps_of(4)))
    assert found.nothing_added
    assert [*found.new, *found.gone, *found.more] == []
    assert not any(row.changed for row in found.rows)
    assert all(one.alike for one in found.likeness)


def other_device():
    return placed(steps_of(3), devices=(Device(0, "NVIDIA B300"),))


def graphs():
    made = steps_of(3)
    for step in range(3):
        graph = made.call("cudaGraphLaunch", 1_000 * step + 60)
        made.op("memcpy128", 1_000 * step + 700, 1_000 * step + 710, graph)
    return placed(made)


def no_kernels():
    return placed(Timed(), recorded=ALL - {"kernels"})


@pytest.mark.parametrize(
    ("other", "unlike"),
    [(other_device, ["devices"]), (graphs, ["graph mode"]), (no_kernels, ["kernels"])],
    ids=["device", "graphs", "not-recorded"],
)
def test_unlike_traces_are_named_as_such(other, unlike):
    found = compared(placed(steps_of(3)), other())
    assert [one.what for one in found.unlike] == unlike


def test_another_number_of_steps_is_told_and_compared_a_step():
    found = compared(placed(steps_of(3)), placed(steps_of(5)))
    assert {one.what: (one.before, one.after) for one in found.likeness if not one.alike} == {"whole steps": ("3", "5")}
    assert found.steps == (3, 5)
    assert found.unlike == []
    assert found.nothing_added


def test_a_device_that_a_file_does_not_name_is_no_reason_to_refuse():
    assert compared(placed(steps_of(3)), placed(steps_of(3), devices=())).unlike == []


def test_copies_of_other_formats_are_one_row_whatever_they_are_called():
    before, after = Timed(), Timed()
    before.launched("Memcpy DtoD (Device -> Device)", 0, 10, 20, kind="copy")
    graph = after.call("cudaGraphLaunch", 0)
    after.op("memcpy128", 10, 20, graph)
    found = compared(placed(before), placed(after))
    assert [(row.keys, row.before.exact, row.after.exact) for row in found.rows] == [({"kernel": "copies"}, 1, 1)]
    assert found.nothing_added


def test_equal_kernels_with_other_gaps_are_no_slower_kernels():
    before, after = placed(steps_of(3, kernels=3)), Timed()
    for step in range(3):
        begin = 10_000 * step
        after.range(f"step{step}", begin, begin + 9_000)
        for at in range(3):
            after.launched(f"kernel{at}", begin + 900 * at, begin + 1_000 * (at + 1), begin + 1_000 * (at + 1) + 100)
    found = compared(before, placed(after))
    assert "they differ in gaps, not in kernels" in " ".join(found.notes)
    assert all(row.before_ns == row.after_ns for row in found.rows)


def test_a_cut_step_counts_in_no_number():
    found = compared(placed(steps_of(4, kernels=3)), placed(steps_of(4, kernels=3, last_kernels=1)))
    assert found.totals["kernels"][1].exact == 3
    assert found.nothing_added


def test_what_one_side_does_not_record_is_none():
    found = compared(placed(steps_of(3)), placed(steps_of(3), recorded=ALL - {"sets"}))
    assert [value is None for value in found.totals["sets"]] == [False, True]


def test_plain_values_say_whether_it_is_comparable_and_adds_nothing():
    plain = compared(placed(dequants((2, 3, 4))), placed(dequants((2,))), OP_AND_SOURCE).plain()
    assert (plain["comparable"], plain["nothing_added"]) == (True, True)
    assert plain["rows"][0]["kv_source"] == 2
    assert plain["rows"][0]["before"] == {"median": 3.0, "least": 3, "most": 3}


def test_white_space_in_names_is_no_difference():
    before, after = placed(Timed().launched("a <int>", 0, 10, 20)), placed(Timed().launched("a\n<int>", 0, 10, 20))
    assert compared(before, replace(after)).nothing_added
