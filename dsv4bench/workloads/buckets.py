"""Token buckets of the prefill graph, and when a batch is refused and runs eagerly (specification 6.6)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

MAX_TOKENS = 8192  # the largest bucket by default
CONTEXT_LIMIT = 16_384  # tokens of the longest request that the recipe lets into the graph
MAX_GROWTH = 2  # a bucket of more than this many times the tokens is refused

# (first, last, step) of each stretch of buckets; the last stretch goes on in its own step
STRETCHES = ((4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256))
LAST_FIRST, LAST_STEP = 4608, 512


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a batch does not run in the graph, in one sentence."""

    reason: str


def buckets(max_tokens: int = MAX_TOKENS) -> tuple[int, ...]:
    """Return the recipe's captured token counts up to `max_tokens`, min(8192, chunk) there, ascending."""
    sizes = [size for first, last, step in STRETCHES for size in range(first, last + 1, step)]
    sizes.extend(range(LAST_FIRST, max_tokens + 1, LAST_STEP))
    return tuple(size for size in sizes if size <= max_tokens)


def bucket_for(tokens: int, context: int, sizes: Sequence[int]) -> int | Refusal:
    """Return the smallest of the ascending `sizes` of at least `tokens`, or the reason why the batch runs eagerly.

    `context` is the longest request in tokens after the forward.
    """
    place = bisect_left(sizes, tokens)
    if place == len(sizes):
        return Refusal(f"{tokens} tokens are over the largest bucket, {sizes[-1] if sizes else 0}")
    if sizes[place] > MAX_GROWTH * tokens:
        return Refusal(f"bucket {sizes[place]} is over {MAX_GROWTH} times the {tokens} tokens")
    if context > CONTEXT_LIMIT:
        return Refusal(f"context {context} is over the graph's limit of {CONTEXT_LIMIT}")
    return sizes[place]
