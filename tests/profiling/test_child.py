"""A process that ends with the one that started it, whatever it runs."""

import os
import subprocess
import sys
import time

from dsv4bench.cli_source import source_environment
from dsv4bench.profiling.child import child_command
from tests.profiling.test_process import gone, script
from tests.source_tree import ROOT

ENDS_WITH = "import os, time; from dsv4bench.profiling.child import end_with"


def test_a_process_ends_with_the_one_that_started_it_even_through_another_program(tmp_path):
    """`starter` runs `between`, which runs the process; only the first is killed."""
    own = f"{ENDS_WITH}; print(os.getpid(), flush=True); end_with({{0}}, 0.01, 7); time.sleep(60)"
    run = "import os, subprocess, sys; subprocess.run([sys.executable, '-c', {!r}{}])"
    starter = run.format(run.format(own, ".format(os.getppid())"), "")
    with subprocess.Popen([sys.executable, "-c", starter], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        (tmp_path / "child").write_text(process.stdout.readline())
        time.sleep(0.1)
        assert not gone(tmp_path / "child", looks=1)
        process.kill()
        process.wait()
        assert gone(tmp_path / "child")


def test_a_process_ends_when_the_one_that_started_it_was_gone_before_it_looked():
    with subprocess.Popen(script("true")) as starter:
        pass
    code = f"{ENDS_WITH}; end_with({starter.pid}, 9, 7); time.sleep(60)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=30, check=False).returncode == 7


def test_a_number_that_another_users_process_has_now_is_of_no_starter():
    code = f"""
import os
from dsv4bench.profiling import child

def refused(*_):
    raise PermissionError

child.os.kill = refused
child.end_with({os.getppid()}, 9, 7)
child.time.sleep(20)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=30, check=False).returncode == 7


def test_a_child_runs_a_file_with_its_arguments_and_leaves_stopping_to_its_starter(tmp_path):
    file = tmp_path / "what.py"
    file.write_text(
        "import os, signal, sys\n"
        "for name in ('INT', 'TERM'): os.kill(os.getpid(), getattr(signal, 'SIG' + name))\n"
        "if __name__ == '__main__': print(sys.argv); raise SystemExit(5)\n"
    )
    command = [*child_command(sys.executable, str(file)), "a", "b"]
    done = subprocess.run(
        command, env=source_environment(None), capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (5, f"{[str(file), 'a', 'b']}\n", "")


def test_a_child_ends_while_it_still_imports(tmp_path):
    (tmp_path / "heavy.py").write_text("import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    starter = """
import subprocess, sys
from dsv4bench.profiling.child import child_command
subprocess.run(child_command(sys.executable, "heavy"))
"""
    environment = source_environment(tmp_path)
    command = [sys.executable, "-c", starter]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        (tmp_path / "child").write_text(process.stdout.readline())
        process.kill()
        process.wait()
        assert gone(tmp_path / "child")
