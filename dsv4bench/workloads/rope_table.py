"""The rotation table of a layer: cosine and sine of every position and frequency (specification 1.1)."""

from __future__ import annotations

import math

import torch

from dsv4bench.kernels.layout import ROPE_DIM
from dsv4bench.workloads.geometry import Geometry


def rope_table(geometry: Geometry, ratio: int, positions: int) -> torch.Tensor:
    """Return the table of the layers of `ratio`: f32 [positions, 64], cosine and sine interleaved, on the CPU.

    Angles are float64 and each entry is rounded once. One table serves Q, SWA K, compressed KV, index K and index Q.
    """
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), rope_frequencies(geometry, ratio))
    return torch.stack((angles.cos(), angles.sin()), dim=-1).reshape(positions, ROPE_DIM).float()


def rope_frequencies(geometry: Geometry, ratio: int) -> torch.Tensor:
    """Return the 32 frequencies in radians per position, f64: plain for ratio 0, YaRN on the other base otherwise."""
    theta = geometry.compress_rope_theta if ratio else geometry.rope_theta
    steps = torch.arange(ROPE_DIM // 2, dtype=torch.float64)
    plain = theta ** (-2 * steps / ROPE_DIM)
    if ratio == 0:
        return plain
    low, high = yarn_ramp(geometry)
    smooth = 1 - ((steps - low) / max(high - low, 1)).clamp(0, 1)
    return plain / geometry.yarn_factor * (1 - smooth) + plain * smooth


def yarn_ramp(geometry: Geometry) -> tuple[int, int]:
    """Return the first and last frequency index of YaRN's ramp; 15 and 25 for v41-flash."""
    low = math.floor(_turns_index(geometry, geometry.beta_fast))
    high = math.ceil(_turns_index(geometry, geometry.beta_slow))
    return max(low, 0), min(high, ROPE_DIM - 1)


def _turns_index(geometry: Geometry, turns: float) -> float:
    """Return the (fractional) frequency index that makes `turns` full turns over the original context."""
    wavelengths = math.log(geometry.yarn_original / (turns * 2 * math.pi))
    return ROPE_DIM * wavelengths / (2 * math.log(geometry.compress_rope_theta))
