"""Quantise rows into a paged KV cache (specification 3.1).

Row i of `x` [T, 512] bf16 is written to slot loc[i] by the rule of the layout: V4 quantises the first 448 channels and
copies the last 64, the V4.1 layouts quantise all 512, the uniform one casts them to e4m3, saturating. Given `freqs` and
`positions`, the last 64 channels are rotated first and rounded to bf16; V4 has no such form. Every slot must be valid;
only the addressed rows change, and no padding byte does.

Shapes: x [T, 512] bf16 (row stride free), loc i32|i64 [T], freqs [M, 64] f32 and positions i32|i64 [T] or None; output
cache u8 [pages, page_bytes].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels import codec, paged
from dsv4bench.kernels.arguments import BF16, F32, IDS, expect_cache, expect_range, expect_tensor
from dsv4bench.kernels.contract import TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, Tolerance, torch_provider
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import HEAD_DIM, LAYOUTS, ROPE_DIM, KVLayout
from dsv4bench.kernels.paged import shuffled_pages
from dsv4bench.kernels.paged_triton import paged_constants, store_rows
from dsv4bench.kernels.row_triton import load_rows, rotate_tail

FEW_ROWS = 4096  # below this a warp takes one row, else two, as measured on an H200


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows to write, the layout's name, slots of a page, whether rows are rotated, spare pages, whole pages or not."""

    rows: int
    layout: str
    page_size: int = 256
    rotate: bool = False
    spare_pages: int = 1
    whole_pages: bool = False


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make random rows, distinct slots, a table of rotations where wanted, and a cache of random bytes."""
    layout, device = LAYOUTS[shape.layout], generator.device
    pages = -(-shape.rows // shape.page_size) + shape.spare_pages
    size = (pages, layout.page_bytes(shape.page_size))
    slots = torch.randperm(pages * shape.page_size, generator=generator, device=device)
    if shape.whole_pages:
        slots = shuffled_pages(pages, shape.page_size, generator)
    angles = torch.rand(4096, ROPE_DIM // 2, generator=generator, device=device) * 6.2832
    positions = torch.randint(0, 4096, (shape.rows,), generator=generator, device=device)
    return {
        "x": torch.randn(shape.rows, HEAD_DIM, generator=generator, device=device).bfloat16(),
        "loc": slots[: shape.rows],
        "freqs": torch.stack([angles.cos(), angles.sin()], -1).flatten(1) if shape.rotate else None,
        "positions": positions if shape.rotate else None,
        "cache": torch.randint(0, 256, size, generator=generator, device=device, dtype=torch.uint8),
        "page_size": shape.page_size,
        "layout": layout,
    }


def reference(
    x: torch.Tensor,
    loc: torch.Tensor,
    freqs: torch.Tensor | None,
    positions: torch.Tensor | None,
    cache: torch.Tensor,
    page_size: int,
    layout: KVLayout,
) -> None:
    """Rotate and round where asked, quantise, write."""
    rows = x.float()
    if freqs is not None and positions is not None:
        rows = codec.rotate_tail(rows, freqs, positions).bfloat16().float()
    paged.write_rows(cache, loc, codec.quantise(rows, layout), page_size, layout)


def cost(tensors: Tensors) -> Cost:
    """One multiplication a channel, six operations a rotated pair; reads rows, slots, table rows; writes slots."""
    rows, positions = tensors["x"].shape[0], tensors["positions"]
    flops, read = rows * HEAD_DIM, rows * (HEAD_DIM * 2 + tensors["loc"].element_size())
    if positions is not None:
        flops += rows * ROPE_DIM * 3
        read += rows * positions.element_size() + positions.unique().numel() * ROPE_DIM * 4
    return Cost(flops, read, rows * tensors["layout"].used_bytes)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape, stride or page size, or a rotation that cannot be."""
    x, layout, freqs, positions = (tensors[name] for name in ("x", "layout", "freqs", "positions"))
    expect_cache(tensors["cache"], layout, tensors["page_size"])
    expect_tensor("x", x, BF16, ("n", HEAD_DIM), free_strides=1)
    expect_tensor("loc", tensors["loc"], IDS, (len(x),))
    if (freqs is None) != (positions is None):
        given = {True: "None", False: "a tensor"}
        raise ValueError(
            f"freqs: {given[freqs is None]} beside {given[positions is None]} for positions, expected both or neither"
        )
    if freqs is None:
        return
    if layout.encoding == "v4":
        raise ValueError("freqs: a tensor, expected None for the layout v4, whose rows come rotated")
    expect_tensor("freqs", freqs, F32, ("m", ROPE_DIM))
    expect_tensor("positions", positions, IDS, (len(x),))


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a slot outside the cache or a position outside the table."""
    expect_range("loc", tensors["loc"], 0, tensors["cache"].shape[0] * tensors["page_size"])
    if tensors["positions"] is not None:
        expect_range("positions", tensors["positions"], 0, len(tensors["freqs"]))


@triton.jit
def _store(
    x_ptr,
    loc_ptr,
    freqs_ptr,
    positions_ptr,
    cache_ptr,
    n,
    x_stride,
    ROTATE: tl.constexpr,
    LAYOUT: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
    ROWS: tl.constexpr,
):
    one = tl.arange(0, 1)
    live = one == 0
    for i in tl.static_range(ROWS):
        row = tl.program_id(0) * ROWS + i
        if row < n:
            slot = tl.load(loc_ptr + row)
            x = load_rows(x_ptr, row + one, x_stride, live, 512)
            if ROTATE:
                position = tl.load(positions_ptr + row)
                x = rotate_tail(x, freqs_ptr, position + one, live, False, ROUND=True)
            store_rows(cache_ptr, slot + one, live, x, LAYOUT, PAGE_SIZE, PAGE_BYTES)


def build_triton(tensors: Tensors) -> Call:
    """Return the launch of the Triton kernel, of programs of one warp."""
    x, loc, cache, layout = tensors["x"], tensors["loc"], tensors["cache"], tensors["layout"]
    freqs, positions = tensors["freqs"], tensors["positions"]
    rotate, rows = freqs is not None, x.shape[0]
    constants = paged_constants(layout, tensors["page_size"])
    program_rows = 1 if rows < FEW_ROWS else 2
    grid = (triton.cdiv(rows, program_rows),)

    def launch() -> None:
        if rows:
            _store[grid](
                x,
                loc,
                freqs,
                positions,
                cache,
                rows,
                x.stride(0),
                rotate,
                **constants,
                ROWS=program_rows,
                num_warps=1,
            )

    return launch


def bench_shape(rows: int, layout: str) -> Shape:
    """Return rows for whole pages; the V4.1 layouts rotate in the kernel."""
    return Shape(rows, layout, rotate=layout != "v4", whole_pages=True)


KERNEL = Kernel(
    name="store",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={
        "cache": Tolerance(because="the specification says bit-exact; the order of the rotation's FMAs is pinned")
    },
    examples=(
        Shape(19, "v4"),
        Shape(19, "v41", page_size=64),
        Shape(19, "fp4", page_size=128),
        Shape(9, "v41", rotate=True),
        Shape(9, "fp4", page_size=2, rotate=True),
        Shape(9, "v41_new", page_size=64),
        Shape(9, "fp4_new", page_size=2, rotate=True),
        Shape(9, "uniform", page_size=64, rotate=True),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(1024, 8192, 65536), cases=("v4", "v41", "fp4")),
)
