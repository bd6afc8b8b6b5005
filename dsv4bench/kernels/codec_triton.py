"""The one quantiser: e4m3, ue8m0 and e2m1 as Triton device functions, shared by every writer (specification 2.2).

Functions take and return blocks of values; arithmetic is f32. R counts rows, G counts tiles (values that share a
scale). `paged_triton` puts the bytes into a cache.
"""

from __future__ import annotations

from dsv4bench.kernels.jit import tl, triton

# ---- single values


@triton.jit
def e4m3_encode(x):
    """Return the e4m3 bytes of f32 `x`: to nearest even, saturating at 448."""
    return x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)


@triton.jit
def e4m3_decode(byte):
    """Return the f32 values of e4m3 bytes u8, NaN kept."""
    return byte.to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def ue8m0_decode(byte):
    """Return 2^(byte - 127) as f32; byte 0 is 2^-127 and byte 255 NaN."""
    exponent = byte.to(tl.uint32)
    bits = exponent << 23
    bits = tl.where(exponent == 0, 0x00400000, bits)  # 2^-127 is a denormal
    bits = tl.where(exponent == 255, 0x7FC00000, bits)
    return bits.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def ue8m0_inverse(byte):
    """Return 2^(127 - byte) as f32, for bytes 1 to 253."""
    return ((254 - byte.to(tl.int32)) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _e2m1_sum(magnitude):
    """Return (C + magnitude, C), the magnitude at most 6, for the C whose last place is the grid's step.

    The step of e2m1 is 0.5 below 2, 1 below 4 and then 2, and 2^22, 2^23 and 2^24 have these last places, to which the
    sum is rounded. A tie goes to the even multiple of the step, which is the even code.
    """
    low = tl.minimum(magnitude, 6.0)
    step = tl.where(low < 2.0, 4194304.0, tl.where(low < 4.0, 8388608.0, 16777216.0))
    return low + step, step


@triton.jit
def e2m1_magnitude(magnitude):
    """Return the e2m1 codes i32 (0 to 7) of f32 that are not negative: ties to the even code, saturating at 6."""
    total, _ = _e2m1_sum(magnitude)
    bits = total.to(tl.int32, bitcast=True)
    return (
        (bits & 7) + (bits >> 22) - 298
    )  # the exponent tells 2^22 from 2^23 and 2^24, whose codes begin 2 and 4 later


@triton.jit
def e2m1_grid(magnitude):
    """Return the values 0 to 6 of e2m1 that f32 values, not negative, are rounded to."""
    total, step = _e2m1_sum(magnitude)
    return total - step


@triton.jit
def e2m1_encode(q):
    """Return the e2m1 codes u8 (0 to 15) of f32 `q`: ties to the even code, saturating at 6, sign bit kept."""
    sign = (q.to(tl.int32, bitcast=True) >> 28) & 8
    return (e2m1_magnitude(tl.abs(q)) | sign).to(tl.uint8)


@triton.jit
def e2m1_encode_down(q):
    """Return the e2m1 codes u8 of f32 `q`, ties to the smaller magnitude and no sign on a zero (V4's c4 index rows)."""
    magnitude = tl.abs(q)
    code = (magnitude > 0.25).to(tl.uint8) + (magnitude > 0.75).to(tl.uint8)
    code += (magnitude > 1.25).to(tl.uint8) + (magnitude > 1.75).to(tl.uint8)
    code += (magnitude > 2.5).to(tl.uint8) + (magnitude > 3.5).to(tl.uint8) + (magnitude > 5.0).to(tl.uint8)
    return tl.where((q < 0.0) & (code > 0), code | 8, code).to(tl.uint8)


@triton.jit
def quotient(x, divisor, inverse):
    """Return x / divisor correctly rounded, given inverse = RN(1 / divisor); exact but for the sign of a zero.

    One Newton step on the product (Markstein): the remainder is exact in an FMA. A division is three times as long.
    """
    guess = x * inverse
    return tl.fma(tl.fma(guess * -1.0, divisor, x), inverse, guess)


@triton.jit
def e2m1_decode(code):
    """Return the f32 values of e2m1 codes.

    Exponent and mantissa, moved to where f32 has them, are 2^-126 times the value, the half as a denormal. The sign
    goes in as a bit, so that -0.0 keeps it.
    """
    bits = code.to(tl.uint32)
    small = ((bits & 7) << 22) | ((bits & 8) << 28)
    return small.to(tl.float32, bitcast=True) * 8.507059173023462e37  # 2^126


@triton.jit
def pack_nibbles(codes):
    """Pack codes u8 [R, 2n] to bytes [R, n], the even channel in the low nibble."""
    low, high = tl.split(tl.reshape(codes, (codes.shape[0], codes.shape[1] // 2, 2)))
    return low | (high << 4)


@triton.jit
def unpack_nibbles(packed):
    """Unpack bytes u8 [R, n] to codes [R, 2n]."""
    joined = tl.join(packed & 15, packed >> 4)
    return tl.reshape(joined, (packed.shape[0], packed.shape[1] * 2))


@triton.jit
def ceil_exponent(x):
    """Return as i32 the byte e with 2^(e - 127) the smallest power of two not below `x` (positive, normal)."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)


@triton.jit
def order_key(x):
    """Return i32 keys that order finite bf16 values, from 129 to 65407; -0.0 and 0.0 share one; inf and NaN get 0."""
    bits = x.to(tl.uint16, bitcast=True).to(tl.int32)
    magnitude = bits & 0x7FFF
    key = tl.where(bits >= 0x8000, 0x8000 - magnitude, 0x8000 + magnitude)
    return tl.where(magnitude >= 0x7F80, 0, key)


# ---- tiles of one scale each


@triton.jit
def quantise_v4(tiles):
    """Quantise tiles f32 [G, 64] to e4m3 bytes [G, 64] and ue8m0 bytes [G].

    The floor of 1e-4 stands under the maximum, before the division.
    """
    largest = tl.maximum(tl.max(tl.abs(tiles), axis=1), 1e-4)
    scale = ceil_exponent(quotient(largest, 448.0, 0.0022321429569274187))
    return e4m3_encode(tiles * ue8m0_inverse(scale)[:, None]), scale.to(tl.uint8)


@triton.jit
def quantise_v41(tiles):
    """Quantise tiles f32 [G, 32] to e4m3 bytes [G, 32] and ue8m0 bytes [G].

    448 is 1.75 * 2^8: the exponent of maximum / 448, rounded up, is read off the bits of the maximum; 114 is 2^-13.
    """
    bits = tl.max(tl.abs(tiles), axis=1).to(tl.int32, bitcast=True)
    above = ((bits & 0x7FFFFF) > 0x600000).to(tl.int32)
    scale = tl.maximum((bits >> 23) - 8 + above, 114)
    return e4m3_encode(tiles * ue8m0_inverse(scale)[:, None]), scale.to(tl.uint8)


@triton.jit
def quantise_fp4(tiles):
    """Quantise tiles f32 [G, 16] to e2m1 codes [G, 16] and e4m3 scale bytes [G].

    Both divisions are true ones: a multiplication by the reciprocal crosses ties.
    """
    magnitude = tl.abs(tiles)
    sixth = quotient(tl.max(magnitude, axis=1), 6.0, 0.16666667163372040)
    scale = e4m3_encode(tl.minimum(tl.maximum(sixth, 0.001953125), 448.0))
    codes = e2m1_magnitude(_scaled_down(magnitude, e4m3_decode(scale)))
    sign = (tiles.to(tl.int32, bitcast=True) >> 28) & 8
    return (codes | sign).to(tl.uint8), scale


@triton.jit
def _scaled_down(tiles, scales):
    """Return tiles f32 [G, n] divided by their scales f32 [G], correctly rounded."""
    guess = 1.0 / scales
    inverse = tl.fma(tl.fma(guess * -1.0, scales, 1.0), guess, guess)  # rounded correctly: a scale has four bits
    return quotient(tiles, scales[:, None], inverse[:, None])


@triton.jit
def index_scale(tiles):
    """Return as i32 [G] the ue8m0 bytes of tiles f32 [G, 32] of an index row: the floor stands under the quotient."""
    sixth = tl.maximum(quotient(tl.max(tl.abs(tiles), axis=1), 6.0, 0.16666667163372040), 1e-4)
    return tl.minimum(tl.maximum(ceil_exponent(sixth), 1), 254)


@triton.jit
def quantise_index(tiles):
    """Quantise tiles f32 [G, 32] of an index row to e2m1 codes [G, 32] and ue8m0 bytes [G].

    The tiles come from `fake_quant_index`; the floor there differs from the one here, so the two stages stay two.
    """
    scale = index_scale(tiles)
    codes = e2m1_encode(tiles * ue8m0_inverse(scale)[:, None])
    return tl.where(codes == 8, 0, codes).to(tl.uint8), scale.to(tl.uint8)


@triton.jit
def quantise_index_c4(tiles):
    """Quantise tiles f32 [G, 32] of one of V4's c4 index rows to e2m1 codes [G, 32] and ue8m0 bytes [G]."""
    scale = index_scale(tiles)
    return e2m1_encode_down(tiles * ue8m0_inverse(scale)[:, None]), scale.to(tl.uint8)


@triton.jit
def quantise_index_fp8(rows):
    """Quantise V4's index rows f32 [R, 128] to e4m3 bytes [R, 128] and one f32 scale [R], which is not rounded.

    The payload takes the f32 reciprocal of the scale, which a division by the scale does not equal.
    """
    scale = tl.div_rn(tl.maximum(tl.max(tl.abs(rows), axis=1), 1e-4), 448.0)
    return e4m3_encode(rows * tl.div_rn(1.0, scale)[:, None]), scale


@triton.jit
def fake_quant_kv(x):
    """Return f32 `x` [R, D] as e2m1 with an e4m3 scale for 16 values holds it (compressed KV); exact in bf16.

    The scale comes from maximum * f32(1/6), the code from a true division; -0.0 becomes +0.0, small negatives -0.0.
    """
    tiles = tl.reshape(x, (x.shape[0] * x.shape[1] // 16, 16))
    magnitude = tl.abs(tiles)
    sixth = tl.max(magnitude, axis=1) * 0.16666667163372040
    scale = e4m3_decode(e4m3_encode(tl.minimum(tl.maximum(sixth, 0.001953125), 448.0)))
    value = e2m1_grid(_scaled_down(magnitude, scale)) * scale[:, None]
    return tl.reshape(tl.where(tiles < 0.0, value * -1.0, value), x.shape)


@triton.jit
def fake_quant_index(x):
    """Return f32 `x` [R, D] as e2m1 with a power of two for 32 values holds it (index); exact in bf16.

    The scale comes from maximum * f32(1/6), with a floor of 6 * 2^-126 under the maximum.
    """
    tiles = tl.reshape(x, (x.shape[0] * x.shape[1] // 32, 32))
    sixth = tl.maximum(tl.max(tl.abs(tiles), axis=1), 7.052966104933725e-38) * 0.16666667163372040
    scale = ceil_exponent(sixth)
    value = e2m1_grid(tl.abs(tiles) * ue8m0_inverse(scale)[:, None]) * ue8m0_decode(scale)[:, None]
    return tl.reshape(tl.where(tiles < 0.0, value * -1.0, value), x.shape)


@triton.jit
def pack_index_rows(x):
    """Return payload u8 [R, 64] and scales u8 [R, 4] of f32 rows [R, 128] that `fake_quant_index` made."""
    codes, scales = quantise_index(tl.reshape(x, (x.shape[0] * 4, 32)))
    return pack_nibbles(tl.reshape(codes, x.shape)), tl.reshape(scales, (x.shape[0], 4))


@triton.jit
def pack_index_c4_rows(x):
    """Return payload u8 [R, 64] and scales u8 [R, 4] of f32 rows [R, 128] by the rule of V4's c4 index."""
    codes, scales = quantise_index_c4(tl.reshape(x, (x.shape[0] * 4, 32)))
    return pack_nibbles(tl.reshape(codes, x.shape)), tl.reshape(scales, (x.shape[0], 4))
