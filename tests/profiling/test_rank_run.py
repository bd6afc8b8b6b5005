"""Groups whose ranks run at the same time, here as threads: what is agreed, what ends on all, what a record holds."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from dsv4bench.errors import CaptureError
from dsv4bench.profiling import rank_run
from dsv4bench.profiling.graphs import Graphs
from dsv4bench.profiling.passes import _guarded, run_group
from dsv4bench.profiling.peers import OutOfStep
from dsv4bench.profiling.rank_run import RankRun
from dsv4bench.results.comparability import differences
from tests.profiling.small_groups import TINY, FakeClock, group, model, requests_file, session
from tests.profiling.thread_peers import on_ranks

MS = 1_000_000
TICKS = (2 * MS, 5 * MS, 3 * MS)


def run(size=2, **typed):
    """Return the records that each rank returns, rank r's steps taking TICKS[r]."""
    cells = group(geometry=TINY, dep=str(size), **typed)

    def work(peers):
        clock = FakeClock(tick_ns=TICKS[peers.rank])
        return run_group(cells, model(TINY), session(clock=clock, peers=peers))

    found = on_ranks(size, work)
    assert not [one for one in found if isinstance(one, BaseException)], found
    return found


@pytest.fixture(scope="module")
def balanced():
    """Three requests of 8 rows on two ranks: 16 and 8 rows."""
    return run(batch="3", reuse="on")


@pytest.fixture(scope="module")
def idle():
    """One request on two ranks."""
    return run(batch="1", reuse="on")


def test_all_ranks_return_the_same_records(balanced):
    first, second = balanced
    assert [replace(one, created="") for one in first] == [replace(one, created="") for one in second]
    assert [(one.status, one.reason) for one in first] == [("ok", None)] * 2


def test_real_ranks_are_measured_and_never_take_the_place_of_simulated_ones(balanced):
    simulated = {cell.key("c") for cell in group(geometry=TINY, dep_simulated="2", batch="3", reuse="on")}
    real = {cell.key("c") for cell in group(geometry=TINY, dep="2", batch="3", reuse="on")}
    assert not simulated & real
    for one in balanced[0]:
        assert (one.label, one.ranks, one.variant["dep"], one.variant["dep-simulated"]) == ("measured", 2, 2, 1)
        assert one.timing["alignment"] == "barrier before every sample"
        assert any(line.startswith("2 ranks, a process each") for line in one.note)


def test_one_rank_waits_for_no_other_and_is_no_slowest():
    ((one, _),) = run(1, batch="1", reuse="on")
    assert (one.status, one.ranks) == ("ok", 1)
    assert [line for line in one.note if "rank" in line] == ["1 rank, a process of its own"]


def test_ranks_that_run_free_are_other_cells_and_say_so(balanced):
    records, _ = run(batch="3", reuse="on", align="free")
    for one, aligned in zip(records, balanced[0], strict=True):
        assert (one.status, one.timing["alignment"]) == ("ok", "none within a block of samples")
        assert one.rank_samples_ns == aligned.rank_samples_ns  # of a clock that knows no waiting
        assert any("they begin samples apart" in line for line in one.note)
        assert one.key != aligned.key
        assert [found.what for found in differences(aligned, one)] == ["alignment"]


def test_a_step_is_the_slowest_ranks_sample_by_sample(balanced):
    for one in balanced[0]:
        assert one.samples_ns == {"step_period": [5 * MS] * 2}
        assert one.rank_samples_ns == [{"step_period": [2 * MS] * 2}, {"step_period": [5 * MS] * 2}]
        assert one.batch["rank_rows"] == [16, 8]


def test_every_rank_is_padded_to_the_bucket_that_the_ranks_agree_on(balanced):
    eager, taped = balanced[0]
    assert (eager.batch["padded_rows"], taped.batch["padded_rows"]) == (24, 32)
    assert [one["bucket"] for one in taped.graph["each"]] == [16]


def test_every_rank_checks_its_own_and_counts_its_launches(balanced):
    eager, taped = balanced[0]
    names = [check["name"] for check in taped.checks]
    assert "replay against eager" in names
    assert "replay against eager, rank 1" in names
    assert eager.rank_launches[0] == eager.rank_launches[1]
    assert {row["kv_source"] for row in taped.rank_launches[1]} == {0, 2}


def test_an_idle_rank_sits_eager_steps_out_and_replays_padding_that_writes_nothing(idle):
    eager, taped = idle[0]
    assert (eager.status, taped.status) == ("ok", "ok")
    assert eager.rank_samples_ns == [{"step_period": [2 * MS] * 2}, {"step_period": [0, 0]}]
    assert eager.samples_ns == {"step_period": [2 * MS] * 2}  # not the 5 ms of a rank that only waits
    assert taped.rank_samples_ns[1] == {"step_period": [5 * MS] * 2}
    assert taped.batch["rank_rows"] == [8, 0]
    assert eager.rank_launches[1] == []
    assert taped.rank_launches[1]
    (check,) = (one for one in taped.checks if one["name"].endswith("rank 1"))
    assert check["name"] == "replay without a live row, rank 1"


