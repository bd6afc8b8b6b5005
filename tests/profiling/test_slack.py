"""What a cell of --mem-fraction leaves free: modelled on a CPU, measured on a (fake) GPU, each side alone."""

from dataclasses import replace

import pytest
import torch

from dsv4bench.profiling import slack
from dsv4bench.profiling.passes import run_group
from dsv4bench.workloads.memory import estimate, pools_of
from dsv4bench.workloads.weights import reserve
from tests.profiling.fake_gpu import fake_gpu
from tests.profiling.small_groups import TINY, FakeClock, allocated, group, model, session
from tests.profiling.thread_peers import on_ranks

GIVEN = {"mem_fraction": "0.9", "recipe": "dep4", "device_memory": "1GB"}
MS = 1_000_000


def measured_group(**typed):
    """A group whose plan is of the device's own memory, as on a GPU."""
    cells = group(geometry=TINY, **{**GIVEN, **typed})
    return tuple(replace(cell, memory=replace(cell.memory, device_bytes=None)) for cell in cells)


def test_a_cpu_says_what_is_held_of_the_memory_that_was_given():
    off, on = run_group(group(geometry=TINY, graph=False, **GIVEN), model(TINY), session())
    assert (off.status, on.status) == ("ok", "ok")
    assert off.memory == on.memory
    cells = group(geometry=TINY, graph=False, **GIVEN)
    size, parts = pools_of(cells[0], 0), estimate(cells)
    held = size.weights_bytes + size.pool_bytes + parts.table_bytes + parts.buffer_bytes + parts.logits_bytes
    workspace = (34 + 68) * 1024  # 34 compressed rows and 68 of the window
    assert on.memory["lowest_free_bytes"] == 10**9 - held - workspace
    assert on.memory["workspace_bytes"] == workspace
    assert on.memory["pool_bytes"] == size.pool_bytes
    assert on.memory["full_pool_tokens"] == size.full_tokens > 100_000
    assert on.memory["slack_how"].startswith("modelled: given device memory")


def test_nothing_is_said_where_no_fraction_was_given():
    (one,) = run_group(group(geometry=TINY, graph=False, reuse="on"), model(TINY), session())
    assert set(one.memory) == {"peak_bytes", "workspace_bytes", "pool_bytes", "buffer_bytes"}


def test_the_pass_comes_before_what_takes_memory_of_its_own():
    told = []
    run_group(group(geometry=TINY, graph=False, reuse="on", **GIVEN), model(TINY), session(), told.append)
    assert told[:3] == ["allocate", "memory", "verify"]


class Device:
    """The memory of a fake GPU: what is asked of the allocator is written down, peaks are as the test says."""

    TOTAL, FREE, RESERVED = 10_000, 4_000, 5_500

    def __init__(self, monkeypatch, gpu, peaks):
        self.peaks, self.log = iter(peaks), gpu.log
        self.peak = 0
        for name, value in {
            "mem_get_info": lambda: (self.FREE, self.TOTAL),
            "memory_reserved": lambda: self.RESERVED,
            "max_memory_reserved": lambda: self.peak,
            "max_memory_allocated": lambda: self.peak - 100,
            "reset_peak_memory_stats": self.reset,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def reset(self):
        self.peak = next(self.peaks)
        self.log.append("reset")


@pytest.fixture
def gpu(monkeypatch):
    return fake_gpu(monkeypatch)


def looked_at(**typed):
    """A group on the fake GPU whose slack was measured."""
    run = allocated(
        session(device=torch.device("cuda"), free_bytes=10**9), geometry=TINY, cells=measured_group(**typed)
    )
    with torch.no_grad():
        slack.measure_slack(run)
    return run


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_a_gpu_tells_the_least_that_was_free_of_each_side_alone(monkeypatch, gpu, graph):
    Device(monkeypatch, gpu, peaks=(6_000, 6_200))
    run = looked_at(graph=graph)
    off, on = (cell.memory for cell in run.runs)
    # others hold 10 000 - 4 000 free - 5 500 of ours
    assert (off["lowest_free_bytes"], on["lowest_free_bytes"]) == (10_000 - 500 - 6_000, 10_000 - 500 - 6_200)
    assert (off["peak_reserved_bytes"], off["peak_allocated_bytes"]) == (6_000, 5_900)
    assert (off["workspace_bytes"], off["device_bytes"]) == ((34 + 68) * 1024, 10_000)
    assert off["slack_how"] == slack.MEASURED
    # afterwards every step has its workspace again, and no graph is kept
    assert [step.kv_buffer.capacity_rows for step in run.steps.values()] == [34 + 68] * 2
    assert [cell.captured for cell in run.runs] == [{}, {}]
    assert len(gpu.reset_graphs) == sum(line.startswith("capture into") for line in gpu.log)
    assert (len(gpu.reset_graphs) > 0) is graph


def test_only_the_workspace_of_the_cell_is_there_while_it_is_looked_at(monkeypatch, gpu):
    Device(monkeypatch, gpu, peaks=(6_000, 6_000))
    seen, run = [], None

    def spy():
        seen.append([step.kv_buffer.capacity_rows for step in run.steps.values()])
        return {}

    run = allocated(
        session(device=torch.device("cuda"), free_bytes=10**9), geometry=TINY, cells=measured_group(graph=False)
    )
    monkeypatch.setattr(slack, "_seen", spy)
    with torch.no_grad():
        slack.measure_slack(run)
    assert seen == [[34 + 68, 0], [0, 34 + 68]]


def test_every_cell_has_run_before_the_first_is_looked_at(monkeypatch, gpu):
    Device(monkeypatch, gpu, peaks=(6_000, 6_000))
    seen, run_eagerly = [], slack._run_eagerly

    def run(group, one):
        seen.append(one.cell.variant.reuse)
        run_eagerly(group, one)

    monkeypatch.setattr(slack, "_run_eagerly", run)
    monkeypatch.setattr(slack, "_seen", lambda: seen.append("look") or {})
    looked_at(graph=False)
    assert seen == ["off", "on", "off", "look", "on", "look"]


def test_a_cell_that_runs_out_of_memory_ends_alone(monkeypatch, gpu):
    Device(monkeypatch, gpu, peaks=(6_000, 6_000))
    looks = []

    def full():
        looks.append(None)
        if len(looks) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB. GPU 0 has less.")
        return {"lowest_free_bytes": 1}

    monkeypatch.setattr(slack, "_seen", full)
    off, on = looked_at(graph=False).runs
    assert (off.status, off.reason) == ("out_of_memory", "CUDA out of memory. Tried to allocate 20 GiB")
    assert (on.status, on.memory["lowest_free_bytes"]) == ("ok", 1)


def test_ranks_say_who_has_the_least_free():
    cells = group(geometry=TINY, graph=False, reuse="on", batch="3", dep="2", **GIVEN)

    def work(peers):
        return run_group(cells, model(TINY), session(clock=FakeClock(tick_ns=MS), peers=peers))

    (one,), (same,) = on_ranks(2, work)
    assert one.memory == same.memory
    assert one.memory["lowest_free_rank"] == 0  # two of the three requests
    assert one.memory["lowest_free_bytes"] < 10**9 - one.memory["weights_bytes"] - one.memory["pool_bytes"]


def test_weights_that_the_stack_has_not_are_held():
    small = model(TINY)
    assert reserve(small, 0) is small
    assert reserve(small, 12_345).reserved.numel() == 12_345
