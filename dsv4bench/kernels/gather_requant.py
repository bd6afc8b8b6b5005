"""Gather rows of a paged V4 cache as e4m3 without a scale, for attention in 8 bits (specification 3.9).

Row i of `out` [n + extra, 1, 512] is the row of slot ids[i], dequantised and cast to e4m3: to nearest even, saturating
at 448, the 64 rotated channels from their bf16, too. The `extra` rows behind them become zeros: indices of rows that do
not exist may point there (`remap_holes`). Ids must be valid.

Shapes: cache u8 [pages, page_bytes] of V4, ids i32|i64 [n]; output out e4m3 [n + extra, 1, 512] (row stride free).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels import codec, paged
from dsv4bench.kernels.arguments import IDS, expect_cache, expect_range, expect_tensor
from dsv4bench.kernels.codec_triton import e4m3_encode
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import FULL_PAGE, HEAD_DIM, V4
from dsv4bench.kernels.paged_triton import ROW, load_rows, paged_constants

E4M3 = (torch.float8_e4m3fn,)
PROGRAM_ROWS = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows to gather, rows of zeros behind them, slots of a page, pages, bits of an id, whole pages or not."""

    rows: int
    extra_rows: int = 0
    page_size: int = 256
    pages: int = 3
    id_bits: int = 64
    whole_pages: bool = False


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make a cache of random bytes, an output, and ids: random ones, or those of whole pages in shuffled order.

    Whole pages are what a forward reads: their scales are those of values near one, never NaN or a denormal, which
    installed kernels decode otherwise.
    """
    device, rows = generator.device, shape.rows + shape.extra_rows
    size = (shape.pages, V4.page_bytes(shape.page_size))
    ids = torch.randint(0, shape.pages * shape.page_size, (shape.rows,), generator=generator, device=device)
    cache = torch.randint(0, 256, size, generator=generator, device=device, dtype=torch.uint8)
    if shape.whole_pages:
        ids = paged.shuffled_pages(shape.pages, shape.page_size, generator)[: shape.rows]
        paged.paged(cache, shape.page_size, V4)[1].random_(100, 140, generator=generator)
    return {
        "cache": cache,
        "ids": ids.to(torch.int32) if shape.id_bits == 32 else ids,
        "page_size": shape.page_size,
        "out": torch.empty(rows, 1, HEAD_DIM, device=device, dtype=torch.float8_e4m3fn),
    }


def reference(cache: torch.Tensor, ids: torch.Tensor, page_size: int, out: torch.Tensor) -> None:
    """Read the bytes of each slot, decode them, encode them anew; write zeros behind."""
    rows = codec.dequantise(*paged.read_rows(cache, ids, page_size, V4), V4)
    bytes_out = out.view(torch.uint8)
    bytes_out[: len(ids), 0] = codec.e4m3_encode(rows.float())
    bytes_out[len(ids) :] = 0


def cost(tensors: Tensors) -> Cost:
    """One multiplication a channel; reads the ids and once each row's codes and scales, writes 512 bytes a row."""
    ids, out = tensors["ids"], tensors["out"]
    read = ids.unique().numel() * V4.used_bytes + len(ids) * ids.element_size()
    return Cost(len(ids) * HEAD_DIM, read, len(out) * HEAD_DIM)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape, stride or page size, or too few rows of output."""
    ids, out = tensors["ids"], tensors["out"]
    expect_cache(tensors["cache"], V4, tensors["page_size"])
    expect_tensor("ids", ids, IDS, ("n",))
    expect_tensor("out", out, E4M3, ("rows", 1, HEAD_DIM), free_strides=2)
    if len(out) < len(ids):
        raise ValueError(f"out: {len(out)} rows, expected at least the {len(ids)} of ids")


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for an id that no slot of the cache has."""
    expect_range("ids", tensors["ids"], 0, tensors["cache"].shape[0] * tensors["page_size"])


@triton.jit
def _gather_requant(
    cache_ptr,
    ids_ptr,
    out_ptr,
    count,
    total,
    out_stride,
    LAYOUT: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = row < count
    slots = tl.load(ids_ptr + row, mask=live, other=0)
    rows = load_rows(cache_ptr, slots, live, LAYOUT, PAGE_SIZE, PAGE_BYTES)  # zeros where a row is not live
    out = out_ptr + row[:, None] * out_stride + tl.arange(0, ROW)[None, :]
    tl.store(out, e4m3_encode(rows.to(tl.float32)), mask=(row < total)[:, None])


def build_triton(tensors: Tensors) -> Call:
    """Return the launch of the Triton kernel: eight rows a program."""
    cache, ids, out = tensors["cache"], tensors["ids"], tensors["out"].view(torch.uint8)
    count, total = len(ids), len(out)
    constants = paged_constants(V4, tensors["page_size"])
    grid = (triton.cdiv(total, PROGRAM_ROWS),)

    def launch() -> None:
        if total:
            _gather_requant[grid](cache, ids, out, count, total, out.stride(0), **constants, ROWS=PROGRAM_ROWS)

    return launch


def bench_shape(rows: int, case: str) -> Shape:
    """Return reads of whole pages, as many as hold the rows, and the one row of zeros that holes point to."""
    return Shape(rows, extra_rows=1, pages=-(-rows // FULL_PAGE), whole_pages=True)


KERNEL = Kernel(
    name="gather_requant",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"out": EXACT},
    examples=(Shape(37, 1), Shape(16, 3, page_size=64, id_bits=32), Shape(5, page_size=2)),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(4096, 65536, 524288)),
)
