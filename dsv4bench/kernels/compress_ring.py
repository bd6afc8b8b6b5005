"""The rings of the compressors of ratio 4 and 128: their sizes, and where a position's state lies (specification 4).

Whenever `ratio` new tokens are complete, such a compressor pools the newest tokens of a window: 8 at ratio 4 (two
groups of 4, the windows overlap) and 128 at ratio 128. Those that belong to earlier forwards come from a ring of
states. A batch of drafts may be rolled back to any length that is at least 1 token longer than its prefix, so a ring
that serves speculation is wider than a window, and the `write_pad` newest tokens of a batch are all kept in it.

Position p of a request lies in row `req * ring_size + p % ring_size` of the state pool (request ring), or, at ratio 4
by default, in a small ring of each page of the sliding-window pool, where a cached prefix finds every page's last
tokens: with q = full_to_state[req_to_token[req, p]], in row `q // swa_page * ring_size + q % ring_size`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import I32, I64, expect_at_most, expect_one_of, expect_range, expect_tensor
from dsv4bench.kernels.jit import tl, triton

OVERLAPPING_RATIO = 4  # its windows overlap: a window holds two groups
RATIOS = (OVERLAPPING_RATIO, 128)
ONLINE_RING = 1  # ratio 128 may keep one running maximum, sum and value instead of 128 tokens
MAX_STATES = 2**31  # a row of the state pool is an i32


def window_tokens(ratio: int) -> int:
    """Return the tokens that one compression pools."""
    expect_one_of("ratio", ratio, RATIOS)
    return 2 * ratio if ratio == OVERLAPPING_RATIO else ratio


def ring_size(ratio: int, draft_tokens: int) -> int:
    """Return the rows of a ring: one window, or two where `draft_tokens` a forward may be rolled back (3.8)."""
    return window_tokens(ratio) * (2 if draft_tokens > 0 else 1)


def write_pad(ratio: int, ring: int) -> int:
    """Return how many of a batch's newest tokens are kept whatever they complete: 0 if nothing rolls back.

    A write at position w takes the row of w - ring. The oldest position that a later compression can still need is
    prefix - window + 2: at least one token is accepted, and a forward compresses before it writes. Hence the newest
    write, prefix + pad - 1, may take the row of prefix - window + 1 at most (4.2).
    """
    window = window_tokens(ratio)
    return ring - window + 2 if ring > window else 0


def max_draft_tokens(ratio: int, ring: int) -> int:
    """Return the most draft tokens that a ring of `ring` rows serves: all of them must be kept, so the write pad."""
    return write_pad(ratio, ring)


def expect_draft_tokens(draft_tokens: int, rings: dict[int, int]) -> None:
    """Raise a ValueError if a ring (ratio -> rows) is too small for the draft tokens: the check at start-up (4.4).

    A larger number would silently leave accepted tokens out of the ring. The online ring of ratio 128 is exempt.
    """
    for ratio, ring in rings.items():
        if ring != ONLINE_RING:
            limit = max_draft_tokens(ratio, ring)
            expect_at_most("draft_tokens", draft_tokens, limit, f"the ratio-{ratio} ring has {ring} rows")


@dataclass(frozen=True, slots=True)
class StateRing:
    """The state pool of one compressor; a ValueError says which of the numbers does not fit the others.

    `ring_size` rows, `swa_page` tokens of a page of the sliding-window pool; `request_ring` makes ratio 4 keep one ring
    a request as ratio 128 always does.
    """

    ratio: int
    ring_size: int
    swa_page: int
    request_ring: bool = False

    def __post_init__(self) -> None:
        """Check that the ring holds whole groups and at least one window, and a page whole rings (4.1)."""
        window = window_tokens(self.ratio)
        if self.ring_size < window or self.ring_size % self.ratio:
            raise ValueError(f"ring_size: {self.ring_size}, expected a multiple of {self.ratio}, at least {window}")
        if self.swa_page < 1 or self.swa_page % self.ring_size:
            raise ValueError(f"swa_page: {self.swa_page}, expected a multiple of the ring's {self.ring_size} rows")
        if self.request_ring and self.ratio != OVERLAPPING_RATIO:
            raise ValueError(f"request_ring: an option of ratio {OVERLAPPING_RATIO} only, got ratio {self.ratio}")

    @property
    def window(self) -> int:
        """Tokens that one compression pools."""
        return window_tokens(self.ratio)

    @property
    def write_pad(self) -> int:
        """Newest tokens of a batch that are kept whatever they complete."""
        return write_pad(self.ratio, self.ring_size)

    @property
    def overlap(self) -> int:
        """Tokens of the group before its own that a window pools: 4 at ratio 4."""
        return self.window - self.ratio

    @property
    def by_request(self) -> bool:
        """Whether rows are numbered by request; otherwise by pages, whose last `ratio` tokens are kept for reuse."""
        return self.request_ring or self.ratio != OVERLAPPING_RATIO

    def constants(self) -> dict[str, Any]:
        """Return what a Triton planner must know of the ring at compile time."""
        return {
            "RATIO": self.ratio,
            "RING": self.ring_size,
            "SWA_PAGE": self.swa_page,
            "BY_REQUEST": self.by_request,
        }

    def rows(
        self, req: torch.Tensor, positions: torch.Tensor, req_to_token: torch.Tensor, full_to_state: torch.Tensor
    ) -> torch.Tensor:
        """Return the rows i64 [n] of the state pool that hold positions i64 [n] of requests i64 [n]."""
        if self.by_request:
            return req * self.ring_size + positions % self.ring_size
        slot = full_to_state[req_to_token[req, positions].long()]
        return slot // self.swa_page * self.ring_size + slot % self.ring_size

    def pages(
        self, req: torch.Tensor, positions: torch.Tensor, req_to_token: torch.Tensor, full_to_state: torch.Tensor
    ) -> torch.Tensor:
        """Return the pages i64 [2, n] (`ratio` rows each) of the group before, and of the group of the positions."""
        before = (positions - self.ratio).clamp(min=0)
        rows = [self.rows(req, at, req_to_token, full_to_state) for at in (before, positions)]
        return torch.stack(rows) // self.ratio

    def expect_tables(
        self, req_pool_indices: torch.Tensor, req_to_token: torch.Tensor, full_to_state: torch.Tensor
    ) -> None:
        """Raise unless the tables have their dtypes and shapes, and the pool's rows fit an i32; reads no tensor."""
        expect_tensor("req_pool_indices", req_pool_indices, I64, ("batch",))
        expect_tensor("req_to_token", req_to_token, I32, ("requests", "max_len"), free_strides=1)
        expect_tensor("full_to_state", full_to_state, I64, ("slots",))
        if self.by_request:
            states = req_to_token.shape[0] * self.ring_size
            expect_at_most("req_to_token", states, MAX_STATES, "rows of the state pool, which are numbered by an i32")

    def expect_positions(
        self, req: torch.Tensor, positions: torch.Tensor, req_to_token: torch.Tensor, full_to_state: torch.Tensor
    ) -> None:
        """Raise unless both tables lead from these positions to a row that an i32 can number; reads tensors."""
        expect_range("req_pool_indices", req, 0, req_to_token.shape[0])
        if not self.by_request:
            expect_range("positions", positions, 0, req_to_token.shape[1])
            slots = req_to_token[req, positions].long()
            expect_range("req_to_token", slots, 0, len(full_to_state))
            expect_range("full_to_state", full_to_state[slots], 0, MAX_STATES)


