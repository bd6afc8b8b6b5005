"""The shared clock: samples last as long as the slowest rank, and all ranks decide alike."""

from dataclasses import replace

import pytest

from dsv4bench.profiling.lockstep import Lockstep
from dsv4bench.profiling.peers import OutOfStep
from dsv4bench.profiling.timing import QUICK, Part, StopRule, Subject, interleave, nothing
from tests.profiling.small_groups import FakeClock
from tests.profiling.thread_peers import on_ranks

MS = 1_000_000


def timed(peers, ticks, rule, steps=(nothing, nothing)):
    """Interleave two subjects on a rank whose steps take `ticks` ns; return the slowest times and those of each."""
    inner = FakeClock(tick_ns=ticks[peers.rank])
    clock = Lockstep(inner, peers)
    subjects = [Subject((clock.part(number, Part(step)),)) for number, step in enumerate(steps)]
    found = interleave(subjects, clock, rule)
    each = [clock.timings(number, one, "step_period") for number, one in enumerate(found)]
    return [one.samples_ns["step_period"] for one in found], each, peers.aligned, inner.events.count("measure")


def test_a_sample_is_the_slowest_ranks_and_each_ranks_own_is_kept():
    rule = replace(QUICK, samples=3, sample_ns=1)
    results = on_ranks(2, lambda peers: timed(peers, (2 * MS, 5 * MS), rule))
    for slowest, each, aligned, measured in results:
        assert slowest == [[5 * MS] * 3] * 2
        assert [[one.samples_ns["step_period"] for one in ranks] for ranks in each] == [
            [[2 * MS] * 3, [5 * MS] * 3]
        ] * 2
        assert aligned == measured == 2 * (1 + 3)  # each subject: one warm-up and three samples


def test_the_steps_of_a_sample_are_chosen_by_the_slowest_rank():
    rule = replace(QUICK, samples=1, sample_ns=10 * MS)
    for _, each, *_ in on_ranks(2, lambda peers: timed(peers, (1 * MS, 5 * MS), rule)):
        assert {one.repeat for ranks in each for one in ranks} == {2}


def test_rank_0_says_how_late_it_is():
    rule = StopRule(warm_ups=1, least_samples=100, timeout_ns=20 * MS, sample_ns=1)
    found = on_ranks(2, lambda peers: timed(peers, (2 * MS, 100 * MS), rule))
    assert [slowest for slowest, *_ in found] == [[[100 * MS] * 5] * 2] * 2  # 5 rounds of 4 ms on rank 0's clock


@pytest.mark.parametrize("fails_at", [1, 4], ids=["the first warm-up", "a sample"])
def test_an_error_on_one_rank_ends_the_sample_on_all(fails_at):
    def work(peers):
        runs = []

        def step():
            runs.append(None)
            if peers.rank == 1 and len(runs) == fails_at:
                raise RuntimeError("out of something")

        timed(peers, (MS, MS), replace(QUICK, samples=3, sample_ns=1), steps=(step, nothing))

    first, second = on_ranks(2, work)
    assert (type(first), str(first)) == (OutOfStep, "left behind at time by rank 1, which failed in a step")
    assert (type(second), str(second)) == (RuntimeError, "out of something")


def test_where_ranks_wait_in_a_step_an_error_is_raised_at_once():
    """The others wait for this rank's rows, and could hear nothing else."""

    def work(peers):
        def step():
            raise RuntimeError("out of something")

        told, tell = [], peers.all_gather
        peers.all_gather = lambda value: told.append(value[0]) or tell(value)
        with pytest.raises(RuntimeError, match="out of something"):
            Lockstep(FakeClock(), peers, tied=True).measure(step, repeat=1)
        return told

    assert on_ranks(1, work) == [["sample"]]
