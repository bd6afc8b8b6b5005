"""What stands in for the MoE behind each layer's attention: the exchange with the other ranks, and experts (8.2, 8.3).

Its result is added to a copy of the residual stream, as many bytes as adding it to the stream itself: attention reads
the same bytes whatever `--moe` says. With `collectives` the experts are a no-op, and what returns is the sum over ranks
of equal rows.

Padded steps exchange equal slices (MAX_LEN): all-gather and reduce-scatter. Eager steps exchange live rows (SUM_LEN) as
upstream does by default: zero-fill the global rows, copy the own slice, all-reduce; then all-reduce and copy it back.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from dsv4bench.workloads.batch import Plan
from dsv4bench.workloads.experts import (
    ExpertWeights,
    allocate_experts,
    choose,
    draw_experts,
    make_routing,
    run_experts,
    sort_assignments,
    swiglu,
)
from dsv4bench.workloads.geometry import Geometry, LayerKind
from dsv4bench.workloads.ops import Ops
from dsv4bench.workloads.variant import Variant
from dsv4bench.workloads.weights import Model

if TYPE_CHECKING:
    from dsv4bench.workloads.step import Step

BF16 = torch.bfloat16
MOE = "moe"  # the part of a layer
GATHER, RETURN = "moe_gather", "moe_return"  # the operations that wait for other ranks


class Ranks(Protocol):
    """The ranks that share the experts, this one being number `rank` of `size`."""

    rank: int
    size: int

    def tell(self, place: str, value: Any) -> list[Any]:
        """Return what every rank tells when all are at this place; an exchange of the hosts, never timed."""

    def all_gather_rows(self, out: torch.Tensor, rows: torch.Tensor) -> None:
        """Write the rows of every rank, as many of each, into `out` in the order of ranks."""

    def reduce_scatter_rows(self, out: torch.Tensor, rows: torch.Tensor) -> None:
        """Write this rank's slice of the sum of all ranks' `rows` into `out`."""

    def all_reduce(self, rows: torch.Tensor) -> None:
        """Write the sum of all ranks' `rows` over them."""


class Alone:
    """The only rank there is, which has nobody to exchange rows with; of a larger `size` it is a share to be sized."""

    rank = 0

    def __init__(self, size: int = 1) -> None:
        self.size = size

    def tell(self, place: str, value: Any) -> list[Any]:
        """Return what this rank tells itself."""
        return [value]


