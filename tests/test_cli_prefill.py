"""The main command from end to end on a tiny model: what it prints, keeps, resumes and says by its exit code."""

import json
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4bench.cli_prefill import exit_code
from dsv4bench.cli_resume import resume_command
from dsv4bench.profiling.group import GroupRun
from dsv4bench.profiling.recording import unmeasured
from dsv4bench.results.store import Store, read_records
from tests.command_line import HERE, command_line, tiny_config
from tests.results.synthetic import NOTHING, cpu_sweep, record, row, sweep
from tests.source_tree import ROOT

QUICK = ("--extend", "4", "--prefix", "60", "--samples", "1")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return tiny_config(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run(monkeypatch, capsys, tmp_path, config):
    """Run prefill in an empty directory; `lengths` alone leaves lengths and samples to the caller."""
    monkeypatch.chdir(tmp_path)
    command = command_line(monkeypatch, capsys)

    def prefill(*arguments, lengths=QUICK):
        return command("prefill", "--geometry", config, *lengths, *arguments)

    return prefill


# what is printed and kept


def test_a_run_prints_tables_and_keeps_every_record(run, tmp_path):
    found = run()
    assert found.code == 0
    assert "no other kernel or copy added: true" in found.out
    assert "all  dequant_compressed  eager  2 -> 1" in found.out
    assert "all  dequant_swa         eager  2 -> 2" in found.out
    assert "tape: the semantics of a CUDA graph on a CPU" in found.out
    assert "a CPU" in found.out
    assert "\x1b" not in found.out
    assert max(map(len, found.out.splitlines())) <= 80
    (folder,) = (tmp_path / "results").iterdir()
    assert folder.name.endswith("Z-prefill")
    assert found.err.splitlines() == ["[1/1] batch 1, 4 rows, v41+fp4", f"records: results/{folder.name}"]
    records = read_records(folder).records
    assert [one.status for one in records] == ["ok"] * 4
    assert {one.environment["commit"] for one in records} == {HERE["commit"]}
    assert records[0].argv[:2] == ["dsv4bench", "prefill"]


def test_json_is_one_array_of_the_records_that_were_kept(run, tmp_path):
    found = run("--no-graph", "--out", "run", "--json")
    assert found.code == 0
    printed = json.loads(found.out)
    (file,) = (tmp_path / "run").glob("*.jsonl")
    assert printed == [json.loads(line) for line in file.read_text().splitlines()]
    off, on = printed
    assert (off["variant"]["reuse"], on["variant"]["reuse"]) == ("off", "on")
    assert off["variant"]["graph"] is False
    assert {line["op"]: line["calls"] for line in on["counts"]}["sparse_attention"] == 2
    assert set(on["counts"][0]) == {"op", "kv_source", "where", "calls", "kernels", "copies", "sets", "aten_ops"}


def test_quiet_leaves_nothing_on_stderr(run):
    found = run("--no-graph", "--reuse", "on", "--quiet", "--format", "csv")
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith("# KV dequants per forward, reuse on")


def test_lengths_of_a_cpu_are_the_defaults_and_the_output_says_so(run):
    found = run("--no-graph", "--reuse", "on", "--json", lengths=())
    (one,) = json.loads(found.out)
    assert (one["batch"]["extend"], one["batch"]["prefix"]) == (8, 120)
    assert len(one["samples_ns"]["step_period"]) == 3
    assert "defaults on a CPU: --extend 8, --prefix 120, one warm-up and three samples" in one["note"]


def test_recorded_requests_are_divided_and_the_output_says_so(run, tmp_path):
    file = tmp_path / "requests.jsonl"
    file.write_text('{"input_length": 640, "hash_ids": [1, 2]}\n{"input_length": 1280, "hash_ids": [1, 2, 3]}\n')
    found = run("--requests", "requests.jsonl", "--batch", "2", "--reuse", "on", "--no-graph", lengths=("--quick",))
    assert found.code == 0
    words = " ".join(found.out.split())
    assert "lengths and the chunk of 8192 of requests.jsonl are divided by 64 on a CPU" in words
    assert "requests from requests.jsonl" in words


# a dry run


def test_a_dry_run_prints_a_modelled_plan_and_runs_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setattr("dsv4bench.profiling.sweep.run", lambda *_: pytest.fail("a dry run runs nothing"))
    found = run("--batch", "1..4", "--dry-run")
    assert (found.code, found.err) == (0, "")
    head, columns, *rows = found.out.splitlines()
    assert head.startswith("plan: 12 cells of the attention stack, about ")
    assert head.endswith("(modelled)")
    assert columns.split()[:5] == ["batch", "rows", "fwd", "mode", "reuse"]
    assert [row.split()[:5] for row in rows[:4]] == [
        ["1", "4", "1", mode, reuse] for mode in ("eager", "tape") for reuse in ("off", "on")
    ]
    words = " ".join(found.out.split())
    assert (
        "prefix 60, chunk 8192, ranks 1, kv v41+fp4, breaks sm100, break outputs copy, compressor fused, provider torch"
    ) in words
    assert "modelled at assumed CPU rates, nothing of it measured here" in words
    assert "Saving of reuse per step, attention stack (modelled)" in words
    assert max(map(len, found.out.splitlines())) <= 80
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_says_what_the_graph_refuses(run):
    found = run("--dry-run", "--format", "md", lengths=("--extend", "1", "--prefix", "60,17000"))
    assert "the graph refuses: bucket 4 is over 2 times the 1 tokens" in found.out
    assert found.out.startswith("**plan: 8 cells of the attention stack")
    assert found.out.count("| tape | off | refused |  |") == 2


def test_the_time_of_a_plan_leaves_out_what_the_graph_refuses(run):
    lengths = ("--extend", "1", "--prefix", "60", "--samples", "1")
    both, eager = (json.loads(run("--dry-run", "--json", *mode, lengths=lengths).out) for mode in ((), ("--no-graph",)))
    assert [one["status"] for one in both] == ["planned", "planned", "refused", "refused"]
    returned = 4 * 512 * 2  # what a break returns of one row: four heads of 512 channels, or kv | score
    assert [one | {"memory_bytes": one["memory_bytes"] - returned} for one in both[:2]] == eager
    titles = [run("--dry-run", *mode, lengths=lengths).out.splitlines()[0] for mode in ((), ("--no-graph",))]
    assert titles[0].split("about")[1] == titles[1].split("about")[1]


def test_a_dry_run_as_json_is_plain_objects_labelled_modelled(run, tmp_path):
    found = run("--batch", "1,2", "--no-graph", "--dry-run", "--json")
    assert (found.code, found.err) == (0, "")
    plan = json.loads(found.out)
    assert [(one["label"], one["requests"], one["reuse"]) for one in plan] == [
        ("modelled", batch, reuse) for batch in (1, 2) for reuse in ("off", "on")
    ]
    lines = run("--batch", "1,2", "--no-graph", "--dry-run", "--format", "jsonl").out.splitlines()
    assert [json.loads(line) for line in lines] == plan
    assert list(tmp_path.iterdir()) == []


# exit codes


@pytest.mark.parametrize("fault", ["wrong-row", "extra-copy"])
def test_a_planted_fault_ends_with_code_1(run, fault):
    found = run("--no-graph", "--fault", fault)
    assert found.code == 1
    if fault == "wrong-row":
        assert "WRONG" in found.out
        assert "reused heads: 1 of 1 reused heads differ, first in layer 1" in " ".join(found.out.split())
    else:
        assert "no other kernel or copy added: false" in found.out
        assert "added: other (kv_source 0, eager)" in found.out


def test_a_run_that_measures_nothing_ends_with_code_4(run):
    found = run("--graph", lengths=("--extend", "1", "--prefix", "60"))
    assert found.code == 4
    assert "refused" in found.out


def test_a_group_that_fails_is_a_row_and_the_sweep_goes_on(run, monkeypatch):
    honest = GroupRun.verify

    def verify(group, again=False):
        if len(group.runs[0].cell.load.requests) == 1:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        honest(group, again)

    monkeypatch.setattr(GroupRun, "verify", verify)
    found = run("--no-graph", "--batch", "1,2", "--json")
    assert found.code == 1
    assert [one["status"] for one in json.loads(found.out)] == ["failed", "failed", "ok", "ok"]
    assert json.loads(found.out)[0]["reason"] == "RuntimeError: CUDA error: an illegal memory access was encountered"


LOST = {"reason": "a reason", **NOTHING}
COVERED = {"attributed": 9, "unattributed": 0, "ambiguous": 0, "lost": 0, "disagreement": None}


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (sweep(), 0),
        (cpu_sweep(), 0),
        ([], 4),
        ([replace(record(), status="refused", **LOST)], 4),
        ([replace(record(), status="out_of_memory", **LOST)], 4),
        ([record(), replace(record(8), status="out_of_memory", **LOST)], 0),
        ([record(), replace(record(8), status="failed", **LOST)], 1),
        ([record(), replace(record(8), status="wrong", **LOST)], 1),
        ([record(reuse="off"), record(counts=[*record().counts, row("other", 2, "eager", 0, copies=1)])], 1),
        ([record(coverage=COVERED)], 0),
        ([record(coverage={**COVERED, "unattributed": 1})], 3),
        ([record(coverage={**COVERED, "ambiguous": 1})], 3),
        ([record(coverage={**COVERED, "lost": 1})], 3),
        ([record(coverage={**COVERED, "disagreement": "4 and 5"})], 3),
        ([record(coverage={**COVERED, "lost": 1}), replace(record(8), status="wrong", **LOST)], 1),
    ],
    ids=[
        *("ok with a refused one", "on a CPU", "nothing", "all refused", "all out of memory", "one out of memory"),
        *("failed", "wrong", "something added", "covered", "unattributed", "ambiguous", "lost", "disagreement"),
        "the gravest counts",
    ],
)
def test_the_exit_code_that_records_earn(records, code):
    assert exit_code(records) == code


