"""Quantise index rows to e4m3 with one f32 scale and store them, V4's c4 index of 132 bytes (specification 2.2, 3.1).

    scale     = max(largest |x[t]|, 1e-4) / 448                  f32, not rounded
    payload   = e4m3(x[t] * (1 / scale))                         saturating; an f32 reciprocal, not a division
    slot loc[t] = payload (128 bytes) and scale (4 bytes)

Every slot must be valid; only the addressed rows change.

Shapes: x [T, 128] bf16 (row stride free), loc i32|i64 [T]; output cache u8 [pages, page_size * 132].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels import codec_index, paged
from dsv4bench.kernels.arguments import BF16, IDS, expect_cache, expect_range, expect_tensor
from dsv4bench.kernels.codec_index_triton import quantise_index_fp8
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import INDEX_DIM, INDEX_K_FP8
from dsv4bench.kernels.paged_triton import store_index_fp8_rows
from dsv4bench.kernels.row_triton import load_rows

WIDTH = tl.constexpr(INDEX_DIM)
PROGRAM_ROWS = 4  # one warp: 512 values


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows, slots of an index page, bits of a slot."""

    rows: int
    page_size: int
    id_bits: int = 64


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make rows of several magnitudes, some under the floor of 1e-4, for scattered slots."""
    device = generator.device
    pages = shape.rows // shape.page_size + 1
    magnitude = 10.0 ** (2 - torch.arange(shape.rows, device=device)[:, None] % 9)
    x = magnitude * torch.randn(shape.rows, INDEX_DIM, generator=generator, device=device)
    loc = torch.randperm(pages * shape.page_size, generator=generator, device=device)[: shape.rows]
    size = (pages, INDEX_K_FP8.page_bytes(shape.page_size))
    return {
        "x": x.bfloat16(),
        "loc": loc.to(torch.int32) if shape.id_bits == 32 else loc,
        "cache": torch.randint(256, size, generator=generator, device=device, dtype=torch.uint8),
        "page_size": shape.page_size,
    }


def reference(x: torch.Tensor, loc: torch.Tensor, cache: torch.Tensor, page_size: int) -> None:
    """Quantise every row and write it to its slot."""
    paged.write_rows(cache, loc, codec_index.index_pack_fp8(x.float()), page_size, INDEX_K_FP8)


def cost(tensors: Tensors) -> Cost:
    """Read each row and its slot's number, write its slot; a comparison and a multiplication a value."""
    rows = len(tensors["loc"])
    read = rows * (2 * INDEX_DIM + tensors["loc"].element_size())
    return Cost(2 * rows * INDEX_DIM, read, rows * INDEX_K_FP8.row_bytes)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape, stride or page size."""
    expect_cache(tensors["cache"], INDEX_K_FP8, tensors["page_size"])
    expect_tensor("x", tensors["x"], BF16, ("n", INDEX_DIM), free_strides=1)
    expect_tensor("loc", tensors["loc"], IDS, (len(tensors["x"]),))


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a slot outside the cache."""
    expect_range("loc", tensors["loc"], 0, tensors["cache"].shape[0] * tensors["page_size"])


@triton.jit
def _index_store_fp8(x_ptr, x_stride, loc_ptr, cache_ptr, count, PAGE_SIZE: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = rows < count
    slots = tl.load(loc_ptr + rows, mask=inside, other=0)
    payload, scales = quantise_index_fp8(load_rows(x_ptr, rows, x_stride, inside, WIDTH))
    store_index_fp8_rows(cache_ptr, slots, inside, payload, scales, PAGE_SIZE)


def build_triton(tensors: Tensors) -> Call:
    """Launch one warp for every four rows."""
    x, loc, cache, page_size = (tensors[name] for name in ("x", "loc", "cache", "page_size"))
    count = len(x)
    grid = (triton.cdiv(count, PROGRAM_ROWS),)

    def launch() -> None:
        if count:
            _index_store_fp8[grid](
                x, x.stride(0), loc, cache, count, PAGE_SIZE=page_size, ROWS=PROGRAM_ROWS, num_warps=1
            )

    return launch


KERNEL = Kernel(
    name="index_store_fp8",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"cache": EXACT},
    examples=(Shape(11, 64), Shape(9, 4, id_bits=32)),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(lambda rows, case: Shape(rows, page_size=64), rows=(1024, 8192, 65536)),
)
