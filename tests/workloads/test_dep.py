"""Dealing requests to ranks, and the padding that a graph forces on them."""

from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.workloads.batch import Batch, Request, equal_requests
from dsv4bench.workloads.buckets import Refusal, buckets
from dsv4bench.workloads.dep import common_bucket, deal, pad_forward, pad_to, plan_ranks, rank_bucket, renumbered

FIVE = equal_requests(5, 10, 0, 8192)


def test_whole_requests_go_round():
    assert [[request.index for request in own] for own in deal(FIVE, 3)] == [[0, 3], [1, 4], [2]]


def test_more_ranks_than_requests():
    assert [len(own) for own in deal(FIVE, 7)] == [1, 1, 1, 1, 1, 0, 0]


def test_every_rank_has_its_own_chunk_budget_and_as_many_forwards():
    requests = (Request(0, 0, 25), Request(1, 256, 4))
    plan = plan_ranks(requests, ranks=3, chunk=10)
    assert plan == (
        (Batch((Request(0, 0, 10),), 0), Batch((Request(0, 10, 10),), 0), Batch((Request(0, 20, 5),), 0)),
        (Batch((Request(1, 256, 4),), 1), Batch((), 1), Batch((), 1)),
        (Batch((), 2), Batch((), 2), Batch((), 2)),
    )


def test_eager_forwards_are_not_padded():
    assert {batch.pads for forwards in plan_ranks(FIVE, 7, 8192) for batch in forwards} == {0}


def test_graph_pads_every_rank_to_the_common_bucket():
    forward = (Batch((Request(0, 0, 100),), 0), Batch((Request(1, 0, 30),), 1), Batch((), 2))
    padded = pad_forward(forward, buckets())
    assert [(batch.rows, batch.live, batch.rank, batch.idle) for batch in padded] == [
        (112, 100, 0, False),
        (112, 30, 1, False),
        (112, 0, 2, True),
    ]
    assert padded[2].requests == (Request(0, 0, 112),)


def test_one_rank_refuses_for_all():
    long = Batch((Request(0, 20_000, 100),), 0)
    short = Batch((Request(1, 0, 30),), 1)
    assert pad_forward((short, long), buckets()) == Refusal("context 20100 is over the graph's limit of 16384")
    one = Batch((Request(2, 0, 1),), 2)
    assert pad_forward((short, one), buckets()) == Refusal("bucket 4 is over 2 times the 1 tokens")
    assert pad_forward((Batch((), 0), Batch((), 1)), buckets()) == Refusal("no rank has a token")


def test_ranks_agree_on_a_bucket_of_which_each_names_its_own():
    forward = (Batch((Request(0, 0, 100),), 0), Batch((Request(1, 0, 30),), 1), Batch((), 2))
    found = [rank_bucket(batch, buckets()) for batch in forward]
    assert found == [112, 32, None]
    assert common_bucket(found) == 112
    assert pad_to(forward, 112) == pad_forward(forward, buckets())
    assert pad_to(forward, Refusal("no")) == Refusal("no")


def test_the_requests_of_a_rank_are_numbered_for_tables_of_its_own():
    chunked = plan_ranks(equal_requests(5, 6, 0, 8192), ranks=2, chunk=10)[1]
    assert [[one.index for one in batch.requests] for batch in chunked] == [[1, 3], [3]]
    found = renumbered(chunked)
    assert [[one.index for one in batch.requests] for batch in found] == [[0, 1], [1]]
    assert [batch.extends for batch in found] == [(6, 4), (2,)]
    idle = Batch((), 1).padded(16)
    assert renumbered((idle, Batch((), 1))) == (idle, Batch((), 1))
    assert renumbered((*chunked, idle)) == (*found, idle)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(1, 5), st.integers(1, 20))
def test_dealing_loses_no_token(lengths, ranks, chunk):
    requests = tuple(Request(index, 0, length) for index, length in enumerate(lengths))
    plan = plan_ranks(requests, ranks, chunk)
    assert len({len(forwards) for forwards in plan}) == 1
    for rank, forwards in enumerate(plan):
        tokens = [(r.index, p) for batch in forwards for r in batch.requests for p in range(r.prefix, r.seq)]
        assert tokens == [(r.index, p) for r in requests[rank::ranks] for p in range(r.extend)]
        assert all(batch.rank == rank and batch.rows <= chunk for batch in forwards)
