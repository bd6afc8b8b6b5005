"""Exchanges between ranks: equal places meet, and a rank that is elsewhere leaves nobody waiting."""

from datetime import timedelta

import pytest
import torch

from dsv4bench.errors import UsageError
from dsv4bench.profiling import peers
from dsv4bench.profiling.peers import GRACE_S, OutOfStep, ProcessGroup, exchange, meet, open_peers
from dsv4bench.profiling.rank_traces import free_port
from tests.profiling.thread_peers import on_ranks


def test_ranks_at_one_place_see_the_values_of_all():
    assert on_ranks(3, lambda peers: exchange(peers, "here", 10 * peers.rank)) == [[0, 10, 20]] * 3


def test_a_rank_that_is_elsewhere_is_named_on_every_rank():
    def work(peers):
        return exchange(peers, "the end" if peers.rank == 1 else "sample")

    first, second, third = on_ranks(3, work)
    assert {type(error) for error in (first, second, third)} == {OutOfStep}
    assert str(first) == str(third) == "left behind at sample by rank 1, which is at the end"
    assert str(second) == "left behind at the end by rank 0, which is at sample"


def test_ranks_that_are_out_of_step_come_together_where_errors_send_them():
    def work(peers):
        samples = 0
        try:
            for _ in range(5):
                own = int("only here" if peers.rank == 1 and samples == 2 else "1")
                exchange(peers, "sample", own)
                samples += 1
        except (OutOfStep, ValueError) as error:
            return meet(peers, "the end", str(error))

    said = "left behind at sample by rank 1, which is at the end"
    assert on_ranks(3, work) == [[said, "invalid literal for int() with base 10: 'only here'", said]] * 3


def test_ranks_that_never_come_are_not_waited_for_as_long_as_an_exchange_may_take(monkeypatch):
    """As where another rank ended over a slip of its own, before it met anybody."""
    monkeypatch.setattr(peers, "JOIN", timedelta(seconds=1))
    here = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    for name, text in here.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(UsageError, match=r"^--dep: the ranks found no way to each other: .*1/2"):
        open_peers("cpu")


@pytest.fixture
def member(monkeypatch):
    """One of two ranks, how long it sleeps, and what makes all of its collectives fail with an error."""
    slept = []
    monkeypatch.setattr(peers.time, "sleep", slept.append)
    monkeypatch.setattr(peers.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(peers.dist, "get_world_size", lambda: 2)

    def failing(error):
        def fail(*_):
            raise error

        for place, name in ((peers.dist, "all_reduce"), (peers, "_ALL_GATHER"), (peers, "_REDUCE_SCATTER")):
            monkeypatch.setattr(place, name, fail)

    return ProcessGroup("cpu"), slept, failing


ROWS = torch.zeros(2, 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda group: group.barrier(),
        lambda group: group.all_reduce(ROWS),
        lambda group: group.all_gather_rows(ROWS, ROWS[:1]),
        lambda group: group.reduce_scatter_rows(ROWS[:1], ROWS),
    ],
    ids=["barrier", "all-reduce", "all-gather", "reduce-scatter"],
)
@pytest.mark.parametrize(
    ("error", "sleeps"),
    [(RuntimeError("Connection reset by peer"), [GRACE_S]), (torch.OutOfMemoryError("too large"), [])],
    ids=["another is gone", "its own memory"],
)
def test_the_lifeline_may_say_first_which_rank_is_gone(member, call, error, sleeps):
    group, slept, failing = member
    failing(error)
    with pytest.raises(type(error)):
        call(group)
    assert slept == sleeps
