"""Dequantise rows of a paged KV cache into bf16 (specification 2.2, 2.3, 3.9).

Row i of `out` [n, 1, 512] is the row of slot ids[i]: code times scale for every channel, except that V4's 64 rotated
channels are bf16 already and copied, and that a uniform row has no scales. The result is exact in bf16 for every finite
code (-0.0 and NaN kept), so every provider must agree bit for bit. Ids i32 or i64 must be valid; the stride of out's
rows is free, as it may be part of a workspace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels import codec, paged
from dsv4bench.kernels.arguments import BF16, IDS, expect_cache, expect_range, expect_tensor
from dsv4bench.kernels.codec_triton import e2m1_decode, e4m3_decode, ue8m0_decode
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import FULL_PAGE, HEAD_DIM, LAYOUTS, KVLayout
from dsv4bench.kernels.paged import shuffled_pages
from dsv4bench.kernels.paged_triton import (
    FP4_DATA,
    FP4_SCALE,
    NOPE,
    ROW,
    V4_DATA,
    V4_SCALE,
    V41_DATA,
    V41_SCALE,
    encoding_of,
    is_interleaved,
    paged_constants,
    slot_offsets,
)

LAUNCH = {"v4": (4, 1), "v41": (4, 2), "fp4": (4, 2), "uniform": (4, 2)}  # rows of a program and its warps


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows to read, the layout's name, slots of a page, pages of the cache, bits of an id, whole pages or not."""

    rows: int
    layout: str
    page_size: int = 256
    pages: int = 3
    id_bits: int = 64
    whole_pages: bool = False


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make a cache of random bytes, an output, and ids: random ones, or those of whole pages in shuffled order.

    Whole pages are what a forward reads: their ue8m0 scales are those of values near one, never NaN or a denormal,
    which installed kernels decode otherwise.
    """
    layout, device = LAYOUTS[shape.layout], generator.device
    size = (shape.pages, layout.page_bytes(shape.page_size))
    ids = torch.randint(0, shape.pages * shape.page_size, (shape.rows,), generator=generator, device=device)
    cache = torch.randint(0, 256, size, generator=generator, device=device, dtype=torch.uint8)
    if shape.whole_pages:
        ids = shuffled_pages(shape.pages, shape.page_size, generator)[: shape.rows]
        _, scales = paged.paged(cache, shape.page_size, layout)
        if layout.encoding in ("v4", "v41"):
            scales.random_(100, 140, generator=generator)
    return {
        "cache": cache,
        "ids": ids.to(torch.int32) if shape.id_bits == 32 else ids,
        "page_size": shape.page_size,
        "layout": layout,
        "out": torch.empty(shape.rows, 1, HEAD_DIM, device=device, dtype=torch.bfloat16),
    }


def reference(cache: torch.Tensor, ids: torch.Tensor, page_size: int, layout: KVLayout, out: torch.Tensor) -> None:
    """Read the bytes of each slot and decode them."""
    data, scales = paged.read_rows(cache, ids, page_size, layout)
    out.copy_(codec.dequantise(data, scales, layout).unsqueeze(1))


def cost(tensors: Tensors) -> Cost:
    """One multiplication a channel; reads an id and a row's codes and scales, writes 512 bf16."""
    rows = tensors["ids"].numel()
    read = tensors["layout"].used_bytes + tensors["ids"].element_size()
    return Cost(rows * HEAD_DIM, rows * read, rows * HEAD_DIM * 2)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape, stride or page size."""
    expect_cache(tensors["cache"], tensors["layout"], tensors["page_size"])
    expect_tensor("ids", tensors["ids"], IDS, ("n",))
    expect_tensor("out", tensors["out"], BF16, (tensors["ids"].numel(), 1, HEAD_DIM), free_strides=2)


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for an id that no slot of the cache has."""
    expect_range("ids", tensors["ids"], 0, tensors["cache"].shape[0] * tensors["page_size"])


