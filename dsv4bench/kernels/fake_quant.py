"""Fake quantisation: the values that an FP4 row would hold, in bf16, with the rotation of the tail in front of it.

    row = bf16(x[t] rotated at positions[t])   the last 64 channels; only where a table is given
    out = row rounded to e2m1                  block 16: an e4m3 scale, the rule of compressed KV
                                               block 32: a power of two, the rule of index keys and queries

Both rules are those of specification 2.2, the order that of 3.10. A position outside the table reads its row 0.

Shapes: x bf16 [T, D] (row stride free), D a power of two from 64 to 512, freqs [M, 64] f32 (cosine, sine interleaved)
or None, positions i64 [T] or None, block 16 or 32; output out bf16 [T, D].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels import codec
from dsv4bench.kernels.arguments import BF16, F32, I64, expect_one_of, expect_tensor
from dsv4bench.kernels.codec_index_triton import fake_quant_index
from dsv4bench.kernels.codec_triton import fake_quant_kv
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import HEAD_DIM, ROPE_DIM
from dsv4bench.kernels.row_triton import load_rows, rotate_tail

WIDTHS = (64, 128, 256, 512)
FAKE_QUANTS = {16: codec.fake_quant_kv, 32: codec.fake_quant_index}


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows and their width, values per scale, and whether the tail is rotated."""

    rows: int
    width: int
    block: int
    rotated: bool


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make unit normal rows; one position lies outside the table."""
    device = generator.device
    freqs = positions = None
    if shape.rotated:
        angles = 7 * torch.rand(64, ROPE_DIM // 2, generator=generator, device=device)
        freqs = torch.stack([angles.cos(), angles.sin()], -1).flatten(1)
        positions = torch.randint(64, (shape.rows,), generator=generator, device=device)
        positions[-1] = 64
    return {
        "x": torch.randn(shape.rows, shape.width, generator=generator, device=device).bfloat16(),
        "freqs": freqs,
        "positions": positions,
        "block": shape.block,
        "out": torch.empty(shape.rows, shape.width, dtype=torch.bfloat16, device=device),
    }


def reference(
    x: torch.Tensor, freqs: torch.Tensor | None, positions: torch.Tensor | None, block: int, out: torch.Tensor
) -> None:
    """Rotate, round, then round to the grid."""
    if freqs is not None and positions is not None:
        inside = (positions >= 0) & (positions < freqs.shape[0])
        x = codec.rotate_tail(x, freqs, positions * inside).bfloat16()
    out.copy_(FAKE_QUANTS[block](x.float()))


def cost(tensors: Tensors) -> Cost:
    """Count each row read and written once, and its position and frequencies read; about 10 operations a value."""
    rows, width = tensors["x"].shape
    table = 0 if tensors["freqs"] is None else 8 + 4 * ROPE_DIM
    return Cost(flops=10 * rows * width, bytes_read=rows * (2 * width + table), bytes_written=rows * 2 * width)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape or stride; a table comes with positions."""
    x, freqs, positions = tensors["x"], tensors["freqs"], tensors["positions"]
    expect_one_of("block", tensors["block"], tuple(FAKE_QUANTS))
    expect_tensor("x", x, BF16, ("rows", "width"), free_strides=1)
    expect_one_of("width of x", x.shape[1], WIDTHS)
    expect_tensor("out", tensors["out"], BF16, x.shape)
    if (freqs is None) != (positions is None):
        given, missing = ("freqs", "positions") if positions is None else ("positions", "freqs")
        raise ValueError(f"{missing}: None, expected a tensor beside {given}")
    if freqs is not None:
        expect_tensor("freqs", freqs, F32, ("m", ROPE_DIM))
        expect_tensor("positions", positions, I64, (x.shape[0],))


@triton.jit
def _fake_quant(
    x_ptr,
    x_stride,
    freqs_ptr,
    table_rows,
    positions_ptr,
    out_ptr,
    count,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = rows < count
    x = load_rows(x_ptr, rows, x_stride, inside, WIDTH)
    if freqs_ptr is not None:
        positions = tl.load(positions_ptr + rows, mask=inside, other=0)
        positions = tl.where((positions >= 0) & (positions < table_rows), positions, 0)
        x = rotate_tail(x, freqs_ptr, positions, inside, False, ROUND=True)
    x = fake_quant_kv(x) if BLOCK == 16 else fake_quant_index(x)
    column = tl.arange(0, WIDTH)[None, :]
    tl.store(out_ptr + rows[:, None] * WIDTH + column, x.to(tl.bfloat16), mask=inside[:, None])


def build_triton(tensors: Tensors) -> Call:
    """Launch programs of one warp, each with as many rows as make 512 values."""
    x, freqs, out, block = tensors["x"], tensors["freqs"], tensors["out"], tensors["block"]
    count, width = x.shape
    rows = max(1, HEAD_DIM // width)
    table_rows = 0 if freqs is None else freqs.shape[0]

    def call() -> None:
        if count:
            _fake_quant[(triton.cdiv(count, rows),)](
                x,
                x.stride(0),
                freqs,
                table_rows,
                tensors["positions"],
                out,
                count,
                ROWS=rows,
                WIDTH=width,
                BLOCK=block,
                num_warps=1,
            )

    return call


def bench_shape(rows: int, case: str) -> Shape:
    """Return KV rows (16 values a scale) or index keys (32), rotated."""
    return Shape(rows, 512, 16, True) if case == "block 16" else Shape(rows, 128, 32, True)


KERNEL = Kernel(
    name="fake_quant",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"out": EXACT},
    examples=(Shape(3, 512, 16, True), Shape(6, 128, 32, True), Shape(2, 512, 16, False), Shape(5, 128, 32, False)),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    bench=Bench(bench_shape, rows=(1024, 8192), cases=("block 16", "block 32")),
)
