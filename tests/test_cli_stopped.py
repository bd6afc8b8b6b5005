"""Commands that somebody stops from outside: `timeout`, SLURM, or the system that kills them."""

import shlex
import signal
import subprocess
import sys
import time

import pytest

from dsv4bench import cli, cli_machine
from tests.command_line import command_line, tiny_config
from tests.source_tree import ROOT

TYPED = ("--device", "cpu", "--extend", "4", "--prefix", "60", "--no-graph", "--samples", "1")
SIDES = ("--a", "reuse=off", "--b", "reuse=on", "--fresh", "--pairs", "1000")


def what_measures(process):
    """The numbers of the processes that measure for one."""
    found = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(process)], capture_output=True, text=True, check=False
    )
    return [int(line.split()[0]) for line in found.stdout.splitlines() if "ab_child" in line]


def alive(process):
    """Whether a process runs (one that nobody has buried yet does not)."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
    return found.stdout.strip()[:1] not in ("", "Z")


def stopped(tmp_path, sign, times):
    """Start an A/B in fresh processes and send it a signal once one of them is there; return what it left behind."""
    typed = ("ab", "prefill", "--geometry", str(tiny_config(tmp_path)), *TYPED, *SIDES)
    command = [sys.executable, "-m", "dsv4bench", *typed, "--out", str(tmp_path / "run")]
    started = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **started) as process:
        while not (measuring := what_measures(process.pid)):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        for _ in range(times):
            process.send_signal(sign)
            time.sleep(0.005)
        out, err = process.communicate(timeout=30)
    return typed, process.returncode, out, err, measuring


def test_sigterm_keeps_what_is_finished_ends_what_measures_and_tells_how_to_go_on(tmp_path):
    typed, code, out, err, measuring = stopped(tmp_path, signal.SIGTERM, times=2)  # as `timeout` sends it
    assert (code, out) == (130, "")
    told, command = err.splitlines()[-2:]
    assert told == f"interrupted: kept in {tmp_path / 'run'}: 0 records; go on with"
    assert shlex.split(command) == ["dsv4bench", *typed, "--resume", str(tmp_path / "run")]
    assert not any(map(alive, measuring))


@pytest.mark.slow
def test_what_measures_ends_with_a_command_that_is_killed(tmp_path):
    _, code, _, _, measuring = stopped(tmp_path, signal.SIGKILL, times=1)
    assert code == -signal.SIGKILL
    deadline = time.monotonic() + 2
    while any(map(alive, measuring)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, measuring))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_has_nothing_to_keep_says_that_it_was_interrupted(monkeypatch, capsys, number):
    monkeypatch.setattr(cli_machine, "show_catalogue", lambda _: signal.raise_signal(number))
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests with Ctrl-C ignored
    try:
        found = command_line(monkeypatch, capsys)("list")
        assert (found.code, found.out, found.err) == (130, "", "interrupted\n")
        assert signal.getsignal(signal.SIGTERM) == (signal.SIG_IGN if number == signal.SIGTERM else cli._terminated)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
