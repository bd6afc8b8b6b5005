"""The bucket list of specification 6.6 and its refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.workloads.buckets import Refusal, bucket_for, buckets


def test_the_list():
    want = [*range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64)]
    want += [*range(1280, 4097, 256), *range(4608, 8193, 512)]
    assert list(buckets()) == want
    assert len(want) == 8 + 14 + 8 + 8 + 12 + 8


def test_the_list_ends_at_the_chunk():
    assert buckets(40) == (4, 8, 12, 16, 20, 24, 28, 32)
    assert buckets(16_384)[-1] == 16_384


@pytest.mark.parametrize(
    ("tokens", "bucket"), [(2, 4), (4, 4), (5, 8), (33, 48), (257, 288), (1025, 1280), (4097, 4608), (8192, 8192)]
)
def test_smallest_bucket(tokens, bucket):
    assert bucket_for(tokens, tokens, buckets()) == bucket


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((1, 1, buckets()), "bucket 4 is over 2 times the 1 tokens"),
        ((8193, 8193, buckets()), "8193 tokens are over the largest bucket, 8192"),
        ((130, 130, buckets(128)), "130 tokens are over the largest bucket, 128"),
        ((3, 3, buckets(3)), "3 tokens are over the largest bucket, 0"),
        ((63, 63, (31, 64, 127)), None),
        ((31, 31, (63,)), "bucket 63 is over 2 times the 31 tokens"),
        ((512, 16_385, buckets()), "context 16385 is over the graph's limit of 16384"),
    ],
    ids=[
        "too much padding",
        "too many tokens",
        "over the chunk",
        "no bucket at all",
        "own list",
        "own list, too much padding",
        "context",
    ],
)
def test_refusals(arguments, reason):
    assert bucket_for(*arguments) == (Refusal(reason) if reason else 64)


def test_the_context_limit_itself_is_let_in():
    assert bucket_for(512, 16_384, buckets()) == 512


@given(st.integers(2, 8192))
def test_a_bucket_covers_its_tokens_with_at_most_as_many_pads(tokens):
    bucket = bucket_for(tokens, tokens, buckets())
    assert isinstance(bucket, int)
    assert tokens <= bucket <= 2 * tokens
    assert not [size for size in buckets() if tokens <= size < bucket]
