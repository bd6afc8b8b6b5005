"""Ranks as threads of the test process: what processes exchange by collectives, they exchange through a list."""

import threading
from dataclasses import dataclass, field

import torch

from dsv4bench.profiling.peers import exchange

TIMEOUT_S = 60


@dataclass
class Meeting:
    """Where the threads meet."""

    size: int
    barrier: threading.Barrier = field(init=False)
    values: list = field(init=False)

    def __post_init__(self):
        self.barrier = threading.Barrier(self.size)
        self.values = [None] * self.size


@dataclass
class ThreadPeers:
    """One thread's view of the others; `aligned` counts its barriers."""

    meeting: Meeting
    rank: int
    aligned: int = 0

    @property
    def size(self):
        return self.meeting.size

    def all_gather(self, value):
        self.meeting.values[self.rank] = value
        self.meeting.barrier.wait(TIMEOUT_S)
        found = list(self.meeting.values)
        self.meeting.barrier.wait(TIMEOUT_S)  # nobody writes the next value before all have read this one
        return found

    def barrier(self):
        self.aligned += 1

    def tell(self, place, value):
        return exchange(self, place, value)

    def _rows_of_all(self, rows):
        return [found.float() for found in exchange(self, "collective", rows.clone())]

    def all_gather_rows(self, out, rows):
        out.copy_(torch.cat(self._rows_of_all(rows)))

    def reduce_scatter_rows(self, out, rows):
        out.copy_(sum(self._rows_of_all(rows)).chunk(self.size)[self.rank])

    def all_reduce(self, rows):
        rows.copy_(sum(self._rows_of_all(rows)))


def on_ranks(size, work):
    """Run `work(peers)` in a thread for each rank; return what each returned, or the exception that it raised."""
    meeting, found = Meeting(size), [None] * size

    def one(rank):
        try:
            found[rank] = work(ThreadPeers(meeting, rank))
        except BaseException as error:
            found[rank] = error
            if isinstance(error, AssertionError):
                meeting.barrier.abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
