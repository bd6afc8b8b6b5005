"""Commands that somebody stops from outside: `timeout`, SLURM, or the system that kills them."""

import shlex
import signal
import subprocess
import sys
import time

import pytest

from dsv4bench.results.store import read_records
from tests.command_line import tiny_config
from tests.source_tree import ROOT

TYPED = ("--device", "cpu", "--extend", "4", "--prefix", "60", "--no-graph", "--samples", "1")
SIDES = ("--a", "reuse=off", "--b", "reuse=on", "--fresh", "--pairs", "1000")
SLOW_COMMAND = """
import os, signal, sys, time
from dsv4bench import cli_machine
sys.argv = ["dsv4bench", "list"]
cli_machine.show_catalogue = lambda _: os.kill(os.getpid(), signal.{name}) or time.sleep(60)
from dsv4bench.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


def kept(folder):
    """Lines that are on the disk."""
    return sum(file.read_bytes().count(b"\n") for file in folder.glob("*.jsonl"))


def children(process):
    """The numbers of the processes that one has started."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=False)
    return [int(number) for number in found.stdout.split()]


def alive(process):
    """Whether a process runs (one that nobody has buried yet does not)."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
    return found.stdout.strip()[:1] not in ("", "Z")


def stopped(tmp_path, sign, times):
    """Start an A/B in fresh processes and send it a signal once a record is kept; return what it left behind."""
    typed = ("ab", "prefill", "--geometry", str(tiny_config(tmp_path)), *TYPED, *SIDES)
    command = [sys.executable, "-m", "dsv4bench", *typed, "--out", str(tmp_path / "run")]
    started = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **started) as process:
        while not (kept(tmp_path / "run") and children(process.pid)):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        measuring = children(process.pid)
        for _ in range(times):
            process.send_signal(sign)
            time.sleep(0.005)
        out, err = process.communicate(timeout=30)
    return typed, process.returncode, out, err, measuring


def test_sigterm_keeps_what_is_finished_ends_what_measures_and_tells_how_to_go_on(tmp_path):
    typed, code, out, err, measuring = stopped(tmp_path, signal.SIGTERM, times=2)  # as `timeout` sends it
    assert (code, out) == (130, "")
    told, command = err.splitlines()[-2:]
    count = len(read_records(tmp_path / "run").records)
    assert told == f"interrupted: kept in {tmp_path / 'run'}: {count} record{'s' * (count != 1)}; go on with"
    assert shlex.split(command) == ["dsv4bench", *typed, "--resume", str(tmp_path / "run")]
    assert {one.status for one in read_records(tmp_path / "run").records} == {"ok"}
    assert not any(map(alive, measuring))


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_command_that_has_nothing_to_keep_says_that_it_was_interrupted(name):
    command = [sys.executable, "-c", SLOW_COMMAND.format(name=name)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
