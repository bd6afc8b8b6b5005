"""A sweep: group after group, weights once, finished cells left out, and never an end before the last group."""

import gc
from dataclasses import replace

import pytest
import torch

from dsv4bench.profiling import sweep
from dsv4bench.profiling.time_limit import Deadline
from dsv4bench.profiling.timing import QUICK
from dsv4bench.results.compare import compare, pairs
from dsv4bench.results.record import Record
from dsv4bench.results.store import NO_TIME_LEFT
from dsv4bench.workloads.geometry import V41_FLASH_MINI
from dsv4bench.workloads.model import weight_bytes
from dsv4bench.workloads.rank_weights import rank_weights
from tests.profiling.small_groups import COMMIT, TINY, FakeClock, groups, session
from tests.profiling.thread_peers import on_ranks


@pytest.fixture
def weights(monkeypatch):
    """The geometry and seed of each model that the sweep draws."""
    drawn = []
    honest = sweep.make_model

    def make_model(geometry, device, seed):
        drawn.append((geometry.name, seed))
        return honest(geometry, device, seed)

    monkeypatch.setattr(sweep, "make_model", make_model)
    return drawn


@pytest.fixture
def pretend(monkeypatch):
    """Groups that are run by name alone: their records are their cells."""
    monkeypatch.setattr(sweep, "run_group", lambda group, model, session, progress: [cell.load.rows for cell in group])


def plan(**typed):
    return groups(geometry=TINY, **typed)


# a whole run on the CPU


@pytest.fixture(scope="module")
def mini_and_tiny():
    """The 40 layers of the mini geometry and a tiny model, one request each, one sample each."""
    opened = session(rule=replace(QUICK, samples=1, sample_ns=1))
    both = groups(geometry=V41_FLASH_MINI, graph=False) + plan(graph=True, batch="2")
    return [one for group in sweep.run(both, opened) for one in group]


def calls(record, op):
    return {row["kv_source"]: row["calls"] for row in record.counts if row["op"] == op}


def test_40_layers_turn_38_compressed_dequants_into_4(mini_and_tiny):
    off, on = mini_and_tiny[:2]
    assert calls(off, "dequant_compressed") == {2: 6, 8: 6, 14: 6, 20: 20}
    assert calls(on, "dequant_compressed") == {2: 1, 8: 1, 14: 1, 20: 1}
    swa = {None: 2, 2: 6, 8: 6, 14: 6, 20: 20}
    assert calls(off, "dequant_swa") == calls(on, "dequant_swa") == swa
    assert (sum(calls(off, "dequant_compressed").values()), sum(swa.values())) == (38, 40)


def test_reuse_adds_nothing_and_every_check_passes(mini_and_tiny):
    assert [record.status for record in mini_and_tiny] == ["ok"] * 4
    found = pairs(mini_and_tiny, "reuse", "off", "on")
    assert [compare(pair).added for pair in found] == [[], []]
    checks = [check for record in mini_and_tiny for check in record.checks]
    assert all(check["passed"] for check in checks)
    # 34 heads are filled: 6 + 6 + 6 + 20 layers, one of each fills its own
    assert "34 reused heads equal a fresh dequant byte for byte" in [check["detail"] for check in checks]


def test_source_layers_run_their_own_operations_once(mini_and_tiny):
    off = mini_and_tiny[0]
    assert calls(off, "compress_c2") == {2: 1, 8: 1, 14: 1}
    assert calls(off, "compress_c1") == {20: 1}
    assert sum(calls(off, "index_topk").values()) == 8
    assert sum(calls(off, "combine").values()) == 39  # 38 layers, and once for both of ratio 0
    assert sum(calls(off, "sparse_attention").values()) == 40


# groups


def test_a_group_is_handed_over_before_the_next_one_begins(weights, pretend):
    seen = []
    running = sweep.run(plan(batch="1,2,3"), session(), progress=lambda group, name: seen.append(name))
    assert next(running) == [8] * 4
    assert next(running) == [16] * 4
    assert weights == [("tiny", 0)]
    assert list(running) == [[24] * 4]
    assert weights == [("tiny", 0)]


def test_progress_is_told_the_group_and_its_pass():
    told = []
    (group,) = plan(graph=False, reuse="off")
    list(sweep.run([group], session(), progress=lambda group, name: told.append((group, name))))
    assert told == [
        (group, name) for name in ("allocate", "verify", "time eager", "time graph", "count", "verify again")
    ]


def test_weights_are_drawn_anew_for_another_geometry_or_seed(weights, pretend):
    several = plan(batch="1") + plan(batch="1", seed=3) + plan(batch="2", seed=3) + groups(seed=3)
    assert len(list(sweep.run(several, session()))) == 4
    assert weights == [("tiny", 0), ("tiny", 3), ("small", 3)]


@pytest.mark.parametrize(
    ("done", "rows"),
    [((), [8, 16]), ((0, 1, 2, 3), [16]), ((0, 1, 2), [8, 16]), ((0, 1, 2, 3, 4, 5, 6, 7), [])],
    ids=["nothing done", "one group done", "a cell missing", "all done"],
)
def test_a_group_is_left_out_when_all_of_its_cells_are_done(weights, pretend, done, rows):
    both = plan(batch="1,2")
    keys = [cell.key(COMMIT) for group in both for cell in group]
    found = list(sweep.run(both, session(), frozenset(keys[place] for place in done)))
    assert [records[0] for records in found] == rows
    assert bool(weights) == bool(rows)  # nothing to run needs no weights


