"""The figures of kernels, read by their data."""

from dataclasses import replace

import pytest

from dsv4bench.dashboards.kernel_plots import bars_figure, kernel_figures, roofline_figure, timed_kernels
from dsv4bench.dashboards.style import PROVIDERS
from tests.results.kernel_records import kernel_record, unable

RECORDS = [
    kernel_record("triton", cold=2_000, flops=4 * 10**6),
    kernel_record("sglang", cold=5_000, flops=4 * 10**6),
    kernel_record("triton", rows=8, cold=1_000, flops=4 * 10**6),
    unable("flash_mla"),
]


def test_bars_are_cold_times_with_a_tick_at_the_ceiling():
    figure = bars_figure(timed_kernels(RECORDS))
    large, small = figure.axes
    assert [patch.get_width() for patch in large.patches] == pytest.approx([2, 5])  # us
    assert [patch.get_width() for patch in small.patches] == pytest.approx([1])
    ticks = [
        line.get_xdata()[0] for line in large.lines if len(set(line.get_xdata())) == 1 and len(line.get_xdata()) == 2
    ]
    assert pytest.approx(1) in ticks  # 4 MB at 4 TB/s
    assert [label.get_text() for label in large.get_yticklabels()] == ["fp4 4096 rows, triton", "fp4 4096 rows, sglang"]
    assert next(text.get_text() for text in large.texts) == "2.00 TB/s, 50% of the ceiling"


def test_the_roofline_has_points_under_roofs_of_this_run():
    axes = roofline_figure(timed_kernels(RECORDS)).axes[0]
    roof, *points = [line for line in axes.lines if len(line.get_xdata())]
    assert max(roof.get_ydata()) == 8e14
    assert roof.get_ydata()[0] / roof.get_xdata()[0] == pytest.approx(4.2e12)
    found = {(point.get_xdata()[0], point.get_ydata()[0], point.get_color()) for point in points}
    colours = {name: PROVIDERS[name][0] for name in ("triton", "sglang")}
    # 1 FLOP a byte: 4e6 FLOPs in 2, 5 and 1 us
    assert found == {(1, 2e12, colours["triton"]), (1, 8e11, colours["sglang"]), (1, 4e12, colours["triton"])}


def test_a_provider_fills_its_marks_on_the_roofline_as_in_the_legend():
    axes = roofline_figure(timed_kernels(RECORDS)).axes[0]
    points = [line for line in axes.lines if len(line.get_xdata()) == 1]
    filled = {line.get_color(): line.get_markerfacecolor() for line in points}
    assert filled == {PROVIDERS["triton"][0]: PROVIDERS["triton"][0], PROVIDERS["sglang"][0]: "white"}
    legend = {line.get_label(): line.get_markerfacecolor() for line in axes.lines if not len(line.get_xdata())}
    assert (legend["triton"], legend["sglang"]) == (PROVIDERS["triton"][0], "white")


def test_a_roofline_of_all_and_bars_of_every_kernel_and_none_without_a_time():
    assert [one.name for one in kernel_figures(RECORDS)] == ["roofline", "kernel-dequant"]
    assert list(kernel_figures([unable()])) == []


def test_kernels_without_arithmetic_alone_have_no_roofline():
    assert [one.name for one in kernel_figures([kernel_record("triton")])] == ["kernel-dequant"]


def test_two_machines_have_figures_of_their_own():
    other = replace(RECORDS[0], environment={**RECORDS[0].environment, "gpu": "NVIDIA B200"})
    ends = ("measured-nvidia-h200", "measured-nvidia-b200")
    names = [f"{kind}-{end}" for end in ends for kind in ("roofline", "kernel-dequant")]
    assert [one.name for one in kernel_figures([*RECORDS, other])] == names


def test_kernels_without_arithmetic_leave_the_roofs_alone():
    axes = roofline_figure(timed_kernels([kernel_record("triton")])).axes[0]
    assert len([line for line in axes.lines if len(line.get_xdata())]) == 1
