"""The figure, read by its data: what is drawn where, and how it is labelled."""

from dataclasses import replace

import numpy as np
import pytest

from dsv4bench.dashboards.drawing import save_figure
from dsv4bench.dashboards.panels import sections
from dsv4bench.dashboards.plots import step_time_figure
from dsv4bench.errors import UsageError
from dsv4bench.results.frame import comparison_frame
from tests.dashboards.drawn import bars, compressors, modes
from tests.results.synthetic import cpu_sweep, lost, ramp, record, sweep, with_variant


def panels(records):
    figure = step_time_figure(comparison_frame(records))
    return figure, np.array(figure.axes).reshape(2, -1)


def test_times_are_drawn_before_and_after_with_their_intervals():
    _, axes = panels(sweep())
    eager = bars(axes[0, 0])
    x, y, low, high = eager["before: reuse off"]
    assert list(x) == [1, 8, 64]
    assert y == pytest.approx([20, 160, 1280])  # ms
    assert (low[0], high[0]) == pytest.approx((19.96, 20.04))
    assert eager["after: reuse on"][1] == pytest.approx([19.5, 156, 1248])
    assert axes[0, 0].get_ylim()[0] == 0


def test_the_difference_is_drawn_beside_the_predicted_one():
    _, axes = panels(sweep())
    _, y, low, high = bars(axes[1, 0])["after - before"]
    assert y == pytest.approx([-500, -4000, -32000])  # us
    assert (low[0], high[0]) == pytest.approx((-576, -424))
    (predicted,) = [line for line in axes[1, 0].lines if line.get_label() == "predicted"]
    assert predicted.get_ydata() == pytest.approx([-400, -3200, -25600])


def test_a_cell_without_a_time_is_a_cross_with_its_status():
    _, axes = panels(sweep())
    (cross,) = [line for line in axes[0, 1].lines if line.get_label() == "refused"]
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([64], [0])
    assert list(bars(axes[0, 1])["before: reuse off"][0]) == [1, 8]


def test_a_difference_that_cannot_be_told_is_hollow():
    noisy = [
        record(reuse=reuse, samples_ns={"step_period": ramp(10_000_000, step)})
        for reuse, step in (("off", 90_000), ("on", -90_000))
    ]
    _, axes = panels(noisy)
    assert set(bars(axes[1, 0])) == {"not resolvable here"}


@pytest.mark.parametrize(("reuse", "label"), [("on", "after: reuse on"), ("off", "before: reuse off")])
def test_one_side_alone_is_drawn(reuse, label):
    _, axes = panels([record(reuse=reuse), lost("failed", "broke", batch=2, reuse=reuse)])
    assert set(bars(axes[0, 0])) == {label}
    assert "failed" in [line.get_label() for line in axes[0, 0].lines]


@pytest.mark.parametrize(
    ("records", "titles", "words"),
    [
        (
            sweep(),
            ["eager", "graph (breakable)"],
            ("v41-flash:", "measured", "gpu", "NVIDIA H200", "2026-11-30", "prefix 8192"),
        ),
        (cpu_sweep(), ["eager", "tape, no CUDA graph"], ("v41-flash-mini", "cpu-reference, tape", "two cores")),
    ],
    ids=["h200", "two-cores"],
)
def test_the_title_says_what_ran_where_and_when(records, titles, words):
    figure, axes = panels(records)
    assert [panel.get_title() for panel in axes[0]] == titles
    assert all(word in figure.get_suptitle() for word in ("Attention stack", *words))
    assert [tick.get_text() for tick in axes[1, 0].get_xticklabels()] == [
        str(b) for b in sorted({r.batch["requests"] for r in records})
    ]


def test_cells_of_other_settings_have_a_figure_of_their_own():
    mixed = [with_variant(one, kv=kv) for kv in ("v4", "v41+fp4") for one in sweep()]
    parts = sections(comparison_frame(mixed))
    assert [(name, len(part)) for name, part in parts] == [("-kv-v4", 6), ("-kv-v41-fp4", 6)]
    with pytest.raises(ValueError, match="several settings"):
        step_time_figure(comparison_frame(mixed))


def with_length(one, extend):
    batch = {**one.batch, "extend": extend, "rows": extend * one.batch["requests"]}
    return replace(one, key=f"{one.key}-{extend}", group=f"{one.group}-{extend}", batch=batch)


