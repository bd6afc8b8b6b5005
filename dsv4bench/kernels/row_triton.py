"""RMSNorm and RoPE of rows as Triton device functions, shared by every writer (specification 1.1, 3.2).

Blocks are f32 [R, D], D a power of two (512, 128 or 64).

    load_rows(ptr, rows i64 [R], stride, live bool [R], WIDTH) -> f32 [R, WIDTH]    zeros where a row is not live
    rms_norm(x [R, D], weight f32 [D], eps) -> f32 [R, D]      x * (1 / sqrt(mean(x^2) + eps)) * weight, not rounded
    round_bf16(x) -> f32                                       the value that a bf16 tensor would hold
    rotate_tail(x [R, D], freqs_ptr, positions [R], live bool [R], INVERSE) -> f32 [R, D]
        the last 64 channels rotated by row `position` of freqs f32 [M, 64] (cosine, sine interleaved), not rounded; the
        other channels as they came

The rotation pins its FMA order, re = fma(a, c, -(b * s)), im = fma(a, s, b * c), so that a compiler's contraction cannot
change a bit. V4.1 layouts round between norm and rotation and after it (`round_bf16`); V4's window writer rotates the f32
row and rounds once, at the store.
"""

from __future__ import annotations

from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import ROPE_DIM

ROPE = tl.constexpr(ROPE_DIM)


@triton.jit
def load_rows(ptr, rows, stride, live, WIDTH: tl.constexpr):
    channel = tl.arange(0, WIDTH)[None, :]
    return tl.load(ptr + rows.to(tl.int64)[:, None] * stride + channel, mask=live[:, None], other=0.0).to(tl.float32)


@triton.jit
def rms_norm(x, weight, eps):
    """Root and division are correctly rounded: only the order of the sum can differ from another implementation."""
    mean_square = tl.sum(x * x, axis=1) / x.shape[1]  # a power of two: exact
    inverse = tl.div_rn(1.0, tl.sqrt_rn(mean_square + eps))
    return x * inverse[:, None] * weight[None, :]


@triton.jit
def round_bf16(x):
    return x.to(tl.bfloat16).to(tl.float32)


@triton.jit
def rotate_tail(x, freqs_ptr, positions, live, INVERSE: tl.constexpr):
    ROWS: tl.constexpr = x.shape[0]
    WIDTH: tl.constexpr = x.shape[1]
    PAIRS: tl.constexpr = WIDTH // 2
    channel = tl.arange(0, WIDTH)[None, :] - (WIDTH - ROPE)
    rotated = live[:, None] & (channel >= 0)
    table = tl.load(freqs_ptr + positions.to(tl.int64)[:, None] * ROPE + channel, mask=rotated, other=0.0)
    a, b = tl.split(tl.reshape(x, (ROWS, PAIRS, 2)))
    c, s = tl.split(tl.reshape(table, (ROWS, PAIRS, 2)))
    if INVERSE:
        s = s * -1.0  # not -s: the interpreter's negation loses the sign of zero
    re = tl.fma(a, c, b * s * -1.0)
    im = tl.fma(a, s, b * c)
    turned = tl.reshape(tl.join(re, im), (ROWS, WIDTH))
    return tl.where(rotated, turned, x)