# resuming


@pytest.fixture
def pretended(monkeypatch):
    """Groups that are not run: every cell is skipped."""

    def run_group(group, model, session, progress):
        progress("pretend")
        return [unmeasured(cell, session, "skipped", "pretended") for cell in group]

    monkeypatch.setattr("dsv4bench.profiling.sweep.run_group", run_group)


def test_resume_skips_what_is_there_and_prints_it_all(run, tmp_path, pretended):
    first = run("--no-graph", "--batch", "1", "--out", "run")
    (file,) = (tmp_path / "run").glob("*.jsonl")
    before = file.read_text()
    again = run("--no-graph", "--batch", "1,2", "--resume", "run", "--json")
    assert (first.code, again.code) == (4, 4)
    assert again.err.splitlines()[0] == "[1/1] batch 2, 8 rows, v41+fp4"
    printed = json.loads(again.out)
    assert [one["batch"]["requests"] for one in printed] == [1, 1, 2, 2]
    files = sorted((tmp_path / "run").glob("*.jsonl"))
    assert sorted(len(file.read_text().splitlines()) for file in files) == [2, 2]
    assert before in [file.read_text() for file in files]
    done = run("--no-graph", "--batch", "2,1", "--resume", "run", "--json")
    assert done.err.splitlines() == ["records: run"]  # nothing was left to run; the order is the plan's
    assert [one["batch"]["requests"] for one in json.loads(done.out)] == [2, 2, 1, 1]