def paged_tables(
    batch: int, longest: int, swa_page: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Make req_pool_indices i64 [batch], req_to_token i32 and full_to_state i64 for requests of up to `longest` tokens.

    Requests lie in scattered rows of the table, and their pages scattered over the full and the sliding-window pool.
    """
    device = generator.device

    def shuffled(count: int) -> torch.Tensor:
        return torch.randperm(count, generator=generator, device=device)

    rows, pages = batch + 2, longest // swa_page + 1
    position = torch.arange(pages * swa_page, device=device)
    full_pages = shuffled(rows * pages).reshape(rows, pages)
    req_to_token = full_pages[:, position // swa_page] * swa_page + position % swa_page
    slot = torch.arange(rows * pages * swa_page, device=device)
    full_to_state = shuffled(rows * pages)[slot // swa_page] * swa_page + slot % swa_page
    return shuffled(rows)[:batch], req_to_token.to(torch.int32), full_to_state


@triton.jit
def state_rows(
    req,
    position,
    live,
    table_ptr,
    full_to_state_ptr,
    RING: tl.constexpr,
    SWA_PAGE: tl.constexpr,
    BY_REQUEST: tl.constexpr,
):
    """Return the rows u32 of the state pool of positions of requests (i64); lanes that are not live read nothing.

    `table_ptr` points to the rows of req_to_token of these requests. Rows are below 2^31; unsigned, a division by a
    power of two is one shift.
    """
    if BY_REQUEST:
        row = req.to(tl.uint32) * RING + position.to(tl.uint32) % RING
    else:
        full = tl.load(table_ptr + position, mask=live, other=0).to(tl.int64)
        slot = tl.load(full_to_state_ptr + full, mask=live, other=0).to(tl.uint32)
        row = slot // SWA_PAGE * RING + slot % RING
    return row
