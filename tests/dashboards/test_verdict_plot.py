"""The figure of verdicts, read by its data."""

from dataclasses import replace

import pytest

from dsv4bench.dashboards.verdict_plot import FLOOR, speed_up_figure
from dsv4bench.results.frame import verdict_frame
from tests.dashboards.drawn import bars, judged


def drawn(floors=()):
    return speed_up_figure(verdict_frame(judged()), verdict_frame(floors), "reuse=off against reuse=on")


def floor(verdict, low, high):
    """An A/A trial of the same cell whose ratio lies between these bounds."""
    return replace(verdict, trial=replace(verdict.trial, aa=True), ratio=replace(verdict.ratio, low=low, high=high))


def test_every_word_has_points_with_their_intervals():
    eager, graph = drawn().axes
    found = bars(eager)
    assert set(found) == {"FASTER", "INCONCLUSIVE"}
    x, y, low, high = found["FASTER"]
    assert list(x) == [1, 64]
    assert y == pytest.approx([-2.5, -2])
    assert (low[0], high[0]) == pytest.approx((-2.6, -2.4))
    assert set(bars(graph)) == {"SAME", "SLOWER"}
    assert "below 0: reuse=on is faster" in eager.get_ylabel()


def test_what_decides_nothing_is_hollow_and_a_triangle_points_to_where_time_went():
    eager, graph = drawn().axes
    looks = {
        one.get_label(): (one[0].get_marker(), one[0].get_markerfacecolor())
        for axes in (eager, graph)
        for one in axes.containers
    }
    assert looks["INCONCLUSIVE"] == ("o", "white")
    assert (looks["FASTER"][0], looks["SLOWER"][0]) == ("v", "^")


def test_the_least_effect_and_the_prediction_stand_beside():
    eager, _ = drawn().axes
    lines = {one.get_label(): one for one in eager.lines}
    assert list(lines["least effect named"].get_ydata()) == pytest.approx([0.5, 0.5, 0.5])
    assert list(lines["predicted (modelled)"].get_ydata()) == pytest.approx([-2, -2, -2])  # 400 us a request of 20 ms


def test_a_cell_without_a_verdict_is_a_cross_with_its_status():
    _, graph = drawn().axes
    (cross,) = [one for one in graph.lines if one.get_label() == "refused"]
    assert list(cross.get_xdata()) == [64]


@pytest.mark.parametrize(
    ("bounds", "band"), [((0.998, 1.003), (-0.2, 0.3)), ((1.001, 1.004), (0, 0.4))], ids=["around 0", "beside 0"]
)
def test_the_noise_floor_is_a_band_behind_its_own_cell(bounds, band):
    eager, graph = drawn([floor(judged()[0], *bounds)]).axes
    (area,) = [one for one in eager.collections if one.get_label() == FLOOR]
    (path,) = area.get_paths()
    x, y = path.vertices[:, 0], path.vertices[:, 1]
    assert (min(y), max(y)) == pytest.approx(band)
    assert (min(x), max(x)) == pytest.approx((2**-0.5, 2**0.5))  # batch 1
    assert [one for one in graph.collections if one.get_label() == FLOOR] == []
