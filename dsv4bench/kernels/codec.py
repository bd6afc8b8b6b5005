"""The oracle of every byte, in plain torch: e4m3, ue8m0, e2m1, the row rules of each layout, norm and rotation.

Written from the formulas of specification 2.2 and 3.2, apart from `codec_triton` and `row_triton`, which do the same on
a GPU. Values are f32 unless said; rows are [n, 512], index rows [n, 128]; results lie on the device of their input.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from dsv4bench.kernels.layout import INDEX_K, NOPE_DIM, ROPE_DIM, V4, KVLayout
from dsv4bench.kernels.paged import write_rows

SIXTH = 1 / 6  # becomes f32(1/6) beside an f32 tensor
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E4M3_MAX = 448.0
FP4_SCALE_MIN = 2.0**-9  # the smallest e4m3 above zero


# ---- single values


def e4m3_encode(x: torch.Tensor) -> torch.Tensor:
    """Return the e4m3 bytes u8 of finite f32 values: to nearest even, saturating at 448."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def e4m3_decode(byte: torch.Tensor) -> torch.Tensor:
    """Return the f32 values of e4m3 bytes; 0x7f and 0xff are NaN."""
    return byte.contiguous().view(torch.float8_e4m3fn).float()


def ue8m0_decode(byte: torch.Tensor) -> torch.Tensor:
    """Return 2^(byte - 127) as f32; byte 0 is 2^-127 and byte 255 NaN."""
    return _look_up(_ue8m0_values, byte).float()


def e2m1_encode(q: torch.Tensor) -> torch.Tensor:
    """Return the e2m1 codes u8 (0 to 15): ties to the even code, saturating at 6, the sign bit kept on a zero."""
    magnitude = q.abs().clamp(max=6.0)
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    grid = (magnitude / step).round() * step
    code = torch.where(grid < 2, 2 * grid, torch.where(grid < 4, grid + 2, grid / 2 + 4))
    return code.to(torch.uint8) | (q.signbit().to(torch.uint8) << 3)


def e2m1_decode(code: torch.Tensor) -> torch.Tensor:
    """Return the f32 values of e2m1 codes (0 to 15); code 8 is -0.0."""
    return _look_up(_e2m1_values, code).float()


def pack_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Pack codes u8 [..., 2n] to bytes [..., n], the even channel in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


@cache
def _ue8m0_values(device: torch.device) -> torch.Tensor:
    return torch.tensor([2.0 ** (byte - 127) for byte in range(255)] + [float("nan")]).bfloat16().to(device)


@cache
def _e4m3_values(device: torch.device) -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).bfloat16().to(device)


@cache
def _e2m1_values(device: torch.device) -> torch.Tensor:
    return torch.tensor([*E2M1, *(-value for value in E2M1)]).bfloat16().to(device)


@cache
def _e2m1_pairs(device: torch.device) -> torch.Tensor:
    """Both values of a packed byte as one i32, two bf16 side by side: one look-up for two values."""
    byte = torch.arange(256, device=device)
    values = _e2m1_values(device)
    return torch.stack([values[byte & 15], values[byte >> 4]], -1).view(torch.int32).flatten()


def _look_up(table: Callable[[torch.device], torch.Tensor], byte: torch.Tensor) -> torch.Tensor:
    return table(byte.device).index_select(0, byte.flatten().int()).view(byte.shape)


def order_key(x: torch.Tensor) -> torch.Tensor:
    """Return i32 keys that order finite bf16 values, from 129 to 65407; -0.0 and 0.0 share one; inf and NaN get 0."""
    bits = x.view(torch.int16).int()
    magnitude = bits & 0x7FFF
    return torch.where(bits < 0, 0x8000 - magnitude, 0x8000 + magnitude).masked_fill_(magnitude >= 0x7F80, 0)


# ---- scales: one for the tiles in the last dimension


def divided(x: torch.Tensor, by: float) -> torch.Tensor:
    """Return x / by, correctly rounded: by a number of Python's, a GPU multiplies with the reciprocal instead."""
    return x / x.new_full((), by)


