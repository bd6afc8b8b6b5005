"""Plans of the compressors of ratio 4 and 128 by brute force: token by token in plain Python, packed with `struct`.

Written from the specification (4.1, 4.2) alone, so that it shares nothing with the planners that it judges.
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

import torch

from dsv4bench.kernels.compress_ring import StateRing

INVALID_C = struct.pack("<IHHii", 0xFFFFFFFF, 0, 0, -1, -1)
INVALID_W = struct.pack("<Ii", 0xFFFFFFFF, -1)


class Request(NamedTuple):
    """A request of a batch: its row of the table, tokens that it has, tokens that are new."""

    row: int
    prefix: int
    extend: int


def batch(*lengths: tuple[int, int]) -> list[Request]:
    """Make requests of (prefix, extend) in rows of the table that are not their numbers in the batch."""
    return [Request((3 * i + 1) % (3 * len(lengths) + 1), *both) for i, both in enumerate(lengths)]


@dataclass(frozen=True)
class World:
    """A ring and the tables around it: token p of row r lies in full slot table[r][p], which has state states[slot]."""

    ring: StateRing
    table: list[list[int]]
    states: list[int]

    def place(self, row: int, position: int) -> int:
        """Return the row of the state pool that holds a position."""
        ring = self.ring
        if ring.ratio == 128 or ring.request_ring:
            return row * ring.ring_size + position % ring.ring_size
        slot = self.states[self.table[row][position]]
        return (slot // ring.swa_page) * ring.ring_size + slot % ring.ring_size

    def tensors(self, requests: list[Request], device: str = "cpu") -> dict:
        """Return the arguments that both planners and both providers share."""
        table = torch.tensor(self.table, dtype=torch.int32, device=device)
        states = torch.tensor(self.states, dtype=torch.int64, device=device)
        made = {"ring": self.ring, "req_to_token": table, "full_to_state": states}
        numbers = {
            "req_pool_indices": [request.row for request in requests],
            "seq_lens": [request.prefix + request.extend for request in requests],
            "extend_lens": [request.extend for request in requests],
        }
        return made | {k: torch.tensor(v, dtype=torch.int64, device=device) for k, v in numbers.items()}


def world(ring: StateRing, requests: list[Request]) -> World:
    """Lay the pages of all rows out backwards in the full pool, and otherwise again in the sliding-window pool."""
    page, rows = ring.swa_page, max((r.row for r in requests), default=0) + 1
    pages = max((r.prefix + r.extend for r in requests), default=0) // page + 1
    count = rows * pages
    full = [[count - 1 - (row * pages + i) for i in range(pages)] for row in range(rows)]
    table = [[full[row][p // page] * page + p % page for p in range(pages * page)] for row in range(rows)]
    states = [(s // page * 7 + 3) % (7 * count) * page + s % page for s in range(count * page)]
    return World(ring, table, states)


def keeps(ring: StateRing, request: Request, position: int) -> bool:
    """Return whether a new token's state is kept (4.2)."""
    length = request.prefix + request.extend
    window = 8 if ring.ratio == 4 else 128
    pad = ring.ring_size - window + 2 if ring.ring_size > window else 0
    base = length // ring.ratio * ring.ratio - (4 if ring.ratio == 4 else 0)
    tail = ring.ratio == 4 and not ring.request_ring and position % ring.swa_page >= ring.swa_page - 4
    return position >= min(base, length - pad) or tail


def prefill(made: World, requests: list[Request]) -> tuple[list[bytes], list[bytes]]:
    """Return the records of plan_c and of plan_w, without padding."""
    ratio, window = made.ring.ratio, {4: 8, 128: 128}[made.ring.ratio]
    compressions, writes, ragged_id = [], [], 0
    for number, request in enumerate(requests):
        for j in range(request.extend):
            p = request.prefix + j
            if (p + 1) % ratio == 0:
                buffer_len = window - min(j + 1, window)
                pages = (-1, number)
                if buffer_len:
                    pages = tuple(made.place(request.row, x) // ratio for x in (max(p - ratio, 0), p))
                compressions.append(struct.pack("<IHHii", p + 1, ragged_id, buffer_len, *pages))
            if keeps(made.ring, request, p):
                writes.append(struct.pack("<Ii", ragged_id, made.place(request.row, p)))
            ragged_id += 1
    return compressions, writes


def decode(made: World, requests: list[Request]) -> list[bytes]:
    """Return the records of plan_d."""

    def record(request: Request) -> bytes:
        p = request.prefix + request.extend - 1
        row, before = made.place(request.row, p), made.place(request.row, max(p - made.ring.ratio, 0))
        return struct.pack("<Iiii", p + 1, row, before // made.ring.ratio, row // made.ring.ratio)

    return [record(request) for request in requests]


def records(plan: torch.Tensor) -> list[bytes]:
    """Return the rows of a plan as bytes."""
    return [bytes(row) for row in plan.tolist()]


def filled(found: list[bytes], rows: int, invalid: bytes) -> list[bytes]:
    """Return records filled up with those that stand for nothing."""
    return found + [invalid] * (rows - len(found))


class StatePool:
    """What a state pool holds, by token: it plays the compressors, which compress before they write (3.8).

    Every token gets a number of its own when it is computed, so that a draft that was rolled back and its successor at
    the same position differ.
    """

    def __init__(self, made: World) -> None:
        self.made = made
        self.held: dict[int, int] = {}
        self.text: dict[int, list[int]] = {}
        self.count = 0

    def compute(self, request: Request) -> None:
        """Make the new tokens of a request; those behind its prefix were rolled back."""
        text = self.text.setdefault(request.row, [])
        del text[request.prefix :]
        text.extend(range(self.count, self.count + request.extend))
        self.count += request.extend

    def windows(self, requests: list[Request], compressions: list[bytes]) -> list[str]:
        """Say of every window that does not find its tokens, in the pool or in the batch, what is wrong."""
        ratio, window = self.made.ring.ratio, 8 if self.made.ring.ratio == 4 else 128
        owners = [(request, request.prefix + j) for request in requests for j in range(request.extend)]
        wrong = []
        for record in compressions:
            seq_len, ragged_id, buffer_len, *pages = struct.unpack("<IHHii", record)
            request, position = owners[ragged_id]
            assert seq_len == position + 1
            for i in range(window):
                want = position - window + 1 + i
                if want < 0:  # the first group has no group before it
                    continue
                if i < buffer_len:
                    row = pages[0 if ratio == 4 and i < 4 else 1] * ratio + i % ratio
                    found = self.held.get(row)
                else:
                    owner, at = owners[ragged_id - (window - 1) + i]
                    found = self.text[owner.row][at]
                if found != self.text[request.row][want]:
                    wrong.append(f"position {position} of row {request.row} does not find {want}")
        return wrong

    def write(self, requests: list[Request], writes: list[bytes]) -> None:
        """Keep the tokens that the plan says."""
        tokens = [self.text[r.row][r.prefix + j] for r in requests for j in range(r.extend)]
        for record in writes:
            ragged_id, row = struct.unpack("<Ii", record)
            self.held[row] = tokens[ragged_id]

    def forward(self, requests: list[Request], plans: tuple[list[bytes], list[bytes]]) -> list[str]:
        """Compute a batch, compress, then write; return what the compressions did not find."""
        for request in requests:
            self.compute(request)
        wrong = self.windows(requests, plans[0])
        self.write(requests, plans[1])
        return wrong