def test_another_commit_measures_anew_and_is_not_mixed(run, monkeypatch, pretended):
    run("--no-graph", "--out", "run")
    monkeypatch.setitem(HERE, "commit", "beef" * 10)
    found = run("--no-graph", "--resume", "run", "--json")
    assert found.err.splitlines()[0] == "[1/1] batch 1, 4 rows, v41+fp4"
    assert {one["environment"]["commit"] for one in json.loads(found.out)} == {"beef" * 10}
    assert len(read_records(Path("run")).records) == 4


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ("prefill", "dsv4bench prefill --resume DIR"),
        ("prefill --out x --batch 1..64", "dsv4bench prefill --batch 1..64 --resume DIR"),
        ("prefill --batch 2 --out=x", "dsv4bench prefill --batch 2 --resume DIR"),
        ("prefill --resume x -q", "dsv4bench prefill -q --resume DIR"),
        ("prefill --resume=x --out", "dsv4bench prefill --resume DIR"),
    ],
)
def test_the_command_that_resumes_is_the_same_one_with_its_directory(typed, command):
    assert resume_command(typed.split(), Path("DIR")) == command


def test_the_command_that_resumes_can_be_pasted():
    command = resume_command(["prefill", "--requests", "it's.jsonl"], Path("a folder"))
    assert shlex.split(command) == ["dsv4bench", "prefill", "--requests", "it's.jsonl", "--resume", "a folder"]


def test_ctrl_c_prints_the_command_that_goes_on(run, tmp_path, config, pretended, monkeypatch):
    honest = Store.append
    appended = []

    def append(store, record):
        if len(appended) == 3:
            raise KeyboardInterrupt
        appended.append(record)
        honest(store, record)

    monkeypatch.setattr(Store, "append", append)
    found = run("--no-graph", "--batch", "1,2", "--out", "run")
    assert (found.code, found.out) == (130, "")
    assert found.err.splitlines()[-2:] == [
        "interrupted: kept in run: 3 new records; go on with",
        f"  dsv4bench prefill --geometry {config} {' '.join(QUICK)} --no-graph --batch 1,2 --resume run",
    ]
    assert len(read_records(tmp_path / "run").records) == 3