def largest(tiles: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude of each tile [..., w] as [..., 1]."""
    return tiles.abs().amax(-1, keepdim=True)


def ceil_exponent(x: torch.Tensor) -> torch.Tensor:
    """Return 127 + ceil(log2 x), as i32."""
    mantissa, exponent = torch.frexp(x)  # mantissa in [0.5, 1)
    return 127 + exponent - (mantissa == 0.5).int()


def v4_scale(tiles: torch.Tensor) -> torch.Tensor:
    """Return the ue8m0 byte of each tile [..., 64] as [..., 1]: the floor of 1e-4 stands under the maximum."""
    return ceil_exponent(divided(largest(tiles).clamp(min=1e-4), E4M3_MAX)).to(torch.uint8)


def v41_scale(tiles: torch.Tensor) -> torch.Tensor:
    """Return the ue8m0 byte of each tile [..., 32] as [..., 1]: the floor of 1e-4 stands under the quotient."""
    return ceil_exponent(divided(largest(tiles), E4M3_MAX).clamp(min=1e-4)).to(torch.uint8)


def fp4_scale(tiles: torch.Tensor) -> torch.Tensor:
    """Return the e4m3 scale byte of each tile [..., 16] as [..., 1]."""
    return e4m3_encode(divided(largest(tiles), 6).clamp(FP4_SCALE_MIN, E4M3_MAX))


def index_scale(tiles: torch.Tensor) -> torch.Tensor:
    """Return the ue8m0 byte of each tile [..., 32] of an index row as [..., 1]: the floor stands under the quotient."""
    return ceil_exponent(divided(largest(tiles), 6).clamp(min=1e-4)).clamp(1, 254).to(torch.uint8)


def fake_quant_kv(x: torch.Tensor) -> torch.Tensor:
    """Return `x` [..., D] as e2m1 with an e4m3 scale for 16 values holds it (compressed KV); exact in bf16.

    The scale comes from maximum * f32(1/6), the code from a true division; -0.0 becomes +0.0, small negatives -0.0.
    """
    tiles = x.unflatten(-1, (-1, 16))
    scale = e4m3_decode(e4m3_encode((largest(tiles) * SIXTH).clamp(FP4_SCALE_MIN, E4M3_MAX)))
    return (e2m1_decode(e2m1_encode(tiles / scale + 0.0)) * scale).flatten(-2)


def fake_quant_index(x: torch.Tensor) -> torch.Tensor:
    """Return `x` [..., D] as e2m1 with a power of two for 32 values holds it (index); exact in bf16."""
    tiles = x.unflatten(-1, (-1, 32))
    scale = ue8m0_decode(ceil_exponent(largest(tiles).clamp(min=6 * 2.0**-126) * SIXTH))
    return (e2m1_decode(e2m1_encode(tiles / scale + 0.0)) * scale).flatten(-2)


# ---- whole rows


def quantise(x: torch.Tensor, layout: KVLayout) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bytes of rows [n, 512]: data u8 [n, data_bytes] and scales u8 [n, scales].

    V4.1 layouts expect values that are exact in bf16. V4 has 7 scales; its eighth scale byte is written by nobody. The
    uniform layout has none: its e4m3 saturate at 448.
    """
    if layout.encoding == "v4":
        return _quantise_v4(x)
    if layout.encoding == "uniform":
        return e4m3_encode(x), torch.empty(len(x), 0, dtype=torch.uint8, device=x.device)
    tiles = x.unflatten(-1, (-1, layout.values_per_scale))
    if layout.encoding == "v41":
        scale = v41_scale(tiles)
        return e4m3_encode(tiles / ue8m0_decode(scale)).flatten(-2), scale.squeeze(-1)
    scale = fp4_scale(tiles)
    codes = e2m1_encode(tiles / e4m3_decode(scale))
    return pack_nibbles(codes.flatten(-2)), scale.squeeze(-1)


def _quantise_v4(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    tiles = x[..., :NOPE_DIM].unflatten(-1, (-1, V4.values_per_scale))
    scale = v4_scale(tiles)
    nope = e4m3_encode(tiles / ue8m0_decode(scale)).flatten(-2)
    tail = x[..., NOPE_DIM:].bfloat16().contiguous().view(torch.uint8)
    return torch.cat([nope, tail], -1), scale.squeeze(-1)


def dequantise(data: torch.Tensor, scales: torch.Tensor, layout: KVLayout) -> torch.Tensor:
    """Return the bf16 rows [n, 512] of data u8 [n, data_bytes] and scales u8 [n, scales]; exact for every finite code.

    Codes and scales are exact in bf16, and a bf16 product is rounded once: no wider step is needed.
    """
    if layout.encoding == "v4":
        values, scale = _look_up(_e4m3_values, data[..., :NOPE_DIM]), _look_up(_ue8m0_values, scales[..., :7])
        tail = data[..., NOPE_DIM:].contiguous().view(torch.bfloat16)
        return torch.cat([_scaled(values, scale), tail], -1)
    if layout.encoding == "uniform":
        return _look_up(_e4m3_values, data)
    if layout.encoding == "v41":
        return _scaled(_look_up(_e4m3_values, data), _look_up(_ue8m0_values, scales))
    return _scaled(_look_up(_e2m1_pairs, data).view(torch.bfloat16), _look_up(_e4m3_values, scales))


def _scaled(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    tiles: torch.Tensor = values.unflatten(-1, (scale.shape[-1], -1))
    return (tiles * scale.unsqueeze(-1)).flatten(-2)


def index_pack(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return payload u8 [n, 64] and ue8m0 scales u8 [n, 4] of rows [n, 128] that `fake_quant_index` made.

    The floor differs from the first stage's, so the two do not collapse; the nibble of a negative zero is cleared.
    """
    tiles = x.unflatten(-1, (-1, INDEX_K.values_per_scale))
    scale = index_scale(tiles)
    codes = e2m1_encode(tiles / ue8m0_decode(scale)).flatten(-2)
    return pack_nibbles(codes.masked_fill(codes == 8, 0)), scale.squeeze(-1)


def index_unpack(payload: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the bf16 rows [n, 128] of payload u8 [n, 64] and scales u8 [n, 4]."""
    return _scaled(_look_up(_e2m1_pairs, payload).view(torch.bfloat16), _look_up(_ue8m0_values, scales))


# ---- rows of a compressor


def write_compressed(
    cache: torch.Tensor, slots: torch.Tensor, x: torch.Tensor, page_size: int, layout: KVLayout
) -> None:
    """Write rotated rows [n, 512], exact in bf16, to valid slots [n] as a compressor does (specification 3.4).

    Every encoding but FP4 takes the fake-quantised row, so that its values are rounded twice.
    """
    rows = x.float() if layout.encoding == "fp4" else fake_quant_kv(x.float())
    write_rows(cache, slots, quantise(rows, layout), page_size, layout)


# ---- rows before they are coded


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight in f32, for rows `x` [..., D] and `weight` [D]."""
    x = x.float()
    inverse = (x.square().mean(-1, keepdim=True) + eps).sqrt().reciprocal()
    return x * inverse * weight.float()


def rotate_tail(x: torch.Tensor, freqs: torch.Tensor, positions: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """Return f32 `x` [n, ..., D] with its last 64 channels rotated by rows `positions` [n] of freqs f32 [M, 64].

    A pair (a, b) becomes fma(a, c, -(b * s)), fma(a, s, b * c): the inner product is rounded, the FMA rounds once. It
    is computed in f64, which holds a product of two f32 exactly.
    """
    x = x.float()
    a, b = x[..., -ROPE_DIM::2], x[..., 1 - ROPE_DIM :: 2]
    table = freqs[positions.long()].view(-1, *[1] * (x.dim() - 2), ROPE_DIM)
    c, s = table[..., 0::2], table[..., 1::2]
    s = -s if inverse else s
    real = (a.double() * c.double() - (b * s).double()).float()
    imaginary = (a.double() * s.double() + (b * c).double()).float()
    tail = torch.stack([real, imaginary], -1).flatten(-2)
    return torch.cat([x[..., :-ROPE_DIM], tail], -1)
