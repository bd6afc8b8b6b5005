"""Plan a prefill or verify forward of the compressors of ratio 4 and 128, on the device (specification 4.2).

Records, rules and order are those of `compress_plan`; plan_c and plan_w have one row for every row of the batch, and
those behind the last record stand for nothing. The batch may be a bucket that its requests do not fill.

The order is that of the host although every program works alone, for the number of records before a token has a closed
form: compressions at positions below p are p // ratio, and kept tokens are those from a first one on and, in rings of
pages, `ratio` a page below it. Upstream takes places from atomic counters, so its order changes from run to run.
A program sums up all requests at once, marks where they start in a word whose bits are its tokens, and counts marks.

Shapes: req_pool_indices, seq_lens, extend_lens i64 [B], req_to_token i32 [requests, max_len] (row stride free),
full_to_state i64 [slots]; outputs plan_c u8 [num_q, 16], plan_w u8 [num_q, 8].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import I64, expect_at_most, expect_tensor
from dsv4bench.kernels.compress_plan import (
    PLAN_C_BYTES,
    PLAN_W_BYTES,
    compressing,
    expect_lengths,
    expect_prefill_sizes,
    expect_records,
    kept,
    new_tokens,
    padded,
    prefill_records,
)
from dsv4bench.kernels.compress_ring import StateRing, paged_tables, state_rows
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import tl, triton

MAX_BATCH = 1024  # of the kernel, not of the reference; upstream's planner on the device takes no more
BLOCK_TOKENS = 32  # one a lane of a warp, and one a bit of a word
WARP_REQUESTS = 128
FEW_PROGRAMS = 512  # fewer leave most of a GPU idle, and more warps then make each of them quicker
BENCH_RINGS = {"c4": StateRing(4, 16, 256), "c128": StateRing(128, 256, 256)}


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests as (cached prefix, new tokens), rows of the batch behind them, and the ring."""

    requests: tuple[tuple[int, int], ...]
    padding_rows: int
    ring: StateRing


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make a batch whose requests lie in scattered rows of the table, their pages scattered over both pools."""
    device = generator.device
    prefix, extend = torch.tensor(shape.requests, device=device).reshape(-1, 2).T.contiguous()
    seq_lens = prefix + extend
    longest = max((prefix + extend for prefix, extend in shape.requests), default=0)
    req, table, states = paged_tables(len(seq_lens), longest, shape.ring.swa_page, generator)
    rows = sum(extend for _, extend in shape.requests) + shape.padding_rows
    return {
        "ring": shape.ring,
        "req_pool_indices": req,
        "req_to_token": table,
        "full_to_state": states,
        "seq_lens": seq_lens,
        "extend_lens": extend,
        "plan_c": torch.zeros(rows, PLAN_C_BYTES, dtype=torch.uint8, device=device),
        "plan_w": torch.zeros(rows, PLAN_W_BYTES, dtype=torch.uint8, device=device),
    }


def reference(
    ring: StateRing,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    full_to_state: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_lens: torch.Tensor,
    plan_c: torch.Tensor,
    plan_w: torch.Tensor,
) -> None:
    """Plan as the host does, and fill up."""
    found = prefill_records(ring, req_pool_indices, req_to_token, full_to_state, seq_lens, extend_lens)
    plan_c.copy_(padded(found[0], len(plan_c)))
    plan_w.copy_(padded(found[1], len(plan_w)))


def cost(tensors: Tensors) -> Cost:
    """Count each request's numbers read once, both tables once a planned place, and every record written once."""
    ring, seq_lens = tensors["ring"], tensors["seq_lens"]
    tokens = new_tokens(seq_lens, tensors["extend_lens"])
    events = compressing(ring, tokens)
    places = len(kept(ring, tokens, seq_lens).place) + 2 * int((events.place < ring.window - 1).sum())
    read = 3 * 8 * len(seq_lens) + (0 if ring.by_request else 12 * places)
    return Cost(flops=0, bytes_read=read, bytes_written=tensors["plan_c"].numel() + tensors["plan_w"].numel())


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride, or a batch that a u16 cannot number."""
    req, plan_c = tensors["req_pool_indices"], tensors["plan_c"]
    tensors["ring"].expect_tables(req, tensors["req_to_token"], tensors["full_to_state"])
    for name in ("seq_lens", "extend_lens"):
        expect_tensor(name, tensors[name], I64, (len(req),))
    expect_records("plan_c", plan_c, "num_q", PLAN_C_BYTES)
    expect_records("plan_w", tensors["plan_w"], len(plan_c), PLAN_W_BYTES)
    expect_prefill_sizes(len(req), len(plan_c))


def check_values(tensors: Tensors) -> None:
    """Raise unless every length fits its request and the batch, and all tokens that are looked up lie in the tables."""
    ring, req = tensors["ring"], tensors["req_pool_indices"]
    seq_lens, extend_lens = tensors["seq_lens"], tensors["extend_lens"]
    expect_lengths(seq_lens, extend_lens)
    rows = len(tensors["plan_c"])
    expect_at_most("extend_lens", int(extend_lens.sum()), rows, "tokens in all, against rows of the plans")
    tokens = new_tokens(seq_lens, extend_lens)
    events, writes = compressing(ring, tokens), kept(ring, tokens, seq_lens)
    readers = events.where(events.place < ring.window - 1)
    before = (readers.position - ring.ratio).clamp(min=0)
    for found, position in ((readers, before), (readers, readers.position), (writes, writes.position)):
        ring.expect_positions(req[found.request], position, tensors["req_to_token"], tensors["full_to_state"])


@triton.jit
def _first_kept(seq_len, RATIO: tl.constexpr, WINDOW: tl.constexpr, PAD: tl.constexpr):
    """Return the position from which on every token is kept; 0 where that would be negative, which u32 is not."""
    overlap: tl.constexpr = WINDOW - RATIO
    newest_groups = tl.maximum(seq_len // RATIO * RATIO, overlap) - overlap
    return tl.minimum(newest_groups, tl.maximum(seq_len, PAD) - PAD)


@triton.jit
def _kept_below(position, first, RATIO: tl.constexpr, SWA_PAGE: tl.constexpr, BY_REQUEST: tl.constexpr):
    """Return how many positions below `position` are kept, were the request new from position 0 on."""
    count = tl.maximum(position, first) - first
    if not BY_REQUEST:
        tail: tl.constexpr = SWA_PAGE - RATIO
        end = tl.minimum(position, first)
        count += end // SWA_PAGE * RATIO + tl.maximum(end % SWA_PAGE, tail) - tail
    return count


@triton.jit
def _plan_prefill(
    req_ptr,
    req_to_token_ptr,
    req_to_token_stride,
    full_to_state_ptr,
    seq_ptr,
    extend_ptr,
    plan_c_ptr,
    plan_w_ptr,
    batch,
    num_q,
    WINDOW: tl.constexpr,
    PAD: tl.constexpr,
    RATIO: tl.constexpr,
    RING: tl.constexpr,
    SWA_PAGE: tl.constexpr,
    BY_REQUEST: tl.constexpr,
    TOKENS: tl.constexpr,
    REQUESTS: tl.constexpr,
    WIDE: tl.constexpr,
):
    lane = tl.arange(0, REQUESTS)
    reqs = tl.load(req_ptr + lane, mask=lane < batch, other=-1)
    seqs = tl.load(seq_ptr + lane, mask=lane < batch, other=0).to(tl.uint32)
    extends = tl.load(extend_ptr + lane, mask=lane < batch, other=0).to(tl.uint32)
    real = reqs >= 0  # the same as `lane < batch`, but has the compiler load reqs now, not where they are needed
    extends = tl.where(real, extends, 0)
    kept_from = _first_kept(seqs, RATIO, WINDOW, PAD)
    c_count = seqs // RATIO - (seqs - extends) // RATIO
    w_count = _kept_below(seqs, kept_from, RATIO, SWA_PAGE, BY_REQUEST)
    w_count -= _kept_below(seqs - extends, kept_from, RATIO, SWA_PAGE, BY_REQUEST)
    counts = extends.to(tl.int64) | c_count.to(tl.int64) << 20 | w_count.to(tl.int64) << 40  # one scan for all three
    earlier = tl.cumsum(counts, axis=0) - counts
    totals = tl.sum(counts)
    begin = tl.program_id(0) * TOKENS
    starts = (earlier & 0xFFFFF).to(tl.int32) - begin
    later = real & (lane > 0)  # than the first request, which is number 0 and not counted
    ahead = tl.sum((later & (starts <= 0)).to(tl.int32))
    marks = tl.where(later & (starts > 0) & (starts < TOKENS), tl.full((REQUESTS,), 1, tl.uint32) << (starts & 31), 0)
    until = tl.full((TOKENS,), 0xFFFFFFFF, tl.uint32) >> (TOKENS - 1 - tl.arange(0, TOKENS))
    request = ahead + _ones(tl.sum(marks) & until)  # a mark a request that starts here: they start at different tokens
    mine = tl.gather(earlier, request, 0)
    req = tl.gather(reqs, request, 0)
    seq = tl.gather(seqs, request, 0)
    prefix = seq - tl.gather(extends, request, 0)
    token = (begin + tl.arange(0, TOKENS)).to(tl.uint32)
    live = (token < (totals & 0xFFFFF)) & (token < num_q)
    nth = token - (mine & 0xFFFFF).to(tl.uint32)  # among the new tokens of its request
    position = prefix + nth
    c_row = (mine >> 20 & 0xFFFFF).to(tl.uint32) + position // RATIO - prefix // RATIO
    compresses = live & ((position + 1) % RATIO == 0)
    older = WINDOW - 1 - tl.minimum(nth, WINDOW - 1)  # tokens of the window that are not of this batch
    reads = compresses & (older > 0)
    kept_from = _first_kept(seq, RATIO, WINDOW, PAD)
    w_row = (mine >> 40).to(tl.uint32) + _kept_below(position, kept_from, RATIO, SWA_PAGE, BY_REQUEST)
    w_row -= _kept_below(prefix, kept_from, RATIO, SWA_PAGE, BY_REQUEST)
    writes = live & (position >= kept_from)
    if not BY_REQUEST:
        writes |= live & (position % SWA_PAGE >= SWA_PAGE - RATIO)
    table_ptr = req_to_token_ptr + req * req_to_token_stride
    state = state_rows(req, position, reads | writes, table_ptr, full_to_state_ptr, RING, SWA_PAGE, BY_REQUEST)
    before = tl.maximum(position, RATIO) - RATIO
    state_before = state_rows(req, before, reads, table_ptr, full_to_state_ptr, RING, SWA_PAGE, BY_REQUEST)
    nothing = tl.full((TOKENS,), 0xFFFFFFFF, tl.uint32)
    page_0 = tl.where(reads, state_before // RATIO, nothing)
    page_1 = tl.where(reads, state // RATIO, request.to(tl.uint32))
    _store_c(plan_c_ptr, c_row, compresses, position + 1, token | older << 16, page_0, page_1, WIDE)
    _store_w(plan_w_ptr, w_row, writes, token, state, WIDE)
    spare = (token >= (totals >> 20 & 0xFFFFF)) & (token < num_q)
    _store_c(plan_c_ptr, token, spare, nothing, nothing + 1, nothing, nothing, WIDE)
    _store_w(plan_w_ptr, token, (token >= totals >> 40) & (token < num_q), nothing, nothing, WIDE)


@triton.jit
def _ones(bits):
    """Return how many bits of u32 are 1; the compiler knows this form and uses one instruction."""
    pairs = bits - (bits >> 1 & 0x55555555)
    nibbles = (pairs & 0x33333333) + (pairs >> 2 & 0x33333333)
    return ((nibbles + (nibbles >> 4) & 0x0F0F0F0F) * 0x01010101 >> 24).to(tl.int32)


@triton.jit
def _store_c(plan_ptr, row, live, seq_len, ids, page_0, page_1, WIDE: tl.constexpr):
    if WIDE:
        words = tl.reshape(tl.join(tl.join(seq_len, page_0), tl.join(ids, page_1)), (row.shape[0], 4))
        tl.store(plan_ptr + (row * 4)[:, None] + tl.arange(0, 4)[None, :], words, mask=live[:, None])
    else:
        tl.store(plan_ptr + row * 4, seq_len, mask=live)
        tl.store(plan_ptr + row * 4 + 1, ids, mask=live)
        tl.store(plan_ptr + row * 4 + 2, page_0, mask=live)
        tl.store(plan_ptr + row * 4 + 3, page_1, mask=live)


@triton.jit
def _store_w(plan_ptr, row, live, ragged_id, write_row, WIDE: tl.constexpr):
    if WIDE:
        at = (row * 2)[:, None] + tl.arange(0, 2)[None, :]
        tl.store(plan_ptr + at, tl.join(ragged_id, write_row), mask=live[:, None])
    else:
        tl.store(plan_ptr + row * 2, ragged_id, mask=live)
        tl.store(plan_ptr + row * 2 + 1, write_row, mask=live)


def build_triton(tensors: Tensors) -> Call:
    """Launch one program for 32 rows of the batch; each sums up all requests, at most 1 024."""
    ring, req, table = tensors["ring"], tensors["req_pool_indices"], tensors["req_to_token"]
    states, seq_lens, extend_lens = tensors["full_to_state"], tensors["seq_lens"], tensors["extend_lens"]
    c_words, w_words = tensors["plan_c"].view(torch.int32), tensors["plan_w"].view(torch.int32)
    batch, num_q = len(req), len(c_words)
    expect_at_most("batch", batch, MAX_BATCH, "the planner on the device sums up every request in every program")
    requests, programs = triton.next_power_of_2(max(batch, 1)), triton.cdiv(num_q, BLOCK_TOKENS)
    warps = max(1, requests // WARP_REQUESTS) if programs <= FEW_PROGRAMS else 1
    arguments = (req, table, table.stride(0), states, seq_lens, extend_lens, c_words, w_words, batch, num_q)

    def call() -> None:
        if num_q:
            _plan_prefill[(programs,)](
                *arguments,
                WINDOW=ring.window,
                PAD=ring.write_pad,
                **ring.constants(),
                TOKENS=BLOCK_TOKENS,
                REQUESTS=requests,
                WIDE=warps == 1,  # several warps plan the same tokens, and would first exchange a record's words
                num_warps=warps,
            )

    return call


def bench_shape(rows: int, case: str) -> Shape:
    """Return `rows` requests on about 1 000 cached tokens each; the case says the ring and how many are new."""
    ring, new = case.split(maxsplit=1)
    each, padding = divmod(65536, rows) if new == "64 K" else (4, 0)
    return Shape(tuple((1000 + i % 128, each) for i in range(rows)), padding, BENCH_RINGS[ring])


KERNEL = Kernel(
    name="plan_prefill",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"plan_c": EXACT, "plan_w": EXACT},
    examples=(
        Shape(((0, 12), (509, 90), (250, 9), (3, 1)), 0, StateRing(4, 8, 256)),
        Shape(((0, 3), (118, 137), (255, 2)), 5, StateRing(128, 256, 256)),
        Shape(tuple((500 + i, 6) for i in range(25)), 10, StateRing(4, 16, 64)),
        Shape(tuple((i % 19, 1 + i % 4) for i in range(130)), 3, StateRing(4, 16, 16, request_ring=True)),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(1, 64, 1024), cases=("c4 64 K", "c4 verify", "c128 64 K", "c128 verify")),
)
