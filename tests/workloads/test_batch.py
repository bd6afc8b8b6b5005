"""Batches, the even split of the chunk budget, and packing: no token lost, order kept, budget respected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.errors import UsageError
from dsv4bench.workloads.batch import Batch, Request, equal_requests, pack


def test_rows_and_lengths_of_a_batch():
    batch = Batch((Request(0, 100, 7), Request(1, 0, 5), Request(2, 33, 1)))
    assert batch.rows == batch.live == 13
    assert batch.pads == 0
    assert batch.extends == (7, 5, 1)
    assert batch.seq_lens == (107, 5, 34)
    assert batch.starts == (0, 7, 12)
    assert batch.context == 107


def test_padding_adds_rows_of_no_request():
    batch = Batch((Request(0, 100, 7), Request(1, 0, 5)), rank=1).padded(16)
    assert (batch.rows, batch.live, batch.pads, batch.rank) == (16, 12, 4, 1)
    assert batch.seq_lens == (107, 5)


def test_a_rank_without_requests_becomes_an_idle_batch():
    idle = Batch((), rank=2).padded(16)
    assert idle == Batch((Request(0, 0, 16),), 2, 16, idle=True)
    assert (idle.rows, idle.live, idle.pads, idle.context) == (16, 0, 16, 16)
    assert idle.padded(32).requests == (Request(0, 0, 32),)


def test_an_eager_rank_without_requests_has_no_row():
    batch = Batch(())
    assert (batch.rows, batch.live, batch.context, batch.starts) == (0, 0, 0, ())


def test_a_bucket_holds_its_rows():
    with pytest.raises(ValueError, match="12 rows do not fit a bucket of 8"):
        Batch((Request(0, 0, 12),)).padded(8)


@pytest.mark.parametrize(
    ("batch", "extend", "chunk", "each"),
    [(1, 1024, 8192, 1024), (8, 1024, 8192, 1024), (16, 1024, 8192, 512), (64, 1024, 8192, 128), (3, 4000, 8192, 2730)],
    ids=["one", "just fits", "halved", "64 at 8192", "remainder left out"],
)
def test_the_budget_is_split_evenly(batch, extend, chunk, each):
    requests = equal_requests(batch, extend, 256, chunk)
    assert requests == tuple(Request(index, 256, each) for index in range(batch))
    assert Batch(requests).rows <= chunk


def test_the_split_is_by_the_fullest_rank():
    assert {request.extend for request in equal_requests(9, 1024, 0, 1024, ranks=4)} == {341}  # 3 requests on rank 0


def test_no_token_left_is_refused():
    with pytest.raises(UsageError, match="--chunk 8: no token for each of 9 requests, at least 9 expected"):
        equal_requests(9, 1, 0, 8)


def test_packing_by_hand():
    packed = pack((Request(0, 256, 5), Request(1, 0, 9), Request(2, 512, 2)), chunk=6, rank=3)
    assert packed == (
        Batch((Request(0, 256, 5), Request(1, 0, 1)), 3),
        Batch((Request(1, 1, 6),), 3),
        Batch((Request(1, 7, 2), Request(2, 512, 2)), 3),
    )


def test_packing_nothing_is_one_empty_forward():
    assert pack((), 6, 1) == (Batch((), 1),)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40)), min_size=1, max_size=12), st.integers(1, 33))
def test_packing_loses_no_token_and_keeps_order(lengths, chunk):
    requests = tuple(Request(index, prefix, extend) for index, (prefix, extend) in enumerate(lengths))
    packed = pack(requests, chunk)
    tokens = [(r.index, position) for batch in packed for r in batch.requests for position in range(r.prefix, r.seq)]
    assert tokens == [(r.index, position) for r in requests for position in range(r.prefix, r.seq)]
    assert all(batch.rows == chunk for batch in packed[:-1])
    assert 0 < packed[-1].rows <= chunk
    assert all(request.extend > 0 for batch in packed for request in batch.requests)
