"""Routed and shared experts of one layer, which stand in for those of every layer: weights, routing, grouped GEMM.

A rank holds its share of the routed experts (specification 8.1). Nothing is read on the host: which rows an expert gets
stands in offsets on the device, and every buffer has the worst case's rows. Rows behind the last offset are of experts
that another rank holds, or of none; no GEMM computes them and no sum takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch.nn import functional

from dsv4bench.workloads.geometry import Geometry

BF16 = torch.bfloat16
ROUTED_SCALING, SWIGLU_LIMIT = 1.5, 10.0  # specification 1.1
NO_EXPERT = -1  # what a padded row is routed to (specification 8.2)
SEED_STEP = 1_000_003  # each expert is drawn from a seed of its own: the same weights on whichever rank holds it


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """The weights on one rank, [in, out] in bf16; gate and up lie side by side. `first` is its first routed expert."""

    router: torch.Tensor  # [hidden, experts]
    gate_up: torch.Tensor  # [held, hidden, 2 * width]
    down: torch.Tensor  # [held, width, hidden]
    shared_gate_up: torch.Tensor  # [hidden, 2 * shared width]
    shared_down: torch.Tensor  # [shared width, hidden]
    first: int

    @property
    def held(self) -> int:
        """How many routed experts this rank holds."""
        return self.gate_up.shape[0]

    def tensors(self) -> list[torch.Tensor]:
        """Return every matrix."""
        return [value for f in fields(self) if isinstance(value := getattr(self, f.name), torch.Tensor)]


def allocate_experts(geometry: Geometry, rank: int, ranks: int, device: torch.device) -> ExpertWeights:
    """Allocate one rank's share of a layer's experts, not drawn; ranks must divide them evenly."""
    held, width, hidden = geometry.routed_experts // ranks, geometry.expert_width, geometry.hidden
    shared = geometry.shared_experts * width

    def matrix(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=BF16, device=device)

    return ExpertWeights(
        router=matrix(hidden, geometry.routed_experts),
        gate_up=matrix(held, hidden, 2 * width),
        down=matrix(held, width, hidden),
        shared_gate_up=matrix(hidden, 2 * shared),
        shared_down=matrix(shared, hidden),
        first=rank * held,
    )


def draw_experts(weights: ExpertWeights, seed: int) -> None:
    """Draw the weights in place, scaled so that they keep the variance of their input."""
    base = SEED_STEP * (seed + 1)
    _draw([weights.router, weights.shared_gate_up, weights.shared_down], base)
    for place, pair in enumerate(zip(weights.gate_up, weights.down, strict=True)):
        _draw(pair, base + 1 + weights.first + place)


def _draw(matrices: Sequence[torch.Tensor], seed: int) -> None:
    generator = torch.Generator(device=matrices[0].device).manual_seed(seed)
    for matrix in matrices:
        matrix.normal_(0.0, max(1, matrix.shape[0]) ** -0.5, generator=generator)


@dataclass(frozen=True, slots=True)
class Routing:
    """The static results of routing up to `rows` rows."""

    logits: torch.Tensor  # [rows, experts] f32
    weights: torch.Tensor  # [rows, top-k] f32
    ids: torch.Tensor  # [rows, top-k] i64; -1 for a padded row
    ends: torch.Tensor  # [held] i32: where each held expert's rows end, of those sorted by expert

    def of(self, rows: int) -> Routing:
        """Return the results of the first `rows` rows."""
        return Routing(self.logits[:rows], self.weights[:rows], self.ids[:rows], self.ends)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Return every tensor."""
        return self.logits, self.weights, self.ids, self.ends


def make_routing(geometry: Geometry, rows: int, held: int, device: torch.device) -> Routing:
    """Allocate the results of routing up to `rows` rows to a rank that holds `held` experts."""
    top = geometry.experts_per_token
    return Routing(
        logits=torch.zeros(rows, geometry.routed_experts, dtype=torch.float32, device=device),
        weights=torch.zeros(rows, top, dtype=torch.float32, device=device),
        ids=torch.zeros(rows, top, dtype=torch.int64, device=device),
        ends=torch.zeros(held, dtype=torch.int32, device=device),
    )


@dataclass(frozen=True, slots=True)
class Sorted:
    """Assignments (a row and one of its experts) sorted by expert, those held here first, in order."""

    rows: torch.Tensor  # [rows * top-k] i64: the row of each place
    places: torch.Tensor  # [rows, top-k] i64: the place of each assignment; the last one where it is not held here
    weights: torch.Tensor  # [rows, top-k] bf16


def choose(routing: Routing, live: torch.Tensor | None) -> None:
    """Choose the experts of each row from `logits` and weigh them; rows that are not `live` [rows] bool get none.

    The scores are sqrt(softplus(logit)), the weights of the chosen add up to 1.5 (specification 1.1).
    """
    scores = functional.softplus(routing.logits).sqrt_()
    torch.topk(scores, routing.ids.shape[1], out=(routing.weights, routing.ids))
    routing.weights.mul_(ROUTED_SCALING / routing.weights.sum(-1, keepdim=True))
    if live is not None:
        routing.ids.masked_fill_(~live[:, None], NO_EXPERT)


def sort_assignments(routing: Routing, weights: ExpertWeights, numbers: torch.Tensor) -> Sorted:
    """Sort the assignments by held expert and write `routing.ends`; `numbers` are 0, 1, ... of `held` i32."""
    local = routing.ids - weights.first
    here = (local >= 0) & (local < weights.held)
    experts, order = torch.sort(local.masked_fill_(~here, weights.held).int().flatten(), stable=True)
    torch.searchsorted(experts, numbers, right=True, out_int32=True, out=routing.ends)
    count, top = order.shape[0], routing.ids.shape[1]
    places = torch.empty_like(order)
    places.scatter_(0, order, torch.arange(count, device=order.device))
    return Sorted(
        rows=order // top,
        places=places.view_as(routing.ids).masked_fill_(~here, count - 1),
        weights=routing.weights.masked_fill(~here, 0.0).to(BF16),
    )


def run_experts(x: torch.Tensor, found: Sorted, ends: torch.Tensor, weights: ExpertWeights) -> torch.Tensor:
    """Return [rows, hidden], what the experts held here add to each row of `x` [rows, hidden]: zero where none does."""
    hidden = torch._grouped_mm(x.index_select(0, found.rows), weights.gate_up, offs=ends)
    made = torch._grouped_mm(swiglu(hidden), weights.down, offs=ends)
    # an assignment that is not held here reads the last place, which then no GEMM computed
    made[-1:].masked_fill_(ends[-1:, None] < made.shape[0], 0.0)
    return functional.embedding_bag(found.places, made, mode="sum", per_sample_weights=found.weights)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up [rows, width], both clamped at 10 (specification 1.1), in the storage of `gate_up`."""
    gate, up = gate_up.chunk(2, dim=-1)
    functional.silu(gate.clamp_(max=SWIGLU_LIMIT), inplace=True)
    return gate.mul_(up.clamp_(-SWIGLU_LIMIT, SWIGLU_LIMIT))
