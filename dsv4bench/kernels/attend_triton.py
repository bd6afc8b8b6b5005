"""Attention with a sink as Triton device functions, one block of keys a step: what sparse and paged attention share.

The running state of a query row is highest f32 [H], the largest score so far in units of log2, total f32 [H], the sum
of exp2(score - highest), and acc f32 [H, 512], the weighted sum of keys.
"""

from __future__ import annotations

from dsv4bench.kernels.jit import tl, triton

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def attend_block(q, k, valid, scale_log2, highest, total, acc):
    """Return the state after keys bf16 [K, 512], those that are `valid` bool [K]; q is bf16 [H, 512]."""
    scores = tl.where(valid[None, :], tl.dot(q, tl.trans(k)) * scale_log2, float("-inf"))
    above = tl.maximum(highest, tl.max(scores, axis=1))
    shift = tl.where(above == float("-inf"), 0.0, above)  # no valid key so far: -inf - -inf would be NaN
    weights = tl.exp2(scores - shift[:, None])
    fade = tl.exp2(highest - shift)
    total = total * fade + tl.sum(weights, axis=1)
    acc = tl.dot(weights.to(tl.bfloat16), k, acc * fade[:, None])
    return above, total, acc


@triton.jit
def attended(highest, total, acc, sink):
    """Return the output bf16 [H, 512] of a state and sinks f32 [H]; zeros where no key was valid."""
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    denominator = total + tl.exp2(sink * LOG2_E - shift)
    denominator = tl.where(highest == float("-inf"), 1.0, denominator)  # no valid key: 0 / 1
    return (acc / denominator[:, None]).to(tl.bfloat16)
