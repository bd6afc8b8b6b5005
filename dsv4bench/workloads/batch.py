"""What one forward computes: requests of new tokens, each on its cached prefix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from dsv4bench.errors import UsageError


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a forward: `extend` new tokens on `prefix` cached ones; `index` is its own across forwards."""

    index: int
    prefix: int
    extend: int

    @property
    def seq(self) -> int:
        """Tokens after this forward."""
        return self.prefix + self.extend


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests of one forward on one rank, in row order.

    `bucket` is the row count of a graph's static buffers (None: no padding). An idle batch holds one made-up request of
    `bucket` tokens and no live row (specification 8.2); a batch of no requests is a rank that sits an eager step out.
    """

    requests: tuple[Request, ...]
    rank: int = 0
    bucket: int | None = None
    idle: bool = False

    @property
    def live(self) -> int:
        """Rows that belong to a real request."""
        return 0 if self.idle else sum(self.extends)

    @property
    def rows(self) -> int:
        """Rows that the step runs over, padding included."""
        return sum(self.extends) if self.bucket is None else self.bucket

    @property
    def pads(self) -> int:
        """Rows that belong to no request; they stand after the live ones."""
        return self.rows - self.live

    @property
    def extends(self) -> tuple[int, ...]:
        """New tokens of each request."""
        return tuple(request.extend for request in self.requests)

    @property
    def seq_lens(self) -> tuple[int, ...]:
        """Tokens of each request after this forward."""
        return tuple(request.seq for request in self.requests)

    @property
    def starts(self) -> tuple[int, ...]:
        """The first row of each request."""
        return tuple(accumulate(self.extends, initial=0))[:-1]

    @property
    def context(self) -> int:
        """Tokens of the longest request; 0 in a batch of none."""
        return max(self.seq_lens, default=0)

    def tail(self, window: int, slots: int) -> Batch:
        """Return the last min(window, extend) new tokens of each request: the rows of the late layers (1.2).

        A padded batch has a padded tail, of as many rows for every batch of its bucket: `slots` requests of a whole
        window, or the bucket where that is less.
        """
        bucket = None if self.bucket is None else min(self.bucket, slots * window)
        if self.idle:
            assert bucket is not None, "an idle batch is padded"
            return Batch((Request(0, 0, bucket),), self.rank, bucket, idle=True)
        lengths = [min(window, request.extend) for request in self.requests]
        pairs = zip(self.requests, lengths, strict=True)
        kept = tuple(Request(request.index, request.seq - length, length) for request, length in pairs)
        return replace(self, requests=kept, bucket=bucket)

    def padded(self, bucket: int) -> Batch:
        """Return this batch in the static buffers of `bucket` rows; a batch of no requests becomes an idle one.

        Raises ValueError where the batch has more rows than the bucket.
        """
        if not self.requests or self.idle:
            return Batch((Request(0, 0, bucket),), self.rank, bucket, idle=True)
        if self.live > bucket:
            raise ValueError(f"{self.live} rows do not fit a bucket of {bucket}")
        return replace(self, bucket=bucket)


# one cell's workload: for each rank, its forwards in order; every rank has the same number of forwards
Plan = tuple[tuple[Batch, ...], ...]


def pack(requests: tuple[Request, ...], chunk: int, rank: int = 0) -> tuple[Batch, ...]:
    """Pack requests, in order, into forwards of at most `chunk` rows.

    A request starts in what the one before left of a forward, and what does not fit goes on in the next forward with
    its own earlier chunks as prefix. Every forward but the last is full.
    """
    forwards: list[list[Request]] = [[]]
    room = chunk
    for request in requests:
        done = 0
        while done < request.extend:
            if room == 0:
                forwards.append([])
                room = chunk
            taken = min(room, request.extend - done)
            forwards[-1].append(Request(request.index, request.prefix + done, taken))
            done += taken
            room -= taken
    return tuple(Batch(tuple(forward), rank) for forward in forwards)


def equal_requests(batch: int, extend: int, prefix: int, chunk: int, ranks: int = 1) -> tuple[Request, ...]:
    """Return `batch` equal requests of `extend` new tokens on `prefix` cached ones that fit a chunk budget per rank.

    Where a rank's requests exceed `chunk` tokens, the budget is split evenly between them and the remainder is left
    out, so that all requests stay equal (64 requests at 8192: 128 tokens each). Raises UsageError where not one token
    each is left.
    """
    fullest = -(-batch // ranks)  # requests of the rank that is dealt the most
    each = min(extend, chunk // fullest)
    if each < 1:
        raise UsageError(f"--chunk {chunk}: no token for each of {fullest} requests, at least {fullest} expected")
    return tuple(Request(index, prefix, each) for index in range(batch))
