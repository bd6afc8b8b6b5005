"""The figure of several machines, read by its data."""

from dataclasses import replace

import pytest
from matplotlib.lines import Line2D

from dsv4bench.dashboards.machine_plot import _short, machines_figure
from dsv4bench.dashboards.style import AFTER_COLOUR
from dsv4bench.results.frame import comparison_frame
from tests.dashboards.drawn import bars
from tests.results.synthetic import GPU, record, with_variant


def measured(machine="NVIDIA H200", graphs=(False,)):
    return [
        replace(record(batch, reuse, graph), environment={**GPU, "gpu": machine})
        for batch in (1, 8)
        for graph in graphs
        for reuse in ("off", "on")
    ]


def modelled(records):
    """The records as `dsv4bench project` writes them: half the time, one sample a metric."""
    return [
        replace(
            one,
            label="modelled",
            environment={"gpu": "B300 (modelled)", "commit": GPU["commit"]},
            samples_ns={"step_period": [one.step_samples_ns[5] // 2]},
        )
        for one in records
    ]


def figure_of(records):
    return machines_figure(comparison_frame(records), "a title")


def drawn(records):
    figure = figure_of(records)
    columns = len({axes.get_position().x0 for axes in figure.axes})
    return [figure.axes[place::columns] for place in range(columns)]


def test_each_machine_has_a_column_with_its_times_and_its_change():
    first, second = drawn([*measured(), *measured("NVIDIA B200")])
    assert first[0].get_title() == "NVIDIA H200\nmeasured\ncommit c0ffeec"
    assert second[0].get_title() == "NVIDIA B200\nmeasured\ncommit c0ffeec"
    for times, changes in (first, second):
        assert bars(times)["before: reuse off"][1] == pytest.approx([20, 160])  # ms
        assert bars(changes)["change, eager"][1] == pytest.approx([-2.5, -2.5])  # % of 20 and 160 ms


def test_each_mode_has_a_row():
    ((eager, graph, changes), _) = drawn([*measured(graphs=(False, True)), *measured("NVIDIA B200")])
    assert (eager.get_ylabel(), graph.get_ylabel()) == ("eager\nstep time, ms", "graph\nstep time, ms")
    assert bars(graph)["after: reuse on"][1] == pytest.approx([18.5, 148])
    assert set(bars(changes)) == {"change, eager", "change, graph"}


def test_one_side_alone_has_no_change():
    one_side = [one for one in [*measured(), *measured("NVIDIA B200")] if one.variant["reuse"] == "on"]
    assert [[axes.get_ylabel() for axes in column] for column in drawn(one_side)] == [["eager\nstep time, ms"], [""]]


def test_what_is_modelled_comes_last_hatched_hollow_and_labelled():
    real, model = drawn([*modelled(measured()), *measured()])
    assert model[0].get_title() == "B300 (modelled)\ncommit c0ffeec\nmodelled, not measured"
    assert bars(model[0])["before: reuse off"][1] == pytest.approx([10, 80])
    assert all(one[0].get_markerfacecolor() == "white" for axes in model for one in axes.containers)
    for column, said in ((real, False), (model, True)):
        for axes in column:
            hatched = any(patch.get_hatch() for patch in axes.patches)
            assert (hatched, axes.get_title().endswith("modelled, not measured")) == (said, said)


def test_that_it_is_modelled_stands_where_no_point_is():
    figure = machines_figure(comparison_frame([*modelled(measured(graphs=(False, True))), *measured()]), "a title")
    figure.draw_without_rendering()
    panels = [axes for axes in figure.axes if "not measured" in axes.get_title()]
    assert len(panels) == 3  # two modes and the change
    for axes in panels:
        assert axes.title.get_window_extent().y0 >= axes.get_window_extent().y1


def test_the_legend_shows_the_marks_of_the_measured_machine():
    (legend,) = machines_figure(comparison_frame([*modelled(measured()), *measured()]), "a title").legends
    squares = [line for line in legend.findobj(Line2D) if line.get_marker() == "s"]
    assert [line.get_markerfacecolor() for line in squares] == [AFTER_COLOUR]


def torch_path(records):
    return [with_variant(one, compressor="torch") for one in records]


def test_rows_of_two_compressors_are_told_apart():
    records = measured(graphs=(True,))
    ((fused, torch, changes), _) = drawn([*records, *torch_path(records), *modelled(records)])
    assert (fused.get_ylabel(), torch.get_ylabel()) == (
        "graph, compressor fused\nstep time, ms",
        "graph, compressor torch\nstep time, ms",
    )
    assert set(bars(changes)) == {"change, graph, compressor fused", "change, graph, compressor torch"}


@pytest.mark.parametrize(
    ("title", "said"),
    [
        ("graph sm100 (breakable), compressor torch", "graph sm100, compressor torch"),
        ("full graph: best case, nobody ships it, compressor fused", "full graph, compressor fused"),
        ("full graph: best case, nobody ships it", "full graph"),
        ("tape, no CUDA graph", "tape, no CUDA graph"),
    ],
)
def test_a_row_is_called_by_its_mode_and_its_compressor(title, said):
    assert _short(title) == said


def test_what_a_machine_did_not_run_has_no_panel():
    """The measured machine ran eager alone; of the modelled one there is a graph of one side, which has no change."""
    graph = [one for one in modelled(measured(graphs=(True,))) if one.variant["reuse"] == "on"]
    figure = figure_of([*measured(), *graph])
    assert [axes.get_visible() for axes in figure.axes] == [True, False, False, True, True, False]
    eager, _, _, graph, changes, _ = figure.axes
    assert graph.get_title() == "B300 (modelled)\ncommit c0ffeec\nmodelled, not measured"
    assert [axes.get_ylabel() for axes in (eager, graph, changes)] == [
        "eager\nstep time, ms",
        "graph\nstep time, ms",
        "change, %",
    ]
    assert [axes.get_xlabel() for axes in (eager, graph, changes)] == ["", *["requests in the batch"] * 2]
    figure.draw_without_rendering()
    for axes in (graph, changes):  # which have neighbours neither to the left nor below to say it for them
        for ticks in (axes.get_xticklabels(), axes.get_yticklabels()):
            assert any(tick.get_visible() and tick.get_text() for tick in ticks)
