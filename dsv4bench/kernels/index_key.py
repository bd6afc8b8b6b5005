"""Fused index keys: norm, rotate, fake-quantise, pack and store in one launch (specification 3.7).

For each row t with loc[t] > 0 of k, the projection of a latent:

    key  = bf16(k[t] / sqrt(mean(k[t]^2) + eps) * weight)
    key  = bf16(key rotated at the group's first position, positions[t] - positions[t] % ratio)    channels 64 to 127
    slot = loc[t] takes key, fake-quantised, then packed: two stages with two floors, which do not collapse (2.2)

A row with loc <= 0 (-1: its group is incomplete, 0: padding) is neither read nor written: at ratio 2 the latents of
even positions hold anything.

Shapes: k [T, 128] bf16 (row stride free), weight [128] bf16, eps an f32 number, freqs [M, 64] f32 (cosine, sine
interleaved), positions and loc i32|i64 [T] (compressed slots); output cache u8 [pages, page_size * 68].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels import codec, paged
from dsv4bench.kernels.arguments import (
    BF16,
    F32,
    IDS,
    expect_cache,
    expect_page_size,
    expect_range,
    expect_tensor,
)
from dsv4bench.kernels.codec_index_triton import pack_index_keys
from dsv4bench.kernels.contract import TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, Tolerance, torch_provider
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import INDEX_DIM, INDEX_K, ROPE_DIM
from dsv4bench.kernels.paged_triton import store_index_rows
from dsv4bench.kernels.row_triton import load_rotations, load_rows, rms_norm, round_bf16, turn_tail

WIDTH = tl.constexpr(INDEX_DIM)
FEW_ROWS = 4096  # below this a warp takes one row of ratio 1, else four, as measured on an H200; or two pairs


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows, padding rows, the layer's ratio, and slots of an index page."""

    rows: int
    padding_rows: int
    ratio: int
    page_size: int


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make unit normal rows at consecutive positions for scattered slots; rows that complete no group hold NaN."""
    device = generator.device
    pages = shape.rows // shape.page_size + 1
    slots = 1 + torch.randperm(pages * shape.page_size - 1, generator=generator, device=device)[: shape.rows]
    row = torch.arange(shape.rows, device=device)
    live = row < shape.rows - shape.padding_rows
    complete = (row + 1) % shape.ratio == 0
    loc = torch.where(complete, slots, -1) * live
    angles = 7 * torch.rand(shape.rows, ROPE_DIM // 2, generator=generator, device=device)
    k = torch.randn(shape.rows, INDEX_DIM, generator=generator, device=device)
    cache_shape = (pages, INDEX_K.page_bytes(shape.page_size))
    return {
        "k": torch.where((loc > 0)[:, None], k, float("nan")).bfloat16(),
        "weight": (1 + 0.1 * torch.randn(INDEX_DIM, generator=generator, device=device)).bfloat16(),
        "eps": 1e-20,
        "freqs": torch.stack([angles.cos(), angles.sin()], -1).flatten(1),
        "positions": row * live,
        "loc": loc,
        "ratio": shape.ratio,
        "cache": torch.randint(256, cache_shape, generator=generator, device=device, dtype=torch.uint8),
        "page_size": shape.page_size,
    }


def reference(
    k: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    freqs: torch.Tensor,
    positions: torch.Tensor,
    loc: torch.Tensor,
    ratio: int,
    cache: torch.Tensor,
    page_size: int,
) -> None:
    """Make the keys of the rows that have a slot, and write them."""
    live = loc > 0
    first = positions[live] - positions[live] % ratio
    normed = codec.rms_norm(k[live], weight, eps).bfloat16()
    key = codec.rotate_tail(normed, freqs, first).bfloat16()
    packed = codec.index_pack(codec.fake_quant_index(key.float()))
    paged.write_rows(cache, loc[live], packed, page_size, INDEX_K)


def cost(tensors: Tensors) -> Cost:
    """Count the live rows read with their frequencies, and their slots written; about 24 operations a value."""
    loc, positions = tensors["loc"], tensors["positions"]
    live, ids = int((loc > 0).sum()), len(loc) * (loc.element_size() + positions.element_size())
    read = live * (2 * INDEX_DIM + 4 * ROPE_DIM) + ids + 2 * INDEX_DIM
    return Cost(flops=24 * live * INDEX_DIM, bytes_read=read, bytes_written=live * INDEX_K.row_bytes)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape, stride, page size or ratio."""
    rows = len(tensors["k"])
    expect_cache(tensors["cache"], INDEX_K, tensors["page_size"])
    expect_tensor("k", tensors["k"], BF16, ("n", INDEX_DIM), free_strides=1)
    expect_tensor("weight", tensors["weight"], BF16, (INDEX_DIM,))
    expect_tensor("freqs", tensors["freqs"], F32, ("m", ROPE_DIM))
    expect_tensor("positions", tensors["positions"], IDS, (rows,))
    expect_tensor("loc", tensors["loc"], IDS, (rows,))
    expect_page_size(tensors["ratio"], "ratio")


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a slot outside the cache, or a group outside the table of a row that has a slot."""
    loc, positions = tensors["loc"], tensors["positions"]
    expect_range("loc", loc.clamp(min=0), 0, tensors["cache"].shape[0] * tensors["page_size"])
    first = (positions - positions % tensors["ratio"]).where(loc > 0, 0)
    expect_range("positions", first, 0, len(tensors["freqs"]))


@triton.jit
def _store_keys(
    k_ptr,
    k_stride,
    weight_ptr,
    eps,
    freqs_ptr,
    positions_ptr,
    rows,
    slots,
    there,
    live,
    cache_ptr,
    RATIO: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
):
    """Load the rows [R] that are there, make their keys and write them to slots [R], where they are live."""
    first = tl.load(positions_ptr + rows, mask=there, other=0) & -RATIO
    x = load_rows(k_ptr, rows, k_stride, there, WIDTH)
    weight = tl.load(weight_ptr + tl.arange(0, WIDTH)).to(tl.float32)
    rotations = load_rotations(freqs_ptr, first, live, WIDTH)
    normed = round_bf16(rms_norm(x, weight, eps))
    payload, scales = pack_index_keys(turn_tail(normed, rotations, live, False, ROUND=True))
    store_index_rows(cache_ptr, slots, live, payload, scales, PAGE_SIZE)


@triton.jit
def _index_key(
    k_ptr,
    k_stride,
    weight_ptr,
    eps,
    freqs_ptr,
    positions_ptr,
    loc_ptr,
    cache_ptr,
    count,
    RATIO: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Each program has ROWS rows, or at ratio 2 as many pairs of rows.

    Of a pair one row is live, but where a request begins odd: its place is the pair's, and the few others go after.
    At ratio 1, where only padding has no slot, rows are loaded beside their slots.
    """
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    if RATIO == 2:
        even = 2 * at
        slots_even = tl.load(loc_ptr + even, mask=even < count, other=0)
        slots_odd = tl.load(loc_ptr + even + 1, mask=even + 1 < count, other=0)
        odd = slots_odd > 0
        rows = tl.where(odd, even + 1, even)
        slots = tl.where(odd, slots_odd, slots_even)
    else:
        rows = at
        slots = tl.load(loc_ptr + rows, mask=rows < count, other=0)
    live = slots > 0
    there = rows < count if RATIO == 1 else live
    _store_keys(
        k_ptr,
        k_stride,
        weight_ptr,
        eps,
        freqs_ptr,
        positions_ptr,
        rows,
        slots,
        there,
        live,
        cache_ptr,
        RATIO,
        PAGE_SIZE,
    )
    if RATIO == 2:
        both = odd & (slots_even > 0)
        if tl.max(both.to(tl.int32), axis=0) > 0:
            _store_keys(
                k_ptr,
                k_stride,
                weight_ptr,
                eps,
                freqs_ptr,
                positions_ptr,
                even,
                slots_even,
                both,
                both,
                cache_ptr,
                RATIO,
                PAGE_SIZE,
            )