@triton.jit
def _dequant(
    cache_ptr,
    ids_ptr,
    out_ptr,
    n,
    out_stride,
    LAYOUT: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Every load stands before the first store, or two waits for memory would follow each other."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = row < n
    slots = tl.load(ids_ptr + row, mask=live, other=0)
    out_rows = out_ptr + row.to(tl.int64)[:, None] * out_stride
    ENCODING: tl.constexpr = encoding_of(LAYOUT)
    if ENCODING == "v4":
        _dequant_v4(cache_ptr, slots, live, out_rows, PAGE_SIZE, PAGE_BYTES)
    elif ENCODING == "v41":
        _dequant_v41(cache_ptr, slots, live, out_rows, PAGE_SIZE, PAGE_BYTES, is_interleaved(LAYOUT))
    elif ENCODING == "fp4":
        _dequant_fp4(cache_ptr, slots, live, out_rows, PAGE_SIZE, PAGE_BYTES, is_interleaved(LAYOUT))
    else:
        tl.static_assert(ENCODING == "uniform", "an encoding is v4, v41, fp4 or uniform")
        _dequant_uniform(cache_ptr, slots, live, out_rows, PAGE_SIZE, PAGE_BYTES)


@triton.jit
def _scaled(values, scales):
    """Multiply values [R, 512] by scales [R, tiles], each for its tile, and round to bf16."""
    tiles = tl.reshape(values, (scales.shape[0], scales.shape[1], ROW // scales.shape[1]))
    return tl.reshape(tiles * scales[:, :, None], values.shape).to(tl.bfloat16)


@triton.jit
def _dequant_v4(cache_ptr, slots, live, out_rows, PAGE_SIZE: tl.constexpr, PAGE_BYTES: tl.constexpr):
    """Channels and scales are read whole, with what no channel uses: half the tail, and a byte of padding.

    A thread reads 8 bytes, as many as it writes bf16 values; with 16, values would go from thread to thread.
    """
    data, scale = slot_offsets(slots, PAGE_SIZE, PAGE_BYTES, V4_DATA, V4_SCALE)
    channel = tl.arange(0, ROW)[None, :]
    eights = tl.max_contiguous(tl.multiple_of(data[:, None] + channel, (1, 8)), (1, 8))
    short = tl.arange(0, ROW - NOPE)[None, :]
    tail_ptr = (cache_ptr + data + NOPE).to(tl.pointer_type(tl.bfloat16))
    scales = tl.load(cache_ptr + scale[:, None] + tl.arange(0, 8)[None, :], mask=live[:, None], other=0)
    codes = tl.load(cache_ptr + eights, mask=live[:, None], other=0)
    tail = tl.load(tail_ptr[:, None] + short, mask=live[:, None])
    values = _scaled(e4m3_decode(codes), ue8m0_decode(scales))
    tl.store(out_rows + channel, values, mask=live[:, None] & (channel < NOPE))
    tl.store(out_rows + NOPE + short, tail, mask=live[:, None])


@triton.jit
def _dequant_v41(
    cache_ptr, slots, live, out_rows, PAGE_SIZE: tl.constexpr, PAGE_BYTES: tl.constexpr, INTERLEAVED: tl.constexpr
):
    data, scale = slot_offsets(slots, PAGE_SIZE, PAGE_BYTES, V41_DATA, V41_SCALE, INTERLEAVED)
    channel = tl.arange(0, ROW)[None, :]
    tile = tl.arange(0, 16)[None, :]
    scales = tl.load(cache_ptr + scale[:, None] + tile, mask=live[:, None], other=0)
    codes = tl.load(cache_ptr + data[:, None] + channel, mask=live[:, None], other=0)
    tl.store(out_rows + channel, _scaled(e4m3_decode(codes), ue8m0_decode(scales)), mask=live[:, None])


@triton.jit
def _dequant_fp4(
    cache_ptr, slots, live, out_rows, PAGE_SIZE: tl.constexpr, PAGE_BYTES: tl.constexpr, INTERLEAVED: tl.constexpr
):
    """A word of the cache is eight channels, which are one store of 16 bytes."""
    data, scale = slot_offsets(slots, PAGE_SIZE, PAGE_BYTES, FP4_DATA, FP4_SCALE, INTERLEAVED)
    word_ptr = (cache_ptr + data).to(tl.pointer_type(tl.int32))
    word = tl.arange(0, FP4_DATA // 4)[None, :]
    tile = tl.arange(0, 32)[None, :]
    scales = tl.load(cache_ptr + scale[:, None] + tile, mask=live[:, None], other=0)
    words = tl.load(word_ptr[:, None] + word, mask=live[:, None], other=0)
    codes = words[:, :, None] >> (4 * tl.arange(0, 8))[None, None, :]
    values = _scaled(e2m1_decode(tl.reshape(codes, (slots.shape[0], ROW))), e4m3_decode(scales))
    tl.store(out_rows + tl.arange(0, ROW)[None, :], values, mask=live[:, None])


@triton.jit
def _dequant_uniform(cache_ptr, slots, live, out_rows, PAGE_SIZE: tl.constexpr, PAGE_BYTES: tl.constexpr):
    data, _ = slot_offsets(slots, PAGE_SIZE, PAGE_BYTES, ROW, 0)
    channel = tl.arange(0, ROW)[None, :]
    codes = tl.load(cache_ptr + data[:, None] + channel, mask=live[:, None], other=0)
    tl.store(out_rows + channel, e4m3_decode(codes).to(tl.bfloat16), mask=live[:, None])


def build_triton(tensors: Tensors) -> Call:
    """Return the launch of the Triton kernel; several rows a program."""
    cache, ids, out = tensors["cache"], tensors["ids"], tensors["out"]
    layout: KVLayout = tensors["layout"]
    rows, warps = LAUNCH[layout.encoding]
    grid = (triton.cdiv(ids.numel(), rows),)
    constants = paged_constants(layout, tensors["page_size"])

    def launch() -> None:
        if ids.numel():
            _dequant[grid](cache, ids, out, ids.numel(), out.stride(0), **constants, ROWS=rows, num_warps=warps)

    return launch


def bench_shape(rows: int, layout: str) -> Shape:
    """Return reads of whole pages, as many as hold the rows."""
    return Shape(rows, layout, pages=-(-rows // FULL_PAGE), whole_pages=True)


KERNEL = Kernel(
    name="dequant",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"out": EXACT},
    examples=(
        Shape(37, "v4"),
        Shape(37, "v41", page_size=128, id_bits=32),
        Shape(37, "fp4", page_size=64),
        Shape(1, "fp4", pages=1),
        Shape(9, "v41_new", page_size=64),
        Shape(9, "fp4_new", page_size=2, id_bits=32),
        Shape(9, "uniform"),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(4096, 65536, 524288), cases=("v4", "v41", "fp4")),
)
