"""The figure of a run of one side: its lines, and what each mode takes more than the first."""

from dataclasses import replace
from itertools import combinations

import pytest

from dsv4bench.dashboards.mode_plot import mode_figure
from tests.dashboards.drawn import bars, compressors, modes
from tests.results.synthetic import lost, ramp, record


def panels(records):
    figure = mode_figure(records)
    return figure, figure.axes


def later(one, differences_ns):
    """The cell, `differences_ns` after each of its samples."""
    samples = {
        metric: [time + more for time, more in zip(times, differences_ns, strict=True)]
        for metric, times in one.samples_ns.items()
    }
    return replace(one, samples_ns=samples)


def copied_and_static(step_ns=1000):
    """Two forms of a graph of 18.5 ms; static breaks save 0.37 ms, 2 %, sample by sample."""
    copied, static = modes("graph sm100", "graph sm100 static", batches=(1,))
    return [copied, later(static, ramp(-370_000, step_ns))]


def test_each_mode_is_a_line_called_as_in_the_tables_eager_first():
    _, (times, _) = panels(modes("graph sm100", "full graph", "eager", "graph hopper"))
    drawn = bars(times)
    names = ["eager", "graph sm100", "full graph: best case, nobody ships it", "graph hopper"]
    assert [*drawn] == names
    x, y, low, high = drawn["eager"]
    assert list(x) == [1, 8]
    assert y == pytest.approx([19.5, 156])  # ms
    assert (low[0], high[0]) == pytest.approx((19.464, 19.536))
    assert drawn["graph hopper"][1] == pytest.approx([18.5, 148])
    assert times.get_ylim()[0] == 0


def test_graphs_beside_eager_steps_keep_the_interval_of_each_median():
    _, (_, differences) = panels(modes("eager", "graph sm100", batches=(1,)))
    eager, graph = bars(differences).values()
    assert [value[0] for value in eager[1:]] == pytest.approx([0, -100 * 0.036 / 19.5, 100 * 0.036 / 19.5])
    assert [value[0] for value in graph[1:]] == pytest.approx(
        [100 * (time / 19.5 - 1) for time in (18.5, 18.464, 18.536)]
    )
    assert eager[0][0] < 1 < graph[0][0]  # aside, so that no interval covers another
    assert differences.get_title() == (
        "difference of medians to eager, with the interval of each (not paired: not sampled in turn)"
    )


def test_graphs_beside_graphs_are_paired():
    _, (_, differences) = panels(copied_and_static())
    (static,) = bars(differences).values()
    assert [value[0] for value in static] == pytest.approx([1, -2, -100 * 0.374 / 18.5, -100 * 0.366 / 18.5])
    assert differences.get_title() == "median of paired differences to graph sm100, with its interval"


def test_a_paired_difference_that_cannot_be_told_is_hollow():
    figure, (_, differences) = panels(copied_and_static(step_ns=100_000))  # +-0.4 ms
    (static,) = differences.containers
    assert static[0].get_markerfacecolor() == "white"
    assert "not resolvable here" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_other_numbers_of_samples_are_not_paired():
    copied, static = copied_and_static()
    fewer = {metric: times[:9] for metric, times in static.samples_ns.items()}
    _, (_, differences) = panels([copied, replace(static, samples_ns=fewer)])
    assert "not paired" in differences.get_title()
    assert len(bars(differences)) == 2


@pytest.mark.parametrize(
    "records",
    [
        modes("graph sm100", batches=(1, 8)),
        [replace(one, group=one.key) for one in copied_and_static()],
        [replace(one, argv=["dsv4bench", one.key]) for one in copied_and_static()],
        [replace(one, environment={**one.environment, "commit": one.key}) for one in copied_and_static()],
    ],
    ids=["one mode", "other groups", "other commands", "other commits"],
)
def test_where_nothing_ran_together_there_is_no_difference(records):
    figure, _ = panels(records)
    assert len(figure.axes) == 1


def test_a_cell_without_a_time_is_a_cross_and_has_no_difference():
    cells = [record(1), record(8), record(1, graph=True), lost("refused", "context too long", batch=8, graph=True)]
    _, (times, differences) = panels(cells)
    (cross,) = [line for line in times.lines if line.get_label() == "refused"]
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([8], [0])
    eager, graph = bars(differences).values()
    assert (len(eager[0]), len(graph[0])) == (2, 1)


def test_a_run_without_any_time_is_crosses():
    figure, (times,) = panels([lost("failed", "broke", batch=8), lost("skipped", "no GPU", batch=1)])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["failed, skipped"]
    assert bars(times) == {}


def test_lengths_of_one_request_lie_along_an_axis_of_rows_and_compressors_are_lines():
    figure, (times, differences) = panels(compressors(extends=(1024, 64), modes=("graph sm100",)))
    drawn = bars(times)
    assert [*drawn] == ["graph sm100, compressor torch", "graph sm100, compressor fused"]
    assert [list(x) for x, *_ in drawn.values()] == [[64, 1024]] * 2
    assert [tick.get_text() for tick in differences.get_xticklabels()] == ["64", "1024"]
    assert differences.get_xlabel() == "rows in the batch"
    assert "compressor" not in figure.get_suptitle()


def test_the_title_says_what_ran_how_where_and_when():
    figure, (_, differences) = panels(modes("eager", "graph hopper", reuse=("off",)))
    assert figure.get_suptitle().splitlines() == [
        "Step time, reuse off, attention stack of v41-flash: measured, gpu, NVIDIA H200",
        "kv v41+fp4, compressor fused, provider triton, chunk 8192, seed 0, prefix 8192",
        "commit c0ffeec0ffee, torch 2.11.0, triton 3.6.0, driver 580.1; 2026-11-30",
    ]
    assert [tick.get_text() for tick in differences.get_xticklabels()] == ["1 x 1024", "8 x 1024"]


def test_lines_look_different_and_no_text_covers_another():
    cells = compressors(modes=("eager", "graph sm100", "graph hopper", "graph sm100 static", "full graph"))
    figure, (times, differences) = panels(cells)
    looks = {(one[0].get_color(), one[0].get_marker(), one[0].get_markerfacecolor()) for one in times.containers}
    assert len(looks) == 10
    figure.draw_without_rendering()
    texts = [figure._suptitle, differences.title, differences.xaxis.label, figure.legends[0], times]
    boxes = [text.get_window_extent() for text in texts]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
