"""The batches that prove the graph of one bucket, in the order in which they are replayed (appendix B.5, section 12).

A graph is captured with the first of them, and every later one differs in what a captured kernel must not have kept:
rows, requests, lengths, parities, and whether there is a row at all. At 256 rows the first five are those of B.5.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsv4bench.workloads.batch import Batch, Request

LEAST_ROWS = 4  # the smallest bucket of specification 6.6; below it there is no room for three requests
# cached tokens of each request; a request keeps its prefix in every bucket, so that all buckets share one set of caches
PREFIXES = (0, 0, 7, 33, 61, 0, 33, 0, 0, 1, 2, 15, 64, 121, 130)
WHOLE, FIRST, SECOND, THIRD, ODD, EVEN, ODD_PREFIX, CHUNKED, MANY = range(9)  # requests; of `MANY` up to seven


@dataclass(frozen=True, slots=True)
class ReplayBatch:
    """One batch by its name; `continues`: a request goes on where the batch before ended, its ring as that left it."""

    name: str
    batch: Batch
    continues: bool = False


def replay_batches(bucket: int) -> tuple[ReplayBatch, ...]:
    """Return the batches that prove a bucket of at least 4 rows; those of a smaller one fit the caches of a larger."""
    many = _many(bucket)
    first, rest = bucket // 2 | 1, bucket - 1  # an odd first chunk leaves its last even row to the ring
    requests: tuple[tuple[str, tuple[Request, ...]], ...] = (
        ("full", (_request(WHOLE, bucket),)),
        ("three requests", _three(bucket)),
        ("one odd token", (_request(ODD, 1),)),
        ("no live token", ()),
        ("full again", (_request(WHOLE, bucket),)),
        ("many requests", many),
        ("parities flipped", tuple(_request(one.index, one.extend - 1) for one in many)),
        ("one even token", (_request(EVEN, 1),)),
        ("odd prefix", (_request(ODD_PREFIX, bucket),)),
        ("first chunk", (_request(CHUNKED, first),)),
    )
    return (
        *(ReplayBatch(name, Batch(members, bucket=bucket)) for name, members in requests),
        ReplayBatch("next chunk", Batch((Request(CHUNKED, first, rest),), bucket=bucket), continues=True),
        ReplayBatch("idle rank", Batch(()).padded(bucket)),
    )


def _request(index: int, extend: int) -> Request:
    return Request(index, PREFIXES[index], extend)


def _three(bucket: int) -> tuple[Request, ...]:
    """Return requests of 100, 1 and 90 rows, scaled to the bucket (B.5)."""
    rows = (max(1, bucket * 100 // 256), 1, max(1, bucket * 90 // 256))
    return tuple(_request(index, extend) for index, extend in zip((FIRST, SECOND, THIRD), rows, strict=True))


def _many(bucket: int) -> tuple[Request, ...]:
    """Return up to seven requests of two rows or more that fill the bucket."""
    count = min(len(PREFIXES) - MANY, bucket // 2)
    each, more = divmod(bucket, count)
    return tuple(_request(MANY + number, each + (more if number == 0 else 0)) for number in range(count))
