"""Ratio-2 compression one row at a time (specification B.1), and requests cut into the batches of a chunked prefill."""

from dataclasses import dataclass, field

import torch

from dsv4bench.kernels import codec
from dsv4bench.kernels.layout import FULL_PAGE

POISON = 0xA5
Span = tuple[int, int, int]  # request, first position, rows


@dataclass
class History:
    """Every token's kv and score [requests, positions, 1024] f32; request i owns full page `requests - i`."""

    states: torch.Tensor

    @classmethod
    def random(cls, requests: int, positions: int) -> "History":
        return cls(torch.randn(requests, positions, 1024, generator=torch.Generator().manual_seed(9)))

    def slot(self, request, position):
        return (len(self.states) - request) * FULL_PAGE + position

    def batch(self, spans: list[Span], padding_rows: int = 0) -> dict[str, torch.Tensor]:
        """Pack the spans in order; padding holds NaN, slot 0, position 0 and the last request."""
        counts = torch.tensor([rows for _, _, rows in spans])
        req = torch.cat([torch.full((rows,), request) for request, _, rows in spans])
        positions = torch.cat([torch.arange(first, first + rows) for _, first, rows in spans])
        padding = torch.full((padding_rows, 1024), float("nan"))
        pad = torch.nn.functional.pad
        return {
            "kv_score": torch.cat([self.states[req, positions], padding]),
            "positions": pad(positions, (0, padding_rows)),
            "req": pad(req, (0, padding_rows), value=spans[-1][0]),
            "loc": pad(self.slot(req, positions), (0, padding_rows)),
            "starts": (counts.cumsum(0) - counts).int(),
            "lens": counts.int(),
        }

    def ring(self, ring_size: int) -> torch.Tensor:
        """Return the ring of a fresh pool: kv 0, score -inf; its last row is the sentinel."""
        rows = torch.zeros((len(self.states) + 1) * ring_size + 2, 1024)
        rows[:, 512:] = float("-inf")
        return rows


@dataclass
class RowAtATime:
    """The oracle: pools each odd row with the row parked before it, then parks the row; gates in f64."""

    ring: torch.Tensor
    ring_size: int
    pooled: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)  # (request, position) -> [512] f64

    def step(self, batch: dict[str, torch.Tensor]) -> None:
        for row, (req, position, loc) in enumerate(zip(*self._rows(batch), strict=True)):
            if loc == 0:
                continue
            here = req * self.ring_size
            new = batch["kv_score"][row]
            if position % 2 == 1:
                self.pooled[req, position] = gate(self.ring[here + (position - 1) % self.ring_size], new)
            self.ring[here + position % self.ring_size] = new

    @staticmethod
    def _rows(batch):
        return [batch[name].tolist() for name in ("req", "positions", "loc")]


def gate(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return kv f64 [512] of two states [1024], weighed by the softmax of their scores."""
    (kv_old, score_old), (kv_new, score_new) = old.double().view(2, 512), new.double().view(2, 512)
    share = torch.sigmoid(score_new - score_old)
    return kv_old * (1 - share) + kv_new * share


def latent_of(pooled: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the bf16 latent of a pooled row: rounded before its norm, and after."""
    rounded = pooled.bfloat16().double()
    return (rounded * rounded.square().mean().rsqrt() * weight.double()).bfloat16()


def poisoned_cache(history: History, layout) -> torch.Tensor:
    pages = len(history.states) + 1
    return torch.full((pages, layout.page_bytes(FULL_PAGE // 2)), POISON, dtype=torch.uint8)


def stored(cache, slots, latents, freqs, positions, layout) -> torch.Tensor:
    """Return a copy of the cache in which the latents, rotated, were written to the slots."""
    cache = cache.clone()
    rotated = codec.rotate_tail(latents, freqs, positions).bfloat16()
    codec.write_compressed(cache, slots, rotated, FULL_PAGE // 2, layout)
    return cache
