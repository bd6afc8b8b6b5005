"""Whether a clock alone made a difference: pairs whose times and clocks are known."""

import pytest

from dsv4bench.results.cycles import clock_objection
from dsv4bench.results.trials import PairOfSamples

STEADY = [0, 3, -3, 6, -6, 2, -2, 4, -4]  # nine pairs
WILD = [0, 120, -90, 75, -110, 30, -40, 95, -85]


def pairs(times, clocks):
    """Pairs in which B takes `times` permille of A's time at `clocks` permille of A's clock of 1800 MHz."""
    both = zip(times, clocks, strict=True)
    return [PairOfSamples((10**7,), (10**4 * time,), 1800, clock and 1.8 * clock) for time, clock in both]


def around(permille, scatter):
    return [permille + offset for offset in scatter]


@pytest.mark.parametrize(
    ("time", "clock", "scatter", "objects"),
    [
        (980, 1000, [0] * 9, False),  # one clock: cycles are times
        (980, 1000, STEADY, False),
        (980, 1020, STEADY, True),  # 2 % faster on a clock 2 % faster
        (980, 1040, STEADY, True),  # more cycles than A
        (980, 960, STEADY, False),  # faster in spite of its clock
        (900, 1020, STEADY, False),  # faster by more than its clock
        (1020, 980, STEADY, True),  # and slower
        (1020, 1000, STEADY, False),
        (1100, 980, STEADY, False),
        (980, 1000, WILD, False),  # readings that scatter by 8 % show no change of the clock
        (980, 1050, WILD, True),  # but cycles must have the sign of the verdict
    ],
    ids=lambda value: None if isinstance(value, list) else str(value),
)
def test_the_clock_objects_where_it_made_the_difference(time, clock, scatter, objects):
    found = pairs(around(time, [1, -1, 0, 2, -2, 1, -1, 0, 0]), around(clock, scatter))
    assert (clock_objection(found, faster=time < 1000) is not None) is objects


def test_the_objection_names_both_numbers():
    said = clock_objection(pairs([980] * 9, [1050] * 9), faster=True)
    assert said == "b's SM clock differs by +5.00 % [+5.00 %, +5.00 %], its cycles by +2.90 % [+2.90 %, +2.90 %]"


@pytest.mark.parametrize("known", [0, 5])
def test_clocks_of_too_few_pairs_object_to_nothing(known):
    assert clock_objection(pairs([980] * 9, [1040] * known + [None] * (9 - known)), faster=True) is None


def test_pairs_without_a_clock_are_left_out():
    assert clock_objection(pairs([980] * 9, [1040] * 6 + [None] * 3), faster=True) is not None
