"""The process of one side: which cells it measures, what its records say, and what it says where it cannot."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from dsv4bench.profiling import sweep
from dsv4bench.profiling.ab_child import Job, main, parse_job
from dsv4bench.profiling.ab_experiment import Experiment
from dsv4bench.profiling.recording import unmeasured
from dsv4bench.results.min_effect import MinEffect
from dsv4bench.results.store import read_records
from dsv4bench.workloads.options import PrefillArguments
from tests.command_line import HERE, tiny_config
from tests.source_tree import ROOT

SRC = {"name": "tree", "commit": "5" * 40, "dirty": False, "diff": None}
EXPERIMENT = Experiment("s", {"a": "kv=v4", "b": "kv=v41"}, False, MinEffect(relative=0.01), 9, 9, 2, True)


@pytest.fixture
def job(tmp_path):
    """The job of side b of pair 4, which ran first in it."""
    (tmp_path / "run").mkdir()
    arguments = PrefillArguments(
        geometry=str(tiny_config(tmp_path)), batch=["1", "2"], extend=["4"], prefix=["60"], kv=("v4", "v41"),
        reuse=["on"], graph=False, device="cpu", samples=2, quick=True,
    )  # fmt: skip
    switches = {"a": {"kv": "v4"}, "b": {"kv": "v41"}}
    argv, notes = ("dsv4bench", "ab"), ("a note",)
    return Job(EXPERIMENT, arguments, switches, "b", 4, 0, str(tmp_path / "run"), argv, notes, SRC)


def test_a_job_survives_its_text(job):
    found = parse_job(job.text())
    assert found.text() == job.text()
    assert (found.experiment, found.switches, found.argv, found.src) == (EXPERIMENT, job.switches, job.argv, job.src)
    assert parse_job(replace(job, experiment=replace(EXPERIMENT, min_effect=None)).text()).experiment.min_effect is None
    assert found.twos() == job.twos()


def test_a_side_is_measured_group_after_group_and_its_records_say_what_they_are(job, tmp_path, monkeypatch):
    monkeypatch.setattr("dsv4bench.profiling.session.environment", lambda device: dict(HERE))
    kept = []

    def run_group(group, model, session, progress):
        kept.append(len(read_records(tmp_path / "run").records))
        return [unmeasured(cell, session, "skipped", "pretended") for cell in group]

    monkeypatch.setattr(sweep, "run_group", run_group)
    assert main(job.text()) == 0
    records = read_records(tmp_path / "run").records
    assert kept == [0, 1]  # the first group's record was on the disk before the second began
    assert [(one.batch["requests"], one.variant["kv"]) for one in records] == [(1, "v41"), (2, "v41")]
    assert {tuple(one.ab[name] for name in ("side", "pair", "place", "block")) for one in records} == {("b", 4, 0, 2)}
    assert {(one.argv[1], one.note[0], one.environment["src"]["name"]) for one in records} == {("ab", "a note", "tree")}


def test_what_cannot_be_done_is_one_line(job, tmp_path, capsys):
    assert main(replace(job, directory=str(tmp_path / "gone")).text()) == 1
    assert capsys.readouterr().err == f"--resume {tmp_path / 'gone'}: no such directory\n"


def test_a_process_measures_its_side(job, tmp_path):
    text = replace(job, arguments=replace(job.arguments, batch=["1"])).text()
    command = [sys.executable, "-m", "dsv4bench.profiling.ab_child", text]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (file,) = (tmp_path / "run").iterdir()
    (record,) = map(json.loads, file.read_text().splitlines())
    assert (record["status"], record["variant"]["kv"], len(record["samples_ns"]["step_period"])) == ("ok", "v41", 2)
