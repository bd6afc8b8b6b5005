"""The record of ranks that are processes: what it takes from which rank."""

from types import SimpleNamespace

import pytest

from dsv4bench.profiling.rank_recording import merged
from tests.profiling.thread_peers import on_ranks
from tests.results.synthetic import record


@pytest.mark.parametrize(
    ("saved", "wanted"),
    [((3, 50), 50), ((50, 3), 50), ((None, 50), 50), ((None, None), None)],
    ids=["another's", "its own", "only another saves", "nobody saves"],
)
def test_the_prediction_is_of_the_rank_that_saves_most(saved, wanted):
    """The step is that of the slowest rank, as where ranks are simulated; rank 0 may have the shortest requests."""

    def work(peers):
        bytes_here = saved[peers.rank]
        predicted = None if bytes_here is None else {"saved_bytes": bytes_here, "saved_ns": 7.0}
        (found,) = merged(SimpleNamespace(peers=peers, launched=None), [record(predicted=predicted)])
        return found.predicted

    assert on_ranks(2, work) == [None if wanted is None else {"saved_bytes": wanted, "saved_ns": 7.0}] * 2


def of_ranks(*ranks):
    """Return what rank 0 keeps of a cell, given each rank's changes to its record."""

    def work(peers):
        (found,) = merged(SimpleNamespace(peers=peers, launched=None), [record(**ranks[peers.rank])])
        return found

    first, *others = on_ranks(len(ranks), work)
    assert others == [first] * (len(ranks) - 1)
    return first


def test_what_one_rank_has_to_say_is_said_of_the_cell():
    lost = {"attributed": 7, "unattributed": 3}
    found = of_ranks({"flags": ["hot"]}, {"flags": ["hot", "slow"], "coverage": lost})
    assert found.flags == ["hot", "rank 1: slow"]
    assert found.coverage == lost


def test_memory_is_the_most_that_a_rank_used_and_the_least_that_one_had_free():
    one = {"peak_bytes": 5, "workspace_bytes": None, "lowest_free_bytes": 40}
    two = {"peak_bytes": 3, "workspace_bytes": 8, "lowest_free_bytes": 20}
    assert of_ranks({"memory": one}, {"memory": two}).memory == {
        "peak_bytes": 5,
        "workspace_bytes": 8,
        "lowest_free_bytes": 20,
        "lowest_free_rank": 1,
    }
    assert of_ranks({"memory": {"peak_bytes": None}}, {"memory": {"peak_bytes": None}}).memory == {"peak_bytes": None}
