"""What a mistyped command gets: one line with what was typed, what was expected and the nearest right one."""

import pytest

from dsv4bench.cli import Commands
from tests.command_line import command_line

MISTYPED = {
    "prefil": "prefil: no such command (did you mean 'prefill'?)",
    "zzzz": "zzzz: no such command",
    "check cuonts": "check cuonts: no such command (did you mean 'counts'?)",
    "prefill --time-limt 3": "prefill --time-limt: no such option (did you mean '--time-limit'?)",
    "prefill --time-limt=3": "prefill --time-limt: no such option (did you mean '--time-limit'?)",
    "prefill --no-grph": "prefill --no-grph: no such option (did you mean '--no-graph'?)",
    "prefill -batch 3": "prefill -batch: no such option (did you mean '--batch'?)",
    "ab prefill --dep 2": "ab prefill --dep: no such option here, but of prefill",
    "show --case fp4 results": "show --case: no such option here, but of kernels, history",
    "report x --md=y": "report --md: no such option here, but of ab prefill, trace review, trace diff",
    "compare a b --ot x": "compare --ot: no such option (did you mean '--format'?)",
    "ab prefill --hlep": "ab prefill --hlep: no such option (did you mean '--help'?)",
    "--versoin": "--versoin: no such option (did you mean '--version'?)",
    "prefill --batch": "prefill --batch: expected a value after it",
    "prefill --mhc=yes": "prefill --mhc: takes no value",
    "prefill --mhc=on": "prefill --mhc on: takes no value (did you mean '--mhc'?)",
    "prefill --mhc off": "prefill --mhc off: takes no value, and is off where it is not typed",
    "prefill --graph off": "prefill --graph off: takes no value (did you mean '--no-graph'?)",
    "prefill --graph=off --batch 1": "prefill --graph off: takes no value (did you mean '--no-graph'?)",
    "prefill --graph on --batch 1 2": "prefill --graph on: takes no value (did you mean '--graph'?)",
    "ab prefill --no-graph on": "ab prefill --no-graph on: takes no value (did you mean '--no-graph'?)",
    "ab prefill --no-graph off": "ab prefill --no-graph off: takes no value (did you mean '--graph'?)",
    "prefill --graph maybe": "prefill maybe: not expected here",
    "prefill --reuse on off": "prefill off: not expected here",
    "show": "show: PATH is missing",
    "compare old": "compare: AFTER is missing",
    "check counts": "check counts: --expect is missing",
    "show old new": "show new: not expected here",
    "env old new": "env old new: not expected here",
    "trace diff a b --rank first": "trace diff --rank first: expected a whole number",
    "trace diff a b --rank 1 --rank=first": "trace diff --rank first: expected a whole number",
}


@pytest.mark.parametrize("typed", MISTYPED)
def test_a_mistake_is_one_line_with_the_nearest_right_word(monkeypatch, capsys, typed):
    found = command_line(monkeypatch, capsys)(*typed.split())
    assert (found.code, found.out, found.err) == (2, "", f"dsv4bench {MISTYPED[typed]}\n")


@pytest.mark.parametrize("typed", [(), ("ab",), ("check",), ("trace",)], ids=["nothing", "ab", "check", "trace"])
def test_nothing_typed_is_answered_with_help(monkeypatch, capsys, typed):
    found = command_line(monkeypatch, capsys)(*typed)
    assert "Usage: " in found.out + found.err
    assert "--help" in found.out + found.err


def test_ctrl_c_before_a_command_is_an_interrupt(monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Commands, "make_context", interrupt)
    assert command_line(monkeypatch, capsys)("env").code == 130
