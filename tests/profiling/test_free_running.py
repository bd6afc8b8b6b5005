"""Free-running ranks: no barrier between the samples of a block, and decisions that all ranks make alike."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from dsv4bench.profiling.clocks import ClockMonitor
from dsv4bench.profiling.free_running import free_run
from dsv4bench.profiling.lockstep import Lockstep
from dsv4bench.profiling.peers import OutOfStep
from dsv4bench.profiling.timing import QUICK, Part, StopRule, nothing
from tests.profiling.small_groups import FakeClock
from tests.profiling.thread_peers import on_ranks

MS = 1_000_000


def timed(peers, rule, steps=(nothing, nothing), ticks=(2 * MS, 5 * MS)):
    """Let a rank whose steps take `ticks` ns time two parts; return all ranks' times, its barriers, samples and ns."""
    own, monitor = FakeClock(tick_ns=ticks[peers.rank]), SimpleNamespace(sample=nothing, sm_mhz=lambda: 1980)
    found = free_run([Part(one) for one in steps], "step_period", Lockstep(own, peers), rule, monitor)
    return found, peers.aligned, own.events.count("measure"), own.time_ns


def test_every_rank_takes_its_samples_without_a_barrier():
    for found, aligned, measured, _ in on_ranks(2, lambda peers: timed(peers, replace(QUICK, samples=3, sample_ns=1))):
        assert [[one.samples_ns["step_period"] for one in ranks] for ranks in found] == [
            [[2 * MS] * 3, [5 * MS] * 3]
        ] * 2
        assert {(one.stop, one.sm_mhz) for ranks in found for one in ranks} == {("fixed", (1980,) * 3)}
        assert aligned == 2 * (1 + 1)  # of each part the warm-up and the sample by which ranks agree
        assert measured == aligned + 2 * (1 + 3)  # in the block each part is warm after one run


def test_parts_are_prepared_while_ranks_agree_and_not_in_a_block():
    def work(peers):
        prepared = []
        part = Part(nothing, lambda: prepared.append(peers.all_gather(None)))
        free_run([part], "step_period", Lockstep(FakeClock(), peers), replace(QUICK, samples=3), ClockMonitor(None))
        return len(prepared)

    assert on_ranks(2, work) == [2, 2]  # for the warm-up and for one sample


def test_the_steps_of_a_sample_are_those_of_the_slowest_rank():
    found = on_ranks(2, lambda peers: timed(peers, replace(QUICK, samples=1, sample_ns=10 * MS)))
    assert {one.repeat for ranks, *_ in found for part in ranks for one in part} == {2}
    steps = 2 * (1 + 2 + 1 + 2)  # of each part a warm-up and a sample, while ranks agree and in the block
    assert [spent_ns for *_, spent_ns in found] == [steps * 2 * MS, steps * 5 * MS]


def test_blocks_go_on_until_there_is_enough_of_them():
    """A block of rank 0, whose clock decides, is 2 x 5 steps of 2 ms."""
    rule = StopRule(warm_ups=1, least_samples=4, least_ns=50 * MS, sample_ns=1)
    for found, *_ in on_ranks(2, lambda peers: timed(peers, rule)):
        assert {(len(one.samples_ns["step_period"]), one.stop) for ranks in found for one in ranks} == {
            (12, "converged")
        }


@pytest.mark.parametrize("fails_at", [1, 5], ids=["while ranks agree", "in the block"])
def test_an_error_on_one_rank_ends_it_on_all(fails_at):
    def work(peers):
        runs = []

        def step():
            runs.append(None)
            if peers.rank == 1 and len(runs) == fails_at:
                raise RuntimeError("out of something")

        timed(peers, replace(QUICK, samples=3, sample_ns=1), steps=(step, nothing))

    first, second = on_ranks(2, work)
    assert type(first) is OutOfStep
    assert str(first).endswith("by rank 1, which failed in a step")
    assert (type(second), str(second)) == (RuntimeError, "out of something")
