"""`dsv4bench check replay`: what it proves, how it says so, and what it refuses."""

import json

import pytest
import torch

from dsv4bench import cli_replay_proof
from dsv4bench.dashboards.proof_table import proof_table
from dsv4bench.dashboards.render import csv_text, plain
from dsv4bench.results.proofs import AS_EAGER, WHATS, Comparison, Proof, ProofRow
from dsv4bench.workloads import break_forms, sources, step
from dsv4bench.workloads.variant import Variant
from tests.command_line import command_line, tiny_config


@pytest.fixture
def prove(monkeypatch, capsys, tmp_path):
    """The command on one bucket of a model of two layers that read one source."""
    run, config = command_line(monkeypatch, capsys), tiny_config(tmp_path)
    typed = ("--geometry", config, "--buckets", "4", "--compressor", "fused")
    return lambda *more: run("check", "replay", *typed, *more)


def test_a_proof_is_one_row_a_batch_and_a_verdict(prove):
    found = prove()
    assert (found.code, found.err) == (0, "bucket 4, fused, sm100\n")
    lines = found.out.splitlines()
    assert lines[0].startswith("Replays of a breakable tape: kv v41+fp4, compressor fused, breaks sm100,")
    assert lines[2].split() == ["bucket", "batch", "live", "eager", "offsets", "untouched", "padding", "live", "rows"]
    assert [line.split()[1:3] for line in lines[3:6]] == [["full", "4"], ["three", "requests"], ["one", "odd"]]
    assert len(lines) == 3 + 12 + 1
    assert lines[-1] == "proven for bucket 4: replays in a row, each of another batch than the one before"
    assert max(map(len, lines)) <= 80


def leaky(monkeypatch):
    def compress(one, kind, rows):
        sources.compress(one, kind, rows)
        one.pools.compressed[kind.layer][0, :1].fill_(7)

    monkeypatch.setitem(step._PARTS, break_forms.COMPRESS, compress)


def test_what_differs_is_named_and_the_exit_code_is_1(prove, monkeypatch):
    leaky(monkeypatch)
    found = prove("--quiet")
    assert (found.code, found.err) == (1, "")
    assert "bucket 4, idle rank: untouched: compressed of layer 0\n" in found.out
    assert found.out.count("DIFFERS") == 12
    assert "proven" not in found.out


def test_json_has_every_comparison(prove, monkeypatch):
    leaky(monkeypatch)
    found = prove("--json")
    (proof,) = json.loads(found.out)
    assert (found.code, proof["holds"], proof["graph"]) == (1, False, "breakable tape")
    assert proof["switches"]["compressor"] == "fused"
    assert proof["rows"][1]["batch"] == "three requests"
    assert {one["what"]: one["differs"] for one in proof["rows"][1]["comparisons"]} == {
        what: "compressed of layer 0" if what == "untouched" else "" for what in WHATS
    }


def test_a_step_that_cannot_be_captured_is_a_reason_and_exit_code_1(prove, monkeypatch):
    def compress(one, kind, rows):
        one.buffers.latent[0, 0].item()

    monkeypatch.setitem(step._PARTS, break_forms.COMPRESS, compress)
    found = prove("--quiet")
    assert found.code == 1
    text = found.out.replace("\n  ", " ")
    assert "failed: capture: bucket 4: layer 0 compress: tests/test_cli_check_replay.py:" in text


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--buckets", "8,4"], "--buckets 8,4: expected an ascending list without doubles, but 4 follows 8"),
        (["--buckets", "2"], "--buckets 2: 2 rows cannot hold three requests; expected 4 or more"),
        (["--compressor", "fusd"], "--compressor fusd: not known (did you mean 'fused'?); known: torch, fused, both"),
        (["--format", "xml"], "--format xml: expected one of table, md, csv, json"),
        (["--geometry", "v41-falsh"], "--geometry v41-falsh: no such geometry"),
    ],
    ids=["descending", "too small", "compressor", "format", "geometry"],
)
def test_a_mistake_is_one_line(monkeypatch, capsys, arguments, line):
    found = command_line(monkeypatch, capsys)("check", "replay", *arguments)
    assert (found.code, found.out, found.err.count("\n")) == (2, "", 1)
    assert line in found.err


def test_no_cuda_device_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = command_line(monkeypatch, capsys)("check", "replay", "--device", "cuda")
    assert found.err == "dsv4bench: --device cuda: no CUDA device on this machine; expected cpu or auto\n"


def test_ctrl_c_shows_the_proofs_that_were_made(monkeypatch, capsys):
    def prove(*_):
        yield proof(row())
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_replay_proof, "prove", prove)
    found = command_line(monkeypatch, capsys)("check", "replay", "--device", "cpu", "--quiet")
    assert (found.code, found.err) == (130, "interrupted: 1 variant was checked\n")
    assert "proven for bucket 8" in found.out


# the table


def proof(*rows, reason=None):
    return Proof(Variant(graph=True).switches(), "breakable CUDA graph", rows, reason)


def row(differs=(), without=(), batch="full"):
    names = [what for what in WHATS if what not in without]
    found = tuple(Comparison(what, "source 2" if what in differs else "") for what in names)
    return ProofRow(8, batch, 8, found)


@pytest.mark.parametrize("what", AS_EAGER)
def test_anything_that_differs_from_eager_is_one_word_in_the_table_and_a_note(what):
    found = proof(row(differs=[what]))
    assert not found.holds
    text = plain(proof_table(found))
    assert text.splitlines()[3].split() == ["8", "full", "8", "DIFFERS", "=", "=", "=", "="]
    assert text.endswith(f"\nbucket 8, full: {what}: source 2\n")


def test_what_was_not_compared_stays_empty():
    text = plain(proof_table(proof(row(without=["live rows"]), row(batch="one odd token"))))
    assert text.splitlines()[3].split() == ["8", "full", "8", "=", "=", "=", "="]


def test_csv_tells_what_holds_from_what_was_not_compared():
    text = csv_text([proof_table(proof(row(differs=["rings"], without=["live rows"])))])
    assert text.splitlines()[2] == "8,full,8,=,=,=,=,=,source 2,=,=,=,"


def test_a_provider_that_is_not_there_proves_nothing(prove):
    found = prove("--provider", "flash_mla")
    assert found.code == 1
    assert "failed: provider flash_mla: " in found.out


def test_a_proof_without_replays_or_with_a_reason_does_not_hold():
    assert proof(row()).holds
    assert not proof().holds
    assert not proof(row(), reason="out of memory").holds
