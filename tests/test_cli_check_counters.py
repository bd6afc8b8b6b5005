"""`dsv4bench check counters` from end to end on a CPU."""

import json

import pytest

from dsv4bench.profiling import counter_check
from tests.command_line import command_line, tiny_config


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run the command on a tiny model."""
    command, config = command_line(monkeypatch, capsys), tiny_config(tmp_path)
    return lambda *arguments: command("check", "counters", "--geometry", config, "--device", "cpu", *arguments)


def test_calls_of_a_step_agree_with_the_layer_map(run):
    found = run("--reuse", "on", "--compressor", "fused")
    assert (found.code, found.err) == (0, "")
    assert "every source agrees: true" in found.out
    assert max(map(len, found.out.splitlines())) <= 80


def test_every_cell_that_was_asked_for_is_checked(run):
    found = run("--json", "--breaks", "both")
    cells = json.loads(found.out)
    assert found.code == 0
    assert all(one["agreed"] and not one["differences"] for one in cells)
    switches = {(one["reuse"], one["compressor"], one["breaks"]) for one in cells}
    assert len(switches) == len(cells) == 8
    assert cells[0]["sources"]["layer map"]["dequant_swa"] == cells[0]["sources"]["calls"]["dequant_swa"]


def test_a_difference_is_exit_code_1(run, monkeypatch):
    honest = counter_check.expected_calls
    monkeypatch.setattr(counter_check, "expected_calls", lambda *given: honest(*given) + honest(*given))
    found = run("--reuse", "on", "--compressor", "fused")
    assert found.code == 1
    assert "every source agrees: false" in found.out
    assert "combine (kv_source" in found.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "jsonl"), "--format jsonl: expected one of table, md, csv, json (did you mean 'json'?)"),
        (("--kv", "v5"), "--kv v5"),
    ],
    ids=["format", "kv"],
)
def test_a_mistake_is_one_line(run, arguments, message):
    found = run(*arguments)
    assert found.code == 2
    assert message in found.err
    assert found.err.count("\n") == 1


def test_a_gpu_without_the_bindings_is_one_line(run, monkeypatch):
    monkeypatch.setattr(counter_check, "why_not_captured", lambda: "needs the package cuda-bindings")
    monkeypatch.setattr("dsv4bench.workloads.options.resolve_device", lambda device: "cuda")
    found = run()
    assert (found.code, found.err) == (2, "dsv4bench: --device cuda: needs the package cuda-bindings\n")
