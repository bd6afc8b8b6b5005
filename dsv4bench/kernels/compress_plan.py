"""What the compressors of ratio 4 and 128 do in a forward: a plan's records, and the host planner (specification 4).

A plan is a u8 tensor of little-endian records, one a row:

    plan_c  16 bytes  seq_len u32, ragged_id u16, buffer_len u16, read_page_0 i32, read_page_1 i32    a compression
    plan_w   8 bytes  ragged_id u32, write_row i32                                           a state that is kept
    plan_d  16 bytes  seq_len u32, write_row i32, read_page_0 i32, read_page_1 i32           a request that decodes

A compression takes place at each new position p where p + 1 = seq_len is a multiple of the ratio. Its token is row
ragged_id of the batch; the first buffer_len tokens of its window are older than the batch. Those come from the state
pool: page read_page_1 (`ratio` rows a page) is that of position p, and read_page_0 that of max(p - ratio, 0), the group
before. Where buffer_len is 0 nothing is read, and the pages are what upstream's first stage leaves: -1 and the number
of the request in the batch. A record that stands for nothing has seq_len 0xFFFFFFFF, zeros and pages -1; a write that
stands for nothing is (0xFFFFFFFF, -1).

Row ragged_id is kept in row write_row of the state pool if it is new and not older than the last complete group (at
ratio 4 the last but one), or one of the `write_pad` newest, or, in rings of pages, one of the last `ratio` of a page.

Plans come request by request in order of positions. Upstream's planner on the GPU puts them in any order: a consumer
reads a record's own ragged_id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from dsv4bench.kernels.arguments import I64, U8, Size, expect_at_most, expect_tensor
from dsv4bench.kernels.compress_ring import OVERLAPPING_RATIO, StateRing, window_tokens

PLAN_C_BYTES, PLAN_W_BYTES, PLAN_D_BYTES = 16, 8, 16
MAX_TOKENS = 1 << 16  # ragged_id is a u16 that counts from 0
MAX_REQUESTS = MAX_TOKENS - 1  # a write packed as ragged_id | request << 16 is then never 0xFFFFFFFF (4.1)
INVALID_C = (-1, 0, -1, -1)  # as i32 words
INVALID_W = (-1, -1)


class Compressions(NamedTuple):
    """The fields of plan_c, i64 [n] each; `valid` is false for records that stand for nothing."""

    seq_len: torch.Tensor
    ragged_id: torch.Tensor
    buffer_len: torch.Tensor
    read_page_0: torch.Tensor
    read_page_1: torch.Tensor
    valid: torch.Tensor


class Writes(NamedTuple):
    """The fields of plan_w, i64 [n] each; `valid` is false for records that stand for nothing."""

    ragged_id: torch.Tensor
    write_row: torch.Tensor
    valid: torch.Tensor


class Decodes(NamedTuple):
    """The fields of plan_d, i64 [n] each."""

    seq_len: torch.Tensor
    write_row: torch.Tensor
    read_page_0: torch.Tensor
    read_page_1: torch.Tensor


def read_compressions(plan_c: torch.Tensor) -> Compressions:
    """Return the fields of plan_c u8 [n, 16]."""
    words = _words(plan_c)
    seq_len, ids, page_0, page_1 = words.unbind(1)
    return Compressions(seq_len & 0xFFFFFFFF, ids & 0xFFFF, ids >> 16 & 0xFFFF, page_0, page_1, seq_len != -1)


def read_writes(plan_w: torch.Tensor) -> Writes:
    """Return the fields of plan_w u8 [n, 8]."""
    ragged_id, write_row = _words(plan_w).unbind(1)
    return Writes(ragged_id & 0xFFFFFFFF, write_row, ragged_id != -1)


def read_decodes(plan_d: torch.Tensor) -> Decodes:
    """Return the fields of plan_d u8 [n, 16]."""
    seq_len, write_row, page_0, page_1 = _words(plan_d).unbind(1)
    return Decodes(seq_len & 0xFFFFFFFF, write_row, page_0, page_1)


def _words(plan: torch.Tensor) -> torch.Tensor:
    return plan.contiguous().view(torch.int32).long()


def expect_records(name: str, plan: torch.Tensor, count: Size, record_bytes: int) -> None:
    """Raise unless a plan is dense u8 [count, record_bytes] and begins on a word: records are read as words."""
    expect_tensor(name, plan, U8, (count, record_bytes))
    if plan.data_ptr() % 4:
        raise ValueError(f"{name}: begins at byte {plan.data_ptr() % 4} of a word, expected 0")


def _packed(*words: torch.Tensor) -> torch.Tensor:
    """Pack words [n] into records u8 [n, 4 * words]."""
    return torch.stack(words, dim=1).to(torch.int32).view(torch.uint8)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of a batch, i64 [n] each: request in the batch, place among its new tokens, position, row of the batch."""

    request: torch.Tensor
    place: torch.Tensor
    position: torch.Tensor
    ragged_id: torch.Tensor

    def where(self, chosen: torch.Tensor) -> Tokens:
        """Return the tokens for which `chosen` bool [n] is true."""
        return Tokens(self.request[chosen], self.place[chosen], self.position[chosen], self.ragged_id[chosen])

    def to(self, device: torch.device) -> Tokens:
        """Return the tokens on a device."""
        return Tokens(*(field.to(device) for field in (self.request, self.place, self.position, self.ragged_id)))