def test_a_rank_with_fewer_forwards_is_idle_in_the_last(tmp_path):
    records, _ = run(requests=requests_file(tmp_path, 16, 8), batch="2", chunk="8", reuse="on")
    for one in records:
        assert (one.status, one.batch["forwards"], one.batch["rank_rows"]) == ("ok", 2, [16, 8])
    eager, taped = records
    assert [one["step_period"] for one in eager.rank_samples_ns] == [[4 * MS] * 2, [5 * MS] * 2]
    assert [one["step_period"] for one in taped.rank_samples_ns] == [[4 * MS] * 2, [10 * MS] * 2]


def test_a_rank_that_cannot_capture_ends_the_cell_on_all_and_no_other(monkeypatch):
    capture = Graphs.capture

    def fail_on_rank_1(self, run, step, first):
        if first.batch.rank == 1:
            raise CaptureError("layer 0 project: no")
        capture(self, run, step, first)

    monkeypatch.setattr(Graphs, "capture", fail_on_rank_1)
    (eager, taped), second = run(batch="2", reuse="on")
    assert eager.status == "ok"
    assert (taped.status, taped.reason) == ("failed", "rank 1: capture: layer 0 project: no")
    assert (second[1].status, second[1].reason) == (taped.status, taped.reason)
    assert taped.samples_ns == {}


def test_a_rank_that_fails_while_it_is_timed_is_the_one_that_is_named(monkeypatch):
    part = RankRun._eager_part

    def fails(self, run, forward):
        found = part(self, run, forward)

        def broken():
            raise RuntimeError("no more room")

        return replace(found, run=broken) if self.peers.rank == 2 else found

    monkeypatch.setattr(RankRun, "_eager_part", fails)
    for records in run(3, batch="3", reuse="on", graph=False):
        assert [(one.status, one.reason) for one in records] == [("failed", "rank 2: RuntimeError: no more room")]


def test_ranks_that_launch_different_things_fail_the_cell(monkeypatch):
    original = rank_run.launched

    def more_on_rank_1(counts, bucket, live):
        found = original(counts, bucket, live)
        if bucket == 8 and not live:
            found.rows[0]["calls"] += 1
        return found

    monkeypatch.setattr(rank_run, "launched", more_on_rank_1)
    eager, taped = run(batch="1", reuse="on")[0]
    assert eager.status == "ok"
    assert taped.status == "failed"
    assert taped.reason.startswith("ranks launched different things: ")
    assert taped.reason.endswith("2 calls on rank 1, 1 on rank 0")


@pytest.mark.parametrize(("path", "status"), [("sparse", "failed"), ("recipe", "ok")])
def test_ranks_that_choose_their_way_by_their_rows_may_launch_different_things(monkeypatch, path, status):
    original, ranks = rank_run.launched, iter(range(2))

    def other_calls(counts, bucket, live):
        found = original(counts, bucket, live)
        found.rows[0]["calls"] += next(ranks)
        return found

    monkeypatch.setattr(rank_run, "launched", other_calls)
    ((one,), _) = run(batch="2", path=path, reuse="on", graph=False)
    assert one.status == status


@pytest.mark.parametrize(("moe", "ties"), [("off", False), ("collectives", True)])
def test_only_where_ranks_exchange_rows_an_error_is_more_than_its_cells_end(moe, ties):
    """The others wait for this rank then, and only the end of its process frees them."""
    cells = group(geometry=TINY, dep="2", batch="2", moe=moe, graph=False, reuse="on")

    def fail():
        raise RuntimeError("no more room")

    def work(peers):
        found = RankRun(cells, model(TINY), session(peers=peers), peers)
        early = found.strands(RuntimeError())
        found.agree("allocate")
        with pytest.raises(RuntimeError) if ties else nullcontext():
            _guarded(found, fail)
        return early, found.strands(OutOfStep()), found.runs[0].status

    assert on_ranks(2, work) == [(False, False, "ok" if ties else "failed")] * 2


def test_a_cell_that_one_rank_ends_is_replayed_by_none():
    """As after a check of an eager step: the others would wait for its rows."""
    cells = group(geometry=TINY, dep="2", batch="2", moe="collectives", graph=True, reuse="on")

    def work(peers):
        found = RankRun(cells, model(TINY), session(peers=peers), peers)
        if peers.rank == 1:
            found.runs[0].end("wrong", "outputs differ")
        found._verify_replays(again=True)
        return [(one.status, one.reason) for one in found.runs]

    assert on_ranks(2, work) == [[("wrong", "rank 1: outputs differ")]] * 2


def test_a_graph_that_refuses_one_rank_refuses_all(tmp_path):
    records, _ = run(requests=requests_file(tmp_path, 8, 1), batch="2", reuse="on", graph=True)
    assert [(one.status, one.reason) for one in records] == [("refused", "bucket 4 is over 2 times the 1 tokens")]
