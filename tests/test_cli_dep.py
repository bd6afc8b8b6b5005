"""`prefill --dep`: who this process is, what is refused before anything starts, and runs of real processes."""

import json
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

from dsv4bench import cli_dep
from dsv4bench.results.compare import compare, pairs
from dsv4bench.results.store import read_records
from tests.command_line import be_the_only_rank, command_line, tiny_config
from tests.source_tree import ROOT
from tests.test_cli_place import SRUN

FIRST = {"RANK": "4", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}  # of the second of two hosts


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    config = tiny_config(tmp_path)
    command = command_line(monkeypatch, capsys)
    return lambda *words: command("prefill", "--geometry", config, "--extend", "4", "--prefix", "60", *words)


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        ("--dep 0", {}, "--dep 0: expected at least 1"),
        ("--dep two", {}, "--dep two: expected a whole number of at least 1"),
        ("--dep 5", {}, "--dep 5: 384 experts are not dealt evenly to 5 ranks; try 4"),
        ("--dep 2 --dep-simulated 2", {}, "--dep 2: --dep-simulated 2 runs ranks too; expected one"),
        ("--align free", {}, "--align free: there is one process; expected --dep N with it"),
        ("--dep 2 --align fre", {}, "--align fre: not known (did you mean 'free'?); known: barrier, free"),
        ("--dep 2 --profile nsight", {}, "--profile nsight: expected one of torch, nsys"),
        ("--dep 2 --shard 3/2", {}, "--shard 3/2: expected I/N with I from 1 to N, e.g. 2/2"),
        ("--dep 2", FIRST, "--dep 2: 8 processes were started; expected --dep 8"),
        ("--dep 8", {**FIRST, "RANK": "x"}, "RANK=x: expected a whole number, as torchrun and srun set it"),
        ("--dep 8", FIRST, "--dep 8: MASTER_ADDR is not set; expected the name of the host of rank 0"),
        ("--dep 2 --resume gone", {}, "--resume gone: no such directory"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_one_line(run, monkeypatch, words, environment, said):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = run(*words.split())
    assert (found.code, found.err.splitlines()[-1]) == (2, f"dsv4bench: {said}")


@pytest.mark.parametrize(
    ("gpus", "nccl", "said"),
    [
        (2, True, "--dep 4: this machine has 2 GPUs; expected at most 2"),
        (1, True, "--dep 4: this machine has 1 GPU; expected at most 1"),
        (4, False, "--dep 4: this torch has no NCCL; expected a CUDA build of torch, or --device cpu"),
    ],
)
def test_a_machine_must_hold_the_ranks(run, monkeypatch, gpus, nccl, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: nccl)
    found = run("--dep", "4", "--device", "cuda", "--provider", "torch")
    assert (found.code, found.err.splitlines()[-1]) == (2, f"dsv4bench: {said}")


def test_ranks_leave_out_what_the_time_limit_has_no_time_for(run, monkeypatch, tmp_path):
    be_the_only_rank(monkeypatch)
    found = run("--dep", "1", "--no-graph", "--batch", "1,2", "--time-limit", "0.001s", "--out", "out")
    assert found.code == 3
    assert found.err.splitlines()[-2] == "stopped at --time-limit 0.001s: 2 cells not measured; go on with"
    assert [one.status for one in read_records(tmp_path / "out").records] == ["ok"] * 2 + ["skipped"] * 2


def test_ctrl_c_tells_of_new_records_alone(run, monkeypatch, tmp_path):
    be_the_only_rank(monkeypatch)
    assert run("--dep", "1", "--no-graph", "--quiet", "--batch", "1", "--out", "out").code == 0
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(cli_dep, "_launch", lambda *_: 130)
    found = run("--dep", "1", "--no-graph", "--batch", "1,2", "--resume", "out")
    assert (found.code, found.err.splitlines()[0]) == (
        130,
        "interrupted: kept in out: 0 new records; go on with",
    )


# real processes


FAULTY = """
import os
import torch
import torch.distributed as dist

def norm(x, weight, eps, out):
    if dist.get_rank() == {rank} and x.shape[0] == 8:
        os.kill(os.getpid(), 9)
    if dist.get_rank() == {rank} and x.shape[0] == 16:
        x.sum().item()
    y = x.float()
    out.copy_(y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight.float())
"""


SIZES = [2, pytest.param(4, marks=pytest.mark.slow)]


def command(folder, *words, ranks=2):
    """A prefill of the tiny model on some ranks, into the folder `run`; a request has 4 rows."""
    lengths = ("--extend", "4", "--prefix", "60", "--quick", "--dep", str(ranks), "--out", str(folder / "run"))
    return [sys.executable, "-m", "dsv4bench", "prefill", "--geometry", str(tiny_config(folder)), *lengths, *words]


def ranks_left(folder):
    """The processes of ranks of a run in `folder` that are still there."""
    found = subprocess.run(["ps", "-eww", "-o", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in found.splitlines() if "dsv4bench.cli_dep_rank" in line and str(folder) in line]


@pytest.mark.parametrize("ranks", SIZES)
def test_ranks_run_a_sweep_and_rank_0_keeps_and_prints_it(tmp_path, ranks):
    """Eager and in a graph; one rank at least is idle with one request."""
    words = command(tmp_path, "--batch", "1,3", ranks=ranks)
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[:2] == ["[1/2] batch 1, 4 rows, v41+fp4", "[2/2] batch 3, 12 rows, v41+fp4"]
    assert "\nRanks, reuse off (before) and on (after)," in done.stdout
    records = read_records(tmp_path / "run").records
    assert [(one.batch["requests"], one.mode, one.variant["reuse"], one.status) for one in records] == [
        (batch, mode, reuse, "ok") for batch in (1, 3) for mode in ("eager", "tape") for reuse in ("off", "on")
    ]
    rows = {2: {(4, 0), (8, 4)}, 4: {(4, 0, 0, 0), (4, 4, 4, 0)}}
    assert {tuple(one.batch["rank_rows"]) for one in records} == rows[ranks]
    padded = {(1, 2): 8, (3, 2): 16, (1, 4): 16, (3, 4): 16}  # ranks x the bucket of the rank with most rows
    assert {(one.batch["requests"], one.batch["padded_rows"]) for one in records if one.mode == "tape"} == {
        (batch, padded[batch, ranks]) for batch in (1, 3)
    }
    for one in records:
        own = [samples["step_period"] for samples in one.rank_samples_ns]
        assert one.step_samples_ns == [max(times) for times in zip(*own, strict=True)]
    for pair in pairs(records, "reuse", "off", "on"):
        assert compare(pair).nothing_added


@pytest.mark.parametrize(
    ("ranks", "rank", "groups"),
    [(2, 1, 2), *(pytest.param(*one, 3, marks=pytest.mark.slow) for one in [(2, 0), (4, 0), (4, 3)])],
)
def test_a_rank_that_cannot_capture_or_is_killed_is_named_and_takes_nothing_else_with_it(tmp_path, ranks, rank, groups):
    """The third group needs ranks that are started again."""
    (tmp_path / "own.py").write_text(FAULTY.format(rank=rank))
    batches = [rows // 4 * ranks for rows in (16, 8, 4)][:groups]  # rows of a rank: no capture, killed, well
    words = ("--batch", ",".join(map(str, batches)), "--provider", f"rms_norm={tmp_path / 'own.py'}:norm")
    line = command(tmp_path, "--reuse", "on", *words, ranks=ranks)
    started = time.monotonic()
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert time.monotonic() - started < 90
    assert done.returncode == 1
    records = read_records(tmp_path / "run").records
    outcomes = [("ok", "failed"), ("failed", "failed"), ("ok", "ok")]
    assert [(one.batch["requests"], one.mode, one.status) for one in records] == [
        (batch, mode, status)
        for batch, both in zip(batches, outcomes, strict=False)
        for mode, status in zip(("eager", "tape"), both, strict=True)
    ]
    assert records[1].reason.startswith(f"rank {rank}: capture: ")
    assert "own.py" in records[1].reason
    assert {one.reason.split(":")[0] for one in records[2:4]} == {f"rank {rank}"}
    assert ranks_left(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_no_rank_outlives_a_command_that_ends_while_ranks_start(tmp_path, number):
    words = command(tmp_path, "--batch", "2", "--no-graph", "--reuse", "on")
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        while len(ranks_left(tmp_path)) < 2:
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(number)
        said = process.communicate(timeout=30)[1]
    assert said.count("\n") == (2 if number == signal.SIGINT else 0), said
    deadline = time.monotonic() + 30
    while ranks_left(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert ranks_left(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_no_rank_outlives_the_command(tmp_path, number):
    words = command(tmp_path, "--batch", "2", "--no-graph", "--reuse", "on", "--samples", "100000")
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr.readline() == "[1/1] batch 2, 8 rows, v41+fp4\n"
        time.sleep(2)
        process.send_signal(number)
        code = process.wait(30)
    assert code == (130 if number == signal.SIGINT else -9)
    deadline = time.monotonic() + 30
    while ranks_left(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert ranks_left(tmp_path) == []
    assert read_records(tmp_path / "run").records == []


@pytest.mark.slow
def test_ranks_of_srun_find_each_other_and_must_be_alike(tmp_path):
    def started(rank, *words):
        own = {**SRUN, "SLURM_NTASKS": 2, "SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_STEP_TASKS_PER_NODE": 2}
        environment = [f"{name}={value}" for name, value in {**own, "MASTER_PORT": 29517}.items()]
        line = ["env", *environment, *command(tmp_path, "--batch", "2", "--no-graph", "--quiet", "--json", *words)]
        return subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    alike = [started(rank) for rank in (0, 1)]
    (out, _), (nothing, silent) = (process.communicate() for process in alike)
    assert [process.returncode for process in alike] == [0, 0]
    assert (nothing, silent) == ("", "")
    assert [one["status"] for one in json.loads(out)] == ["ok", "ok"]
    (tmp_path / "run").rename(tmp_path / "first")
    unlike = [started(rank, "--seed", str(rank)) for rank in (0, 1)]
    (_, said), (_, silent) = (process.communicate() for process in unlike)
    assert [process.returncode for process in unlike] == [2, 2]
    assert (said, silent) == ("dsv4bench: --dep 2: rank 1 has --seed 1, rank 0 has 0\n", "")
