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
