"""The quantisers of index rows, of 128 values, as Triton device functions, shared by their writers (specification 2.2).

V4.1 fake-quantises a row and packs it, in two stages with two floors; V4 packs a row as it is, to e2m1 (c4) or to e4m3.
Arithmetic is f32. R counts rows, G counts tiles (32 values that share a scale).
"""

from __future__ import annotations

from dsv4bench.kernels.codec_triton import (
    SIXTH,
    ceil_exponent,
    e2m1_code,
    e2m1_grid,
    e4m3_encode,
    largest_of,
    pack_nibbles,
    quotient,
    sign_bit,
    ue8m0_decode,
    ue8m0_inverse,
)
from dsv4bench.kernels.jit import tl, triton


@triton.jit
def e2m1_encode_down(q):
    """Return the e2m1 codes u8 of f32 `q`, ties to the smaller magnitude and no sign on a zero (V4's c4 index rows)."""
    magnitude = tl.abs(q)
    code = (magnitude > 0.25).to(tl.uint8) + (magnitude > 0.75).to(tl.uint8)
    code += (magnitude > 1.25).to(tl.uint8) + (magnitude > 1.75).to(tl.uint8)
    code += (magnitude > 2.5).to(tl.uint8) + (magnitude > 3.5).to(tl.uint8) + (magnitude > 5.0).to(tl.uint8)
    return tl.where((q < 0.0) & (code > 0), code | 8, code).to(tl.uint8)


@triton.jit
def index_scale(tiles):
    """Return as i32 [G] the ue8m0 bytes of tiles f32 [G, 32] of an index row: the floor stands under the quotient."""
    sixth = tl.maximum(quotient(largest_of(tiles), 6.0, SIXTH), 1e-4)
    return tl.minimum(tl.maximum(ceil_exponent(sixth), 1), 254)


@triton.jit
def _signed(codes, tiles):
    """Return codes i32 with the signs of the tiles; a zero has none."""
    return tl.where(codes == 0, 0, codes | sign_bit(tiles))


@triton.jit
def quantise_index(tiles):
    """Quantise tiles f32 [G, 32] that `fake_quant_index` made to e2m1 codes i32 [G, 32] and ue8m0 bytes [G]."""
    scale = index_scale(tiles)
    return _signed(e2m1_code(tl.abs(tiles) * ue8m0_inverse(scale)[:, None]), tiles), scale.to(tl.uint8)


@triton.jit
def quantise_index_c4(tiles):
    """Quantise tiles f32 [G, 32] of one of V4's c4 index rows to e2m1 codes i32 [G, 32] and ue8m0 bytes [G]."""
    scale = index_scale(tiles)
    return e2m1_encode_down(tiles * ue8m0_inverse(scale)[:, None]).to(tl.int32), scale.to(tl.uint8)


@triton.jit
def quantise_index_fp8(rows):
    """Quantise V4's index rows f32 [R, 128] to e4m3 bytes [R, 128] and one f32 scale [R], which is not rounded.

    The payload takes the f32 reciprocal of the scale, which a division by the scale does not equal.
    """
    scale = tl.div_rn(tl.maximum(largest_of(rows), 1e-4), 448.0)
    return e4m3_encode(rows * tl.div_rn(1.0, scale)[:, None]), scale


@triton.jit
def _fake_quant_index(tiles):
    """Return magnitudes of e2m1 f32 [G, 32] and the ue8m0 bytes i32 [G] of their unit, for tiles f32 [G, 32].

    The unit comes from maximum * f32(1/6), with a floor of 6 * 2^-126 under the maximum.
    """
    unit = ceil_exponent(tl.maximum(largest_of(tiles), 7.052966104933725e-38) * SIXTH)
    return e2m1_grid(tl.abs(tiles) * ue8m0_inverse(unit)[:, None]), unit


@triton.jit
def fake_quant_index(x):
    """Return f32 `x` [R, D] as e2m1 with a power of two for 32 values holds it (index); exact in bf16."""
    tiles = tl.reshape(x, (x.shape[0] * x.shape[1] // 32, 32))
    magnitude, unit = _fake_quant_index(tiles)
    value = magnitude * ue8m0_decode(unit)[:, None]
    return tl.reshape(tl.where(tiles < 0.0, value * -1.0, value), x.shape)


@triton.jit
def _quantise_index_keys(tiles):
    """Fake-quantise tiles f32 [G, 32], and quantise them as `quantise_index` does, which has another floor.

    The maximum lies in (3, 6] of the first unit, and becomes 3, 4 or 6. A sixth of 3 is half the unit, the next power
    of two: there the second unit is half the first, else the same; under the floor of 1e-4 it is 2^-13, byte 114.
    Exact for maxima below 2.98e38, from which on the first stage's value overflows to infinity.
    """
    magnitude, unit = _fake_quant_index(tiles)
    top = e2m1_grid(largest_of(tiles) * ue8m0_inverse(unit))
    scale = tl.maximum(unit - (top <= 3.0).to(tl.int32), 114)
    ratio = ((127 + tl.maximum(unit - scale, -120)) << 23).to(tl.float32, bitcast=True)
    return _signed(e2m1_code(magnitude * ratio[:, None]), tiles), scale.to(tl.uint8)


@triton.jit
def pack_index_keys(x):
    """Fake-quantise f32 rows [R, 128]; return their payload i32 [R, 16] and scales u8 [R, 4]."""
    codes, scales = _quantise_index_keys(tl.reshape(x, (x.shape[0] * 4, 32)))
    return pack_nibbles(tl.reshape(codes, x.shape)), tl.reshape(scales, (x.shape[0], 4))


@triton.jit
def pack_index_rows(x):
    """Return payload i32 [R, 16] and scales u8 [R, 4] of f32 rows [R, 128] that `fake_quant_index` made."""
    codes, scales = quantise_index(tl.reshape(x, (x.shape[0] * 4, 32)))
    return pack_nibbles(tl.reshape(codes, x.shape)), tl.reshape(scales, (x.shape[0], 4))


@triton.jit
def pack_index_c4_rows(x):
    """Return payload i32 [R, 16] and scales u8 [R, 4] of f32 rows [R, 128] by the rule of V4's c4 index."""
    codes, scales = quantise_index_c4(tl.reshape(x, (x.shape[0] * 4, 32)))
    return pack_nibbles(tl.reshape(codes, x.shape)), tl.reshape(scales, (x.shape[0], 4))
