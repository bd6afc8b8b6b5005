"""Plan a decode forward of the compressors of ratio 4 and 128 (specification 4.2).

Every request has one new token, at position seq_len - 1. It is kept in row write_row of the state pool, always, and
before the compressor reads. The pages are those of the window that ends there: read_page_1 that of the position, and
read_page_0 that of max(seq_len - 1 - ratio, 0). Both are filled in whether or not the token completes a group.

Shapes: req_pool_indices, seq_lens i64 [B], req_to_token i32 [requests, max_len] (row stride free), full_to_state i64
[slots]; output plan_d u8 [B, 16], whose records `compress_plan` describes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels.arguments import I64, expect_range, expect_tensor
from dsv4bench.kernels.compress_plan import PLAN_D_BYTES, decode_records, expect_records
from dsv4bench.kernels.compress_ring import StateRing, paged_tables, state_rows
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import tl, triton

BLOCK = 128
BENCH_RINGS = {"c4": StateRing(4, 16, 256), "c128": StateRing(128, 256, 256)}


@dataclass(frozen=True, slots=True)
class Shape:
    """Length of each request, and the ring."""

    seq_lens: tuple[int, ...]
    ring: StateRing


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make requests in scattered rows of the table, their pages scattered over both pools."""
    seq_lens = torch.tensor(shape.seq_lens, device=generator.device)
    req, table, states = paged_tables(len(seq_lens), max(shape.seq_lens), shape.ring.swa_page, generator)
    return {
        "ring": shape.ring,
        "req_pool_indices": req,
        "req_to_token": table,
        "full_to_state": states,
        "seq_lens": seq_lens,
        "plan_d": torch.zeros(len(seq_lens), PLAN_D_BYTES, dtype=torch.uint8, device=generator.device),
    }


def reference(
    ring: StateRing,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    full_to_state: torch.Tensor,
    seq_lens: torch.Tensor,
    plan_d: torch.Tensor,
) -> None:
    """Look up the places of the newest tokens."""
    plan_d.copy_(decode_records(ring, req_pool_indices, req_to_token, full_to_state, seq_lens))


def cost(tensors: Tensors) -> Cost:
    """Count two numbers of a request read, both tables at its two places, and its record written."""
    batch = len(tensors["seq_lens"])
    read = (2 * 8 + (0 if tensors["ring"].by_request else 2 * 12)) * batch
    return Cost(flops=0, bytes_read=read, bytes_written=tensors["plan_d"].numel())


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride."""
    req = tensors["req_pool_indices"]
    tensors["ring"].expect_tables(req, tensors["req_to_token"], tensors["full_to_state"])
    expect_tensor("seq_lens", tensors["seq_lens"], I64, (len(req),))
    expect_records("plan_d", tensors["plan_d"], len(req), PLAN_D_BYTES)


def check_values(tensors: Tensors) -> None:
    """Raise unless every request has a token, and the tokens that are looked up lie in the tables."""
    ring, req, seq_lens = tensors["ring"], tensors["req_pool_indices"], tensors["seq_lens"]
    expect_range("seq_lens", seq_lens, 1, 2**31)
    for position in (seq_lens - 1, (seq_lens - 1 - ring.ratio).clamp(min=0)):
        ring.expect_positions(req, position, tensors["req_to_token"], tensors["full_to_state"])


@triton.jit
def _plan_decode(
    req_ptr,
    req_to_token_ptr,
    req_to_token_stride,
    full_to_state_ptr,
    seq_ptr,
    plan_ptr,
    batch,
    RATIO: tl.constexpr,
    RING: tl.constexpr,
    SWA_PAGE: tl.constexpr,
    BY_REQUEST: tl.constexpr,
    REQUESTS: tl.constexpr,
):
    request = tl.program_id(0) * REQUESTS + tl.arange(0, REQUESTS)
    live = request < batch
    req = tl.load(req_ptr + request, mask=live, other=0)
    seq = tl.load(seq_ptr + request, mask=live, other=1).to(tl.int32)
    table_ptr = req_to_token_ptr + req * req_to_token_stride
    before = tl.maximum(seq - 1 - RATIO, 0)
    row = state_rows(req, seq - 1, live, table_ptr, full_to_state_ptr, RING, SWA_PAGE, BY_REQUEST)
    row_before = state_rows(req, before, live, table_ptr, full_to_state_ptr, RING, SWA_PAGE, BY_REQUEST)
    record_ptr = plan_ptr + request * 4
    tl.store(record_ptr, seq, mask=live)
    tl.store(record_ptr + 1, row, mask=live)
    tl.store(record_ptr + 2, row_before // RATIO, mask=live)
    tl.store(record_ptr + 3, row // RATIO, mask=live)


def build_triton(tensors: Tensors) -> Call:
    """Launch one program for 128 requests."""
    ring, req, table = tensors["ring"], tensors["req_pool_indices"], tensors["req_to_token"]
    states, seq_lens, words = tensors["full_to_state"], tensors["seq_lens"], tensors["plan_d"].view(torch.int32)
    batch = len(req)

    def call() -> None:
        if batch:
            _plan_decode[(triton.cdiv(batch, BLOCK),)](
                req,
                table,
                table.stride(0),
                states,
                seq_lens,
                words,
                batch,
                **ring.constants(),
                REQUESTS=BLOCK,
                num_warps=4,
            )

    return call


def bench_shape(rows: int, case: str) -> Shape:
    """Return requests of about 1 000 tokens; the case names the ring."""
    return Shape(tuple(1000 + i % 128 for i in range(rows)), BENCH_RINGS[case])


KERNEL = Kernel(
    name="plan_decode",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"plan_d": EXACT},
    examples=(
        Shape((1, 3, 4, 5, 12, 256, 257, 258, 261, 600), StateRing(4, 8, 256)),
        Shape((1, 127, 128, 129, 256, 257, 384, 513), StateRing(128, 256, 256)),
        Shape(tuple(range(1, 140)), StateRing(4, 16, 64, request_ring=True)),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(64, 1024), cases=tuple(BENCH_RINGS)),
)
