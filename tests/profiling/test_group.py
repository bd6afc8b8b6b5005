"""What the passes of a group share and decide: steps, refusals, which forward is counted, what a rank takes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dsv4bench.errors import CellSkipped
from dsv4bench.profiling.cell_run import CellRun
from dsv4bench.profiling.clocks import Nvml
from dsv4bench.profiling.group import GroupRun
from dsv4bench.profiling.recording import notes
from dsv4bench.profiling.verify import Check
from dsv4bench.ranges import Silent
from dsv4bench.workloads import providers
from tests.profiling.small_groups import TINY, FakeClock, allocated, group, model, requests_file, session
from tests.workloads.stacks import Heard

FUSED, TORCH_PATH = ("fused", "torch"), ("torch", "torch")  # compressor and provider of a side
OWN = "torch/dequant=own.py:fn"
RIGHT = """
def fn(**tensors):
    from dsv4bench.kernels.dequant import reference
    reference(**tensors)
"""


def tiny(**typed):
    """A group of the smallest model whose first pass is over."""
    opened = typed.pop("opened", None)
    return allocated(opened, geometry=TINY, **typed)


def statuses(run):
    return [cell.status for cell in run.runs]


# allocate


@pytest.mark.parametrize(
    ("typed", "steps"),
    [
        ({"reuse": "both"}, [("off", FUSED), ("on", FUSED)]),
        ({"reuse": "on"}, [("off", FUSED), ("on", FUSED)]),
        ({"reuse": "off"}, [("off", FUSED)]),
        (
            {"reuse": "on", "compressor": "both"},
            [("off", TORCH_PATH), ("on", TORCH_PATH), ("off", FUSED), ("on", FUSED)],
        ),
    ],
    ids=["both", "on alone", "off alone", "two compressors"],
)
def test_reuse_off_is_always_there_to_compare_with(typed, steps):
    run = tiny(graph=False, **typed)
    assert list(run.steps) == steps
    assert [(step.variant.reuse, (step.variant.compressor, "torch")) for step in run.steps.values()] == steps


def test_cells_share_storage_but_not_workspaces():
    run = tiny(graph=False)
    off, on = run.steps.values()
    assert off.pools is on.pools
    assert off.buffers is on.buffers
    assert off.kv_buffer is not on.kv_buffer
    # 8 + 60 tokens: 34 compressed rows before 68 window rows
    assert off.kv_buffer.capacity_rows == on.kv_buffer.capacity_rows == 34 + 68


def test_the_buffers_of_the_torch_path_exist_where_a_cell_takes_it():
    assert tiny(graph=False, compressor="fused").prefill.buffers.pooled.shape[0] == 0
    assert tiny(graph=False, compressor="both").prefill.buffers.pooled.shape[0] == 8


def test_before_allocation_there_is_nothing_to_run():
    run = GroupRun(group(geometry=TINY), model(TINY), session())
    for name in ("prefill", "graphs"):
        with pytest.raises(AssertionError, match="allocate first"):
            getattr(run, name)


def test_a_graph_cell_whose_every_forward_is_refused_ends_at_once():
    run = tiny(extend="1")
    assert statuses(run) == ["ok", "ok", "refused", "refused"]
    assert run.runs[2].reason == "bucket 4 is over 2 times the 1 tokens"
    assert [cell.graph for cell in run.living()] == [False, False]
    assert run.living(graph=True) == []


def test_a_graph_that_takes_some_forwards_goes_on(tmp_path):
    run = tiny(requests=requests_file(tmp_path, 9), chunk="8", graph=True)
    assert [batch.bucket for batch in run.plan[0]] == [8, None]
    assert statuses(run) == ["ok", "ok"]


def test_a_full_graph_is_not_refused_by_buckets():
    run = tiny(extend="1", graph=True, graph_mode="full,breakable", reuse="on")
    assert [(cell.full, cell.status) for cell in run.runs] == [(True, "ok"), (False, "refused")]


# a cell


@pytest.fixture
def cell():
    return CellRun(group(geometry=TINY, graph=False)[0])


def test_the_first_end_of_a_cell_counts(cell):
    assert cell.live
    cell.fail(CellSkipped("no device"))
    cell.end("failed", "later")
    assert (cell.status, cell.reason, cell.live) == ("skipped", "no device", False)


def test_a_failed_check_makes_a_cell_wrong_and_later_checks_are_kept(cell):
    cell.add(Check("one", True, "fine"))
    assert cell.live
    cell.add(Check("two", False, "3 of 4 differ"))
    cell.add(Check("three", False, "more"))
    assert (cell.status, cell.reason) == ("wrong", "two: 3 of 4 differ")
    assert [check.name for check in cell.checks] == ["one", "two", "three"]


# two providers


@pytest.fixture
def two_providers(monkeypatch, tmp_path):
    """Both sides of an A/B of two providers, on the same pools: torch, and a file of the user's own for one kernel."""
    monkeypatch.chdir(tmp_path)

    def of(source, **typed):
        Path("own.py").write_text(source)
        for cache in (providers.own_file, providers._module, providers._source):
            cache.cache_clear()
        cells = [cell for one in ("torch", OWN) for cell in group(geometry=TINY, graph=False, provider=one, **typed)]
        return allocated(geometry=TINY, cells=tuple(cells))

    return of


