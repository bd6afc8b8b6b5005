"""Index queries: rotate, fake-quantise, and scale the head weights (specification 3.7, 3.10).

    out[t, h]     = fake quant, 32-wide, of bf16(q[t, h] rotated at positions[t])    the index rule, exact in bf16
    weights[t, h] = bf16(weights_raw[t, h] * scale)                                  scale = 128^-0.5 * heads^-0.5

Shapes: q [T, Hi, 128] bf16 and weights_raw [T, Hi] bf16, strides of rows and heads free; freqs f32 [M, 64], cosine and
sine interleaved; positions i64 [T]; outputs out [T, Hi, 128] bf16, weights [T, Hi] bf16, strides free too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels import codec
from dsv4bench.kernels.arguments import BF16, F32, I64, expect_range, expect_tensor
from dsv4bench.kernels.codec_index_triton import fake_quant_index
from dsv4bench.kernels.contract import (
    EXACT,
    TRITON,
    Bench,
    Call,
    Cost,
    Kernel,
    Provider,
    Tensors,
    Tolerance,
    torch_provider,
)
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import INDEX_DIM, ROPE_DIM
from dsv4bench.kernels.row_triton import rotate_tail

DIM = tl.constexpr(INDEX_DIM)
CHUNK_VALUES = 1 << 22  # values that the reference holds at once
HEADS_PER_PROGRAM = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows and index heads."""

    rows: int
    heads: int


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make unit normal queries and head weights, and a table of random angles."""
    device, table_rows = generator.device, 4096
    angles = 7 * torch.rand(table_rows, ROPE_DIM // 2, generator=generator, device=device)
    q = torch.randn(shape.rows, shape.heads, INDEX_DIM, generator=generator, device=device).bfloat16()
    weights = torch.randn(shape.rows, shape.heads, generator=generator, device=device).bfloat16()
    return {
        "q": q,
        "freqs": torch.stack([angles.cos(), angles.sin()], -1).flatten(1),
        "positions": torch.randint(table_rows, (shape.rows,), generator=generator, device=device),
        "weights_raw": weights,
        "scale": (INDEX_DIM * shape.heads) ** -0.5,
        "out": torch.empty_like(q),
        "weights": torch.empty_like(weights),
    }


def reference(
    q: torch.Tensor,
    freqs: torch.Tensor,
    positions: torch.Tensor,
    weights_raw: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    weights: torch.Tensor,
) -> None:
    """Rotate, round, quantise and dequantise in chunks of rows; scale the weights in f32."""
    weights.copy_(weights_raw.float() * scale)
    chunk = max(1, CHUNK_VALUES // max(1, q.shape[1] * INDEX_DIM))
    for begin in range(0, q.shape[0], chunk):
        part = slice(begin, begin + chunk)
        rotated = codec.rotate_tail(q[part], freqs, positions[part]).bfloat16()
        out[part] = codec.fake_quant_index(rotated.float()).bfloat16()


def cost(tensors: Tensors) -> Cost:
    """Count about ten operations a value; queries, weights, positions and named table rows once each way."""
    q, weights = tensors["q"], tensors["weights"]
    named = tensors["positions"].unique().numel()
    values = q.numel() + weights.numel()
    read = 2 * values + 8 * q.shape[0] + 4 * ROPE_DIM * named
    return Cost(flops=10 * values, bytes_read=read, bytes_written=2 * values)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride."""
    expect_tensor("q", tensors["q"], BF16, ("rows", "heads", INDEX_DIM), free_strides=2)
    rows, heads, _ = tensors["q"].shape
    expect_tensor("freqs", tensors["freqs"], F32, ("m", ROPE_DIM))
    expect_tensor("positions", tensors["positions"], I64, (rows,))
    expect_tensor("weights_raw", tensors["weights_raw"], BF16, (rows, heads), free_strides=1)
    expect_tensor("out", tensors["out"], BF16, (rows, heads, INDEX_DIM), free_strides=2)
    expect_tensor("weights", tensors["weights"], BF16, (rows, heads), free_strides=1)


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a position outside the table."""
    expect_range("positions", tensors["positions"], 0, len(tensors["freqs"]))


@triton.jit
def _index_query(
    q_ptr,
    q_row_stride,
    q_head_stride,
    freqs_ptr,
    positions_ptr,
    raw_ptr,
    raw_stride,
    scale,
    out_ptr,
    out_row_stride,
    out_head_stride,
    weights_ptr,
    weights_stride,
    count,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # of a head of a row
    live = index < count
    row = (index // HEADS).to(tl.int64)
    head = index % HEADS
    channel = tl.arange(0, DIM)[None, :]
    q_at = q_ptr + (row * q_row_stride + head * q_head_stride)[:, None] + channel
    q = tl.load(q_at, mask=live[:, None], other=0.0).to(tl.float32)
    position = tl.load(positions_ptr + row, mask=live, other=0)
    rotated = rotate_tail(q, freqs_ptr, position, live, False, ROUND=True)
    out_at = out_ptr + (row * out_row_stride + head * out_head_stride)[:, None] + channel
    tl.store(out_at, fake_quant_index(rotated).to(tl.bfloat16), mask=live[:, None])
    raw = tl.load(raw_ptr + row * raw_stride + head, mask=live, other=0.0).to(tl.float32)
    tl.store(weights_ptr + row * weights_stride + head, (raw * scale).to(tl.bfloat16), mask=live)


def build_triton(tensors: Tensors) -> Call:
    """Launch one program per 16 heads."""
    q, out, raw, weights = tensors["q"], tensors["out"], tensors["weights_raw"], tensors["weights"]
    rows, heads, _ = q.shape

    def call() -> None:
        if q.numel():
            _index_query[(triton.cdiv(rows * heads, HEADS_PER_PROGRAM),)](
                q,
                *q.stride()[:2],
                tensors["freqs"],
                tensors["positions"],
                raw,
                raw.stride(0),
                tensors["scale"],
                out,
                *out.stride()[:2],
                weights,
                weights.stride(0),
                rows * heads,
                HEADS=heads,
                BLOCK=HEADS_PER_PROGRAM,
                num_warps=4,
            )

    return call


KERNEL = Kernel(
    name="index_query",
    inputs=inputs,
    reference=reference,
    cost=cost,
    # a rotated value one bf16 step away can take the next e2m1 code (specification 9.1)
    outputs={"out": Tolerance(share=0.999, because="an FMA rounds twice in the interpreter"), "weights": EXACT},
    examples=(Shape(5, 4), Shape(2, 32), Shape(1, 3)),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(lambda rows, case: Shape(rows, 32), rows=(1024, 8192)),
)
