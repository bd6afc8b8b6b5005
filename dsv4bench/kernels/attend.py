"""Attention of gathered rows with a sink, in plain torch: the definition that sparse and paged attention share.

For a query and its valid keys j (specification 6.4): s_j = scale * (q . k_j), m = max s_j, and

    out = sum_j exp(s_j - m) k_j / (sum_j exp(s_j - m) + exp(sink - m))

Sums are f32; the weights exp(s_j - m) meet the values as bf16, since a row is key and value at once.
"""

from __future__ import annotations

import torch

from dsv4bench.kernels.layout import HEAD_DIM

GATHER_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}  # f32 rows gathered at once: cache, or bounded memory


def queries_at_once(q: torch.Tensor, columns: int) -> int:
    """Return how many query rows gather their `columns` keys together: at least one."""
    return max(1, GATHER_BYTES[q.device.type] // (4 * columns * HEAD_DIM))


def attend(q: torch.Tensor, keys: torch.Tensor, valid: torch.Tensor, sink: torch.Tensor, scale: float) -> torch.Tensor:
    """Return f32 [n, H, 512] for q f32 [n, H, 512], keys f32 [n, K, 512], valid bool [n, K] and sink f32 [H].

    A key that is not valid must be finite; a row without a valid key comes out as NaN, for the caller to replace.
    """
    scores = torch.bmm(q, keys.transpose(1, 2)).mul_(scale)
    scores.masked_fill_(~valid[:, None], float("-inf"))
    highest = scores.amax(dim=2, keepdim=True)
    weights = scores.sub_(highest).exp_()
    total = weights.sum(dim=2, keepdim=True) + torch.exp(sink[:, None] - highest)
    return torch.bmm(weights.to(torch.bfloat16).float(), keys).div_(total)
