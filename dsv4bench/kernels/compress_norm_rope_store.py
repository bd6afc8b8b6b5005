"""Norm, rotate and store what the compressors of ratio 4 and 128 pooled (specification 3.3).

Row i of kv belongs to record i of the plan: one of plan_c (prefill), or of plan_d (decode). Its group begins at
position seq_len - ratio, and its slot is out_loc[ragged_id], or out_loc[i] in a decode. A plan_c record that stands for
nothing and a plan_d record with an incomplete group, seq_len % ratio != 0, write nothing.

    y = kv / sqrt(mean(kv^2) + eps) * weight                        f32

    main cache, 512 channels    V4 and uniform: rotate the last 64 of the f32 row, round to bf16, quantise
                                V4.1 layouts: round to bf16, rotate, round again, quantise
    index, 128 channels         rotate the last 64, mix (Walsh-Hadamard in natural order, times 128^-0.5), and quantise
                                to the 132 bytes of `INDEX_K_FP8` or the 68 of `INDEX_K`; not rounded to bf16

Shapes: kv [n, D] f32|bf16, weight [D] of the same dtype, plan u8 [n, 16], freqs [M, 64] f32 (cosine, sine interleaved),
out_loc i64 [tokens], in a decode [n]; output cache u8 [pages, page_bytes].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels import codec, codec_index, paged
from dsv4bench.kernels.arguments import (
    F32,
    I64,
    expect_at_most,
    expect_cache,
    expect_one_of,
    expect_range,
    expect_tensor,
)
from dsv4bench.kernels.codec_index_triton import pack_index_c4_rows, quantise_index_fp8
from dsv4bench.kernels.compress_plan import INVALID_C, PLAN_C_BYTES, expect_records, read_compressions, read_decodes
from dsv4bench.kernels.compress_ring import RATIOS
from dsv4bench.kernels.contract import TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, Tolerance, torch_provider
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import HEAD_DIM, INDEX_DIM, INDEX_K, INDEX_K_FP8, LAYOUTS, ROPE_DIM, KVLayout
from dsv4bench.kernels.paged_triton import encoding_of, store_index_fp8_rows, store_index_rows, store_rows
from dsv4bench.kernels.row_triton import load_rows, rms_norm, rotate_tail, round_bf16

TARGETS = {**LAYOUTS, INDEX_K.name: INDEX_K, INDEX_K_FP8.name: INDEX_K_FP8}
INDEXES = (INDEX_K, INDEX_K_FP8)
PROGRAM_ROWS = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """Records, ratio, name of the cache's layout, slots of a page, and what kind of plan it is.

    Every `skip_every`th record (0: none) writes nothing. `decode` says whether records are plan_d's.
    """

    records: int
    ratio: int
    layout: str
    page_size: int
    decode: bool = False
    skip_every: int = 0
    dtype: torch.dtype = torch.bfloat16


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make records in no order, their tokens scattered over a batch of twice as many, and slots of shuffled pages."""
    layout, device, count = TARGETS[shape.layout], generator.device, shape.records
    width = INDEX_DIM if layout in INDEXES else HEAD_DIM
    pages = count // shape.page_size + 1
    token = torch.randperm(count if shape.decode else 2 * count, generator=generator, device=device)[:count]
    slots = paged.shuffled_pages(pages, shape.page_size, generator)[-count:]
    out_loc = torch.zeros(count if shape.decode else 2 * count, dtype=torch.int64, device=device)
    out_loc[torch.arange(count, device=device) if shape.decode else token] = slots
    group = torch.randint(1, 1 + 4096 // shape.ratio, (count,), generator=generator, device=device)
    words = torch.stack([group * shape.ratio, token, torch.zeros_like(token), token], 1).int()
    if shape.skip_every and shape.decode:
        words[:: shape.skip_every, 0] += 1
    elif shape.skip_every:
        words[:: shape.skip_every] = torch.tensor(INVALID_C, dtype=torch.int32, device=device)
    angles = 6.2832 * torch.rand(4096, ROPE_DIM // 2, generator=generator, device=device)
    size = (pages, layout.page_bytes(shape.page_size))
    return {
        "kv": torch.randn(count, width, generator=generator, device=device).to(shape.dtype),
        "plan": words.view(torch.uint8),
        "decode": shape.decode,
        "ratio": shape.ratio,
        "weight": (torch.rand(width, generator=generator, device=device) + 0.5).to(shape.dtype),
        "eps": 1e-6,
        "freqs": torch.stack([angles.cos(), angles.sin()], -1).flatten(1),
        "out_loc": out_loc,
        "cache": torch.randint(256, size, generator=generator, device=device, dtype=torch.uint8),
        "page_size": shape.page_size,
        "layout": layout,
    }


def reference(
    kv: torch.Tensor,
    plan: torch.Tensor,
    decode: bool,
    ratio: int,
    weight: torch.Tensor,
    eps: float,
    freqs: torch.Tensor,
    out_loc: torch.Tensor,
    cache: torch.Tensor,
    page_size: int,
    layout: KVLayout,
) -> None:
    """Norm, rotate, mix where it is the index, quantise and store the rows that have a group."""
    rows, positions, tokens = groups(plan, decode, ratio)
    y = codec.rms_norm(kv[rows], weight, eps)
    if layout.encoding in ("v41", "fp4"):
        y = y.bfloat16()
    y = codec.rotate_tail(y, freqs, positions)
    if layout == INDEX_K:
        coded = codec_index.index_pack_c4(hadamard(y))
    elif layout == INDEX_K_FP8:
        coded = codec_index.index_pack_fp8(hadamard(y))
    else:
        coded = codec.quantise(y.bfloat16().float(), layout)
    paged.write_rows(cache, out_loc[tokens], coded, page_size, layout)


def groups(plan: torch.Tensor, decode: bool, ratio: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return, i64 [m] each, the rows of kv that are stored, the first positions of their groups, and their tokens."""
    if decode:
        seq_len = read_decodes(plan).seq_len
        rows = tokens = (seq_len % ratio == 0).nonzero().squeeze(1)
    else:
        events = read_compressions(plan)
        seq_len, rows = events.seq_len, events.valid.nonzero().squeeze(1)
        tokens = events.ragged_id[rows]
    return rows, seq_len[rows] - ratio, tokens


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Return f32 rows [n, D] times the D-point Walsh-Hadamard matrix in natural order, times D^-0.5.

    Neighbours are summed and subtracted first, then pairs 2 apart, and so on: the order decides the rounding.
    """
    width, step = x.shape[1], 1
    while step < width:
        low, high = x.view(len(x), -1, 2, step).unbind(2)
        x = torch.stack([low + high, low - high], 2).view(len(x), width)
        step *= 2
    return x * math.sqrt(1 / width)


def slot_gaps(got: torch.Tensor, want: torch.Tensor, page_size: int, layout: KVLayout) -> torch.Tensor:
    """Return by how many codes two caches differ; an f32 scale counts as many as it has eights of last places."""
    gaps = paged.code_gaps(got, want, page_size, layout)
    if layout != INDEX_K_FP8:
        return gaps
    scales = [paged.paged(cache, page_size, layout)[1].contiguous().view(torch.int32) for cache in (got, want)]
    return torch.cat([gaps, ((scales[0].long() - scales[1].long()).abs() // 8).int().flatten()])


def cost(tensors: Tensors) -> Cost:
    """Count records read, and for each that has a group its row, slot number and table row read and its slot written.

    Six operations a channel, three a rotated one, 14 more a channel to mix an index row; the weight is read once.
    """
    kv, layout = tensors["kv"], tensors["layout"]
    rows, positions, _ = groups(tensors["plan"], tensors["decode"], tensors["ratio"])
    width = kv.shape[1]
    read = len(rows) * (width * kv.element_size() + 8) + positions.unique().numel() * ROPE_DIM * 4
    flops = len(rows) * (width * (20 if layout in INDEXES else 6) + 3 * ROPE_DIM)
    return Cost(flops, read + tensors["plan"].nbytes + tensors["weight"].nbytes, len(rows) * layout.used_bytes)


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape, stride or page size, or an unknown ratio."""
    kv, layout, out_loc = tensors["kv"], tensors["layout"], tensors["out_loc"]
    width = INDEX_DIM if layout in INDEXES else HEAD_DIM
    expect_one_of("ratio", tensors["ratio"], RATIOS)
    expect_cache(tensors["cache"], layout, tensors["page_size"])
    expect_tensor("kv", kv, (torch.float32, torch.bfloat16), ("n", width))
    expect_tensor("weight", tensors["weight"], (kv.dtype,), (width,))
    expect_records("plan", tensors["plan"], len(kv), PLAN_C_BYTES)
    expect_tensor("freqs", tensors["freqs"], F32, ("m", ROPE_DIM))
    expect_tensor("out_loc", out_loc, I64, (len(kv) if tensors["decode"] else "tokens",))
    expect_at_most("plan: records", len(kv), len(out_loc), "each has a token of out_loc")


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a record that names a token, a position or a slot out of range."""
    cache, out_loc = tensors["cache"], tensors["out_loc"]
    _, positions, tokens = groups(tensors["plan"], tensors["decode"], tensors["ratio"])
    expect_range("plan: seq_len - ratio", positions, 0, len(tensors["freqs"]))
    expect_range("plan: ragged_id", tokens, 0, len(out_loc))
    expect_range("out_loc", out_loc[tokens], 0, len(cache) * tensors["page_size"])


@triton.jit
def _hadamard(x):
    """Return f32 rows [R, 128] times the Walsh-Hadamard matrix in natural order, times 128^-0.5.

    Each step sums and subtracts neighbours, and puts the sums before the differences: that turns the bits of a
    channel's number by one, so that the next step has the next bit, and seven steps bring them back.
    """
    for _ in tl.static_range(7):
        low, high = tl.split(tl.reshape(x, (x.shape[0], 64, 2)))
        x = tl.reshape(tl.permute(tl.join(low + high, low - high), (0, 2, 1)), x.shape)
    return x * 0.08838834764831845


@triton.jit
def _compress_norm_rope_store(
    kv_ptr,
    plan_ptr,
    weight_ptr,
    eps,
    freqs_ptr,
    out_loc_ptr,
    cache_ptr,
    count,
    DECODE: tl.constexpr,
    RATIO: tl.constexpr,
    WIDTH: tl.constexpr,
    LAYOUT: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
    ROWS: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    seq_len = tl.load(plan_ptr + rows * 4, mask=rows < count, other=-1)
    live = seq_len != -1
    tokens = rows
    if DECODE:
        live &= seq_len % RATIO == 0
    else:
        tokens = (tl.load(plan_ptr + rows * 4 + 1, mask=live, other=0) & 0xFFFF).to(tl.int64)
    slots = tl.load(out_loc_ptr + tokens, mask=live, other=0)
    weight = tl.load(weight_ptr + tl.arange(0, WIDTH)).to(tl.float32)
    y = rms_norm(load_rows(kv_ptr, rows, WIDTH, live, WIDTH), weight, eps)
    if LAYOUT == "index_k" or LAYOUT == "index_k_fp8":
        mixed = _hadamard(rotate_tail(y, freqs_ptr, seq_len - RATIO, live, False))
        if LAYOUT == "index_k":
            payload, scales = pack_index_c4_rows(mixed)
            store_index_rows(cache_ptr, slots, live, payload, scales, PAGE_SIZE)
        else:
            payload, scales = quantise_index_fp8(mixed)
            store_index_fp8_rows(cache_ptr, slots, live, payload, scales, PAGE_SIZE)
    else:
        if encoding_of(LAYOUT) == "v41" or encoding_of(LAYOUT) == "fp4":
            y = rotate_tail(round_bf16(y), freqs_ptr, seq_len - RATIO, live, False, ROUND=True)
        else:
            y = round_bf16(rotate_tail(y, freqs_ptr, seq_len - RATIO, live, False))
        store_rows(cache_ptr, slots, live, y, LAYOUT, PAGE_SIZE, PAGE_BYTES)


def build_triton(tensors: Tensors) -> Call:
    """Launch one program for four records."""
    kv, layout, page_size = tensors["kv"], tensors["layout"], tensors["page_size"]
    words = tensors["plan"].view(torch.int32)
    named = tuple(tensors[name] for name in ("weight", "eps", "freqs", "out_loc", "cache"))
    constants = {"DECODE": tensors["decode"], "RATIO": tensors["ratio"], "WIDTH": kv.shape[1], "ROWS": PROGRAM_ROWS}
    constants |= {"LAYOUT": layout.name, "PAGE_SIZE": page_size, "PAGE_BYTES": layout.page_bytes(page_size)}

    def call() -> None:
        if len(kv):
            _compress_norm_rope_store[(triton.cdiv(len(kv), PROGRAM_ROWS),)](kv, words, *named, len(kv), **constants)

    return call


KERNEL = Kernel(
    name="compress_norm_rope_store",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={
        "cache": Tolerance(
            share=0.985,
            gaps=slot_gaps,
            because="the order of the sum of squares is free (3.2), and moves one byte of an index row's f32 scale",
        )
    },
    examples=(
        Shape(15, 4, "v4", 8, skip_every=5),
        Shape(15, 128, "v41", 2, decode=True, skip_every=4),
        Shape(9, 4, "fp4", 4),
        Shape(7, 128, "v41_new", 2, dtype=torch.float32),
        Shape(7, 4, "fp4_new", 4, decode=True),
        Shape(7, 4, "uniform", 4, skip_every=3),
        Shape(13, 4, "index_k", 8, skip_every=4),
        Shape(13, 4, "index_k_fp8", 8, decode=True, skip_every=4, dtype=torch.float32),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(lambda rows, layout: Shape(rows, 4, layout, 64), (2048, 8192), ("v4", "v41", "index_k", "index_k_fp8")),
)
