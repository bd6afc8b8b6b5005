"""What the kernels of the four residual streams (mHC, specification 1.1) share: sizes, and the order of a row of mixes.

A sublayer takes a mix of the streams (`mhc_pre`), and its result is spread over streams that are mixed with each other
(`mhc_post`). All 24 numbers of a row come from the row's own streams (`mhc_stats`, then `mhc_mix`).
"""

from __future__ import annotations

STREAMS = 4
SINKHORN_ITERATIONS = 20
MIX_EPS = 1e-6  # hc_eps
# a row of mixes: 4 of pre, 4 of post, and the 16 of the streams among each other, [from, to]
PRE, POST, COMBINE = slice(0, STREAMS), slice(STREAMS, 2 * STREAMS), slice(2 * STREAMS, None)
MIXES = 2 * STREAMS + STREAMS * STREAMS
SLICES = 16  # even parts of a row's 4 * hidden channels, which programs of their own sum
STATS = MIXES + 1  # dots of a slice with the 24 rows of the projection, and the sum of its squares


def slice_width(hidden: int) -> int:
    """Return the channels of a slice; ValueError where the slices are not even."""
    if STREAMS * hidden % SLICES:
        raise ValueError(f"streams: {hidden} channels, expected a multiple of {SLICES // STREAMS}")
    return STREAMS * hidden // SLICES
