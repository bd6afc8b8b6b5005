"""The picture of a step: lanes, colours, and files that are the same for the same step."""

import pytest

from dsv4bench.dashboards.style import STACK
from dsv4bench.dashboards.timeline_plot import OTHERS, save_timeline, timeline_figure
from dsv4bench.errors import UsageError
from dsv4bench.results.timelines import Lane, Timeline

SOURCES = Timeline(
    "trace.json: step0",
    (
        Lane("kv_source 2", [0, 20_000], [10_000, 5_000], ["dequant", "attention"]),
        Lane("no kv_source", [30_000], [4_000], ["output"]),
    ),
    "kv_source and operation",
)


def test_every_lane_has_its_bars_at_their_times():
    figure = timeline_figure(SOURCES)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["kv_source 2", "no kv_source"]
    extents = [bars.get_paths() for bars in axes.collections]
    assert [[(path.get_extents().x0, path.get_extents().x1) for path in paths] for paths in extents] == [
        [(0, 10), (20, 25)],
        [(30, 34)],
    ]


def test_the_legend_names_each_operation_with_its_time_the_longest_first():
    (axes,) = timeline_figure(SOURCES).axes
    texts = [entry.get_text() for entry in axes.get_legend().get_texts()]
    assert texts == ["1 dequant: 10 us", "2 attention: 5 us", "3 output: 4 us"]


def test_bars_with_room_have_the_number_that_their_operation_has_in_the_legend():
    lane = Lane("stream 7", [0, 990_000, 995_000], [900_000, 5_000, 5_000], ["long", "short", "long"])
    (axes,) = timeline_figure(Timeline("t", (lane,), "stream and kernel")).axes
    assert [(text.get_text(), text.get_position()) for text in axes.texts] == [("1", (0.45, 0))]


def test_names_are_drawn_as_they_stand_whatever_is_in_them(tmp_path):
    names = ["$x^$", "a\0b\x1b[31m", "c\nd"]
    lane = Lane("stream 7", [0, 1, 2], [3, 2, 1], names)
    save_timeline(Timeline("$^$.json: step", (lane,), "stream and kernel"), tmp_path / "step.png")
    assert (tmp_path / "step.png").stat().st_size


def test_more_operations_than_colours_share_one():
    count = len(STACK) + 3
    lane = Lane("stream 7", list(range(count)), [1_000 - at for at in range(count)], [f"k{at}" for at in range(count)])
    (axes,) = timeline_figure(Timeline("t", (lane,), "stream and kernel")).axes
    texts = [entry.get_text() for entry in axes.get_legend().get_texts()]
    assert len(texts) == len(STACK) + 1
    assert texts[-1].startswith(OTHERS)


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_the_same_step_gives_the_same_bytes(tmp_path, ending):
    files = [tmp_path / f"{name}{ending}" for name in ("a", "b")]
    for file in files:
        save_timeline(SOURCES, file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_another_ending_and_a_folder_that_is_not_there_are_one_line(tmp_path):
    with pytest.raises(UsageError, match=r"ends in \.png or \.svg"):
        save_timeline(SOURCES, tmp_path / "step.pdf")
    with pytest.raises(UsageError, match="cannot write the figure"):
        save_timeline(SOURCES, tmp_path / "missing" / "step.png")
