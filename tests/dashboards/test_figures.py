"""Which figures a run has, and what their files are called."""

from dataclasses import replace

import pytest

from dsv4bench.dashboards import figures
from tests.dashboards.drawn import compressors, modes
from tests.results.synthetic import cpu_sweep, lost, record, sweep, with_side, with_variant

KINDS = ("step_time", "mode", "compressor", "launches", "memory", "speed_up", "machines")
TAKEN = ("launches", "memory")  # which every run has


@pytest.fixture
def drawings(monkeypatch):
    """Return a function from records to what is drawn of them: by which function, under which name."""
    for kind in KINDS:
        monkeypatch.setattr(figures, f"{kind}_figure", lambda *cells, kind=kind: f"{kind}_figure")

    def found(records, with_model=False):
        return [(one.figure, one.name) for one in figures.figures(records, with_model)]

    return found


def sided(records, **changes):
    return [with_side(one, "a" if one.variant["reuse"] == "off" else "b", **changes) for one in records]


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
def test_a_run_has_few_figures_that_say_what_they_show(drawings, records, drawn):
    steps = [one for one in drawings(records) if not one[1].startswith(TAKEN)]
    assert steps == [(f"{kind}_figure", name) for kind, name in drawn]


@pytest.mark.parametrize(
    ("records", "names"),
    [
        (sweep(), ["step-time", "launches", "memory"]),
        (
            [with_variant(one, kv=kv) for kv in ("v4", "v41+fp4") for one in modes("eager")],
            [
                *("step-time-kv-v4", "step-time-kv-v41-fp4", "launches-kv-v4", "memory-kv-v4"),
                *("launches-kv-v41-fp4", "memory-kv-v41-fp4"),
            ],
        ),
        ([lost("failed", "broke", batch=2)], ["step-time"]),
        (sided(sweep()), ["ab-speed-up", "ab-step-time", "ab-launches", "ab-memory"]),
        (sided(sweep(), aa=True), ["ab-noise-floor"]),
        (
            [*sided(sweep()), *sided(sweep(), session="s2", aa=True)],
            ["ab-speed-up", "ab-step-time", "ab-launches", "ab-memory"],
        ),
        (
            [*sided(sweep()), *sided(sweep(), session="s2")],
            [
                *(f"ab-{name}-session-s1" for name in ("speed-up", "step-time", "launches", "memory")),
                *(f"ab-{name}-session-s2" for name in ("speed-up", "step-time", "launches", "memory")),
            ],
        ),
    ],
    ids=["reuse off and on", "two formats", "nothing ran", "an A/B", "an A/A", "an A/B over an A/A", "two sessions"],
)
def test_launches_memory_and_verdicts_are_drawn_where_there_are_any(drawings, records, names):
    assert [name for _, name in drawings(records)] == names


def test_the_sides_of_launches_are_those_that_ran(monkeypatch):
    given = []
    monkeypatch.setattr(figures, "launches_figure", lambda same, sides, *without: given.append((sides, without)))
    monkeypatch.setattr(figures, "memory_figure", lambda *cells: None)
    monkeypatch.setattr(figures, "step_time_figure", lambda *cells: None)
    monkeypatch.setattr(figures, "mode_figure", lambda *cells: None)
    monkeypatch.setattr(figures, "speed_up_figure", lambda *cells: None)
    for records in (sweep(), compressors(modes=("eager",)), modes("eager"), sided(sweep())):
        list(figures.figures(records))
    assert given == [
        (("reuse off", "reuse on"), ("reuse",)),
        (("torch path", "fused"), ("compressor",)),
        (("reuse off", "reuse on"), ("reuse",)),
        (("reuse=off", "reuse=on"), ("reuse",)),
    ]


def on(machine, records, **changes):
    return [replace(one, environment={**one.environment, "gpu": machine}, **changes) for one in records]


MODELLED = on("B300 (modelled)", sweep()[:2], label="modelled", ab=None)


@pytest.mark.parametrize(
    ("records", "with_model", "machines"),
    [
        ([*sweep(), *MODELLED], False, 0),
        ([*sweep(), *MODELLED], True, 1),
        ([*sided(sweep()), *MODELLED], True, 1),
        ([*sweep(), *on("NVIDIA B200", sweep())], False, 1),
        ([*sweep(), *cpu_sweep()], False, 0),
        (MODELLED, True, 1),
        ([*sweep(), *on("NVIDIA H200", sweep(), label="simulated")], False, 0),
    ],
    ids=[
        "a model not asked for",
        "a model",
        "a model of an A/B",
        "two GPUs",
        "two machines of other settings",
        "a model alone",
        "simulated ranks on one machine",
    ],
)
def test_machines_of_the_same_settings_stand_beside_each_other(drawings, records, with_model, machines):
    found = [name for _, name in drawings(records, with_model)]
    assert sum(name.startswith("machines") for name in found) == machines
    assert not any("modelled" in name for name in found)


def test_files_are_yielded_as_they_are_written(tmp_path):
    drawn = figures.draw([record(1)], tmp_path)
    assert next(drawn) == tmp_path / "step-time.png"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["step-time.png", "step-time.svg"]
