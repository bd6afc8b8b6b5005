"""`prefill --profile`: what is run and kept, what a process under nsys is given, and what is said where it fails.

The nsys on the PATH is a script that writes down how it was called and exports secrets.
"""

import json
import os
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4bench import cli_profile
from dsv4bench.cli_profile import Profiles, profile_largest, recorder, reduced
from dsv4bench.cli_trace_run import Reading
from dsv4bench.errors import DsvError
from dsv4bench.profiling.profile_pass import Job, jobs_of, parse_job
from dsv4bench.profiling.rank_traces import record_ranks
from dsv4bench.ranges import parse_range
from dsv4bench.results.store import read_records
from dsv4bench.workloads.cells import cells
from dsv4bench.workloads.options import PrefillArguments, prefill_options
from tests.command_line import be_the_only_rank, command_line, tiny_config
from tests.profiling.thread_peers import on_ranks

FAKE = f"""#!{sys.executable}
import json, os, sqlite3, sys, time
words = sys.argv[1:]
base = words[words.index("-o") + 1]
mode = open(os.path.join(os.path.dirname(os.path.realpath(__file__)), "mode")).read()
if words[0] == "profile":
    if mode == "sleep":
        time.sleep(60)
    if mode == "fail":
        sys.exit("one line\\nnsys cannot do this")
    with open(base + (".qdstrm" if mode == "raw" else ".nsys-rep"), "w") as file:
        json.dump([words, dict(os.environ)], file)
else:
    called = json.load(open(words[-1]))
    with sqlite3.connect(base) as file:
        file.execute("CREATE TABLE NVTX_EVENTS (eventType, text)")
        file.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?)", [75 if mode == "deaf" else 59, json.dumps(called)])
        file.execute("CREATE TABLE META_DATA_CAPTURE (name, value)")
        rows = [("ENVIRONMENT:" + name, value) for name, value in called[1].items()]
        file.executemany("INSERT INTO META_DATA_CAPTURE VALUES (?, ?)", [("CAPTURE_EVENT_TYPE", "NvtxEvents"), *rows])
"""
SECRETS = {"API_TOKEN": "hunter2", "TRITON_CACHE_DIR": "kept/for/triton"}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return tiny_config(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run(monkeypatch, capsys, tmp_path, config):
    """Run a prefill of eager cells with reuse on, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    command = command_line(monkeypatch, capsys)
    lengths = ("--extend", "4", "--prefix", "60", "--samples", "1", "--no-graph", "--reuse", "on")
    return lambda *words, to="--out": command("prefill", "--geometry", config, *lengths, to, "out", *words)


@pytest.fixture
def nsys(monkeypatch, tmp_path):
    """Put the script on the PATH; the function says what it does: "" or one of `FAILURES`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script, mode = folder / "nsys", folder / "mode"
    script.write_text(FAKE)
    script.chmod(0o755)
    mode.write_text("")
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    return mode.write_text


@pytest.fixture
def made(monkeypatch):
    """Stand for the processes: every command is noted, and what it was to write is there."""
    commands = []

    def run(command, environment, timeout_s):
        commands.append(command)
        job = parse_job(command[-1])
        Path(job.file).write_text("a trace", encoding="utf-8")

    monkeypatch.setattr(cli_profile, "run_process", run)
    return commands


def test_each_cell_of_the_largest_group_is_recorded_in_a_process_of_its_own(run, made, tmp_path):
    found = run("--batch", "1,2", "--reuse", "both", "--profile", "torch")
    assert found.code == 0
    assert [command[1:3] for command in made] == [["-m", "dsv4bench.profiling.profile_pass"]] * 2
    jobs = [parse_job(command[-1]) for command in made]
    assert [(job.group, job.cell, job.tool) for job in jobs] == [(1, 0, "torch"), (1, 1, "torch")]
    assert {job.arguments.extend[0] for job in jobs} == {"4"}
    records = read_records(tmp_path / "out").records
    named = {(one.batch["requests"], one.variant["reuse"]): one.traces for one in records}
    assert named[1, "off"] == named[1, "on"] == []
    for reuse in ("off", "on"):
        (name,) = named[2, reuse]
        assert name.startswith(f"eager-reuse-{reuse}-")
        assert name.endswith(".json.gz")
        assert (tmp_path / "out" / name).read_text() == "a trace"
        assert f"trace: out/{name}" in found.err
    assert "--profile torch on a CPU: ranges and aten operations, no device operation" in found.err


def test_a_cell_that_is_finished_is_not_recorded_again(run, made):
    run("--profile", "torch")
    made.clear()
    assert run("--profile", "torch", to="--resume").code == 0
    assert made == []


@pytest.fixture
def recorded(tmp_path, config):
    """Record the one cell of a plan under nsys; return what came of it and the folder of the records."""
    folder = tmp_path / "out"
    folder.mkdir()
    typed = PrefillArguments(geometry=str(config), extend="4", prefix="60", graph=False, reuse="on", device="cpu")
    plan = cells(prefill_options(typed))
    return lambda: (profile_largest(plan, plan, typed, "nsys", folder, lambda cell: "0123456789"), folder)


def test_nsys_leaves_an_export_without_the_environment_and_no_report(recorded, nsys):
    found, folder = recorded()
    assert found == Profiles({"0123456789": ["eager-reuse-on-01234567.sqlite"]}, [])
    (path,) = folder.iterdir()
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT * FROM META_DATA_CAPTURE").fetchall() == [("CAPTURE_EVENT_TYPE", "NvtxEvents")]
        ((called,),) = file.execute("SELECT text FROM NVTX_EVENTS").fetchall()
    words, environment = json.loads(called)
    assert words[:3] == ["profile", "-t", "nvtx"]
    assert words[-3:-1] == ["-m", "dsv4bench.profiling.profile_pass"]
    assert parse_job(words[-1]).tool == "nsys"
    assert "API_TOKEN" not in environment
    assert environment["TRITON_CACHE_DIR"] == "kept/for/triton"
    assert b"hunter2" not in path.read_bytes()


FAILURES = {
    "fail": "nsys cannot do this",
    "sleep": "not done after 0.3 s",
    "raw": "nsys wrote no report (a bare collector has no importer: install the package nsight-systems too)",
    "deaf": "nsys recorded no range: it is older than the NVTX of the package nvtx; take a newer nsys",
}


@pytest.mark.parametrize(("mode", "said"), FAILURES.items(), ids=FAILURES)
def test_a_pass_that_fails_is_one_line_and_leaves_nothing(recorded, nsys, monkeypatch, mode, said):
    nsys(mode)
    monkeypatch.setattr(cli_profile, "TIMEOUT_S", 0.3 if mode == "sleep" else 60)
    found, folder = recorded()
    assert found == Profiles({}, [f"no trace of eager reuse on: {said}"])
    assert list(folder.iterdir()) == []


def test_after_a_pass_that_failed_the_cells_are_measured_and_the_exit_code_is_1(run, nsys, tmp_path):
    nsys("fail")
    found = run("--profile", "nsys")
    assert found.code == 1
    assert "no trace of eager reuse on: nsys cannot do this" in found.err.splitlines()
    (record,) = read_records(tmp_path / "out").records
    assert (record.status, record.traces) == ("ok", [])


# ranks


def test_ranks_record_one_step_together_and_are_reviewed_as_one_run(tmp_path, config):
    lengths = {"extend": "4", "prefix": "60", "batch": "3"}
    typed = PrefillArguments(geometry=str(config), graph=True, reuse="on", device="cpu", dep="2", **lengths)
    plan = cells(prefill_options(typed))
    folder = tmp_path / "cell"

    def work(peers):
        ((cell, job),) = jobs_of(plan, plan, typed, "torch", local_rank=peers.rank)
        started = {"RANK": str(peers.rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(peers.rank)}
        launcher = {"TORCHELASTIC_USE_AGENT_STORE": "True"}  # would send the process to a store that is not there
        record = recorder("localhost", {"PATH": os.defpath, **started, **launcher})
        return record_ranks(peers, cell, job, record, None if peers.rank else folder)

    assert on_ranks(2, work) == [None, None]
    ranks = Reading(None, "", "off", "push-pop").placed(folder)
    assert [(placed.trace.rank, len(placed.told)) for placed in ranks] == [(0, 1), (1, 1)]
    for rank, placed in enumerate(ranks):  # breaks of 8 and of 4 rows: as many on both ranks
        texts = (placed.trace.strings[text] for text in placed.trace.annotations["text"])
        found = [rng for text in texts if (rng := parse_range(text)) is not None]  # gloo has ranges too
        assert {one.rank for one in found} == {rank}
        assert Counter(one.op for one in found)["sparse_attention"] == 2


def test_a_record_of_ranks_names_the_folder_of_its_traces(run, made, monkeypatch, tmp_path):
    be_the_only_rank(monkeypatch)
    found = run("--dep", "1", "--batch", "1,2", "--profile", "torch")
    assert found.code == 0
    small, large = read_records(tmp_path / "out").records
    (name,) = large.traces
    assert small.traces == []
    assert name == f"eager-reuse-on-{large.key[:8]}"
    assert [file.name for file in (tmp_path / "out" / name).iterdir()] == ["rank0.json.gz"]
    assert found.err.splitlines()[:2] == [
        "--profile torch on a CPU: ranges and aten operations, no device operation",
        f"dsv4bench: traces of 1 rank: {tmp_path / 'out' / name}",
    ]


def test_ranks_without_a_trace_are_measured_and_the_exit_code_is_1(run, monkeypatch, tmp_path):
    be_the_only_rank(monkeypatch)

    def fails(*_):
        raise DsvError("no room")

    monkeypatch.setattr(cli_profile, "run_process", fails)
    found = run("--dep", "1", "--profile", "torch", "--quiet")
    assert found.code == 1
    assert found.err == "dsv4bench: no trace of eager reuse on: rank 0: no room\n"
    (record,) = read_records(tmp_path / "out").records
    assert (record.status, record.traces) == ("ok", [])


def test_a_rank_under_nsys_is_told_where_the_others_are_and_no_secret(nsys, tmp_path):
    started = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_PORT": "29400", "TORCHELASTIC_RUN_ID": "x"}
    job = Job(PrefillArguments(), 0, 0, "nsys", local_rank=1)
    name, content = recorder("node0", {**started, **SECRETS})(job, "cpu", 29501)
    assert name == "rank3.sqlite"
    (tmp_path / name).write_bytes(content)
    with closing(sqlite3.connect(tmp_path / name)) as file:
        ((called,),) = file.execute("SELECT text FROM NVTX_EVENTS").fetchall()
    words, environment = json.loads(called)
    assert parse_job(words[-1]) == replace(job, starter=os.getpid())
    meeting = {"MASTER_ADDR": "node0", "MASTER_PORT": "29501", "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    assert meeting.items() <= environment.items()
    assert not {"API_TOKEN", "TORCHELASTIC_RUN_ID"} & environment.keys()


WRONG = {
    "an unknown tool": ("nsight", "--profile nsight: expected one of torch, nsys"),
    "no nsys here": ("nsys", "--profile nsys: nsys is not installed here: install Nsight Systems"),
}


@pytest.mark.parametrize(("tool", "said"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_recorded_is_one_line_before_anything_runs(run, monkeypatch, tmp_path, tool, said):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = run("--profile", tool)
    assert found.code == 2
    assert said in found.err
    assert len(found.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_without_the_nvtx_package_nsys_would_see_no_range(run, nsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = run("--profile", "nsys")
    assert (found.code, "pip install nvtx" in found.err) == (2, True)


def test_ranges_need_what_compilers_and_caches_are_found_by_and_nothing_else():
    given = {"PATH": "p", "HOME": "h", "CUDA_HOME": "c", "SGLANG_OPT": "1", "RANK": "3", "NCCL_DEBUG": "WARN"}
    assert reduced({**given, "AWS_SECRET": "x", "SSH_AUTH_SOCK": "y"}) == given
