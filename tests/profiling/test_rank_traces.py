"""Traces of all ranks: where they meet, what rank 0 keeps, and what is said where a rank recorded nothing."""

import pytest

from dsv4bench.errors import DsvError
from dsv4bench.profiling.profile_pass import jobs_of
from dsv4bench.profiling.rank_traces import record_ranks
from dsv4bench.workloads.options import PrefillArguments
from tests.profiling.small_groups import TINY, groups
from tests.profiling.thread_peers import on_ranks

FAILURES = {
    "a rank that says why": ({1: "a CUDA error"}, "rank 1: a CUDA error"),
    "a rank that only noticed": ({0: "a collective failed: closed", 2: "out of memory"}, "rank 2: out of memory"),
    "nobody knows": ({0: "a collective failed: closed"}, "rank 0: a collective failed: closed"),
}


@pytest.fixture
def recorded(tmp_path):
    """Record the only cell of a plan on ranks that fail as told; return what each rank returned and its ports."""
    plan = groups(geometry=TINY, dep="3", batch="3", reuse="on", graph=False)
    ((cell, job),) = jobs_of(plan, plan, PrefillArguments(), "torch", local_rank=0)
    ports = []

    def run(failures):
        def work(peers):
            def record(task, device, port):
                ports.append(port)
                assert (task, device) == (job, "cpu")
                if peers.rank in failures:
                    raise DsvError(failures[peers.rank])
                return f"rank{peers.rank}.json.gz", bytes([peers.rank])

            return record_ranks(peers, cell, job, record, tmp_path / "cell" if peers.rank == 0 else None)

        return on_ranks(3, work)

    return run, ports


def test_rank_0_keeps_a_file_a_rank_in_place_of_older_ones(recorded, tmp_path):
    run, ports = recorded
    (tmp_path / "cell").mkdir()
    (tmp_path / "cell" / "rank0.sqlite").write_text("of a run that was interrupted")
    assert run({}) == [None] * 3
    assert {file.name: file.read_bytes() for file in (tmp_path / "cell").iterdir()} == {
        f"rank{rank}.json.gz": bytes([rank]) for rank in range(3)
    }
    assert len(ports) == 3
    assert len(set(ports)) == 1


@pytest.mark.parametrize(("failures", "said"), FAILURES.values(), ids=FAILURES)
def test_the_rank_that_caused_it_is_named_and_half_a_run_is_not_kept(recorded, tmp_path, failures, said):
    run, _ = recorded
    assert run(failures) == [f"no trace of eager reuse on: {said}"] * 3
    assert not (tmp_path / "cell").exists()
