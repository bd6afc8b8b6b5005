"""Rows of a paged cache as Triton device functions, shared by every writer and reader (specification 2.1).

A writer ends in `store_rows` or `store_index_rows`, with `**paged_constants(layout, page_size)` at its launch. LAYOUT
is a layout's name: `encoding_of` and `is_interleaved` say what it stands for. Addresses are int64. V4.1 layouts expect
rows whose values are exact in bf16; V4 takes f32 rows. R counts rows. A program that has one row at a time calls with
R = 1: a warp's 512 values then need no barrier, and a row that is known to be live no mask.
"""

from __future__ import annotations

from dsv4bench.kernels.codec_triton import (
    e2m1_decode,
    e4m3_decode,
    e4m3_encode,
    fake_quant_kv,
    pack_nibbles,
    quantise_compressed_v4,
    quantise_compressed_v41,
    quantise_fp4,
    quantise_v4,
    quantise_v41,
    ue8m0_decode,
    unpack_nibbles,
)
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import HEAD_DIM, INDEX_K, INDEX_K_FP8, LAYOUTS, NOPE_DIM, V4, V41, V41_FP4, KVLayout

ROW = tl.constexpr(HEAD_DIM)
NOPE = tl.constexpr(NOPE_DIM)
V4_DATA, V4_SCALE = tl.constexpr(V4.data_bytes), tl.constexpr(V4.scale_bytes)
V41_DATA, V41_SCALE = tl.constexpr(V41.data_bytes), tl.constexpr(V41.scale_bytes)
FP4_DATA, FP4_SCALE = tl.constexpr(V41_FP4.data_bytes), tl.constexpr(V41_FP4.scale_bytes)
INDEX_DATA, INDEX_SCALE = tl.constexpr(INDEX_K.data_bytes), tl.constexpr(INDEX_K.scale_bytes)
INDEX_FP8_DATA, INDEX_FP8_SCALE = tl.constexpr(INDEX_K_FP8.data_bytes), tl.constexpr(INDEX_K_FP8.scale_bytes)
_ENCODINGS = {name: layout.encoding for name, layout in LAYOUTS.items()}
_INTERLEAVED = {name: layout.interleaved for name, layout in LAYOUTS.items()}


def paged_constants(layout: KVLayout, page_size: int) -> dict[str, str | int]:
    """Return the constexpr arguments LAYOUT, PAGE_SIZE and PAGE_BYTES of a kernel that addresses a paged cache."""
    return {"LAYOUT": layout.name, "PAGE_SIZE": page_size, "PAGE_BYTES": layout.page_bytes(page_size)}


@triton.constexpr_function
def encoding_of(layout: str) -> str:
    """Return the encoding of the layout called `layout`: what the bytes of its rows mean."""
    return _ENCODINGS[layout]


@triton.constexpr_function
def is_interleaved(layout: str) -> bool:
    """Return whether the layout called `layout` keeps each row's scales behind its data."""
    return _INTERLEAVED[layout]


