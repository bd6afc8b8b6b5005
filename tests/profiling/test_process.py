"""A fresh process that is waited for: what is said where it fails, is slow or is interrupted."""

import signal
import subprocess
import sys
import time

import pytest

from dsv4bench.errors import DsvError
from dsv4bench.profiling.process import run_process, said_last


def script(code):
    return ["sh", "-c", code]  # starts in a millisecond


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("exit 3", "exit code 3"),
        ("echo no such thing >&2; exit 1", "no such thing"),
        ("echo 'Traceback'; echo 'ValueError: too small'; echo 'the end'; exit 1", "ValueError: too small"),
        ("kill -9 $$", "exit code -9"),
    ],
    ids=["silent", "last line", "the line of an error", "killed"],
)
def test_a_process_that_fails_says_why_in_one_line(code, said):
    with pytest.raises(DsvError) as error:
        run_process(script(code), None, 60)
    assert str(error.value) == said


def test_the_last_error_of_a_traceback_is_said_rather_than_what_follows():
    assert said_last("KeyError: 'a'\nduring this\ntorch.OutOfMemoryError: 3 GiB\n[rank0] bye\n") == (
        "torch.OutOfMemoryError: 3 GiB"
    )
    assert said_last("") == ""


def test_a_process_that_succeeds_has_the_environment_that_is_given():
    run_process(script('test "$ONLY" = this && test -z "$HOME"'), {"ONLY": "this"}, 60)


def gone(file, looks=200):
    """Whether the process whose number is in the file has ended (one that nobody has buried yet has, too)."""
    for _ in range(looks):
        state = subprocess.run(
            ["ps", "-o", "stat=", "-p", file.read_text().strip()], capture_output=True, text=True, check=False
        )
        if state.stdout.strip()[:1] in ("", "Z"):
            return True
        time.sleep(0.01)
    return False


def test_a_process_that_is_too_slow_ends_with_all_that_it_started(tmp_path):
    with pytest.raises(DsvError, match=r"^not done after 0.3 s$"):
        run_process(script(f"sleep 60 & echo $! > {tmp_path / 'child'}; wait"), None, 0.3)
    assert gone(tmp_path / "child")


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_ctrl_c_and_sigterm_end_the_process_too(tmp_path, name):
    code = f"""
import signal, sys
signal.signal(signal.SIG{name}, signal.default_int_handler)
from dsv4bench.profiling.process import run_process
run_process(["sh", "-c", "echo $$ > {tmp_path / "child"}; kill -{name} $PPID; sleep 60"], None, 60)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30)
    assert "KeyboardInterrupt" in done.stderr
    assert gone(tmp_path / "child")


def test_what_comes_while_a_process_starts_is_heard_when_it_can_be_ended(monkeypatch, tmp_path):
    honest = subprocess.Popen

    def interrupted(*given, **more):
        signal.raise_signal(signal.SIGTERM)
        return honest(*given, **more)

    def heard(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    before = signal.signal(signal.SIGTERM, heard)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_process(script(f"echo $$ > {tmp_path / 'child'}; sleep 60"), None, 60)
        assert signal.getsignal(signal.SIGTERM) is heard
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_both_are_heard_again_after_a_program_that_is_not_there(number):
    before = signal.getsignal(number)
    with pytest.raises(FileNotFoundError):
        run_process(["no-such-program"], None, 60)
    assert signal.getsignal(number) == before
