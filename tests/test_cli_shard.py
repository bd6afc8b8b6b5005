"""`--shard I/N` from end to end: four processes share a sweep, nothing runs twice, and a lost shard goes on."""

import json
import multiprocessing
import shutil
import sys
import warnings
from pathlib import Path

import pytest

from dsv4bench.cli_resume import resume_command
from dsv4bench.profiling import kernel_recording, sweep
from dsv4bench.profiling.recording import unmeasured
from dsv4bench.results.compare import without_place
from dsv4bench.results.store import Store, read_records
from tests.command_line import be_the_only_rank, command_line, tiny_config
from tests.results.kernel_records import unable

STEP = ("--extend", "4", "--prefix", "60", "--samples", "1", "--no-graph", "--reuse", "on", "--device", "cpu")
KERNEL = ("kernels", "rms_norm", "--case", "width 512", "--provider", "torch", "--device", "cpu")


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command in an empty directory beside a tiny model."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    tiny_config(tmp_path)
    return command_line(monkeypatch, capsys)


@pytest.fixture
def prefill(run, tmp_path):
    return lambda *arguments: run("prefill", "--geometry", tmp_path / "tiny.json", *STEP, *arguments)


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch):
    """Let a sweep take no time: every cell is skipped."""

    def steps(plan, session, **_):
        for group in plan:
            yield [unmeasured(cell, session, "skipped", "not run here") for cell in group]

    def kernels(plan, session, done, _):
        for group in (group for group in plan if not kernel_recording.finished(group, session, done)):
            own = [{"key": cell.key(session.commit), "group": cell.group, "argv": list(session.argv)} for cell in group]
            yield [
                unable(cell.provider, name=cell.kernel, case=cell.case, rows=cell.rows, **one)
                for cell, one in zip(group, own, strict=True)
            ]

    monkeypatch.setattr(sweep, "run", steps)
    monkeypatch.setattr(kernel_recording, "run", kernels)


def at_once(command, arguments):
    """Run a command with each of `arguments` in a process of its own, all at the same time; return their exit codes."""
    context = multiprocessing.get_context("fork")  # torch is loaded already
    begin = context.Barrier(len(arguments))

    def one(own):
        begin.wait()
        sys.exit(command(*own).code)

    processes = [context.Process(target=one, args=(own,)) for own in arguments]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork where threads run, from Python 3.12 on
        for process in processes:
            process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def batches(folder):
    return sorted(record.batch["requests"] for record in read_records(Path(folder)).records)


# four at once


SHARES = [("--shard", f"{one}/4") for one in (1, 2, 3, 4)]


def test_four_processes_share_a_sweep_and_one_folder(run):
    def kernels(*arguments):
        return run(*KERNEL, "--rows", "1..16", *arguments)

    assert at_once(kernels, [("--out", "all", *share) for share in SHARES]) == [4] * 4  # all skipped
    assert sorted(path.name for path in Path("all").iterdir()) == [f"shard-{one}-of-4" for one in (1, 2, 3, 4)]
    reading = read_records(Path("all"))
    assert sorted(record.kernel["rows"] for record in reading.records) == [1, 2, 4, 8, 16]
    assert reading.warnings == []
    again = kernels("--resume", "all", "--json")
    assert [one["kernel"]["rows"] for one in json.loads(again.out)] == [1, 2, 4, 8, 16]
    assert len(read_records(Path("all")).records) == 5  # nothing was left to run


def test_four_processes_go_on_with_a_run_at_once(prefill):
    assert prefill("--batch", "2,8", "--out", "old").code == 4
    (before,) = Path("old").glob("*.jsonl")
    lines = before.read_bytes()
    before.write_bytes(lines + lines[:100])  # the process was killed while it wrote
    codes = at_once(prefill, [("--batch", "1..16", "--resume", "old", *share) for share in SHARES])
    assert codes == [4] * 4
    assert batches("old") == [1, 2, 4, 8, 16]
    assert before.read_bytes() == lines + lines[:100]


# ranks


def test_a_share_runs_on_ranks_and_goes_on_from_all_shares(prefill, monkeypatch):
    be_the_only_rank(monkeypatch)
    sweeps = [("--batch", "1..8", "--dep", "1", "--shard", f"{one}/3", "--quiet") for one in (1, 2)]
    assert [prefill(*words, "--out", "all").code for words in sweeps] == [4] * 2  # all skipped
    assert sorted(path.name for path in Path("all").iterdir()) == ["shard-1-of-3", "shard-2-of-3"]
    assert len(batches("all")) == 3
    found = prefill("--batch", "1..8", "--dep", "1", "--shard", "1/1", "--resume", "all", "--json")
    assert found.err.splitlines()[0] == "shard 1/1: 4 of 4 groups"
    assert batches("all") == [1, 2, 4, 8]
    assert len(batches("all/shard-1-of-1")) == 1


# one share


def test_shares_of_both_commands_are_the_whole(run, prefill):
    for one in (1, 2, 3):
        assert prefill("--batch", "1..8", "--out", "steps", "--shard", f"{one}/3").code == 4  # all skipped
        assert run(*KERNEL, "--rows", "2,3,4", "--out", "kernels", "--shard", f"{one}/3").code == 4
    assert batches("steps") == [1, 2, 4, 8]
    found = read_records(Path("kernels")).records
    assert sorted(record.kernel["rows"] for record in found) == [2, 3, 4]
    shown = run("show", "kernels").out
    assert shown.count("rms_norm: measured") == 1  # three folders, one table
    assert sorted(line.split()[2] for line in shown.splitlines() if line.startswith("width")) == ["2", "3", "4"]


