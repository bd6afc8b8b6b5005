"""Norm, rotate and quantise rows into the sliding-window cache (specification 3.2).

y = kv / sqrt(mean(kv^2) + eps) * weight in f32, for rows of 512. V4 rotates the last 64 channels of the f32 row and
rounds them to bf16 once, at the store. The V4.1 layouts round y to bf16, rotate, round again and quantise the whole
row. The uniform layout rotates the f32 row, rounds the whole row to bf16 once and casts it to e4m3, saturating. Row i
is turned by row positions[i] of the table and goes to slot loc[i]; rows with loc < 0 are skipped, slot 0 is a slot like
others.

Shapes: kv [T, 512] bf16 (row stride free), weight [512] bf16, eps an f32 number, freqs [M, 64] f32 (cosine, sine
interleaved), positions and loc i32|i64 [T]; output cache u8 [pages, page_bytes].
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
from dsv4bench.kernels.paged_triton import encoding_of, paged_constants, store_rows
from dsv4bench.kernels.row_triton import load_rows, rms_norm, rotate_tail, round_bf16

PROGRAM_ROWS = ((4096, 1), (32768, 2))  # below so many rows a warp takes so many, else four: as measured on an H200


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows, the layout's name, slots of a page, every how many rows one is skipped (0: none), whole pages or not."""

    rows: int
    layout: str
    page_size: int = 256
    skip_every: int = 0
    whole_pages: bool = False


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make rows that are a column slice of a wider tensor, weights, a table of rotations, slots and a random cache."""
    layout, device = LAYOUTS[shape.layout], generator.device
    pages = -(-shape.rows // shape.page_size) + 1
    size = (pages, layout.page_bytes(shape.page_size))
    loc = torch.randperm(pages * shape.page_size, generator=generator, device=device)
    if shape.whole_pages:
        loc = shuffled_pages(pages, shape.page_size, generator)
    loc = loc[: shape.rows].to(torch.int32)
    if shape.skip_every:
        loc[:: shape.skip_every] = -1
    angles = torch.rand(4096, ROPE_DIM // 2, generator=generator, device=device) * 6.2832
    return {
        "kv": torch.randn(shape.rows, 2 * HEAD_DIM, generator=generator, device=device).bfloat16()[:, HEAD_DIM:],
        "weight": (torch.rand(HEAD_DIM, generator=generator, device=device) + 0.5).bfloat16(),
        "eps": 1e-20,
        "freqs": torch.stack([angles.cos(), angles.sin()], -1).flatten(1),
        "positions": torch.randint(0, 4096, (shape.rows,), generator=generator, device=device),
        "loc": loc,
        "cache": torch.randint(0, 256, size, generator=generator, device=device, dtype=torch.uint8),
        "page_size": shape.page_size,
        "layout": layout,
    }


def reference(
    kv: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    freqs: torch.Tensor,
    positions: torch.Tensor,
    loc: torch.Tensor,
    cache: torch.Tensor,
    page_size: int,
    layout: KVLayout,
) -> None:
    """Norm, rotate and quantise the rows that have a slot."""
    live = loc >= 0
    y = codec.rms_norm(kv[live], weight, eps)
    if layout.encoding in ("v41", "fp4"):
        y = y.bfloat16()
    y = codec.rotate_tail(y, freqs, positions[live])
    if layout.encoding != "v4":
        y = y.bfloat16().float()
    paged.write_rows(cache, loc[live], codec.quantise(y, layout), page_size, layout)


def cost(tensors: Tensors) -> Cost:
    """Count the rows that have a slot.

    Four operations a channel for the norm, one for the quantiser, six a rotated pair; reads rows, positions and slots,
    each table row that is used and the weight once, writes the slots.
    """
    loc, positions = tensors["loc"], tensors["positions"]
    live = loc >= 0
    rows, table_rows = int(live.sum()), positions[live].unique().numel()
    read = rows * (HEAD_DIM * 2 + positions.element_size()) + loc.numel() * loc.element_size()
    read += table_rows * ROPE_DIM * 4 + HEAD_DIM * 2
    return Cost(rows * (HEAD_DIM * 5 + ROPE_DIM * 3), read, rows * tensors["layout"].used_bytes)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape, stride or page size."""
    rows = len(tensors["kv"])
    expect_cache(tensors["cache"], tensors["layout"], tensors["page_size"])
    expect_tensor("kv", tensors["kv"], BF16, ("n", HEAD_DIM), free_strides=1)
    expect_tensor("weight", tensors["weight"], BF16, (HEAD_DIM,))
    expect_tensor("freqs", tensors["freqs"], F32, ("m", ROPE_DIM))
    expect_tensor("positions", tensors["positions"], IDS, (rows,))
    expect_tensor("loc", tensors["loc"], IDS, (rows,))


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a slot outside the cache, or a position outside the table of a row that has a slot."""
    loc = tensors["loc"]
    expect_range("loc", loc.clamp(min=0), 0, tensors["cache"].shape[0] * tensors["page_size"])
    expect_range("positions", tensors["positions"].where(loc >= 0, 0), 0, len(tensors["freqs"]))


@triton.jit
def _norm_rope_store(
    kv_ptr,
    weight_ptr,
    eps,
    freqs_ptr,
    positions_ptr,
    loc_ptr,
    cache_ptr,
    n,
    kv_stride,
    LAYOUT: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
    ROWS: tl.constexpr,
):
    """What a row has is loaded beside its slot, not after the branch: two waits for memory, not three.

    A program of one row does not branch on its slot either, but masks what it loads and stores by it.
    """
    ENCODING: tl.constexpr = encoding_of(LAYOUT)
    weight = tl.load(weight_ptr + tl.arange(0, 512)).to(tl.float32)
    one = tl.arange(0, 1)
    for i in tl.static_range(ROWS):
        row = tl.minimum(tl.program_id(0) * ROWS + i, n - 1)  # past the last row that row again, to the same bytes
        slot = tl.load(loc_ptr + row)
        position = tl.load(positions_ptr + row)
        x = load_rows(kv_ptr, row + one, kv_stride, one == 0, 512)
        live = slot + one >= 0 if ROWS == 1 else one == 0
        if ROWS == 1 or slot >= 0:
            y = rms_norm(x, weight, eps)
            if ENCODING == "v41" or ENCODING == "fp4":
                y = rotate_tail(round_bf16(y), freqs_ptr, position + one, live, False, ROUND=True)
            else:
                y = rotate_tail(y, freqs_ptr, position + one, live, False)
            if ENCODING == "uniform":
                y = round_bf16(y)
            store_rows(cache_ptr, slot + one, live, y, LAYOUT, PAGE_SIZE, PAGE_BYTES)


def build_triton(tensors: Tensors) -> Call:
    """Return the launch of the Triton kernel, of programs of one warp."""
    kv, weight, eps, cache, layout = (tensors[name] for name in ("kv", "weight", "eps", "cache", "layout"))
    freqs, positions, loc = tensors["freqs"], tensors["positions"], tensors["loc"]
    rows = kv.shape[0]
    constants = paged_constants(layout, tensors["page_size"])
    program_rows = next((program for below, program in PROGRAM_ROWS if rows < below), 4)
    grid = (triton.cdiv(rows, program_rows),)

    def launch() -> None:
        if rows:
            _norm_rope_store[grid](
                kv,
                weight,
                eps,
                freqs,
                positions,
                loc,
                cache,
                rows,
                kv.stride(0),
                **constants,
                ROWS=program_rows,
                num_warps=1,
            )

    return launch


KERNEL = Kernel(
    name="norm_rope_store",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={
        "cache": Tolerance(
            share=0.999, gaps=paged.code_gaps, because="the order of the sum of squares is free (specification 3.2)"
        )
    },
    examples=(
        Shape(21, "v4", skip_every=5),
        Shape(21, "v41", page_size=64, skip_every=4),
        Shape(21, "fp4", page_size=128),
        Shape(9, "v41_new", page_size=2, skip_every=4),
        Shape(9, "fp4_new", page_size=64),
        Shape(9, "uniform", page_size=64, skip_every=4),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(lambda rows, layout: Shape(rows, layout, whole_pages=True), (1024, 8192, 65536), ("v4", "v41", "fp4")),
)