@triton.jit
def slot_offsets(
    slots,
    PAGE_SIZE: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
    DATA_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
    INTERLEAVED: tl.constexpr = False,
):
    """Return the byte offsets of the data and of the scales of slots [R], both i64 [R].

    A slot is below 2^32 and a page below 2 GiB, so only the product with the page's bytes needs 64 bits.
    """
    slots = slots.to(tl.uint32)
    page = (slots // PAGE_SIZE).to(tl.int64) * PAGE_BYTES
    index = (slots % PAGE_SIZE).to(tl.int32)
    if INTERLEAVED:
        data = page + index * (DATA_BYTES + SCALE_BYTES)
        scale = data + DATA_BYTES
    else:
        data = page + index * DATA_BYTES
        scale = page + (PAGE_SIZE * DATA_BYTES + index * SCALE_BYTES)
    return data, scale


@triton.jit
def store_rows(cache_ptr, slots, live, x, LAYOUT: tl.constexpr, PAGE_SIZE: tl.constexpr, PAGE_BYTES: tl.constexpr):
    """Quantise rows f32 [R, 512] by the layout's rule into slots [R]; rows that are not `live` [R] write nothing."""
    ENCODING: tl.constexpr = encoding_of(LAYOUT)
    if ENCODING == "v4":
        codes, scales = quantise_v4(tl.reshape(x, (x.shape[0] * 8, 64)))
        scales = tl.reshape(scales, (x.shape[0], 8))
        _store_v4(cache_ptr, slots, live, tl.reshape(codes, x.shape), scales, x, PAGE_SIZE, PAGE_BYTES)
    elif ENCODING == "v41":
        codes, scales = quantise_v41(tl.reshape(x, (x.shape[0] * 16, 32)))
        scales = tl.reshape(scales, (x.shape[0], 16))
        _store_v41(cache_ptr, slots, live, tl.reshape(codes, x.shape), scales, LAYOUT, PAGE_SIZE, PAGE_BYTES)
    elif ENCODING == "fp4":
        codes, scales = quantise_fp4(tl.reshape(x, (x.shape[0] * 32, 16)))
        data, scale = slot_offsets(slots, PAGE_SIZE, PAGE_BYTES, FP4_DATA, FP4_SCALE, is_interleaved(LAYOUT))
        _store_words(cache_ptr, data, live, pack_nibbles(tl.reshape(codes, x.shape)))
        _store_bytes(cache_ptr, scale, live, tl.reshape(scales, (x.shape[0], 32)))
    else:
        tl.static_assert(ENCODING == "uniform", "an encoding is v4, v41, fp4 or uniform")
        data, _ = slot_offsets(slots, PAGE_SIZE, PAGE_BYTES, ROW, 0)
        tl.store(cache_ptr + data[:, None] + _channels(), e4m3_encode(x), mask=live[:, None])


@triton.jit
def store_compressed_rows(
    cache_ptr, slots, live, x, LAYOUT: tl.constexpr, PAGE_SIZE: tl.constexpr, PAGE_BYTES: tl.constexpr
):
    """Store rotated rows f32 [R, 512], exact in bf16, as a compressor does: fake-quantised first, except for FP4."""
    ENCODING: tl.constexpr = encoding_of(LAYOUT)
    if ENCODING == "v4":
        codes, scales, x = quantise_compressed_v4(x)
        _store_v4(cache_ptr, slots, live, codes, scales, x, PAGE_SIZE, PAGE_BYTES)
    elif ENCODING == "v41":
        codes, scales = quantise_compressed_v41(x)
        _store_v41(cache_ptr, slots, live, codes, scales, LAYOUT, PAGE_SIZE, PAGE_BYTES)
    else:
        if ENCODING != "fp4":
            x = fake_quant_kv(x)
        store_rows(cache_ptr, slots, live, x, LAYOUT, PAGE_SIZE, PAGE_BYTES)


@triton.jit
def _channels():
    """Return the channels i32 [1, 512] of a row of bytes, told to be contiguous by eights.

    A thread then stores 8 bytes, as many as it has loaded bf16 values; with 16, values would go from thread to thread.
    """
    return tl.max_contiguous(tl.multiple_of(tl.arange(0, ROW)[None, :], (1, 8)), (1, 8))


@triton.jit
def _store_bytes(cache_ptr, offsets, live, values):
    """Write values u8 [R, n] to n bytes from each of the offsets [R]."""
    byte = tl.arange(0, values.shape[1])[None, :]
    tl.store(cache_ptr + offsets[:, None] + byte, values, mask=live[:, None])


@triton.jit
def _store_words(cache_ptr, offsets, live, words):
    """Write words i32 [R, n] to 4n bytes from each of the offsets [R], which are multiples of 4."""
    word_ptr = (cache_ptr + offsets).to(tl.pointer_type(tl.int32))
    tl.store(word_ptr[:, None] + tl.arange(0, words.shape[1])[None, :], words, mask=live[:, None])


@triton.jit
def _store_v4(cache_ptr, slots, live, codes, scales, x, PAGE_SIZE: tl.constexpr, PAGE_BYTES: tl.constexpr):
    """Write 448 codes u8 of [R, 512], 7 scales u8 of [R, 8], and the last 64 of rows `x` f32 [R, 512] as bf16.

    The eighth scale byte is padding that nobody writes.
    """
    data, scale = slot_offsets(slots, PAGE_SIZE, PAGE_BYTES, V4_DATA, V4_SCALE)
    channel = _channels()
    nope = live[:, None] & (channel < NOPE)
    tail = live[:, None] & (channel >= NOPE)
    tail_ptr = (cache_ptr + data + NOPE).to(tl.pointer_type(tl.bfloat16))
    tl.store(cache_ptr + data[:, None] + channel, codes, mask=nope)
    tl.store(tail_ptr[:, None] + (channel - NOPE), x.to(tl.bfloat16), mask=tail)
    tile = tl.arange(0, 8)[None, :]
    tl.store(cache_ptr + scale[:, None] + tile, scales, mask=live[:, None] & (tile < 7))


@triton.jit
def _store_v41(
    cache_ptr, slots, live, codes, scales, LAYOUT: tl.constexpr, PAGE_SIZE: tl.constexpr, PAGE_BYTES: tl.constexpr
):
    """Write codes u8 [R, 512] and scales u8 [R, 16]."""
    data, scale = slot_offsets(slots, PAGE_SIZE, PAGE_BYTES, V41_DATA, V41_SCALE, is_interleaved(LAYOUT))
    tl.store(cache_ptr + data[:, None] + _channels(), codes, mask=live[:, None])
    _store_bytes(cache_ptr, scale, live, scales)


@triton.jit
def load_rows(cache_ptr, slots, live, LAYOUT: tl.constexpr, PAGE_SIZE: tl.constexpr, PAGE_BYTES: tl.constexpr):
    """Return the rows bf16 [R, 512] of slots [R], exact for every finite code; zeros where a slot is not `live` [R]."""
    ENCODING: tl.constexpr = encoding_of(LAYOUT)
    if ENCODING == "v4":
        rows = _load_v4(cache_ptr, slots, live, PAGE_SIZE, PAGE_BYTES)
    elif ENCODING == "v41":
        data, scale = slot_offsets(slots, PAGE_SIZE, PAGE_BYTES, V41_DATA, V41_SCALE, is_interleaved(LAYOUT))
        codes = _load_bytes(cache_ptr, data, live, V41_DATA)
        rows = _scaled(e4m3_decode(codes), ue8m0_decode(_load_bytes(cache_ptr, scale, live, V41_SCALE)))
    elif ENCODING == "fp4":
        data, scale = slot_offsets(slots, PAGE_SIZE, PAGE_BYTES, FP4_DATA, FP4_SCALE, is_interleaved(LAYOUT))
        codes = unpack_nibbles(_load_bytes(cache_ptr, data, live, FP4_DATA))
        rows = _scaled(e2m1_decode(codes), e4m3_decode(_load_bytes(cache_ptr, scale, live, FP4_SCALE)))
    else:
        tl.static_assert(ENCODING == "uniform", "an encoding is v4, v41, fp4 or uniform")
        data, _ = slot_offsets(slots, PAGE_SIZE, PAGE_BYTES, ROW, 0)
        rows = e4m3_decode(_load_bytes(cache_ptr, data, live, ROW)).to(tl.bfloat16)
    return rows


@triton.jit
def _load_bytes(cache_ptr, offsets, live, COUNT: tl.constexpr):
    byte = tl.arange(0, COUNT)[None, :]
    return tl.load(cache_ptr + offsets[:, None] + byte, mask=live[:, None], other=0)


@triton.jit
def _scaled(values, scales):
    """Multiply values [R, n] by scales [R, tiles], each for its tile, and round to bf16."""
    tiles = tl.reshape(values, (scales.shape[0], scales.shape[1], values.shape[1] // scales.shape[1]))
    return tl.reshape(tiles * scales[:, :, None], values.shape).to(tl.bfloat16)


@triton.jit
def _load_v4(cache_ptr, slots, live, PAGE_SIZE: tl.constexpr, PAGE_BYTES: tl.constexpr):
    data, scale = slot_offsets(slots, PAGE_SIZE, PAGE_BYTES, V4_DATA, V4_SCALE)
    channel = tl.arange(0, ROW)[None, :]
    nope = live[:, None] & (channel < NOPE)
    codes = tl.load(cache_ptr + data[:, None] + channel, mask=nope, other=0)
    scales = _load_bytes(cache_ptr, scale, live, 8)  # the eighth is padding: read with the rest, used by no channel
    tail_ptr = (cache_ptr + data + NOPE).to(tl.pointer_type(tl.bfloat16))
    tail = tl.load(tail_ptr[:, None] + (channel - NOPE), mask=live[:, None] & (channel >= NOPE), other=0.0)
    return tl.where(channel < NOPE, _scaled(e4m3_decode(codes), ue8m0_decode(scales)), tail)


@triton.jit
def store_index_rows(cache_ptr, slots, live, payload, scales, PAGE_SIZE: tl.constexpr):
    """Write payload i32 [R, 16] and scales u8 [R, 4] into index slots [R]; rows not `live` [R] write nothing."""
    data, scale = slot_offsets(slots, PAGE_SIZE, PAGE_SIZE * (INDEX_DATA + INDEX_SCALE), INDEX_DATA, INDEX_SCALE)
    _store_words(cache_ptr, data, live, payload)
    _store_bytes(cache_ptr, scale, live, scales)


@triton.jit
def load_index_rows(cache_ptr, slots, live, PAGE_SIZE: tl.constexpr):
    """Return the rows bf16 [R, 128] of index slots [R]; zeros where a slot is not `live` [R]."""
    data, scale = slot_offsets(slots, PAGE_SIZE, PAGE_SIZE * (INDEX_DATA + INDEX_SCALE), INDEX_DATA, INDEX_SCALE)
    values = e2m1_decode(unpack_nibbles(_load_bytes(cache_ptr, data, live, INDEX_DATA)))
    return _scaled(values, ue8m0_decode(_load_bytes(cache_ptr, scale, live, INDEX_SCALE)))


@triton.jit
def store_index_fp8_rows(cache_ptr, slots, live, payload, scales, PAGE_SIZE: tl.constexpr):
    """Write payload u8 [R, 128] and scales f32 [R] into slots [R] of V4's index; rows not `live` [R] write nothing."""
    PAGE_BYTES: tl.constexpr = PAGE_SIZE * (INDEX_FP8_DATA + INDEX_FP8_SCALE)
    data, scale = slot_offsets(slots, PAGE_SIZE, PAGE_BYTES, INDEX_FP8_DATA, INDEX_FP8_SCALE)
    _store_bytes(cache_ptr, data, live, payload)
    tl.store((cache_ptr + scale).to(tl.pointer_type(tl.float32)), scales, mask=live)
