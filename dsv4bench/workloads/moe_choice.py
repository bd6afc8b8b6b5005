"""What `--moe` may be asked for: which values go with which other options, or one clear line saying why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4bench.errors import UsageError
from dsv4bench.workloads.axis import word_axis
from dsv4bench.workloads.geometry import Geometry
from dsv4bench.workloads.variant import MOES


@dataclass(frozen=True, slots=True)
class Beside:
    """What else was asked for, as far as the stand-in of the MoE depends on it."""

    geometries: tuple[Geometry, ...]
    ranks: tuple[int, ...]
    dep: bool
    replays: tuple[str, ...]
    full_graphs: bool


def moe_axis(text: str | Sequence[str], beside: Beside) -> tuple[str, ...]:
    """Return the values of --moe; UsageError, one line, for what cannot be together with the rest."""
    words = word_axis("--moe", text, MOES)
    asked = [word for word in words if word != "off"]
    reason = _why_not(asked, beside) if asked else None
    if reason is not None:
        raise UsageError(f"--moe {','.join(asked)}: {reason}")
    return words


def _why_not(asked: Sequence[str], beside: Beside) -> str | None:
    if not beside.dep and beside.ranks != (1,):
        return "ranks of --dep-simulated run one after another and exchange nothing; expected --dep N"
    (ranks,) = beside.ranks
    if "collectives" in asked and ranks == 1:
        return "one rank has nothing to exchange; expected --dep N of at least 2, or --moe experts"
    if beside.replays != ("off",):
        return "late layers that are replayed run other rows than the rest; expected --replay off"
    if ranks > 1 and beside.full_graphs:
        return "in a graph ranks exchange equal rows, and a full graph has no bucket; expected --graph-mode breakable"
    reasons = (_no_experts(model, ranks) for model in beside.geometries if "experts" in asked)
    return next(filter(None, reasons), None)


def _no_experts(model: Geometry, ranks: int) -> str | None:
    if not (model.routed_experts and model.expert_width and 0 < model.experts_per_token <= model.routed_experts):
        return (
            f"{model.name} has no experts; expected n_routed_experts, num_experts_per_tok of them at most,"
            " and moe_intermediate_size in its config"
        )
    if model.routed_experts % ranks:
        return f"{model.routed_experts} experts of {model.name} are not dealt evenly to {ranks} ranks"
    return None
