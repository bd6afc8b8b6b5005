"""The figure of memory, read by its data."""

from dataclasses import replace

import pytest

from dsv4bench.dashboards.memory_plot import memory_figure, with_memory
from dsv4bench.results.compare import pairs
from tests.results.synthetic import lost, record, sweep

GIB = 2**30


def drawn(records):
    return memory_figure(with_memory(pairs(records, "reuse", "off", "on")), ("reuse off", "reuse on"), "reuse")


def heights(axes):
    return {one.get_label(): [patch.get_height() for patch in one.patches] for one in axes.containers}


def test_peak_and_workspace_stand_before_and_after():
    grown = [
        replace(record(batch, reuse), memory={"peak_bytes": peak * GIB, "workspace_bytes": 64 * 2**20})
        for batch, reuse, peak in ((1, "off", 3), (1, "on", 4), (8, "off", 6), (8, "on", 8))
    ]
    peak, workspace = drawn(grown).axes
    assert heights(peak) == {"reuse off": [3, 6], "reuse on": [4, 8]}
    assert heights(workspace) == {"reuse off": [64, 64], "reuse on": [64, 64]}
    assert (peak.get_ylabel(), workspace.get_ylabel()) == ("peak, GiB", "workspace, MiB")
    assert [tick.get_text() for tick in workspace.get_xticklabels()] == ["1 x 1024", "8 x 1024"]


def test_each_mode_has_a_column_of_the_cells_that_know_their_memory():
    eager, graph, *_ = drawn(sweep()).axes
    assert (eager.get_title(), graph.get_title()) == ("eager", "graph")
    assert [len(one.patches) for one in (*eager.containers, *graph.containers)] == [3, 3, 2, 2]  # one graph is refused


def test_what_is_not_known_has_no_row():
    cells = [
        replace(record(1, reuse), memory={"peak_bytes": None, "workspace_bytes": 2**20}) for reuse in ("off", "on")
    ]
    (only,) = drawn(cells).axes
    assert only.get_ylabel() == "workspace, MiB"


@pytest.mark.parametrize("memory", [{}, {"peak_bytes": None, "workspace_bytes": 0}], ids=["nothing", "none and zero"])
def test_cells_without_memory_are_left_out(memory):
    cells = [replace(record(1), memory=memory), lost("failed", "broke", batch=2)]
    assert with_memory(pairs(cells, "reuse", "off", "on")) == []


def test_one_side_alone_stands_in_the_middle():
    peak, _ = drawn([record(1)]).axes
    ((bar,),) = [one.patches for one in peak.containers]
    assert bar.get_x() + bar.get_width() / 2 == pytest.approx(0)