def build_triton(tensors: Tensors) -> Call:
    """Launch programs of one warp."""
    k, ratio, page_size = tensors["k"], tensors["ratio"], tensors["page_size"]
    count = k.shape[0]
    rows = 1 if ratio != 2 and count < FEW_ROWS else 4
    grid = (triton.cdiv(count, rows),)

    def call() -> None:
        if count:
            _index_key[grid](
                k,
                k.stride(0),
                tensors["weight"],
                tensors["eps"],
                tensors["freqs"],
                tensors["positions"],
                tensors["loc"],
                tensors["cache"],
                count,
                RATIO=ratio,
                PAGE_SIZE=page_size,
                ROWS=rows // 2 if ratio == 2 else rows,
                num_warps=1,
            )

    return call


def bench_shape(rows: int, case: str) -> Shape:
    """Return rows of a layer of ratio 1 or 2, for an index page of 64."""
    return Shape(rows, 0, int(case.removeprefix("ratio ")), 64)


KERNEL = Kernel(
    name="index_key",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={
        "cache": Tolerance(
            share=0.999,
            gaps=paged.code_gaps,
            limit=2,
            because="the order of the norm's sum may move a value by one bf16 step; the rule rounds twice, and where"
            " the second scale is half the first, one code of the first rounding is two of the second",
        )
    },
    examples=(Shape(9, 2, 2, 64), Shape(5, 0, 1, 128)),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(1024, 8192, 65536), cases=("ratio 1", "ratio 2")),
)