def new_tokens(seq_lens: torch.Tensor, extend_lens: torch.Tensor) -> Tokens:
    """Return all new tokens of a batch, request by request, in order of positions."""
    request = torch.repeat_interleave(torch.arange(len(seq_lens), device=seq_lens.device), extend_lens)
    ragged_id = torch.arange(len(request), device=seq_lens.device)
    place = ragged_id - (extend_lens.cumsum(0) - extend_lens)[request]
    return Tokens(request, place, (seq_lens - extend_lens)[request] + place, ragged_id)


def first_kept(ring: StateRing, seq_lens: torch.Tensor) -> torch.Tensor:
    """Return the position from which on every new token of a request is kept; it may be negative."""
    newest_groups = seq_lens // ring.ratio * ring.ratio - ring.overlap
    return torch.minimum(newest_groups, seq_lens - ring.write_pad)


def compressing(ring: StateRing, tokens: Tokens) -> Tokens:
    """Return the tokens that complete a group."""
    return tokens.where((tokens.position + 1) % ring.ratio == 0)


def kept(ring: StateRing, tokens: Tokens, seq_lens: torch.Tensor) -> Tokens:
    """Return the tokens whose state is kept."""
    chosen = tokens.position >= first_kept(ring, seq_lens)[tokens.request]
    if not ring.by_request:
        chosen |= tokens.position % ring.swa_page >= ring.swa_page - ring.ratio
    return tokens.where(chosen)