def test_lengths_of_one_batch_lie_along_an_axis_of_rows():
    cells = [with_length(record(2, reuse), extend) for extend in (4096, 512) for reuse in ("off", "on")]
    assert [name for name, _ in sections(comparison_frame(cells))] == [""]
    _, axes = panels(cells)
    assert list(bars(axes[0, 0])["after: reuse on"][0]) == [1024, 8192]
    assert [tick.get_text() for tick in axes[1, 0].get_xticklabels()] == ["1024", "8192"]
    assert axes[1, 0].get_xlabel() == "rows in the batch"


def test_lengths_of_several_batches_have_a_figure_each():
    cells = [with_length(record(batch), extend) for batch in (1, 8) for extend in (1024, 4096)]
    assert [(name, len(part)) for name, part in sections(comparison_frame(cells))] == [
        ("-extend-1024", 2),
        ("-extend-4096", 2),
    ]


def test_a_setting_that_is_not_there_gives_no_word_to_a_name():
    without = replace(record(1), key="none", group="none", batch={**record(1).batch, "prefix": None})
    parts = sections(comparison_frame([record(1), without]))
    assert [name for name, _ in parts] == ["-prefix-8192", ""]


@pytest.mark.parametrize(
    ("records", "titles"),
    [
        (
            modes("full graph", "graph hopper", "graph sm100", "eager", reuse=("off", "on")),
            [
                "eager",
                "graph hopper (breakable)",
                "graph sm100 (breakable)",
                "full graph: best case, nobody ships it",
            ],
        ),
        (modes("graph hopper", reuse=("off", "on")), ["graph (breakable)"]),
        (
            compressors(reuse=("off", "on"), modes=("graph sm100",)),
            ["graph (breakable), compressor torch", "graph (breakable), compressor fused"],
        ),
    ],
    ids=["four modes", "one form", "two compressors"],
)
def test_each_mode_and_compressor_has_a_panel(records, titles):
    _, axes = panels(records)
    assert [panel.get_title() for panel in axes[0]] == titles


def test_one_batch_stands_in_the_middle_and_numbers_are_written_out():
    slow = [record(1, reuse, samples_ns={"step_period": ramp(30_000_000_000, 10**9)}) for reuse in ("off", "on")]
    figure, axes = panels(slow)
    figure.canvas.draw()
    left, right = axes[1, 0].get_xlim()
    assert left < 1 < right
    assert axes[1, 0].yaxis.get_offset_text().get_text() == ""
    assert not any("e" in tick.get_text() for tick in axes[1, 0].get_yticklabels())


def test_nothing_cannot_be_drawn():
    assert sections(comparison_frame([])) == []
    with pytest.raises(ValueError, match="no cells"):
        step_time_figure(comparison_frame([]))


def test_a_figure_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    figure, _ = panels(cpu_sweep())
    with pytest.raises(UsageError, match="cannot write the figure: "):
        save_figure(figure, tmp_path / "file" / "times")


def test_a_figure_is_saved_as_png_and_svg_with_the_same_bytes_each_time(tmp_path):
    kept = []
    for name in ("one", "two"):
        figure, _ = panels(cpu_sweep())
        paths = save_figure(figure, tmp_path / name / "v4.1-times")
        assert [path.name for path in paths] == ["v4.1-times.png", "v4.1-times.svg"]
        kept.append([path.read_bytes() for path in paths])
    assert kept[0] == kept[1]
    assert kept[0][0].startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("switches", "said"),
    [
        ({}, ("Attention stack of v41-flash: kv", "fused, prefix 8192\n")),
        ({"moe": "off", "mhc": "off"}, ("Attention stack of v41-flash: kv", "fused, prefix 8192\n")),
        ({"moe": None, "mhc": None}, ("Attention stack of v41-flash: kv", "fused, prefix 8192\n")),
        (
            {"moe": "experts", "mhc": "on", "dep": 2, "align": "free"},
            ("Attention stack, residual streams and a MoE of v41-flash: kv", "prefix 8192, dep 2, align free\n"),
        ),
        ({"dep-simulated": 2}, ("Attention stack of v41-flash: kv", "prefix 8192, dep-simulated 2\n")),
    ],
    ids=["one process", "said to be off", "an older record", "real ranks and more than attention", "simulated ranks"],
)
def test_the_title_says_what_is_in_the_step_and_on_how_many_ranks(switches, said):
    figure, _ = panels([with_variant(one, **switches) for one in sweep()])
    assert [words in figure.get_suptitle() for words in said] == [True, True]


def test_a_number_of_ranks_is_whole_beside_records_of_none():
    both = [with_variant(one, dep=ranks) for ranks in (2, None) for one in sweep()]
    frame = comparison_frame(both)
    figure = step_time_figure(frame[frame["dep"] == 2])
    assert "prefix 8192, dep 2\n" in figure.get_suptitle()
