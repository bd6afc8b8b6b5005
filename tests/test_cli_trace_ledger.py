"""`dsv4bench trace review --ledger`: replays take the places of the nodes that a record has kept."""

import json

import pytest

from dsv4bench.results.ledger_table import to_plain
from dsv4bench.results.schema import encode
from tests.command_line import command_line
from tests.profiling.replays import Replay, node, numbered
from tests.profiling.traces.timed_steps import kineto_text
from tests.results.synthetic import record

GRAPH = numbered(node("q_norm", "_rms_norm", layer=3), node("o_proj_b", "gemm", layer=19, kv_source=14))
OTHER = numbered(node("store", "_store"))


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a review of one replay beside records of two cells, in their folder."""
    replay = Replay()
    replay.graph(GRAPH)
    (tmp_path / "replay.json").write_text(kineto_text(replay.trace), encoding="utf-8")
    kept = [record(capture_ledger=to_plain((graph,))) for graph in (OTHER, GRAPH)]
    for name, records in (("kept", kept), ("without", [record()])):
        (tmp_path / f"{name}.jsonl").write_text("".join(encode(one) + "\n" for one in records), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    command = command_line(monkeypatch, capsys)
    return lambda *arguments: command("trace", "review", "replay.json", "--by", "kv_source", "--json", *arguments)


def test_the_ledger_that_fits_says_the_sources_of_a_replay(run):
    done = run("--ledger", "kept.jsonl")
    assert done.code == 0
    found = json.loads(done.out)
    assert {row["kv_source"]: row["kernels"] for row in found["by"]["kv_source"]} == {2: 1, 14: 1}
    assert found["coverage"]["method"] == "order (inferred)"


def test_without_a_ledger_a_replay_tells_no_source(run):
    assert run().code == 3


@pytest.mark.parametrize(
    ("path", "message"),
    [("without.jsonl", "no record of 1 holds a capture ledger"), ("absent", "no such file")],
)
def test_records_without_a_ledger_are_a_plain_error(run, path, message):
    done = run("--ledger", path)
    assert done.code == 2
    assert message in done.err