# a run with a time limit


def test_the_time_limit_leaves_cells_out_that_the_printed_command_measures(run, tmp_path, config, monkeypatch, capsys):
    typed = ("--no-graph", "--batch", "1,2,3", "--time-limit", "0.000001")
    found = run(*typed, "--out", "run")
    assert found.code == 3
    assert found.err.splitlines()[-2:] == [
        "stopped at --time-limit 0.000001: 4 cells not measured; go on with",
        f"  dsv4bench prefill --geometry {config} {' '.join(QUICK)} {' '.join(typed)} --resume run",
    ]
    statuses = [(one.batch["requests"], one.status) for one in read_records(tmp_path / "run").records]
    assert statuses == [(1, "ok")] * 2 + [(2, "skipped")] * 2 + [(3, "skipped")] * 2
    command = command_line(monkeypatch, capsys)
    assert command(*shlex.split(found.err.splitlines()[-1])[1:]).code == 3  # one group more, as the first always runs
    last = run("--no-graph", "--batch", "1,2,3", "--resume", "run")
    assert (last.code, last.err.splitlines()[0]) == (0, "[1/1] batch 3, 12 rows, v41+fp4")
    assert "--time-limit was over" not in last.out + command("show", "run").out


def test_a_time_limit_must_be_one(run):
    assert run("--time-limit", "soon", "--dry-run").slip.startswith("--time-limit soon: expected seconds above 0")


# a process that is stopped

REAL = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests with Ctrl-C ignored
sys.argv = ["dsv4bench", *sys.argv[1:]]
from dsv4bench.cli import main
main()
"""
PRETENDED = """
import time
from dsv4bench.profiling import sweep
from dsv4bench.profiling.recording import unmeasured
def run_group(group, model, session, progress):
    time.sleep(0.05)
    return [unmeasured(cell, session, "skipped", "pretended") for cell in group]
sweep.run_group = run_group
"""


def stopped(script, arguments, folder, records, sign):
    """Start a command, send it a signal once so many records are kept; return its code and what it printed."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while kept(folder) < records:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.send_signal(sign)
        out, err = process.communicate()
    return process.returncode, out, err


def kept(folder):
    """Lines that are on the disk."""
    return sum(file.read_bytes().count(b"\n") for file in folder.glob("*.jsonl"))


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """A package that is no checkout, as cells are keyed by its commit and others may work on this one."""
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))


def test_ctrl_c_keeps_what_is_finished_and_its_command_goes_on(config, tmp_path, installed, monkeypatch, capsys):
    folder = tmp_path / "run"
    typed = ("prefill", "--geometry", str(config), *QUICK, "--no-graph", "--batch", "1..6:+1")
    code, out, err = stopped(REAL, (*typed, "--out", folder), folder, records=2, sign=signal.SIGINT)
    assert (code, out) == (130, "")
    assert "Traceback" not in err
    *progress, told, command = err.splitlines()
    before = kept(folder)
    assert told == f"interrupted: kept in {folder}: {before} new records; go on with"
    assert len(progress) <= 6
    assert 2 <= before < 12

    resumed = shlex.split(command)
    assert resumed == ["dsv4bench", *typed, "--resume", str(folder)]
    done = command_line(monkeypatch, capsys, here=None)(*resumed[1:], "--json")
    assert done.code == 0
    assert [one["batch"]["requests"] for one in json.loads(done.out)] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    first, *_ = done.err.splitlines()
    assert first.startswith(f"[1/{6 - before // 2}] batch {before // 2 + 1}, ")
    assert kept(folder) == 12 + before % 2  # half a group is run again, so that both sides are neighbours


def test_kill_9_loses_no_finished_cell(config, tmp_path, installed):
    folder = tmp_path / "run"
    typed = ("prefill", "--geometry", config, *QUICK, "--batch", "1..200:+1", "--out", folder)
    code, out, _ = stopped(PRETENDED + REAL, typed, folder, records=7, sign=signal.SIGKILL)
    assert (code, out) == (-signal.SIGKILL, "")
    reading = read_records(folder)
    assert len(reading.records) == kept(folder) >= 7
    assert len(reading.warnings) <= 1  # of the line that was being written
    finished = [one.batch["requests"] for one in reading.records]
    assert finished == [1 + place // 4 for place in range(len(finished))]