def prefill_records(
    ring: StateRing,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    full_to_state: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_lens: torch.Tensor,
    every_page: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return plan_c u8 [compressions, 16] and plan_w u8 [writes, 8] on the tables' device, without padding.

    Lengths may lie on the CPU beside tables on a GPU: what is planned is then chosen on the CPU, and only the places
    are looked up on the GPU. `every_page` fills in the pages that nothing reads, too.
    """
    device = req_pool_indices.device
    tokens = new_tokens(seq_lens, extend_lens)
    events, writes = compressing(ring, tokens), kept(ring, tokens, seq_lens).to(device)
    buffer_len = (ring.window - 1 - events.place).clamp(min=0)
    reading = ((buffer_len > 0) | every_page).nonzero().squeeze(1)
    readers = events.where(reading).to(device)
    pages = torch.stack([torch.full_like(events.request, -1), events.request]).to(device)
    pages[:, reading.to(device)] = ring.pages(
        req_pool_indices[readers.request], readers.position, req_to_token, full_to_state
    )
    ids = events.ragged_id | buffer_len << 16
    plan_c = _packed((events.position + 1).to(device), ids.to(device), *pages)
    rows = ring.rows(req_pool_indices[writes.request], writes.position, req_to_token, full_to_state)
    return plan_c, _packed(writes.ragged_id, rows)


def expect_prefill_sizes(batch: int, num_q: int) -> None:
    """Raise unless requests and tokens can be numbered: at most 65 535 and 65 536, a token or more a request (4.1)."""
    expect_at_most("num_q", num_q, MAX_TOKENS, "ragged_id is a u16")
    expect_at_most("batch", batch, MAX_REQUESTS, "a packed write must differ from the one that stands for nothing")
    expect_at_most("batch", batch, num_q, "every request has a token")


def expect_lengths(seq_lens: torch.Tensor, extend_lens: torch.Tensor) -> None:
    """Raise unless 0 < extend_lens[i] <= seq_lens[i] < 2^31 for every request; reads the tensors."""
    for i, (length, extend) in enumerate(zip(seq_lens.tolist(), extend_lens.tolist(), strict=True)):
        if not 0 < extend <= length:
            raise ValueError(f"extend_lens[{i}]: {extend}, expected 1 to the request's length of {length}")
        expect_at_most(f"seq_lens[{i}]", length, 2**31 - 1, "a position is an i32")


def plan_prefill(
    ring: StateRing,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    full_to_state: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_lens: torch.Tensor,
    num_q: int,
    use_cuda_graph: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return plan_c u8 [n, 16] and plan_w u8 [m, 8] from lengths on the CPU: the planner of the host.

    Exactly as many records as there are, or `num_q` of each, filled up with those that stand for nothing, where a CUDA
    graph wants fixed sizes. ValueError for sizes, shapes or lengths that do not fit (4.1); no request and no token give
    empty plans.
    """
    expect_prefill_sizes(len(seq_lens), num_q)
    ring.expect_tables(req_pool_indices, req_to_token, full_to_state)
    expect_tensor("seq_lens", seq_lens, I64, (len(req_pool_indices),))
    expect_tensor("extend_lens", extend_lens, I64, (len(req_pool_indices),))
    expect_lengths(seq_lens, extend_lens)
    if int(extend_lens.sum()) != num_q:
        raise ValueError(f"extend_lens: {int(extend_lens.sum())} tokens in all, expected num_q = {num_q}")
    plan_c, plan_w = prefill_records(ring, req_pool_indices, req_to_token, full_to_state, seq_lens, extend_lens)
    return (padded(plan_c, num_q), padded(plan_w, num_q)) if use_cuda_graph else (plan_c, plan_w)


def padded(plan: torch.Tensor, rows: int) -> torch.Tensor:
    """Return plan_c or plan_w filled up to `rows` with records that stand for nothing."""
    invalid = INVALID_C if plan.shape[1] == PLAN_C_BYTES else INVALID_W
    record = torch.tensor(invalid, dtype=torch.int32, device=plan.device).view(torch.uint8)
    return torch.cat([plan, record.expand(rows - len(plan), -1)])


def plan_prefill_legacy(
    ratio: int, req_pool_indices: torch.Tensor, seq_lens: torch.Tensor, extend_lens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return plan_c, plan_w of upstream's legacy planner (4.3): request rings of one window, every page filled in."""
    window = window_tokens(ratio)
    ring = StateRing(ratio, window, window, request_ring=ratio == OVERLAPPING_RATIO)
    expect_prefill_sizes(len(seq_lens), int(extend_lens.sum()))
    expect_lengths(seq_lens, extend_lens)
    no_table, no_states = torch.empty(0, 0, dtype=torch.int32), torch.empty(0, dtype=torch.int64)
    return prefill_records(ring, req_pool_indices, no_table, no_states, seq_lens, extend_lens, every_page=True)


def decode_records(
    ring: StateRing,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    full_to_state: torch.Tensor,
    seq_lens: torch.Tensor,
) -> torch.Tensor:
    """Return plan_d u8 [batch, 16]: where each request's newest token is kept, and the pages of its window."""
    row = ring.rows(req_pool_indices, seq_lens - 1, req_to_token, full_to_state)
    return _packed(seq_lens, row, *ring.pages(req_pool_indices, seq_lens - 1, req_to_token, full_to_state))
