"""What it means that the stand-in of the MoE is right: rows of other ranks, what comes back, and a few rows of experts.

It is looked at after a step or a replay, when the buffers hold the last layer's. The oracle of experts is a loop over
the chosen ones in f32; each rank works out what its experts add to the probed rows of all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dsv4bench.profiling.digest import digest
from dsv4bench.profiling.verify import Check
from dsv4bench.workloads.experts import ROUTED_SCALING, SWIGLU_LIMIT, ExpertWeights
from dsv4bench.workloads.moe import Moe
from dsv4bench.workloads.step import Step

ROW_TOLERANCE = 5e-2  # of the norm of what the MoE adds to a row: bf16 products, and the sum with the residual in bf16
EXACT_RANKS = (2, 4)  # equal bf16 values add up to so many times themselves, whether or not each sum is rounded
ROUNDING = 2**-9  # of bf16: what each rank's addition may be off by, as a share
TIE = 1e-2  # a chosen expert's score may lie so far below another's: logits are rounded
PROBES = 3  # rows of each rank


def check_moe(step: Step, moe: Moe, rows: int | None) -> Check:
    """Check the last layer's stand-in of the forward that just ran; all ranks call this together.

    `rows` are those of each rank in a padded step, None in a step over live rows.
    """
    wrong = [*_exchanged(moe, rows), *(_routed(step, moe, moe.experts, rows) if moe.experts else ())]
    ranks = f"{moe.ranks.size} rank{'s' * (moe.ranks.size > 1)}"
    detail = f"experts over {ranks} equal an oracle" if moe.experts else f"rows of {ranks} arrive and return"
    return Check("stand-in of the MoE", not wrong, wrong[0] if wrong else detail)


def _starts(moe: Moe, rows: int | None) -> list[int]:
    """Return the first of each rank's rows among those of all ranks."""
    return [sum(moe.counts[:rank]) if rows is None else rank * rows for rank in range(moe.ranks.size)]


def _exchanged(moe: Moe, rows: int | None) -> Iterator[str]:
    """Yield which rows are not those of their rank, and whether the sum that came back is another."""
    live, size = moe.counts[moe.ranks.rank], moe.ranks.size
    if size == 1:
        return
    wanted = moe.ranks.tell("gathered rows", digest(moe.x[:live]))
    reduced = moe.experts is None and rows is None  # in place, over what was gathered
    for rank, start in enumerate(_starts(moe, rows)):
        if not reduced and digest(moe.gathered[start : start + moe.counts[rank]]) != wanted[rank]:
            yield f"rows of rank {rank} differ on rank {moe.ranks.rank}"
    if moe.experts is None:
        total, back = moe.x[:live].float() * size, moe.returned[:live].float()
        if not torch.allclose(back, total, rtol=0.0 if size in EXACT_RANKS else size * ROUNDING, atol=0.0):
            yield f"what returned to rank {moe.ranks.rank} is not {size} times its rows"


def _routed(step: Step, moe: Moe, experts: ExpertWeights, rows: int | None) -> Iterator[str]:
    """Yield how many assignments are too many or too few, and which probed row is not what the oracle makes of it."""
    top = step.geometry.experts_per_token
    assigned = sum(moe.ranks.tell("assignments", int(moe.routing.ends[-1].item())))
    if assigned != top * sum(moe.counts):
        yield f"{assigned} rows of experts for {sum(moe.counts)} live rows, expected {top} each"
    live, first = moe.counts[moe.ranks.rank], _starts(moe, rows)[moe.ranks.rank]
    probes = sorted({live * place // PROBES for place in range(PROBES)}) if live else []
    x, ids = moe.x[probes].float(), moe.routing.ids[[first + row for row in probes]]
    every = moe.ranks.tell("probed rows", (x.cpu(), ids.cpu()))
    parts = moe.ranks.tell("parts of probed rows", [_part(experts, *probed) for probed in every])
    if not probes:
        return
    wanted = sum(part[moe.ranks.rank] for part in parts) + _shared(experts, x).cpu()
    got = (moe.added[probes].float() - step.buffers.residual[probes].float()).cpu()
    errors = (got - wanted).norm(dim=1) / wanted.norm(dim=1)
    worst = float(errors.max())
    if not worst <= ROW_TOLERANCE:
        yield f"a row differs from the oracle by {worst:.2g} of its norm, allowed {ROW_TOLERANCE:g}"
    if _not_the_best(experts, x, ids):
        yield "a row was routed to experts of lower scores than others"


def _part(experts: ExpertWeights, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return in f32 what the experts held here add to rows `x` [n, hidden] whose experts are `ids` [n, top-k]."""
    x = x.to(experts.router.device)
    found = torch.zeros_like(x)
    for row, numbers in enumerate(ids.tolist()):
        chosen = _scores(experts, x[row])[numbers]
        for expert, score in zip(numbers, chosen, strict=True):
            local = expert - experts.first
            if 0 <= local < experts.held:
                added = _expert(x[row], experts.gate_up[local], experts.down[local])
                found[row] += ROUTED_SCALING * score / chosen.sum() * added
    return found.cpu()


def _shared(experts: ExpertWeights, x: torch.Tensor) -> torch.Tensor:
    return torch.stack([_expert(row, experts.shared_gate_up, experts.shared_down) for row in x])


def _expert(row: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    both = row @ gate_up.float()
    width = both.shape[0] // 2
    gate, up = both[:width].clamp(max=SWIGLU_LIMIT), both[width:].clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
    return (gate / (1 + torch.exp(-gate)) * up) @ down.float()


def _scores(experts: ExpertWeights, x: torch.Tensor) -> torch.Tensor:
    return torch.log1p(torch.exp(x @ experts.router.float())).sqrt()


def _not_the_best(experts: ExpertWeights, x: torch.Tensor, ids: torch.Tensor) -> bool:
    scores = _scores(experts, x)
    best = scores.sort(dim=1, descending=True).values[:, ids.shape[1] - 1]
    distinct = all(len(set(row)) == ids.shape[1] for row in ids.tolist())
    return not distinct or bool((scores.gather(1, ids).amin(dim=1) < best - TIE).any())
