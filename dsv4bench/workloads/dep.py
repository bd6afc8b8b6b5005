"""Data-parallel attention: deal whole requests to ranks, and pad the ranks to a common bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dsv4bench.errors import UsageError
from dsv4bench.workloads.axis import word_axis
from dsv4bench.workloads.batch import Batch, Plan, Request, pack
from dsv4bench.workloads.buckets import Refusal, bucket_for

ALIGNS = ("barrier", "free")


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


def renumbered(forwards: tuple[Batch, ...]) -> tuple[Batch, ...]:
    """Return one rank's forwards with its requests numbered from 0, as in page tables of its own."""
    own = sorted({request.index for batch in forwards for request in batch.requests if not batch.idle})
    row = {index: number for number, index in enumerate(own)}
    return tuple(
        batch
        if batch.idle
        else replace(batch, requests=tuple(replace(request, index=row[request.index]) for request in batch.requests))
        for batch in forwards
    )


def rank_bucket(batch: Batch, buckets: Sequence[int]) -> int | Refusal | None:
    """Return the bucket that a rank would find alone, why there is none, or None for a rank without a row."""
    return bucket_for(batch.live, batch.context, buckets) if batch.live else None


def common_bucket(found: Sequence[int | Refusal | None]) -> int | Refusal:
    """Return the bucket that all ranks run in, given what each found: the largest, or the first rank's refusal."""
    refusals = [one for one in found if isinstance(one, Refusal)]
    if refusals:
        return refusals[0]
    return max((one for one in found if isinstance(one, int)), default=Refusal("no rank has a token"))


def pad_forward(forward: tuple[Batch, ...], buckets: Sequence[int]) -> tuple[Batch, ...] | Refusal:
    """Pad one forward, a batch per rank, to a common one of the `buckets` (MAX_LEN, 8.2), or say why not.

    Every busy rank must find a bucket of its own, as each would alone; the common one is the largest of them. A rank
    with no requests is materialised as an idle batch.
    """
    return pad_to(forward, common_bucket([rank_bucket(batch, buckets) for batch in forward]))


def pad_to(forward: tuple[Batch, ...], bucket: int | Refusal) -> tuple[Batch, ...] | Refusal:
    """Pad one forward to the bucket that its ranks run in; a refusal of it stays one."""
    return bucket if isinstance(bucket, Refusal) else tuple(batch.padded(bucket) for batch in forward)


def alignment(text: str, dep: bool) -> str:
    """Return how ranks begin their samples, of `--align`; UsageError for "free" where no ranks run at the same time."""
    words = word_axis("--align", text, ALIGNS)
    if len(words) > 1:
        raise UsageError(f"--align {text}: expected one of {', '.join(ALIGNS)}")
    if words == ("free",) and not dep:
        raise UsageError("--align free: there is one process; expected --dep N with it")
    return words[0]
