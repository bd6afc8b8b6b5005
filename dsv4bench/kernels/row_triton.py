"""RMSNorm and RoPE of rows as Triton device functions, shared by every writer (specification 1.1, 3.2).

Blocks are f32 [R, D], D a power of two (512, 128 or 64). V4.1 layouts round (`round_bf16`) between norm and rotation
and after it; V4's window writer rotates the f32 row and rounds once, at the store.
"""

from __future__ import annotations

from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import ROPE_DIM

ROPE = tl.constexpr(ROPE_DIM)


@triton.jit
def load_rows(ptr, rows, stride, live, WIDTH: tl.constexpr):
    """Load rows i64 [R] of a tensor as f32 [R, WIDTH]; `stride` in elements; zeros where a row is not `live`."""
    channel = tl.arange(0, WIDTH)[None, :]
    return tl.load(ptr + rows.to(tl.int64)[:, None] * stride + channel, mask=live[:, None], other=0.0).to(tl.float32)


@triton.jit
def rms_norm(x, weight, eps):
    """Return x / sqrt(mean(x^2) + eps) * weight for f32 `x` [R, D] and `weight` [D], not rounded to bf16.

    An approximate root and one Newton step are within two last places of the root and the division correctly rounded,
    which are 60 instructions a row. A row whose squares overflow becomes NaN.
    """
    mean_square = tl.sum(x * x, axis=1) * (1.0 / x.shape[1]) + eps  # a power of two: exact
    guess = tl.rsqrt(mean_square)
    inverse = tl.fma(tl.fma(mean_square * guess * -1.0, guess, 1.0), guess * 0.5, guess)
    return x * inverse[:, None] * weight[None, :]


@triton.jit
def round_bf16(x):
    """Return the f32 value that a bf16 tensor would hold."""
    return x.to(tl.bfloat16).to(tl.float32)


@triton.jit
def load_rotations(freqs_ptr, positions, live, WIDTH: tl.constexpr):
    """Load rows `positions` [R] of freqs f32 [M, 64] as the last channels of f32 [R, WIDTH]; of `live` rows only.

    Loaded beside the rows that it will turn, a table row does not wait for their norm.
    """
    channel = tl.arange(0, WIDTH)[None, :] - (WIDTH - ROPE)
    rotated = live[:, None] & (channel >= 0)
    return tl.load(freqs_ptr + positions.to(tl.int64)[:, None] * ROPE + channel, mask=rotated, other=0.0)


@triton.jit
def turn_tail(x, rotations, live, INVERSE: tl.constexpr, ROUND: tl.constexpr = False):
    """Rotate the last 64 channels of f32 `x` [R, D] by `rotations` [R, D]: cosine and sine interleaved.

    ROUND rounds them to bf16; the other channels stay as they are, as do rows that are not `live`. The order of the
    FMAs is pinned, re = fma(a, c, -(b * s)), im = fma(a, s, b * c), so that no compiler's contraction can change a bit.
    """
    channel = tl.arange(0, x.shape[1])[None, :] - (x.shape[1] - ROPE)
    rotated = live[:, None] & (channel >= 0)
    a, b = tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))
    c, s = tl.split(tl.reshape(rotations, (x.shape[0], x.shape[1] // 2, 2)))
    if INVERSE:
        s = s * -1.0  # not -s: triton 3.6 takes that as 0 - s, which loses -0.0
    re = tl.fma(a, c, b * s * -1.0)
    im = tl.fma(a, s, b * c)
    turned = tl.reshape(tl.join(re, im), x.shape)
    if ROUND:
        turned = round_bf16(turned)
    return tl.where(rotated, turned, x)


@triton.jit
def rotate_tail(x, freqs_ptr, positions, live, INVERSE: tl.constexpr, ROUND: tl.constexpr = False):
    """Rotate the last 64 channels of f32 `x` [R, D] by rows `positions` [R] of freqs f32 [M, 64]; see `turn_tail`."""
    return turn_tail(x, load_rotations(freqs_ptr, positions, live, x.shape[1]), live, INVERSE, ROUND)
