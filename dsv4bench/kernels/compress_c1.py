"""The ratio-1 compressor: norm, rotate, quantise and store the row of every token (specification 3.4).

For each row t of kv, the source layer's own projection:

    latent[t] = bf16(kv[t] / sqrt(mean(kv[t]^2) + eps) * weight)    every row, padding too
    row       = bf16(latent[t] rotated at positions[t])             the last 64 channels
    row       = row fake-quantised                                  every e4m3 cache rounds twice, an FP4 one once
    cache     = row at slot loc[t], by the layout's rule            only where loc[t] > 0: slot 0 stands for padding

The latent, which is not rotated, feeds the projection of the index keys.

Shapes: kv [T, 512] bf16 (row stride free), weight [512] bf16, eps an f32 number, freqs [M, 64] f32 (cosine, sine
interleaved), positions and loc i32|i64 [T]; outputs latent [T, 512] bf16, cache u8 [pages, page_bytes].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels import codec, paged
from dsv4bench.kernels.arguments import BF16, F32, IDS, expect_cache, expect_range, expect_tensor
from dsv4bench.kernels.contract import TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, Tolerance, torch_provider
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import FULL_PAGE, HEAD_DIM, LAYOUTS, ROPE_DIM, KVLayout
from dsv4bench.kernels.paged import shuffled_pages
from dsv4bench.kernels.paged_triton import paged_constants, store_compressed_rows
from dsv4bench.kernels.row_triton import load_rotations, load_rows, rms_norm, round_bf16, turn_tail

ROW = tl.constexpr(HEAD_DIM)
FEW_ROWS = 4096  # below this a warp takes one row, else two, as measured on an H200


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows, how many of them are padding, the cache's layout and page size, whole pages or not."""

    rows: int
    padding_rows: int
    layout: str
    page_size: int
    whole_pages: bool = False


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make unit normal rows for scattered slots of a pool full of random bytes; the last rows are padding."""
    device, layout = generator.device, LAYOUTS[shape.layout]
    pages = shape.rows // shape.page_size + 1
    slots = 1 + torch.randperm(pages * shape.page_size - 1, generator=generator, device=device)[: shape.rows]
    if shape.whole_pages:
        slots = shuffled_pages(pages, shape.page_size, generator)
        slots = slots[slots > 0][: shape.rows]
    live = torch.arange(shape.rows, device=device) < shape.rows - shape.padding_rows
    positions = torch.randint(4096, (shape.rows,), generator=generator, device=device)
    angles = 7 * torch.rand(4096, ROPE_DIM // 2, generator=generator, device=device)
    cache_shape = (pages, layout.page_bytes(shape.page_size))
    return {
        "kv": torch.randn(shape.rows, HEAD_DIM, generator=generator, device=device).bfloat16(),
        "weight": (1 + 0.1 * torch.randn(HEAD_DIM, generator=generator, device=device)).bfloat16(),
        "eps": 1e-20,
        "freqs": torch.stack([angles.cos(), angles.sin()], -1).flatten(1),
        "positions": positions * live,
        "loc": slots * live,
        "cache": torch.randint(256, cache_shape, generator=generator, device=device, dtype=torch.uint8),
        "page_size": shape.page_size,
        "layout": layout,
        "latent": torch.empty(shape.rows, HEAD_DIM, dtype=torch.bfloat16, device=device),
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
    latent: torch.Tensor,
) -> None:
    """Write every latent; rotate the live ones and store them."""
    latent.copy_(codec.rms_norm(kv, weight, eps))
    live = loc > 0
    row = codec.rotate_tail(latent[live], freqs, positions[live]).bfloat16()
    codec.write_compressed(cache, loc[live], row, page_size, layout)


def cost(tensors: Tensors) -> Cost:
    """Count every row read and its latent written, and the live rows' frequencies read and slots written.

    About 4 operations a value for the norm, and 12 for quantising one.
    """
    loc, positions = tensors["loc"], tensors["positions"]
    rows, live = len(loc), int((loc > 0).sum())
    read = rows * (2 * HEAD_DIM + loc.element_size() + positions.element_size()) + live * 4 * ROPE_DIM + 2 * HEAD_DIM
    written = rows * 2 * HEAD_DIM + live * tensors["layout"].used_bytes
    return Cost(flops=(4 * rows + 12 * live) * HEAD_DIM, bytes_read=read, bytes_written=written)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape, stride or page size."""
    rows = len(tensors["kv"])
    expect_cache(tensors["cache"], tensors["layout"], tensors["page_size"])
    expect_tensor("kv", tensors["kv"], BF16, ("n", HEAD_DIM), free_strides=1)
    expect_tensor("weight", tensors["weight"], BF16, (HEAD_DIM,))
    expect_tensor("freqs", tensors["freqs"], F32, ("m", ROPE_DIM))
    expect_tensor("positions", tensors["positions"], IDS, (rows,))
    expect_tensor("loc", tensors["loc"], IDS, (rows,))
    expect_tensor("latent", tensors["latent"], BF16, (rows, HEAD_DIM))


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a slot outside the cache, or a position outside the table of a row that has a slot."""
    loc = tensors["loc"]
    expect_range("loc", loc.clamp(min=0), 0, tensors["cache"].shape[0] * tensors["page_size"])
    expect_range("positions", tensors["positions"].where(loc > 0, 0), 0, len(tensors["freqs"]))


@triton.jit
def _compress_c1(
    kv_ptr,
    kv_stride,
    weight_ptr,
    eps,
    freqs_ptr,
    positions_ptr,
    loc_ptr,
    cache_ptr,
    latent_ptr,
    count,
    LAYOUT: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The table row is loaded beside the row that it turns, not after the norm and the latent's store."""
    one = tl.arange(0, 1)
    live = one == 0
    channel = tl.arange(0, ROW)
    weight = tl.load(weight_ptr + channel).to(tl.float32)
    for i in tl.static_range(ROWS):
        row = tl.minimum(tl.program_id(0) * ROWS + i, count - 1).to(tl.int64)  # past the last row that row again
        slot = tl.load(loc_ptr + row)
        position = tl.load(positions_ptr + row)
        x = load_rows(kv_ptr, row + one, kv_stride, live, ROW)
        rotations = load_rotations(freqs_ptr, position + one, slot + one > 0, ROW)
        latent = round_bf16(rms_norm(x, weight, eps))
        tl.store(latent_ptr + row * ROW + channel[None, :], latent.to(tl.bfloat16))
        if slot > 0:
            rotated = turn_tail(latent, rotations, live, False, ROUND=True)
            store_compressed_rows(cache_ptr, slot + one, live, rotated, LAYOUT, PAGE_SIZE, PAGE_BYTES)