class Moe:
    """The stand-in of one rank: its buffers for steps of up to `most_rows` rows a rank, and its experts or None."""

    def __init__(
        self,
        geometry: Geometry,
        experts: ExpertWeights | None,
        ranks: Ranks | Alone,
        most_rows: int,
        device: torch.device,
    ) -> None:
        self.ranks = ranks
        self._others = None if isinstance(ranks, Alone) or ranks.size == 1 else ranks
        self.experts = experts
        self.counts: list[int] = []  # the live rows of every rank in the loaded forward
        i32 = torch.int32
        several = ranks.size if ranks.size > 1 else 0
        held = experts.held if experts else 0

        def rows(count: int) -> torch.Tensor:
            return torch.zeros(count, geometry.hidden, dtype=BF16, device=device)

        self.norm_weight = torch.ones(geometry.hidden, dtype=BF16, device=device)
        self.x = rows(most_rows)  # normed rows of this rank
        self.gathered = rows(several * most_rows)  # those of all ranks
        self.returned = rows(most_rows if several else 0)  # what came back for this rank's rows
        self.added = rows(most_rows)  # the residual stream with what the MoE adds to it
        self.routing = make_routing(geometry, ranks.size * most_rows if experts else 0, held, device)
        self._live = torch.zeros(ranks.size, dtype=i32, device=device)
        self._row_numbers = torch.arange(most_rows, dtype=i32, device=device)
        self._expert_numbers = torch.arange(held, dtype=i32, device=device)

    def tensors(self) -> list[torch.Tensor]:
        """Return every buffer that a step writes."""
        return [self.x, self.gathered, self.returned, self.added, *self.routing.tensors()]

    @property
    def bytes(self) -> int:
        """Bytes of buffers and experts."""
        held = self.experts.tensors() if self.experts else []
        return sum(one.numel() * one.element_size() for one in (*self.tensors(), *held))

    def poison(self) -> None:
        """Fill every buffer with NaN, or with ones where it holds integers."""
        for tensor in self.tensors():
            tensor.fill_(float("nan") if tensor.is_floating_point() else 1)

    def load(self, live: int) -> None:
        """Learn the live rows of every rank in the forward that all load now."""
        self.counts = self.ranks.tell("load", live)
        self._live.copy_(torch.tensor(self.counts, dtype=torch.int32))

    def own(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's slice of the live rows of all ranks."""
        start = sum(self.counts[: self.ranks.rank])
        return whole[start : start + self.counts[self.ranks.rank]]

    def run(self, step: Step, kind: LayerKind, rows: int, padded: bool) -> None:
        """Run the stand-in behind one layer over the first `rows` rows, of which a padded step has equally many."""
        ops, residual = step.ops, step.buffers.residual[:rows]
        x = self.x[:rows]
        if rows:
            eps, weight = step.geometry.eps, self.norm_weight
            ops.run(kind, "moe_norm", "rms_norm", x=residual, weight=weight, eps=eps, out=x)
        whole = x if self._others is None else self._gather(self._others, ops, kind, x, padded)
        made = whole if self.experts is None else self._routed(ops, kind, whole, self.experts, padded)
        back = made if self._others is None else self._return(self._others, ops, kind, made, rows, padded)
        if not rows:
            return
        with ops.within(kind, "moe_add"):
            torch.add(residual, back, out=self.added[:rows])
        if self.experts is not None:
            self._shared(ops, kind, x, self.experts)

    def _gather(self, ranks: Ranks, ops: Ops, kind: LayerKind, x: torch.Tensor, padded: bool) -> torch.Tensor:
        with ops.within(kind, GATHER):
            if padded:
                whole = self.gathered[: ranks.size * len(x)]
                ops.collective("all_gather_rows", partial(ranks.all_gather_rows, whole, x), out=whole, rows=x)
                return whole
            whole = self.gathered[: sum(self.counts)].zero_()
            self.own(whole).copy_(x)
            _all_reduce(ranks, ops, whole)
            return whole

    def _return(
        self, ranks: Ranks, ops: Ops, kind: LayerKind, made: torch.Tensor, rows: int, padded: bool
    ) -> torch.Tensor:
        back = self.returned[:rows]
        with ops.within(kind, RETURN):
            if padded:
                call = partial(ranks.reduce_scatter_rows, back, made)
                ops.collective("reduce_scatter_rows", call, out=back, rows=made)
            else:
                _all_reduce(ranks, ops, made)
                back.copy_(self.own(made))
        return back

    def _routed(
        self, ops: Ops, kind: LayerKind, whole: torch.Tensor, experts: ExpertWeights, padded: bool
    ) -> torch.Tensor:
        """Return what the experts held here add to the rows of all ranks."""
        routing = self.routing.of(len(whole))
        ops.matmul(kind, "moe_router_proj", whole, experts.router, routing.logits)
        with ops.within(kind, "moe_route"):
            live = self._row_numbers[: len(whole) // self.ranks.size] < self._live[:, None] if padded else None
            choose(routing, None if live is None else live.flatten())
            found = sort_assignments(routing, experts, self._expert_numbers)
        with ops.within(kind, "moe_experts"):
            return run_experts(whole, found, routing.ends, experts)

    def _shared(self, ops: Ops, kind: LayerKind, x: torch.Tensor, experts: ExpertWeights) -> None:
        """Add the shared expert's result for this rank's own rows."""
        with ops.within(kind, "moe_shared_proj"):
            self.added[: len(x)].addmm_(swiglu(x @ experts.shared_gate_up), experts.shared_down)


def _all_reduce(ranks: Ranks, ops: Ops, rows: torch.Tensor) -> None:
    ops.collective("all_reduce", partial(ranks.all_reduce, rows), out=rows, rows=rows)


def make_moe(
    geometry: Geometry, variant: Variant, ranks: Ranks | Alone, most_rows: int, device: torch.device
) -> Moe | None:
    """Allocate the stand-in that `variant` asks for, its experts not drawn; None for `--moe off`."""
    if variant.moe == "off":
        return None
    held = variant.moe == "experts"
    experts = allocate_experts(geometry, ranks.rank, ranks.size, device) if held else None
    return Moe(geometry, experts, ranks, most_rows, device)


def moe_bytes(geometry: Geometry, variant: Variant, ranks: int, most_rows: int) -> int:
    """Return what the stand-in takes on a rank at most: experts, buffers, and the rows that experts work on (modelled).

    Those are allocated while a step runs: a row for each of the top-k experts of every rank's rows, before and after
    either GEMM.
    """
    made = make_moe(geometry, variant, Alone(ranks), most_rows, torch.device("meta"))
    if made is None:
        return 0
    assigned = ranks * most_rows * geometry.experts_per_token if made.experts else 0
    return made.bytes + assigned * 2 * (geometry.hidden + geometry.expert_width) * BF16.itemsize


def stand_in(model: Model, variant: Variant, ranks: Ranks | Alone, plan: Plan) -> Moe | None:
    """Make the stand-in for the forwards of `plan`, of all ranks, with experts drawn from the model's seed."""
    most_rows = max(batch.rows for forwards in plan for batch in forwards)
    made = make_moe(model.geometry, variant, ranks, most_rows, model.device)
    if made is not None and made.experts is not None:
        draw_experts(made.experts, model.seed)
    return made
