"""Which figures a run has, and what their files are called."""

from dataclasses import replace
from pathlib import Path

import pytest

from dsv4bench.dashboards import figures
from tests.dashboards.drawn import compressors, modes
from tests.results.synthetic import cpu_sweep, lost, record, sweep, with_variant


def of_another_prefix(one):
    batch = {**one.batch, "prefix": None}
    return replace(one, key=f"{one.key}-none", group=f"{one.group}-none", batch=batch)


@pytest.mark.parametrize(
    ("records", "drawn"),
    [
        (sweep(), [("step_time", "step-time")]),
        (cpu_sweep(), [("step_time", "step-time")]),
        (
            modes("eager", "graph sm100", "graph hopper", "full graph", reuse=("off", "on")),
            [("step_time", "step-time")],
        ),
        (modes("eager", "graph sm100", "graph hopper", "full graph"), [("mode", "step-time-by-mode")]),
        (modes("graph sm100", "graph sm100 static", reuse=("off",)), [("mode", "step-time-by-mode")]),
        (modes("eager"), [("mode", "step-time")]),
        ([lost("failed", "broke", batch=2)], [("mode", "step-time")]),
        (
            compressors(extends=(64, 128, 256), modes=("graph sm100",)),
            [("mode", "step-time-by-compressor"), ("compressor", "compressor-torch-and-fused")],
        ),
        (compressors(), [("mode", "step-time-by-mode-and-compressor"), ("compressor", "compressor-torch-and-fused")]),
        (compressors(reuse=("off", "on")), [("step_time", "step-time"), ("compressor", "compressor-torch-and-fused")]),
        (compressors(modes=("eager",)), [("mode", "step-time-by-compressor")]),
        (
            compressors(modes=("graph sm100", "graph hopper"))[:4],
            [
                ("mode", "step-time-by-mode-and-compressor"),
                ("compressor", "compressor-torch-and-fused-breaks-sm100"),
                ("compressor", "compressor-torch-and-fused-breaks-hopper"),
            ],
        ),
        (
            [with_variant(one, kv=kv) for kv in ("v4", "v41+fp4") for one in modes("eager")],
            [("mode", "step-time-kv-v4"), ("mode", "step-time-kv-v41-fp4")],
        ),
        (
            [*modes("eager"), *map(of_another_prefix, modes("eager"))],
            [("mode", "step-time-prefix-8192"), ("mode", "step-time")],
        ),
        ([], []),
    ],
    ids=[
        "reuse off and on",
        "on a CPU",
        "forms, reuse off and on",
        "forms of one side",
        "break outputs of one side",
        "one mode of one side",
        "nothing has a time",
        "compressor over lengths",
        "compressor, eager too",
        "compressor, reuse off and on",
        "compressor, never alone",
        "compressor of two forms",
        "two formats",
        "no one prefix",
        "nothing",
    ],
)
def test_a_run_has_few_figures_that_say_what_they_show(monkeypatch, records, drawn):
    for name in ("step_time_figure", "mode_figure", "compressor_figure"):
        monkeypatch.setattr(figures, name, lambda *cells, drawn=name: drawn)
    monkeypatch.setattr(figures, "save_figure", lambda figure, stem: [(figure, stem)])
    assert [*figures.draw(records, Path("here"))] == [(f"{kind}_figure", Path("here") / name) for kind, name in drawn]


def test_files_are_yielded_as_they_are_written(tmp_path):
    drawn = figures.draw([record(1)], tmp_path)
    assert next(drawn) == tmp_path / "step-time.png"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["step-time.png", "step-time.svg"]