def test_a_share_says_what_it_is_and_shows_its_own(prefill):
    first = prefill("--batch", "1..8", "--out", "all", "--shard", "1/3", "--json")
    assert first.err.splitlines() == ["shard 1/3: 2 of 4 groups", "records: all/shard-1-of-3"]
    second = prefill("--batch", "1..8", "--resume", "all", "--shard", "2/3", "--json", "--quiet")
    assert second.err == ""
    shown = [{one["batch"]["requests"] for one in json.loads(found.out)} for found in (first, second)]
    assert [len(one) for one in shown] == [2, 1]
    assert not shown[0] & shown[1]


def test_the_plan_of_a_share_is_that_share(prefill):
    plans = [json.loads(prefill("--batch", "1..8", "--shard", f"{one}/3", "--dry-run", "--json").out) for one in (1, 2)]
    assert [len(plan) for plan in plans] == [2, 1]
    assert "shard 1/3: 2 of 4 groups" in prefill("--batch", "1..8", "--shard", "1/3", "--dry-run").out.splitlines()


@pytest.mark.parametrize("command", ["prefill", "kernels"])
def test_a_share_of_nothing_is_one_line_and_exit_code_4(run, prefill, command):
    if command == "prefill":
        found = prefill("--batch", "1,2", "--out", "all", "--shard", "3/4", "--quiet")
    else:
        found = run(*KERNEL, "--rows", "2,3", "--out", "all", "--shard", "3/4", "--quiet")
    assert (found.code, found.out, found.err) == (4, "", "shard 3/4: none of 2 groups\n")
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("prefill --shard 3/2", "--shard 3/2: expected I/N with I from 1 to N, e.g. 2/2"),
        ("prefill --shard 0/4 --dry-run", "--shard 0/4: expected I/N with I from 1 to N, e.g. 1/4"),
        ("prefill --shard two", "--shard two: expected I/N, e.g. 2/4 for the second of four shares"),
        ("kernels rms_norm --shard 5/4", "--shard 5/4: expected I/N with I from 1 to N, e.g. 4/4"),
        ("kernels rms_norm --once --shard 1/2", "--shard: --once times nothing and keeps no records"),
        ("kernels rms_norm --digest --shard 1/2", "--shard: --digest times nothing and keeps no records"),
    ],
)
def test_a_wrong_share_is_one_line_and_exit_code_2(run, typed, expected):
    found = run(*typed.split(), "--device", "cpu")
    assert (found.code, found.out, found.err) == (2, "", f"dsv4bench: {expected}\n")
    assert list(Path().iterdir()) == []


# going on


def test_an_interrupted_share_goes_on_as_that_share(prefill, run, monkeypatch):
    honest = Store.append

    def stopped(store, record):
        if record.batch["requests"] > 2:
            raise KeyboardInterrupt
        honest(store, record)

    monkeypatch.setattr(Store, "append", stopped)
    found = prefill("--batch", "1..8", "--out", "all", "--shard", "1/1")
    assert found.code == 130
    command = found.err.splitlines()[-1].split()
    assert command[-4:] == ["--shard", "1/1", "--resume", "all/shard-1-of-1"]
    monkeypatch.setattr(Store, "append", honest)
    assert run(*command[1:]).code == 4
    assert batches("all") == [1, 2, 4, 8]


def test_the_same_command_is_known_whatever_its_share_and_place():
    typed = ["dsv4bench", "prefill", "--shard", "2/4", "--batch", "8", "--out=x", "--shard=3/4", "-q"]
    assert without_place(typed) == without_place([*typed, "--time-limit", "10m"])
    assert without_place(typed) == ["dsv4bench", "prefill", "--batch", "8", "-q"]
    pairs = ["dsv4bench", "ab", "prefill", "--time-limit", "60"]  # how many there are
    assert without_place([*pairs, "--md", "pr.md", "--out=x"]) == pairs
    assert resume_command([*pairs[1:], "--md", "pr.md"], Path("x")).endswith(" --md pr.md --resume x")
    assert resume_command(typed[1:], Path("x")) == "dsv4bench prefill --shard 2/4 --batch 8 --shard=3/4 -q --resume x"


def test_a_trace_of_a_share_is_of_its_largest_cells(prefill, monkeypatch):
    """The recording process plans the whole sweep again, so that it must be told the place in the whole."""
    seen = []

    def profiled(job, folder, name, device):
        seen.append((job.group, job.cell))
        return "a-trace"

    monkeypatch.setattr("dsv4bench.cli_profile._profiled", profiled)
    largest = []
    for one in (1, 2):
        plan = prefill("--batch", "1..8", "--shard", f"{one}/2", "--json", "--out", "all", "--profile", "torch").out
        largest.append(max(cell["batch"]["requests"] for cell in json.loads(plan)))
    assert seen == [([1, 2, 4, 8].index(requests), 0) for requests in largest]
    shutil.rmtree("all")
