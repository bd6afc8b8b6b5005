"""What the compressors of ratio 4 and 128 must make of a history of tokens: plain loops in f64 over the tokens.

The oracle knows positions alone: no plan, no page, no ring. The state pool begins as NaN, so that a state which nobody
kept, or a place that must not be read, shows in the result.
"""

from dataclasses import dataclass

import numpy as np
import torch

from dsv4bench.kernels import compress_plan, compress_window, compress_window_decode
from dsv4bench.kernels.compress_ring import StateRing, paged_tables

POISON = -77.0
Place = tuple[int, int]  # request and position


def event(states: np.ndarray, ape: np.ndarray, ratio: int, position: int) -> np.ndarray:
    """Pool the window that ends at a position of one request, states [tokens, width] (3.8)."""
    head_dim, window = ape.shape[1], {4: 8, 128: 128}[ratio]
    kvs, scores = [], []
    for i in range(window):
        token = position - window + 1 + i
        if token < 0:
            continue
        state = states[token].astype(np.float64)
        if ratio == 128:
            kv, score = state[:head_dim], state[head_dim:]
        elif i < 4:
            kv, score = state[:head_dim], state[2 * head_dim : 3 * head_dim]
        else:
            kv, score = state[head_dim : 2 * head_dim], state[3 * head_dim :]
        kvs.append(kv)
        scores.append(score + ape[i].astype(np.float64))
    weights = np.exp(np.stack(scores) - np.max(scores, axis=0))
    return (np.stack(kvs) * weights).sum(0) / weights.sum(0)


@dataclass
class History:
    """Requests whose tokens' states are known, the tables that place them, and a state pool that forwards fill."""

    ring: StateRing
    device: str
    head_dim: int = 128
    requests: int = 2
    length: int = 40
    dtype: torch.dtype = torch.float32
    pool_dtype: torch.dtype = torch.float32

    def __post_init__(self):
        generator = torch.Generator().manual_seed(5)
        width = self.head_dim * (4 if self.ring.ratio == 4 else 2)
        self.states = torch.randn(self.requests, self.length, width, generator=generator).to(self.dtype)
        self.states[..., width // 2 :] *= 2
        self.ape = torch.randn(self.ring.window, self.head_dim, generator=generator).to(self.dtype)
        self.rows, self.table, self.places = paged_tables(self.requests, self.length, self.ring.swa_page, generator)
        count = len(self.table) * self.ring.ring_size
        if not self.ring.by_request:
            count = len(self.places) // self.ring.swa_page * self.ring.ring_size
        pages = count // self.ring.ratio + 1  # nobody's page stays NaN
        self.pool = torch.full((pages, self.ring.ratio, width), float("nan"), dtype=self.pool_dtype).to(self.device)

    @property
    def nobodys_page(self) -> int:
        return len(self.pool) - 1

    def plans(self, batch: list[tuple[int, int, int]], graph: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Plan a prefill of (request, prefix, extend)."""
        request, prefix, extend = torch.tensor(batch).unbind(1)
        lengths = (prefix + extend, extend.contiguous(), int(extend.sum()))
        return compress_plan.plan_prefill(self.ring, self.rows[request], self.table, self.places, *lengths, graph)

    def prefill_tensors(self, batch, plans=None) -> dict:
        plan_c, plan_w = plans or self.plans(batch)
        tensors = {
            "x": torch.cat([self.states[r, prefix : prefix + extend] for r, prefix, extend in batch]),
            "ape": self.ape,
            "plan_c": plan_c,
            "plan_w": plan_w,
            "out": torch.full((len(plan_c), self.head_dim), POISON, dtype=self.dtype),
        }
        there = {name: value.to(self.device) for name, value in tensors.items()}
        return {**there, "pool": self.pool, "ratio": self.ring.ratio}

    def prefill(self, provider: str, batch, plans=None) -> torch.Tensor:
        """Run a prefill over the pool; return its output on the CPU."""
        tensors = self.prefill_tensors(batch, plans)
        compress_window.KERNEL.check_values(tensors)
        compress_window.KERNEL.provider(provider).build(tensors)()
        return tensors["out"].cpu()

    def decode_tensors(self, batch: list[Place]) -> dict:
        """Return the arguments of a decode whose newest tokens are (request, position)."""
        request, position = torch.tensor(batch).unbind(1)
        plan_d = compress_plan.decode_records(self.ring, self.rows[request], self.table, self.places, position + 1)
        tensors = {
            "x": self.states[request, position],
            "ape": self.ape,
            "plan_d": plan_d,
            "out": torch.full((len(batch), self.head_dim), POISON, dtype=self.dtype),
        }
        there = {name: value.to(self.device) for name, value in tensors.items()}
        return {**there, "pool": self.pool, "ratio": self.ring.ratio}

    def decode(self, provider: str, batch: list[Place]) -> torch.Tensor:
        """Run a decode over the pool; return its output on the CPU."""
        tensors = self.decode_tensors(batch)
        compress_window_decode.KERNEL.check_values(tensors)
        compress_window_decode.KERNEL.provider(provider).build(tensors)()
        return tensors["out"].cpu()

    def events(self, batch) -> list[Place]:
        """Return request and position of each compression of a prefill, request by request."""
        return [
            (r, p) for r, prefix, extend in batch for p in range(prefix, prefix + extend) if not (p + 1) % self.ratio
        ]

    @property
    def ratio(self) -> int:
        return self.ring.ratio

    def want(self, places: list[Place]) -> torch.Tensor:
        """Return f64 [n, head_dim] of the windows that end at these places."""
        states, ape = self.states.float().numpy(), self.ape.float().numpy()
        rows = [event(states[request], ape, self.ratio, position) for request, position in places]
        return torch.from_numpy(np.stack(rows)) if rows else torch.empty(0, self.head_dim, dtype=torch.float64)

    def kept(self, request: int, position: int) -> torch.Tensor:
        """Return the state that the pool holds at the place of a position, found by the formulas of 3.8."""
        ring, row = self.ring, int(self.rows[request])
        if ring.ratio == 128 or ring.request_ring:
            place = row * ring.ring_size + position % ring.ring_size
        else:
            slot = int(self.places[int(self.table[row, position])])
            place = slot // ring.swa_page * ring.ring_size + slot % ring.ring_size
        return self.pool.flatten(0, 1)[place].cpu()


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.double(), want, rtol=5e-3, atol=5e-3)