def test_cells_that_another_commit_measured_run_again(pretend):
    both = plan(batch="1,2")
    done = frozenset(cell.key("another") for group in both for cell in group)
    assert len(list(sweep.run(both, session(), done))) == 2


# errors


def test_out_of_memory_in_a_group_does_not_end_the_sweep(monkeypatch):
    honest = FakeClock.measure
    full = {"yet": True}

    def measure(clock, run, repeat):
        if full.pop("yet", False):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 139 GiB")
        return honest(clock, run, repeat)

    monkeypatch.setattr(FakeClock, "measure", measure)
    first, second = sweep.run(plan(batch="1,2", graph=False), session())
    assert [(record.status, record.reason) for record in first] == [
        ("out_of_memory", "CUDA out of memory. Tried to allocate 2.00 GiB")
    ] * 2
    assert [record.status for record in second] == ["ok", "ok"]


def test_weights_that_do_not_fit_are_a_row_of_every_cell_and_are_tried_again(monkeypatch, pretend):
    tried = []

    def make_model(geometry, device, seed):
        tried.append(geometry.name)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 40.00 GiB. And so on")

    monkeypatch.setattr(sweep, "make_model", make_model)
    found = list(sweep.run(plan(batch="1,2", graph=False), session()))
    assert tried == ["tiny", "tiny"]
    for records in found:
        assert [(record.status, record.reason) for record in records] == [
            ("out_of_memory", "CUDA out of memory. Tried to allocate 40.00 GiB")
        ] * 2


@pytest.mark.parametrize(("device", "emptied"), [("cpu", 0), ("cuda", 2)], ids=["CPU", "GPU"])
def test_a_group_gives_its_memory_back_before_the_next_one(monkeypatch, pretend, device, emptied):
    events = []
    monkeypatch.setattr(gc, "collect", lambda: events.append("collect"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: events.append("empty"))
    monkeypatch.setattr(sweep, "make_model", lambda geometry, *_: None)
    list(sweep.run(plan(batch="1,2"), session(device=torch.device(device), free_bytes=1)))
    assert events.count("collect") == 2
    assert events.count("empty") == emptied


# what the time limit leaves out


def times(*seconds):
    """A deadline at 10 for a run whose groups begin, or would, at these times."""
    return Deadline(10, iter(seconds).__next__)


def test_groups_that_would_end_after_the_time_limit_are_records_of_that(pretend, weights):
    found = list(sweep.run(plan(batch="1,2,3,4", reuse="on", graph=False), session(), deadline=times(0, 4, 7, 8)))
    assert found[:2] == [[8], [16]]
    left_out = [one for group in found[2:] for one in group]
    assert [(one.status, one.reason) for one in left_out] == [("skipped", NO_TIME_LEFT)] * 2
    assert [one.batch["requests"] for one in left_out] == [3, 4]


def test_of_ranks_the_first_ones_clock_decides(pretend):
    clocks = {0: (0, 4, 7), 1: (0, 1, 2)}

    def work(peers):
        cells = plan(batch="2,4,6", dep="2", reuse="on", graph=False)
        found = sweep.run(cells, session(peers=peers, free_bytes=1), deadline=times(*clocks[peers.rank]))
        return [one.reason if isinstance(one, Record) else one for group in found for one in group]

    first, second = on_ranks(2, work)
    assert first == second == [16, 32, NO_TIME_LEFT]


# the rest of the model's weights, with --mem-fraction


def sized(**typed):
    """Groups of the tiny model at a fraction of the device's own memory."""
    found = plan(mem_fraction="0.9", device_memory="1GB", **typed)
    return [tuple(replace(cell, memory=replace(cell.memory, device_bytes=None)) for cell in group) for group in found]


def test_a_gpu_reserves_what_the_stack_lacks_of_the_models_weights():
    (group,) = sized(batch="1")
    gpu = session(device=torch.device("cuda"), free_bytes=10**9)
    whole = rank_weights(TINY, 1).total_bytes
    assert sweep._reserved_bytes(group[0], gpu) == whole - weight_bytes(TINY) > 0
    assert sweep._reserved_bytes(group[0], replace(gpu, device=torch.device("cpu"))) == 0
    assert sweep._reserved_bytes(plan(batch="1")[0][0], gpu) == 0


def test_weights_are_reserved_once_and_anew_for_another_size(monkeypatch, weights, pretend):
    sizes = iter((100, 100, 50, 0))
    reserved = []
    honest = sweep.reserve
    monkeypatch.setattr(sweep, "_reserved_bytes", lambda cell, session: next(sizes))
    monkeypatch.setattr(sweep, "reserve", lambda model, count: reserved.append(count) or honest(model, count))
    list(sweep.run(plan(batch="1,2,3,4"), session()))
    assert reserved == [100, 50, 0]
    assert len(weights) == 3


def test_weights_that_do_not_fit_after_all_are_rows(monkeypatch):
    def full(model, count):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 70.00 GiB. GPU 0 has less.")

    monkeypatch.setattr(sweep, "reserve", full)
    (records,) = sweep.run(plan(batch="1", graph=False), session())
    assert [(one.status, one.reason) for one in records] == [
        ("out_of_memory", "CUDA out of memory. Tried to allocate 70.00 GiB")
    ] * 2