def build_triton(tensors: Tensors) -> Call:
    """Launch programs of one warp: its reductions then need no barrier."""
    kv, latent, cache = tensors["kv"], tensors["latent"], tensors["cache"]
    constants = paged_constants(tensors["layout"], tensors["page_size"])
    count = kv.shape[0]
    rows = 1 if count < FEW_ROWS else 2
    grid = (triton.cdiv(count, rows),)

    def call() -> None:
        if count == 0:
            return
        _compress_c1[grid](
            kv,
            kv.stride(0),
            tensors["weight"],
            tensors["eps"],
            tensors["freqs"],
            tensors["positions"],
            tensors["loc"],
            cache,
            latent,
            count,
            **constants,
            ROWS=rows,
            num_warps=1,
        )

    return call


KERNEL = Kernel(
    name="compress_c1",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={
        "latent": Tolerance(rtol=2**-7, atol=2**-20, because="the order of the sum moves a value by one bf16 step"),
        "cache": Tolerance(
            share=0.999, gaps=paged.compressed_code_gaps, because="a latent that moved by one step may change its code"
        ),
    },
    examples=(
        Shape(5, 2, "fp4", 256),
        Shape(3, 0, "v41", 64),
        Shape(6, 1, "v4", 2),
        Shape(3, 1, "v41_new", 64),
        Shape(3, 1, "fp4_new", 2),
        Shape(3, 1, "uniform", 256),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(lambda rows, layout: Shape(rows, 0, layout, FULL_PAGE, True), (1024, 8192), ("v4", "v41", "fp4")),
)
