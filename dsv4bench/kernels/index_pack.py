"""The unfused tail of the index keys: pack fake-quantised rows, then store them, two launches (specification 3.7).

    payload[t], scales[t] = e2m1 codes and ue8m0 scales of x[t], the pack stage of specification 2.2
    slot loc[t]           = payload[t] and scales[t]

Every row is written: callers send rows that have no slot to slot 0, the dummy, whose content is then any of theirs.

Shapes: x [T, 128] bf16 (row stride free), values that a fake quantisation in blocks of 32 made; loc i32|i64 [T];
outputs payload u8 [T, 64], scales u8 [T, 4], cache u8 [pages, page_size * 68].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels import codec, paged
from dsv4bench.kernels.arguments import BF16, IDS, U8, expect_cache, expect_range, expect_tensor, expect_whole_words
from dsv4bench.kernels.codec_index_triton import pack_index_rows
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import INDEX_DIM, INDEX_K
from dsv4bench.kernels.paged_triton import store_index_rows
from dsv4bench.kernels.row_triton import load_rows

WIDTH = tl.constexpr(INDEX_DIM)
WORDS, SCALES = tl.constexpr(INDEX_K.data_bytes // 4), tl.constexpr(INDEX_K.scale_bytes)
PACKED_ROWS = 4  # rows of a packing program: one warp, 512 values
STORED_ROWS = 8  # rows of a storing program: one warp, 512 bytes


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows, and slots of an index page."""

    rows: int
    page_size: int


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make fake-quantised rows of several magnitudes, some under the floor of 1e-4, for scattered slots."""
    device = generator.device
    pages = shape.rows // shape.page_size + 1
    magnitude = 10.0 ** -torch.arange(shape.rows, device=device)[:, None]
    x = magnitude * torch.randn(shape.rows, INDEX_DIM, generator=generator, device=device)
    cache_shape = (pages, INDEX_K.page_bytes(shape.page_size))
    return {
        "x": codec.fake_quant_index(x).bfloat16(),
        "loc": torch.randperm(pages * shape.page_size, generator=generator, device=device)[: shape.rows],
        "payload": torch.empty(shape.rows, INDEX_K.data_bytes, dtype=torch.uint8, device=device),
        "scales": torch.empty(shape.rows, INDEX_K.scale_bytes, dtype=torch.uint8, device=device),
        "cache": torch.randint(256, cache_shape, generator=generator, device=device, dtype=torch.uint8),
        "page_size": shape.page_size,
    }


def reference(
    x: torch.Tensor,
    loc: torch.Tensor,
    payload: torch.Tensor,
    scales: torch.Tensor,
    cache: torch.Tensor,
    page_size: int,
) -> None:
    """Pack every row and write it to its slot."""
    packed = codec.index_pack(x.float())
    payload.copy_(packed[0])
    scales.copy_(packed[1])
    paged.write_rows(cache, loc, (payload, scales), page_size, INDEX_K)


def cost(tensors: Tensors) -> Cost:
    """Count each row read, its packed form written, read back and written to its slot; about 10 operations a value."""
    rows = len(tensors["loc"])
    read = rows * (2 * INDEX_DIM + INDEX_K.row_bytes + tensors["loc"].element_size())
    return Cost(flops=10 * rows * INDEX_DIM, bytes_read=read, bytes_written=2 * rows * INDEX_K.row_bytes)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape, stride or page size."""
    rows = len(tensors["x"])
    expect_cache(tensors["cache"], INDEX_K, tensors["page_size"])
    expect_tensor("x", tensors["x"], BF16, ("n", INDEX_DIM), free_strides=1)
    expect_tensor("loc", tensors["loc"], IDS, (rows,))
    expect_tensor("payload", tensors["payload"], U8, (rows, INDEX_K.data_bytes))
    expect_tensor("scales", tensors["scales"], U8, (rows, INDEX_K.scale_bytes))


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a slot outside the cache."""
    expect_range("loc", tensors["loc"], 0, tensors["cache"].shape[0] * tensors["page_size"])


@triton.jit
def _pack(x_ptr, x_stride, payload_ptr, scales_ptr, count, ROWS: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = rows < count
    payload, scales = pack_index_rows(load_rows(x_ptr, rows, x_stride, inside, WIDTH))
    word, tile = tl.arange(0, WORDS)[None, :], tl.arange(0, SCALES)[None, :]
    tl.store(payload_ptr + rows[:, None] * WORDS + word, payload, mask=inside[:, None])
    tl.store(scales_ptr + rows[:, None] * SCALES + tile, scales, mask=inside[:, None])


@triton.jit
def _store(payload_ptr, scales_ptr, loc_ptr, cache_ptr, count, PAGE_SIZE: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = rows < count
    slots = tl.load(loc_ptr + rows, mask=inside, other=0)
    word, tile = tl.arange(0, WORDS)[None, :], tl.arange(0, SCALES)[None, :]
    payload = tl.load(payload_ptr + rows[:, None] * WORDS + word, mask=inside[:, None], other=0)
    scales = tl.load(scales_ptr + rows[:, None] * SCALES + tile, mask=inside[:, None], other=0)
    store_index_rows(cache_ptr, slots, inside, payload, scales, PAGE_SIZE)


def build_triton(tensors: Tensors) -> Call:
    """Launch the packing, then the storing."""
    expect_whole_words("payload", tensors["payload"])  # this kernel alone writes codes by words
    x, payload, scales = tensors["x"], tensors["payload"].view(torch.int32), tensors["scales"]
    page_size, count = tensors["page_size"], x.shape[0]

    def call() -> None:
        if count == 0:
            return
        _pack[(triton.cdiv(count, PACKED_ROWS),)](x, x.stride(0), payload, scales, count, ROWS=PACKED_ROWS, num_warps=1)
        _store[(triton.cdiv(count, STORED_ROWS),)](
            payload,
            scales,
            tensors["loc"],
            tensors["cache"],
            count,
            PAGE_SIZE=page_size,
            ROWS=STORED_ROWS,
            num_warps=1,
        )

    return call


KERNEL = Kernel(
    name="index_pack",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"payload": EXACT, "scales": EXACT, "cache": EXACT},
    examples=(Shape(6, 64), Shape(9, 4)),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(lambda rows, case: Shape(rows, 64), rows=(1024, 8192)),
)
