"""What all groups of a run share: the name of the measuring code, the pace, and the lines about the machine."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dsv4bench.profiling import session as module
from dsv4bench.profiling.session import open_session
from dsv4bench.profiling.timing import QUICK, HostClock, StopRule
from dsv4bench.ranges import timing_mark
from tests.profiling.small_groups import COMMIT, session


@pytest.mark.parametrize(
    ("environment", "commit"),
    [
        ({"commit": COMMIT, "dirty": False}, COMMIT),
        ({"commit": COMMIT, "dirty": True, "diff": "0123456789ab"}, f"{COMMIT}+0123456789ab"),
        ({"commit": COMMIT, "dirty": True, "diff": None}, f"{COMMIT}+changes"),
        ({"commit": COMMIT, "dirty": None}, COMMIT),
        ({"commit": None, "dirty": None, "dsv4bench": "1.2.3"}, "version 1.2.3"),
        ({"commit": "c", "src": {"name": "sglang", "commit": "5", "dirty": False}}, "c, src sglang 5"),
        ({"commit": "c", "src": {"name": "sglang", "commit": "5", "dirty": True, "diff": "d"}}, "c, src sglang 5+d"),
        ({"commit": "c", "src": {"name": "sglang", "commit": None, "dirty": None}}, "c, src sglang None"),
    ],
    ids=[
        "clean",
        "with changes",
        "with changes that git does not tell",
        "unknown changes",
        "installed",
        "a source tree",
        "a source tree with changes",
        "no checkout",
    ],
)
def test_a_cell_is_keyed_by_the_code_that_measures_it(environment, commit):
    assert session(environment=environment).commit == commit


@pytest.mark.parametrize(
    ("samples", "quick", "rule"),
    [
        (None, False, StopRule()),
        (50, False, StopRule(samples=50)),
        (None, True, QUICK),
        (7, True, replace(QUICK, samples=7)),
    ],
    ids=["until known", "50 samples", "quick", "quick with 7 samples"],
)
def test_the_pace_is_the_one_asked_for(samples, quick, rule):
    assert open_session("cpu", samples, quick).rule == rule


def test_a_session_on_a_cpu_says_where_it_runs(monkeypatch):
    monkeypatch.setattr(module, "environment", lambda device: {"asked": device})
    monkeypatch.setattr(module, "open_nvml", lambda: pytest.fail("a CPU has no GPU to ask"))
    torch.set_num_threads(2)
    opened = open_session(
        "cpu", None, quick=True, argv=("dsv4bench", "prefill"), notes=("a note",), src={"name": "sglang"}
    )
    assert torch.get_num_threads() == 1
    assert opened.device == torch.device("cpu")
    assert isinstance(opened.clock, HostClock)
    assert opened.environment == {"asked": "cpu", "timing_mark": timing_mark()[1], "src": {"name": "sglang"}}
    assert (opened.argv, opened.notes, opened.nvml) == (("dsv4bench", "prefill"), ("a note",), None)


def test_a_session_on_a_gpu_asks_nvml_and_memory_only_when_told_to(monkeypatch):
    monkeypatch.setattr(module, "environment", lambda device: {})
    monkeypatch.setattr(module, "clock", lambda device: f"clock of {device}")
    monkeypatch.setattr(module, "open_nvml", lambda: "nvml")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: pytest.fail("it takes a context"))
    opened = open_session("cuda", None, quick=False)
    assert (opened.clock, opened.nvml, opened.device.type) == ("clock of cuda", "nvml", "cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (7, 9))
    known = opened.with_free_bytes()
    assert (opened.free_bytes, known.free_bytes) == (0, 7)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: pytest.fail("something may be loaded by now"))
    assert known.with_free_bytes() is known


@pytest.mark.parametrize(
    ("device", "peers", "threads"),
    [
        ("cpu", None, 1),
        ("cpu", SimpleNamespace(rank=0, size=4), 4),
        ("cpu", SimpleNamespace(rank=1, size=4), None),
        ("cuda", None, None),
    ],
    ids=["one process", "rank 0 speaks for all", "another rank", "a GPU"],
)
def test_the_threads_that_load_a_cpu_are_those_of_all_ranks(device, peers, threads):
    assert session(device=torch.device(device), peers=peers).own_threads == threads
