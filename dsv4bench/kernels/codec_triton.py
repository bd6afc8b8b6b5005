"""The one quantiser: e4m3, ue8m0 and e2m1 as Triton device functions, shared by every writer (specification 2.2).

Functions take and return blocks of values; arithmetic is f32. R counts rows, G counts tiles (values that share a
scale). `codec_index_triton` has the rules of index rows, `paged_triton` puts the bytes into a cache. What binds the
writers is the issue of instructions, so that no rule divides or compares value by value.
"""

from __future__ import annotations

from dsv4bench.kernels.jit import tl, triton

SIXTH = tl.constexpr(0.16666667163372040)  # f32(1/6)
GRID = tl.constexpr(4194304.0)  # 2^22: its last place is 0.5
SNAP = tl.constexpr(12288.0)  # 1.5 * 2^13: its last place is 1/1024

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
def _power_under(magnitude):
    """Return 1, 2 or 4 for f32 from 0 to 6: twice the step that e2m1 has there."""
    power = (magnitude.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    return tl.maximum(power, 1.0)


@triton.jit
def e2m1_grid(magnitude):
    """Return the values of e2m1 that f32 from 0 to 6 are rounded to; a tie goes to the even code.

    The step is 0.5 below 2, 1 below 4 and then 2, and 2^22, 2^23 and 2^24 have it as their last place, to which an
    addition rounds: a tie to the even multiple of the step, which is the even code.
    """
    power = _power_under(magnitude)
    return tl.fma(power, GRID * -1.0, tl.fma(power, GRID, magnitude))


@triton.jit
def e2m1_code(magnitude):
    """Return the e2m1 codes i32 (0 to 7) of f32 from 0 to 6; a tie goes to the even code.

    Six steps more than in `e2m1_grid`: with the exponent's 298, 300 or 302 they are 304, 306 or 308, that is 0, 2 or 4
    modulo 8, and the codes from 2 and from 4 begin so much later than the multiples of their steps.
    """
    bits = tl.fma(_power_under(magnitude), GRID + 3.0, magnitude).to(tl.int32, bitcast=True)
    return (bits + (bits >> 22)) & 7


@triton.jit
def sign_bit(x):
    """Return the sign of f32 `x` where a code of four bits has it: i32 8 or 0."""
    return (x.to(tl.uint32, bitcast=True) >> 28).to(tl.int32) & -8


@triton.jit
def quotient(x, divisor, inverse):
    """Return x / divisor correctly rounded, given inverse = RN(1 / divisor); exact but for the sign of a zero.

    One Newton step on the product (Markstein): the remainder is exact in an FMA. A division is three times as long.
    """
    guess = x * inverse
    return tl.fma(tl.fma(guess * -1.0, divisor, x), inverse, guess)


@triton.jit
def e2m1_quotient(magnitude, scale):
    """Return magnitudes f32 [G, n], exact in bf16, divided by e4m3 scales f32 [G]: to 1/1024, and at most 6.

    1.5 * 2^13 has 1/1024 as its last place. No bf16 divided by one of the 126 scales lies so near to a tie of e2m1 that
    this, or a reciprocal which is 8 last places wrong, would take it to the other side: every code is that of the true
    quotient. A multiplication by the reciprocal alone crosses ties.
    """
    return tl.minimum(tl.fma(magnitude, (1.0 / scale)[:, None], SNAP) - SNAP, 6.0)


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
    """Pack codes i32 [R, 8n], 0 to 15, to words i32 [R, n], the even channel in the low nibble of each byte."""
    eights = tl.reshape(codes, (codes.shape[0], codes.shape[1] // 8, 8))
    return tl.sum(eights << (4 * tl.arange(0, 8))[None, None, :], axis=2)


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
def largest_of(tiles):
    """Return the largest magnitudes f32 [G] of tiles f32 [G, n]."""
    return tl.max(tl.abs(tiles), axis=1)


@triton.jit
def v4_scale(largest):
    """Return as i32 the ue8m0 bytes of V4's tiles with these maxima; the floor of 1e-4 stands before the division."""
    return ceil_exponent(quotient(tl.maximum(largest, 1e-4), 448.0, 0.0022321429569274187))


@triton.jit
def v41_scale(largest):
    """Return as i32 the ue8m0 bytes of V4.1's tiles with these maxima.

    448 is 1.75 * 2^8: the exponent of maximum / 448, rounded up, is read off the bits of the maximum, one more where
    the mantissa exceeds 0x600000; 114 is 2^-13.
    """
    bits = largest.to(tl.int32, bitcast=True)
    return tl.maximum(((bits + 0x1FFFFF) >> 23) - 8, 114)


@triton.jit
def quantise_v4(tiles):
    """Quantise tiles f32 [G, 64] to e4m3 bytes [G, 64] and ue8m0 bytes [G]."""
    scale = v4_scale(largest_of(tiles))
    return e4m3_encode(tiles * ue8m0_inverse(scale)[:, None]), scale.to(tl.uint8)


@triton.jit
def quantise_v41(tiles):
    """Quantise tiles f32 [G, 32] to e4m3 bytes [G, 32] and ue8m0 bytes [G]."""
    scale = v41_scale(largest_of(tiles))
    return e4m3_encode(tiles * ue8m0_inverse(scale)[:, None]), scale.to(tl.uint8)


@triton.jit
def quantise_fp4(tiles):
    """Quantise tiles f32 [G, 16], exact in bf16, to e2m1 codes i32 [G, 16] and e4m3 scale bytes [G]."""
    magnitude = tl.abs(tiles)
    sixth = quotient(tl.max(magnitude, axis=1), 6.0, SIXTH)
    scale = e4m3_encode(tl.minimum(tl.maximum(sixth, 0.001953125), 448.0))
    codes = e2m1_code(e2m1_quotient(magnitude, e4m3_decode(scale)))
    return codes | sign_bit(tiles), scale


@triton.jit
def _fake_quant_kv(tiles):
    """Return tiles f32 [G, 16], exact in bf16, as multiples f32 [G, 16] of steps f32 [G], and the maxima then, f32 [G].

    The step comes from maximum * f32(1/6), the multiple from a true division; -0.0 becomes +0.0, small negatives -0.0.
    Rounding keeps the order, so that the maximum of the rounded values is the maximum, rounded.
    """
    magnitude = tl.abs(tiles)
    largest = tl.max(magnitude, axis=1)
    step = e4m3_decode(e4m3_encode(tl.minimum(tl.maximum(largest * SIXTH, 0.001953125), 448.0)))
    top = e2m1_grid(e2m1_quotient(largest[:, None], step))
    multiple = e2m1_grid(e2m1_quotient(magnitude, step))
    return tl.where(tiles < 0.0, multiple * -1.0, multiple), step, tl.reshape(top, step.shape) * step


@triton.jit
def fake_quant_kv(x):
    """Return f32 `x` [R, D] as e2m1 with an e4m3 scale for 16 values holds it (compressed KV); exact in bf16."""
    multiple, step, _ = _fake_quant_kv(tl.reshape(x, (x.shape[0] * x.shape[1] // 16, 16)))
    return tl.reshape(multiple * step[:, None], x.shape)


@triton.jit
def _each(values, COUNT: tl.constexpr):
    """Repeat each of the values [G] COUNT times: [G * COUNT]."""
    wide = tl.broadcast_to(values[:, None], (values.shape[0], COUNT))
    return tl.reshape(wide, (values.shape[0] * COUNT,))


@triton.jit
def quantise_compressed_v4(x):
    """Fake-quantise rows f32 [R, 512]; return V4's bytes [R, 512] and ue8m0 bytes [R, 8] of that, and that f32 row."""
    multiple, step, top = _fake_quant_kv(tl.reshape(x, (x.shape[0] * 32, 16)))
    scale = v4_scale(tl.max(tl.reshape(top, (x.shape[0] * 8, 4)), axis=1))
    value = multiple * step[:, None]
    codes = e4m3_encode(value * _each(ue8m0_inverse(scale), 4)[:, None])
    scales = tl.reshape(scale, (x.shape[0], 8)).to(tl.uint8)
    return tl.reshape(codes, x.shape), scales, tl.reshape(value, x.shape)


@triton.jit
def quantise_compressed_v41(x):
    """Fake-quantise rows f32 [R, 512], and quantise them to V4.1's bytes [R, 512] and ue8m0 bytes [R, 16]."""
    multiple, step, top = _fake_quant_kv(tl.reshape(x, (x.shape[0] * 32, 16)))
    scale = v41_scale(tl.max(tl.reshape(top, (x.shape[0] * 16, 2)), axis=1))
    factor = step * _each(ue8m0_inverse(scale), 2)  # a power of two changes no bit of a mantissa
    codes = e4m3_encode(multiple * factor[:, None])
    return tl.reshape(codes, x.shape), tl.reshape(scale, (x.shape[0], 16)).to(tl.uint8)
