"""Digests of tensors on their own device, so that gigabytes can be compared byte for byte without keeping a copy.

On a GPU the digest is a pair of sums over all 32-bit words of the tensor, each word times an odd number that depends on
its place, modulo 2^64: two tensors that differ in one word never have equal pairs, and otherwise hardly ever. On a CPU
it is BLAKE2, which is faster there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch

Digest = tuple[int, int]

_CHUNK_WORDS = 1 << 26  # bounds the temporaries to a few GiB at most
_MULTIPLIERS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)  # odd 64-bit constants, golden ratio and a prime
_SIGN = 1 << 63


def digest(tensor: torch.Tensor) -> Digest:
    """Return the digest of a tensor's bytes in row-major order; a tensor whose bytes are no multiple of 4 is padded."""
    flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))  # torch calls one element contiguous at any stride
    raw = flat.view(torch.uint8)
    return _hashed(raw) if raw.device.type == "cpu" else _summed(raw)


def _hashed(raw: torch.Tensor) -> Digest:
    found = hashlib.blake2b(raw.numpy().data, digest_size=16).digest()
    return int.from_bytes(found[:8], "little"), int.from_bytes(found[8:], "little")


def _summed(raw: torch.Tensor) -> Digest:
    words = _words(raw)
    sums = [torch.zeros((), dtype=torch.int64, device=raw.device) for _ in _MULTIPLIERS]
    for start in range(0, words.numel(), _CHUNK_WORDS):
        chunk = words[start : start + _CHUNK_WORDS].to(torch.int64)
        place = torch.arange(start + 1, start + 1 + chunk.numel(), dtype=torch.int64, device=raw.device)
        for total, multiplier in zip(sums, _MULTIPLIERS, strict=True):
            mixed = place * _signed(multiplier)
            mixed ^= mixed >> 29
            total += (chunk * (mixed | 1)).sum()
    first, second = torch.stack(sums).tolist()
    return first, second


def digest_all(tensors: Iterable[torch.Tensor]) -> tuple[Digest, ...]:
    """Return the digest of each tensor."""
    return tuple(digest(tensor) for tensor in tensors)


def _words(raw: torch.Tensor) -> torch.Tensor:
    odd = -raw.numel() % 4
    if odd:
        raw = torch.nn.functional.pad(raw, (0, odd))
    return raw.view(torch.int32)


def _signed(value: int) -> int:
    return value - 2 * _SIGN if value >= _SIGN else value
