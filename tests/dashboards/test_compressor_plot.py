"""The figure of the compressor alone, by the numbers that it draws."""

from dataclasses import replace

import pytest

from dsv4bench.dashboards.compressor_plot import compressor_figure
from dsv4bench.dashboards.compressor_tables import timed_alone
from dsv4bench.results.compare import pairs
from tests.dashboards.drawn import bars, compressors


def alone(records):
    return timed_alone(pairs(records, "compressor", "torch", "fused"))


def test_both_paths_are_drawn_against_rows_on_logarithmic_axes():
    figure = compressor_figure(alone(compressors(extends=(1024, 64))))
    times, speed_up = figure.axes
    drawn = bars(times)
    assert [*drawn] == ["torch path", "fused"]
    x, y, low, high = drawn["torch path"]
    assert list(x) == [64, 1024]
    assert y == pytest.approx([0.1, 1.6])  # ms
    assert (low[0], high[0]) == pytest.approx((0.096, 0.104))
    assert drawn["fused"][1] == pytest.approx([0.01, 0.16])
    assert (times.get_xscale(), times.get_yscale()) == ("log", "log")
    assert [tick.get_text() for tick in speed_up.get_xticklabels()] == ["64", "1024"]
    assert speed_up.get_xlabel() == "T, rows in the batch"


def test_the_speed_up_is_the_median_of_ratios_with_its_interval():
    _, speed_up = compressor_figure(alone(compressors(extends=(64,)))).axes
    (drawn,) = bars(speed_up).values()
    assert [value[0] for value in drawn] == pytest.approx([1, 10, 9.6, 10.4])  # one request of one length
    assert speed_up.get_ylim()[0] == 0


def test_times_below_a_millisecond_are_in_microseconds_with_numbers_written_out():
    figure = compressor_figure(alone(compressors(extends=(64,))))
    times = figure.axes[0]
    figure.draw_without_rendering()
    assert times.get_ylabel() == "time, us (median, interval)"
    assert bars(times)["fused"][1] == pytest.approx([10])
    assert {"10", "20", "50", "100"} <= {tick.get_text() for tick in times.get_yticklabels()}


def test_paths_that_were_not_sampled_in_turn_have_no_speed_up():
    torch, fused = compressors(extends=(64,), modes=("graph sm100",))
    fewer = replace(fused, samples_ns={metric: times[:7] for metric, times in fused.samples_ns.items()})
    times, speed_up = compressor_figure(alone([torch, fewer])).axes
    assert len(bars(times)) == 2
    assert bars(speed_up) == {}


def test_the_title_says_what_was_timed_where_and_when():
    figure = compressor_figure(alone(compressors()))
    assert figure.get_suptitle().splitlines() == [
        "Ratio-2 compressor of one source alone, attention stack of v41-flash: measured, gpu, NVIDIA H200",
        "kv v41+fp4, provider triton, chunk 8192, seed 0, prefix 8192",
        "commit c0ffeec0ffee, torch 2.11.0, triton 3.6.0, driver 580.1; 2026-11-30",
    ]
    assert figure.axes[0].get_title() == "captured alone, in a run of graph sm100, reuse on"