def passes(run):
    with torch.no_grad():
        for each in (run.verify, run.time_eager, run.count):
            each()


def test_two_providers_share_pools_and_run_each_its_own_kernels(two_providers):
    run = two_providers(RIGHT)
    assert {cell.cell.storage for cell in run.runs} == {run.runs[0].cell.storage}
    assert list(run.steps) == [(reuse, ("fused", one)) for one in ("torch", OWN) for reuse in ("off", "on")]
    assert len({id(step.pools) for step in run.steps.values()}) == 1
    passes(run)
    assert statuses(run) == ["ok"] * 4
    assert [run.steps[cell.key].ops.ran_on["dequant"] for cell in run.runs] == ["torch"] * 2 + ["own.py:fn"] * 2
    assert [run.predicted[one]["saved_rows"] for one in ("torch", OWN)] == [34, 34]
    assert [[check.name for check in cell.checks] for cell in run.runs] == [
        [],
        ["reused heads", "outputs, reuse on and off"],
        ["kernels against torch"],
        ["reused heads", "kernels against torch", "outputs, reuse on and off"],
    ]
    equal = "outputs beside provider torch: 4 layer outputs and 9 caches and rings are byte-equal"
    assert [[line for line in notes(cell, run) if "beside" in line] for cell in run.runs] == [[], [], [equal], [equal]]


def test_outputs_of_another_provider_are_compared_without_a_verdict(two_providers):
    run = two_providers(RIGHT)
    passes(run)
    key = run.runs[3].key
    run.seen[key] = replace(run.seen[key], layers=run.seen[key].layers[:1] + run.seen[key].layers[:0:-1])
    assert "outputs beside provider torch: 2 of 4 layer outputs differ, first is number 1" in notes(run.runs[3], run)
    assert run.runs[3].status == "ok"


def test_a_provider_that_fails_while_it_is_timed_ends_its_own_cells_alone(two_providers):
    run = two_providers("from os.path import exists\n" + RIGHT + "    if exists('late'): raise ValueError('seen')\n")
    with torch.no_grad():
        run.verify()
        Path("late").touch()
        run.time_eager()
        run.count()
    assert statuses(run) == ["ok", "ok", "failed", "failed"]
    assert [cell.reason for cell in run.runs] == [None, None, *["own.py:6: ValueError: seen"] * 2]
    assert [len(cell.timings) for cell in run.runs] == [1, 1, 0, 0]
    assert all(cell.counts for cell in run.runs[:2])


@pytest.mark.parametrize(
    ("source", "status", "reason"),
    [
        (RIGHT.replace("reference(**tensors)", "tensors['out'].zero_()"), "wrong", "breaks the contract of dequant"),
        (RIGHT + "    raise ValueError('seen')\n", "failed", "own.py:5: ValueError: seen"),
        (RIGHT + "    if len(tensors['ids']) == 34: tensors['out'][3].add_(1)\n", "wrong", "kernels against torch: "),
        (
            RIGHT
            + "    if len(tensors['ids']) == 34: tensors['cache'][0].add_(1)\n",  # the reserved page: nobody reads it
            "wrong",
            "dequant_compressed cache: an input that the call changed",
        ),
    ],
    ids=["breaks the contract", "raises", "is wrong in the step alone", "changes an input in the step alone"],
)
def test_what_one_provider_does_ends_the_cells_of_the_other_one_never(two_providers, source, status, reason):
    run = two_providers(source)
    passes(run)
    assert statuses(run) == ["ok", "ok", status, status]
    assert all(reason in cell.reason for cell in run.runs[2:])
    assert all(cell.timings and cell.counts for cell in run.runs[:2])
    assert not any(cell.timings for cell in run.runs[2:])


