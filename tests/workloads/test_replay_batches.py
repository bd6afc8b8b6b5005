"""The batches that prove a bucket: those of appendix B.5 at 256 rows, and what every bucket must have among them."""

from itertools import pairwise

import pytest

from dsv4bench.workloads.buckets import buckets
from dsv4bench.workloads.prefill import extents_of
from dsv4bench.workloads.replay_batches import LEAST_ROWS, PREFIXES, replay_batches


def named(bucket):
    return {one.name: one.batch for one in replay_batches(bucket)}


def test_at_256_rows_they_begin_with_those_of_the_specification():
    first = [[(one.prefix, one.extend) for one in each.batch.requests] for each in replay_batches(256)[:5]]
    assert first == [[(0, 256)], [(0, 100), (7, 1), (33, 90)], [(61, 1)], [], [(0, 256)]]
    assert [each.batch.live for each in replay_batches(256)[:5]] == [256, 191, 1, 0, 256]


@pytest.mark.parametrize("bucket", [*buckets()[:12], 100, 255, 8192])
def test_every_bucket_has_batches_of_each_kind(bucket):
    found = named(bucket)
    assert all((batch.bucket, batch.rows) == (bucket, bucket) for batch in found.values())
    assert found["one odd token"].requests[0].prefix % 2 == 1
    assert found["one even token"].requests[0].prefix % 2 == 0
    assert found["odd prefix"].requests[0].prefix % 2 == 1
    assert found["idle rank"].idle
    assert found["idle rank"].live == found["no live token"].live == 0
    many, flipped = found["many requests"], found["parities flipped"]
    assert many.live == bucket
    assert len(many.requests) > 1
    assert [one.seq % 2 for one in flipped.requests] == [(one.seq + 1) % 2 for one in many.requests]
    first, following = (found[name].requests[0] for name in ("first chunk", "next chunk"))
    assert first.seq % 2 == 1
    assert (following.index, following.prefix) == (first.index, first.seq)


def test_only_the_next_chunk_goes_on_with_the_ring():
    assert [one.name for one in replay_batches(8) if one.continues] == ["next chunk"]
    names = [one.name for one in replay_batches(8)]
    assert names.index("next chunk") == names.index("first chunk") + 1


def test_neighbours_are_never_the_same_batch():
    batches = [one.batch for one in replay_batches(LEAST_ROWS)]
    assert all(one != other for one, other in pairwise(batches))


def test_smaller_buckets_fit_the_caches_of_larger_ones():
    sizes = (LEAST_ROWS, 8, 48, 256, 8192)
    extents = [extents_of((tuple(one.batch for one in replay_batches(size)),)) for size in sizes]
    for smaller, larger in pairwise(extents):
        assert len(smaller) <= len(larger)
        pairs = list(zip(smaller, larger, strict=False))
        assert all(one.prefix == other.prefix and one.end <= other.end for one, other in pairs)
    assert [extent.prefix for extent in extents[-1]] == list(PREFIXES)
