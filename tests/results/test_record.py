"""A record holds together: samples only where the cell is ok, a reason everywhere else, words that exist."""

from dataclasses import replace

import pytest

from dsv4bench.results.record import Record
from tests.results.synthetic import CPU, GPU, lost, record

FAILED_CHECK = [{"name": "output", "passed": False, "detail": "row 3 differs"}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "fine"}, "status: 'fine' is none of ok"),
        ({"label": "measure"}, r"label: 'measure' .*did you mean 'measured'"),
        ({"engine": "tpu"}, "engine: 'tpu'"),
        ({"samples_ns": {}}, "status 'ok' without samples"),
        ({"status": "failed", "reason": "x"}, "status 'failed' with samples"),
        ({"status": "failed", "samples_ns": {}}, "without a reason"),
        ({"checks": FAILED_CHECK}, "status 'ok' with a failed check: output"),
        ({"samples_ns": {"step_period": []}}, "step_period: expected a list of samples"),
        ({"samples_ns": {"step_period": [1.5]}}, "whole number of nanoseconds"),
        ({"samples_ns": {"step_period": [-1]}}, "whole number of nanoseconds"),
        ({"samples_ns": {"step_period": [True]}}, "whole number of nanoseconds"),
        ({"rank_samples_ns": [{"step_period": [1]}, {"step_period": [-1]}]}, "whole number of nanoseconds"),
        ({"counts": [{"op": "combine", "where": "somewhere"}]}, "counts.where: 'somewhere'"),
        ({"counts": [{"op": "combine", "where": "eager", "calls": -1}]}, "counts.calls of combine"),
        ({"counts": [{"op": "combine", "where": "eager", "kernels": 1.0}]}, "counts.kernels of combine"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_contradiction_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(record(), **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": 3}, "key: expected str, found 3"),
        ({"flags": "throttled"}, "flags: expected list"),
        ({"coverage": []}, "coverage: expected dict or null"),
        ({"timing": ["events"]}, "timing: expected dict or null"),
        ({"ranks": True}, "ranks: expected int, found True"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_value_of_another_kind_is_refused(changes, message):
    with pytest.raises(TypeError, match=message):
        replace(record(), **changes)


def test_only_key_and_status_are_needed():
    bare = Record(key="k", status="skipped", reason="no device")
    assert (bare.schema, bare.counts, bare.samples_ns, bare.ranks, bare.timing) == (1, [], {}, 1, None)


@pytest.mark.parametrize(
    ("graph", "mode", "engine", "want"),
    [
        (False, "full", "gpu", "eager"),
        (True, "breakable", "gpu", "graph"),
        (True, "full", "gpu", "full graph"),
        (True, "breakable", "tape", "tape"),
        (True, "full", "tape", "full tape"),
    ],
)
def test_mode_names_what_launched_the_step(graph, mode, engine, want):
    assert (
        Record(key="k", status="failed", reason="r", engine=engine, variant={"graph": graph, "graph-mode": mode}).mode
        == want
    )


@pytest.mark.parametrize(
    ("engine", "environment", "want"),
    [
        ("gpu", GPU, "NVIDIA H200"),
        ("cpu-reference", GPU, "a CPU"),
        ("cpu-reference", CPU, "two cores"),
        ("gpu", {}, "unknown gpu"),
        ("tape", {"cpu": None}, "unknown cpu"),
    ],
)
def test_machine_is_the_device_that_was_used(engine, environment, want):
    assert Record(key="k", status="failed", reason="r", engine=engine, environment=environment).machine == want


def test_the_step_time_of_a_graph_is_its_replay():
    both = record(samples_ns={"step_period": [5], "graph_replay": [4], "host_submit": [1]})
    assert (both.step_metric, both.step_samples_ns) == ("graph_replay", [4])
    assert record(samples_ns={"host_submit": [1]}).step_metric is None
    assert lost("skipped", "no device").step_samples_ns == []
