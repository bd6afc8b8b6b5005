"""The lanes of a step's picture."""

import pytest

from dsv4bench.errors import UsageError
from dsv4bench.profiling.traces.labels import label
from dsv4bench.profiling.traces.placed import place
from dsv4bench.profiling.traces.ranges_of import ranges_of
from dsv4bench.profiling.traces.timeline import timeline
from tests.profiling.traces.timed_steps import Timed, dequants, steps_of


def placed(made):
    trace = made.trace()
    found = ranges_of(trace)
    return place(found, label(trace, found))


def test_a_lane_a_source_with_bars_by_operation_from_the_start_of_the_step():
    made = dequants((2, 3), steps=1)
    made.range("dsv4bench:step=0 layer=0 ratio=0 op=dequant_swa rank=0", 8_000, 8_900)
    made.launched("swa", 8_100, 8_200, 8_250)
    found = timeline(placed(made))
    assert found.by == "kv_source and operation"
    assert {lane.name: (lane.starts_ns, lane.lengths_ns, lane.whats) for lane in found.lanes} == {
        "kv_source 2": ([0, 1_000], [100, 100], ["dequant_compressed"] * 2),
        "no kv_source": ([7_100], [50], ["dequant_swa"]),
    }


def test_without_places_there_is_a_lane_a_stream_with_bars_by_kernel():
    made = steps_of(1, kernels=1).launched("side", 20, 120, 140, stream=9)
    found = timeline(placed(made))
    assert (found.by, found.title) == ("stream and kernel", "made: step0")
    assert [(lane.name, lane.whats) for lane in found.lanes] == [("stream 7", ["kernel0"]), ("stream 9", ["side"])]


def test_what_has_no_known_source_is_not_said_to_have_none():
    made = Timed().range("step0", 0, 900).range("kv_source=8", 10, 90).launched("a", 20, 100, 200)
    found = timeline(placed(made.launched("b", 95, 300, 400)))
    assert [(lane.name, lane.starts_ns) for lane in found.lanes] == [("kv_source unknown", [200]), ("kv_source 8", [0])]


def test_a_few_kernels_of_known_names_make_no_lanes_by_source():
    made = Timed().range("step0", 0, 900).launched("_rope", 20, 100, 200).launched("mine", 30, 200, 300)
    found = timeline(placed(made.launched("other", 40, 300, 400)))
    assert (found.by, [lane.name for lane in found.lanes]) == ("stream and kernel", ["stream 7"])


def test_streams_of_two_devices_with_one_number_are_two_lanes():
    made = Timed().range("step0", 0, 900).launched("a", 20, 100, 200, device=1).launched("b", 30, 100, 200)
    found = timeline(placed(made))
    assert [(lane.name, lane.whats) for lane in found.lanes] == [
        ("device 0, stream 7", ["b"]),
        ("device 1, stream 7", ["a"]),
    ]


def test_the_step_in_the_middle_is_drawn_and_a_cut_one_is_not():
    made = Timed()
    for step, last in enumerate((300, 100, 200)):
        made.range(f"step{step}", 1_000 * step, 1_000 * step + 900)
        made.launched("a", 1_000 * step, 1_000 * step + 100, 1_000 * step + 100 + last)
    assert timeline(placed(made)).title == "made: step2"
    assert timeline(placed(made), (0, 1)).title == "made: step1"


def test_a_step_without_operations_cannot_be_drawn():
    with pytest.raises(UsageError, match="no step here has an operation"):
        timeline(placed(Timed().range("step0", 0, 10)))