def test_a_provider_that_cannot_write_the_prefix_ends_its_own_cells_alone(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("prefix.py").write_text(
        RIGHT.replace("dequant", "norm_rope_store") + "    if len(tensors['kv']) == 60: raise ValueError('seen')\n"
    )
    sides = ("torch/norm_rope_store=prefix.py:fn", "torch")
    cells = [cell for one in sides for cell in group(geometry=TINY, graph=False, provider=one)]
    run = allocated(geometry=TINY, cells=tuple(cells))
    assert statuses(run) == ["failed", "failed", "ok", "ok"]
    assert "prefix.py:5: ValueError: seen" in run.runs[0].reason
    passes(run)
    assert statuses(run) == ["failed", "failed", "ok", "ok"]


# verify


def test_a_provider_other_than_torch_is_audited_the_first_time():
    run = tiny(graph=False, reuse="off")
    step = run.steps["off", FUSED]
    step.variant = replace(step.variant, provider="triton")  # its operations still dispatch to torch
    with torch.no_grad():
        run.verify()
        run.verify(again=True)
    names = [check.name for check in run.runs[0].checks]
    assert names == ["kernels against torch", "outputs, as before, after timing"]
    assert step.ops.audit is None


def test_checks_go_to_the_cells_of_their_step():
    run = tiny(reuse="both", graph=None)
    with torch.no_grad():
        run.verify()
    names = [[check.name for check in cell.checks] for cell in run.runs]
    assert names == [[], ["reused heads", "outputs, reuse on and off"]] * 2


# time


def timed(run, graph=False):
    with torch.no_grad():
        run.time_graph() if graph else run.time_eager()
    return run


def test_each_rank_is_timed_and_an_idle_one_sits_an_eager_step_out():
    run = timed(tiny(graph=False, batch="2", dep_simulated="3"))
    for cell in run.runs:
        assert [[timing is not None for timing in rank] for rank in cell.timings] == [[True], [True], [False]]


def test_in_a_graph_an_idle_rank_replays_padded_rows():
    run = timed(tiny(graph=True, batch="2", dep_simulated="3"), graph=True)
    assert statuses(run) == ["ok", "ok"]
    for cell in run.runs:
        assert [[timing is not None for timing in rank] for rank in cell.timings] == [[True], [True], [True]]


def test_a_sample_is_the_sum_over_the_forwards_of_a_cell(tmp_path):
    clock = FakeClock(tick_ns=500)
    run = timed(tiny(requests=requests_file(tmp_path, 20), chunk="8", graph=False, opened=session(clock=clock)))
    ((timing,),) = run.runs[0].timings
    assert timing.samples_ns == {"step_period": [3 * 500] * 2}


def test_only_timed_passes_carry_the_marks_of_the_session():
    class Heard(Silent):
        def __init__(self):
            self.count = 0

        def enter(self, rng):
            self.count += 1

    mark = Heard()
    run = tiny(graph=False, opened=session(mark=mark))
    with torch.no_grad():
        run.verify()
        assert mark.count == 0
        run.time_eager()
    assert mark.count > 0
    assert {type(step.ops.mark) for step in run.steps.values()} == {Silent}


def test_clocks_are_read_while_a_cell_is_timed():
    class Nvidia:
        NVMLError = OSError

        @staticmethod
        def nvmlDeviceGetClockInfo(handle, which):
            return 1980

        @staticmethod
        def nvmlDeviceGetComputeRunningProcesses(handle):
            return ["own", "another"]

    run = timed(tiny(graph=False, opened=session(nvml=Nvml(Nvidia, "handle"))))
    # before each of the two rounds, and after the last
    assert run.runs[0].clocks.summary()["sm_mhz"] == [1980] * 3
    assert run.runs[0].clocks.other_processes == 1
    assert [timing.sm_mhz for cell in run.runs for rank in cell.timings for timing in rank] == [(1980, 1980)] * 2


# count


def test_the_largest_forward_is_counted_and_rather_one_in_a_graph(tmp_path):
    run = tiny(requests=requests_file(tmp_path, 20), chunk="8", graph=False)
    assert run.counted(run.runs[0]).live == 8
    run = tiny(requests=requests_file(tmp_path, 14), chunk="9", graph=True)
    # 9 tokens are over the largest bucket, 5 run in a bucket of 8
    assert [(batch.live, batch.bucket) for batch in run.plan[0]] == [(9, None), (5, 8)]
    assert run.counted(run.runs[0]).live == 5


def test_a_cell_keeps_counts_and_memory():
    run = tiny(graph=False)
    with torch.no_grad():
        run.count()
    off, on = run.runs
    assert sum(row["calls"] for row in off.counts.rows if row["op"] == "dequant_compressed") == 3
    assert sum(row["calls"] for row in on.counts.rows if row["op"] == "dequant_compressed") == 2
    assert on.memory == {
        "peak_bytes": None,
        "workspace_bytes": (34 + 68) * 1024,
        "pool_bytes": run.prefill.pools.bytes,
        "buffer_bytes": run.prefill.buffers.bytes,
    }
    assert run.predicted["torch"]["saved_rows"] == 34


def test_dequants_are_submitted_inside_the_ranges_that_timed_steps_have():
    class QueueClock(FakeClock):
        enqueues = True

    mark = Heard()
    run = tiny(graph=False, opened=session(clock=QueueClock(), mark=mark))
    with torch.no_grad():
        run.count()
    assert run.predicted["torch"]["submit_ns_a_call"] == 1_000_000 / 2
    assert set(mark.ops()) == {"dequant_compressed"}
    assert isinstance(run.steps["off", FUSED].ops.mark, Silent)


def test_where_no_cell_reuses_nothing_is_predicted():
    run = tiny(graph=False, reuse="off")
    with torch.no_grad():
        run.count()
    assert run.predicted == {}


def test_a_cell_that_ended_is_not_counted():
    run = tiny(graph=False)
    run.runs[1].end("wrong", "a check failed")
    with torch.no_grad():
        run.count()
    assert run.runs[0].counts is not None
    assert run.runs[1].counts is None
    assert run.predicted == {}
