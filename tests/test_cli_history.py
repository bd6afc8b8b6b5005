"""`dsv4bench history` as it is typed."""

import json
from dataclasses import replace

import pytest

from dsv4bench.results import frame_cache
from dsv4bench.results.schema import encode
from tests.command_line import command_line
from tests.results.synthetic import sweep


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(frame_cache, "cache_folder", lambda: tmp_path / "cache")
    for day, name in ((1, "results/a"), (2, "results/b")):
        records = [replace(one, created=f"2026-12-{day:02d}T08:00:00+00:00") for one in sweep()]
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "r.jsonl").write_text("".join(map(encode, records)))
    return lambda *arguments: command_line(monkeypatch, capsys)("history", *arguments)


def test_results_is_where_runs_are_looked_for(run):
    found = run("--batch", "1..8", "--reuse", "on,off", "--mode", "eager")
    assert (found.code, found.err) == (0, "")
    assert found.out.count("History of eager") == 4
    assert (
        run("results/a", "results/b", "--batch", "1,8", "--reuse", "on", "--reuse", "off", "--mode", "eager") == found
    )
    assert run("results/a", "--batch", "1", "--mode", "eager").out.startswith("Measured once")


def test_json_is_an_object_a_cell(run):
    (one,) = json.loads(run("--batch", "1", "--reuse", "on", "--mode", "graph", "--json").out)
    assert (one["requests"], one["records"][0]["mode"]) == (1, "graph")
    assert [row["created"] for row in one["records"]] == ["2026-12-01T08:00:00+00:00", "2026-12-02T08:00:00+00:00"]
    assert [row["run"] for row in one["records"]] == ["results/a", "results/b"]
    lines = run("--batch", "1", "--format", "jsonl").out.splitlines()
    assert len([json.loads(line) for line in lines]) == 4


def test_csv_has_a_block_a_cell(run):
    assert run("--batch", "1", "--format", "csv").out.count("# History of") == 4


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--kv v5", "--kv v5: no such record; there are: v41+fp4"),
        ("--batch x", "--batch x: expected a number"),
        ("none", "none: no such file or directory"),
        ("results/c", "results/c: no records here"),
    ],
    ids=["word", "axis", "missing", "empty"],
)
def test_a_mistake_is_one_line(run, tmp_path, typed, message):
    (tmp_path / "results/c").mkdir()
    found = run(*typed.split())
    assert (found.code, found.out) == (2, "")
    assert message in found.err


def test_a_torn_line_is_said(run, tmp_path):
    (tmp_path / "results/a/torn.jsonl").write_text('{"key": ')
    assert "torn.jsonl:1: left out a torn last line" in run("--batch", "1").err
