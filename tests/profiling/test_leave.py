"""The end of a process that has been a rank: all of Python's own end, but for taking itself apart.

What takes itself apart is told by an object of a module that is imported first, and that goes with all modules.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsv4bench.profiling.profile_pass import Job
from dsv4bench.workloads.options import PrefillArguments
from tests.source_tree import ROOT

TELLS = """
import os, sys
class Last:
    what = sys.orig_argv[2] if sys.orig_argv[1] == "-m" else "code"
    where = {folder!r} + f"/{{os.getpid()}} " + what
    def __del__(self, write=os.open, flags=os.O_CREAT):
        write(self.where, flags)
last = Last()
"""


@pytest.fixture
def python(tmp_path):
    """Run Python; what became of it, and which processes (modules, or "code") took themselves apart."""
    (tmp_path / "sitecustomize.py").write_text(TELLS.format(folder=str(tmp_path)))

    def run(*words, **environment):
        few = {"PATH": os.defpath, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env=few | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done, {file.name.split()[1] for file in tmp_path.glob("* *")}

    return run


ENDS = """
import atexit
from dsv4bench.profiling.leave import leave_after
atexit.register(print, "at exit")
def main():
    print("did it")
    {end}
"""


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("return 3", 3, ""),
        ("raise SystemExit(4)", 4, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit('no rank 1')", 1, "no rank 1\n"),
        ("raise ValueError('odd')", 1, "ValueError: odd\n"),
    ],
)
def test_an_end_is_pythons_own_without_taking_python_apart(python, end, code, said):
    for last, apart in [("leave_after(main)", set()), ("raise SystemExit(main())", {"code"})]:
        done, found = python("-c", ENDS.format(end=end) + last)
        assert (done.returncode, done.stdout, found) == (code, "did it\nat exit\n", apart)
        assert done.stderr.endswith(said)


def test_output_that_cannot_be_written_is_pythons_own_exit_code():
    for last in ("leave_after(main)", "raise SystemExit(main())"):
        command = [sys.executable, "-c", ENDS.format(end="return 0") + last]
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(command, cwd=ROOT, env={"PATH": os.defpath}, stdout=full, check=False)
        assert done.returncode == 120


PLACE = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["dsv4bench", "prefill", "--batch", "0"], 2),
        (["dsv4bench.cli_dep_rank", "1", "{}"], 1),
        (["dsv4bench.profiling.profile_pass", Job(PrefillArguments(device="cpu", batch="0"), 0, 0, "torch").text()], 1),
    ],
    ids=["of a launcher's", "of ours", "that records a trace"],
)
def test_no_rank_takes_python_apart(python, words, code):
    """As soon as its first slip, for that is the end of all."""
    done, apart = python("-m", *words, **PLACE)
    assert (done.returncode, apart) == (code, set()), done.stderr


def test_a_command_that_is_no_rank_ends_as_python_does(python):
    done, apart = python("-m", "dsv4bench", "prefill", "--batch", "0")
    assert (done.returncode, apart) == (2, {"dsv4bench"})
