"""Exchanges between ranks: equal places meet, and a rank that is elsewhere leaves nobody waiting."""

from dsv4bench.profiling.peers import OutOfStep, exchange, meet
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
