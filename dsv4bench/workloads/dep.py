"""Data-parallel attention on one device: deal whole requests to ranks, and pad the ranks to a common bucket."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4bench.workloads.batch import Batch, Plan, Request, pack
from dsv4bench.workloads.buckets import CONTEXT_LIMIT, Refusal, bucket_for


def deal(requests: tuple[Request, ...], ranks: int) -> tuple[tuple[Request, ...], ...]:
    """Deal whole requests to `ranks` round robin: request i goes to rank i mod `ranks` (specification 8.1).

    A request is never split between ranks; with more ranks than requests the last ranks get none.
    """
    return tuple(requests[rank::ranks] for rank in range(ranks))


def plan_ranks(requests: tuple[Request, ...], ranks: int, chunk: int) -> Plan:
    """Deal requests to ranks and pack each rank's own into forwards of at most `chunk` rows.

    A rank that runs out of forwards before the others sits the rest out with batches of no requests. Eager forwards
    need no padding: SUM_LEN at attention TP 1 (specification 8.2).
    """
    packed = [pack(own, chunk, rank) for rank, own in enumerate(deal(requests, ranks))]
    longest = max(len(forwards) for forwards in packed)
    return tuple(forwards + (Batch((), rank),) * (longest - len(forwards)) for rank, forwards in enumerate(packed))


def pad_forward(
    forward: tuple[Batch, ...], buckets: Sequence[int], context_limit: int = CONTEXT_LIMIT
) -> tuple[Batch, ...] | Refusal:
    """Pad one forward, a batch per rank, to a common one of the `buckets` (MAX_LEN, 8.2), or say why not.

    Every busy rank must find a bucket of its own, as each would alone; the common one is the largest of them. A rank
    with no requests is materialised as an idle batch.
    """
    found = [bucket_for(batch.live, batch.context, buckets, context_limit) for batch in forward if batch.live]
    sizes = [size for size in found if not isinstance(size, Refusal)]
    if len(sizes) < len(found):
        return next(refusal for refusal in found if isinstance(refusal, Refusal))
    if not sizes:
        return Refusal("no rank has a token")
    return tuple(batch.padded(max(sizes)) for batch in forward)
