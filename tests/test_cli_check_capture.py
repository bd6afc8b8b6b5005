"""`dsv4bench check capture` as a user types it: what it prints, as text and JSON, and its exit codes."""

import json

import pytest

from dsv4bench import cli_capture_report
from tests.command_line import command_line, tiny_config

NORM = """
def norm(x, weight, eps, out):
    scale = x.float().pow(2).mean(1, keepdim=True).add(eps).rsqrt()
    assert scale.max().item() > 0
    out.copy_(x.float() * scale * weight.float())
"""
SAFE = """\
batch 2 x 8, kv v41+fp4, compressor fused, replay off, path sparse, breaks
  sm100, bucket 16, 3 captures, 4 segments, 4 breaks, 23 nodes
  graph-safe
"""


@pytest.fixture
def check(monkeypatch, capsys, tmp_path):
    run, config = command_line(monkeypatch, capsys), tiny_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    return lambda *typed: run("check", "capture", "--geometry", config, "--compressor", "fused", *typed)


@pytest.fixture
def reading(tmp_path):
    """A kernel of the user's that reads a value to the host."""
    (tmp_path / "mine.py").write_text(NORM)
    return "--provider", "rms_norm=mine.py:norm"


def test_a_graph_safe_workload_is_two_lines_and_a_verdict(check):
    found = check()
    assert (found.code, found.out, found.err) == (0, SAFE, "")


def test_a_finding_says_where_what_and_how_to_mend_it(check, reading):
    found = check(*reading)
    assert found.code == 1
    assert found.out.splitlines()[2:] == [
        "  mine.py:4",
        "    reads a value to the host (_local_scalar_dense)",
        "    in layer 0 project, layer 1 project",
        "    mend: keep the value on the device, or make this part a break",
    ]


def test_a_user_kernel_that_reads_a_value_ends_the_cell_of_a_run_too(monkeypatch, capsys, check, reading, tmp_path):
    run = command_line(monkeypatch, capsys)
    typed = ("--extend", "8", "--geometry", tmp_path / "tiny.json", "--out", tmp_path / "out", "--graph", "--json")
    found = run("prefill", *typed, *reading, "--reuse", "on")
    (record,) = json.loads(found.out)
    assert (found.code, record["engine"], record["status"]) == (1, "tape", "failed")
    assert record["reason"].startswith("capture: layer 0 project: mine.py:4: reads a value to the host")


def test_json_holds_the_same(check, reading):
    (safe,) = json.loads(check("--json").out)
    assert safe["buckets"] == [16]
    assert {name: safe[name] for name in ("captures", "segments", "breaks", "nodes")} == {
        "captures": 3, "segments": 4, "breaks": 4, "nodes": 23,
    }  # fmt: skip
    assert safe["unsafe"] == []
    found = check("--json", *reading)
    (unsafe,) = json.loads(found.out)[0]["unsafe"]
    assert found.code == 1
    assert unsafe["place"] == "mine.py:4"
    assert unsafe["pieces"] == ["layer 0 project", "layer 1 project"]


def test_where_nothing_is_captured_there_is_nothing_to_check(check):
    found = check("--batch", "1", "--extend", "1")
    assert found.code == 4
    assert found.out.splitlines()[-1] == "  not captured: bucket 4 is over 2 times the 1 tokens"


def test_a_cell_that_fails_is_named_and_the_others_are_checked(check, tmp_path):
    (tmp_path / "short.py").write_text(NORM.replace("assert scale.max().item() > 0", "assert x.shape[0] < 16, 'long'"))
    typed = ("--provider", "rms_norm=short.py:norm", "--batch", "1,2")
    found = check(*typed)
    assert found.code == 1
    assert found.out.splitlines()[2:] == [
        "  graph-safe",
        "batch 2 x 8, kv v41+fp4, compressor fused, replay off, path sparse, breaks sm100",
        "  failed: layer 0 project: short.py:4: AssertionError: long",
    ]
    assert [one["failed"] for one in json.loads(check(*typed, "--json").out)] == [
        None,
        "layer 0 project: short.py:4: AssertionError: long",
    ]


def test_a_provider_that_is_not_there_is_not_graph_safe(check):
    found = check("--provider", "flash_mla")
    assert found.code == 1
    assert found.out.splitlines()[1].startswith("  failed: provider flash_mla: ")


@pytest.mark.parametrize(
    ("kernel", "why"),
    [("dequant", "runs in breaks, which are not captured"), ("compress_pool", "is not called"), ("rms_norm", None)],
)
def test_a_named_kernel_that_no_segment_calls_is_said_not_to_be_checked(check, tmp_path, kernel, why):
    (tmp_path / f"{kernel}.py").write_text(
        f"def fn(**tensors):\n    from dsv4bench.kernels.{kernel} import reference\n    reference(**tensors)\n"
    )
    found = check("--provider", f"{kernel}={kernel}.py:fn")
    said = [f"  not checked: {kernel}={kernel}.py:fn {why}"] if why else []
    assert found.out.splitlines()[2:] == [*said, "  graph-safe"]
    assert found.code == 0


def test_ctrl_c_keeps_what_was_checked(check, monkeypatch):
    honest, cells = cli_capture_report.check_capture, []

    def check_capture(cell, model):
        cells.append(cell)
        if len(cells) == 2:
            raise KeyboardInterrupt
        return honest(cell, model)

    monkeypatch.setattr(cli_capture_report, "check_capture", check_capture)
    found = check("--batch", "2,3")
    assert (found.code, found.out, found.err) == (130, SAFE, "interrupted: 1 cell was checked\n")


def test_a_wrong_option_is_one_line(check):
    found = check("--breaks", "sm90")
    assert found.code == 2
    assert found.err.startswith("dsv4bench: --breaks sm90: ")


@pytest.mark.parametrize(
    ("module", "typed"),
    [
        ("dsv4bench.cli_capture_report", ["capture"]),
        ("dsv4bench.profiling.counter_check", ["counters", "--device", "cpu"]),
        ("dsv4bench.profiling.replay_proof", ["replay", "--device", "cpu"]),
    ],
    ids=["capture", "counters", "replay"],
)
def test_a_model_for_which_there_is_no_memory_is_one_line(monkeypatch, capsys, module, typed):
    monkeypatch.setattr(f"{module}.free_bytes", lambda _: 1_000_000)
    found = command_line(monkeypatch, capsys)("check", *typed)
    assert (found.code, found.out) == (2, "")
    assert "976.6 KiB free; expected a smaller geometry" in found.err
