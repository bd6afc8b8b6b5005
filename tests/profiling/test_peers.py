"""Exchanges between ranks: equal places meet, and a rank that is elsewhere leaves nobody waiting."""

from datetime import timedelta

import pytest

from dsv4bench.errors import UsageError
from dsv4bench.profiling import peers
from dsv4bench.profiling.peers import OutOfStep, exchange, meet, open_peers
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
