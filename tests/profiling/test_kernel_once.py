"""One call alone between the profiler's start and stop; two to warm up before."""

from dataclasses import replace

import pytest
import torch

from dsv4bench.errors import CellSkipped
from dsv4bench.kernels.contract import Provider
from dsv4bench.profiling.kernel_once import call_once
from dsv4bench.workloads.kernel_cells import KernelArguments, KernelCell, kernel_cells


def cell(provider):
    ((found,),) = kernel_cells(
        KernelArguments(("rms_norm",), ("2",), case=("width 512",), provider=(provider,), device="cpu")
    )
    return found


@pytest.fixture
def log(monkeypatch):
    """A log of the calls of a provider that stands in for every other."""
    calls = []
    provider = Provider("logs", lambda tensors: lambda: calls.append("call"))
    monkeypatch.setattr(KernelCell, "of", lambda self: provider)
    return calls


def test_on_a_cpu_it_is_warmed_up_and_called(log):
    call_once(cell("torch"))
    assert log == ["call"] * 3


def test_on_a_gpu_only_the_last_call_is_profiled(log, monkeypatch):
    on_cpu = torch.Generator("cpu")
    monkeypatch.setattr(torch, "Generator", lambda device: on_cpu)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("sync"))
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: log.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: log.append("stop"))
    call_once(replace(cell("torch"), device="cuda"))
    assert log == ["call", "call", "sync", "start", "call", "sync", "stop"]


def test_who_cannot_run_says_why():
    with pytest.raises(CellSkipped):
        call_once(cell("triton"))
