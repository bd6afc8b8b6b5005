"""Who takes a context on a GPU: whoever measures there, and nobody who only starts those who do."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from dsv4bench import cli_dep
from dsv4bench.profiling import ab_run, session, sweep
from dsv4bench.profiling.recording import unmeasured
from tests.command_line import command_line, tiny_config

AB = ("ab", "prefill", "--a", "reuse=off", "--b", "reuse=on", "--pairs", "1", "--no-graph")
TYPED = ("--device", "cuda", "--provider", "torch", "--extend", "4", "--prefix", "60")


@pytest.fixture
def asked(monkeypatch):
    """What was asked of two GPUs that takes a context there."""
    found = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: found.append("free memory") or (2**40, 2**40))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(session, "clock", lambda device: None)
    monkeypatch.setattr(session, "open_nvml", lambda: None)
    return found


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command in an empty directory; it starts processes that do nothing and measures nothing itself."""
    monkeypatch.chdir(tmp_path)
    command, config, started = command_line(monkeypatch, capsys), tiny_config(tmp_path), []
    monkeypatch.setattr(ab_run, "run_process", lambda *given: started.append(given))
    monkeypatch.setattr(cli_dep, "_launch", lambda *given: started.append(given) or 1)
    monkeypatch.setattr(sweep, "_made", lambda *_: SimpleNamespace(geometry=None, seed=0, reserved=None))

    def run_group(group, model, opened, progress):
        assert opened.free_bytes == 2**40
        return [unmeasured(cell, opened, "skipped", "pretended") for cell in group]

    monkeypatch.setattr(sweep, "run_group", run_group)
    return lambda *words: command(*words, *TYPED, "--geometry", config) and len(started)


@pytest.mark.parametrize(
    ("words", "processes"),
    [((*AB, "--fresh"), 2), (("prefill", "--dep", "2", "--batch", "2", "--mem-fraction", "0.7"), 1)],
    ids=["the parent of fresh processes", "the launcher of ranks"],
)
def test_who_only_starts_processes_takes_none(run, asked, words, processes):
    assert (run(*words), asked) == (processes, [])


@pytest.mark.parametrize("words", [AB, ("prefill", "--no-graph")], ids=["ab in one process", "prefill"])
def test_who_measures_asks_for_the_free_memory_before_anything_is_loaded(run, asked, words):
    assert run(*words) == 0
    assert asked == ["free memory", "free memory"]  # to refuse what is too large, and to measure by
