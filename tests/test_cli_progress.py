"""Progress on stderr: nothing when quiet, a line per group in a pipe, a bar with the time left on a terminal."""

import io
import re
import sys

from dsv4bench.cli_progress import PASSES, progress
from tests.profiling.small_groups import groups
from tests.profiling.test_passes import PASSES as NAMES


class Terminal(io.StringIO):
    def isatty(self):
        return True


def all_passes(plan, quiet=False):
    """Tell a progress every pass of every group."""
    with progress(len(plan), quiet) as report:
        for group in plan:
            for name in NAMES:
                report(group, name)


def test_quiet_says_nothing(capsys):
    all_passes(groups(batch="1,2"), quiet=True)
    assert capsys.readouterr() == ("", "")


def test_a_pipe_gets_one_plain_line_for_each_group(capsys):
    all_passes(groups(batch="1,2", kv="v4"))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["[1/2] batch 1, 8 rows, v4", "[2/2] batch 2, 16 rows, v4"]


def test_groups_that_look_alike_have_a_line_each(capsys):
    all_passes(groups(batch="1") + groups(batch="1", seed=1))
    assert capsys.readouterr().err.splitlines() == [f"[{number}/2] batch 1, 8 rows, v41+fp4" for number in (1, 2)]


def test_a_terminal_gets_a_bar_with_the_time_left_and_is_left_clean(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    all_passes(groups(batch="1,2"))
    shown = terminal.getvalue()
    assert "batch 2, 16 rows, v41+fp4: verify again" in shown
    assert re.search(r"\d:\d\d:\d\d left (\d:\d\d:\d\d|-:--:--)", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown))
    assert shown.endswith("\x1b[2K")  # the line of the bar is erased


def test_the_bar_has_as_many_steps_as_a_group_has_passes():
    assert len(NAMES) == PASSES
