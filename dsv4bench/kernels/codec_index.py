"""The oracle of V4's two forms of an index row, in plain torch: e2m1 by thresholds, and e4m3 (specification 2.2).

Rows are f32 [n, 128]. Both take the values as they are, where V4.1 (`codec.index_pack`) fake-quantises them first.
"""

from __future__ import annotations

import torch

from dsv4bench.kernels.codec import (
    E4M3_MAX,
    divided,
    e4m3_decode,
    e4m3_encode,
    index_scale,
    largest,
    pack_nibbles,
    ue8m0_decode,
)
from dsv4bench.kernels.layout import INDEX_K

E2M1_THRESHOLDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def e2m1_encode_down(q: torch.Tensor) -> torch.Tensor:
    """Return the e2m1 codes u8 (0 to 15) of f32 values: ties to the smaller magnitude, no sign on a zero."""
    thresholds = torch.tensor(E2M1_THRESHOLDS, device=q.device)
    code = torch.bucketize(q.abs(), thresholds, right=False).to(torch.uint8)  # how many thresholds lie below
    return torch.where((q < 0) & (code > 0), code | 8, code)


def index_pack_c4(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return payload u8 [n, 64] and ue8m0 scales u8 [n, 4] of rows [n, 128], 68 bytes a slot of V4's c4 index."""
    tiles = x.unflatten(-1, (-1, INDEX_K.values_per_scale))
    scale = index_scale(tiles)
    return pack_nibbles(e2m1_encode_down(tiles / ue8m0_decode(scale)).flatten(-2)), scale.squeeze(-1)


def index_pack_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return payload u8 [n, 128] and the bytes u8 [n, 4] of one f32 scale of rows [n, 128], 132 bytes together.

    The scale is not rounded; the payload takes its f32 reciprocal, which a division by the scale does not equal.
    """
    scale = divided(largest(x).clamp(min=1e-4), E4M3_MAX)
    scale_bytes = scale.clone(memory_format=torch.contiguous_format).view(torch.uint8)  # no row has strides of its own
    return e4m3_encode(x * scale.reciprocal()), scale_bytes


def index_unpack_fp8(payload: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the f32 rows [n, 128] of payload u8 [n, 128] and scales u8 [n, 4]."""
    return e4m3_decode(payload) * scales.contiguous().view(torch.float32)
