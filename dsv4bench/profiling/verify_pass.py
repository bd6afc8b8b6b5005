"""Verifies the steps of one side: reused heads, kernels against the reference, outputs with and without reuse."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from dsv4bench.profiling import verify
from dsv4bench.profiling.capture import run_pieces
from dsv4bench.profiling.cell_run import CellRun, Side
from dsv4bench.profiling.moe_check import check_moe
from dsv4bench.profiling.verify import Check, KernelAudit, Seen
from dsv4bench.results.record import BESIDE
from dsv4bench.workloads.forward import Forward
from dsv4bench.workloads.model import reuse_saving
from dsv4bench.workloads.step import Step

if TYPE_CHECKING:
    from dsv4bench.profiling.group import GroupRun

AFTER_TIMING = ", after timing"


def verify_side(group: GroupRun, side: Side, again: bool) -> None:
    """Run the steps of a side and keep what was checked in its cells; `again`: after timing, without the kernels."""
    suffix = AFTER_TIMING if again else ""
    wanted: Seen | None = None
    for key, step in group.steps.items():
        if key[1] != side:
            continue
        checks, seen = _observe(group, step, audit=not again)
        if wanted is not None:
            checks.append(verify.compare("outputs, reuse on and off", seen, wanted))
        wanted = wanted or seen
        earlier = group.seen.setdefault(key, seen)
        if again:
            checks.append(verify.compare("outputs, as before", seen, earlier))
        for run in group.living():  # a cell that was wrong before it was timed needs no second look
            if run.key == key:
                for check in checks:
                    run.add(replace(check, name=check.name + suffix))


def beside_first_provider(group: GroupRun, run: CellRun) -> list[str]:
    """Return a line comparing a cell's outputs with those of the group's first provider; no verdict on either."""
    reuse, (compressor, provider) = run.key
    first = group.runs[0].cell.variant.provider
    own, other = (group.seen.get((reuse, (compressor, one))) for one in (provider, first))
    if provider == first or own is None or other is None:
        return []
    return [f"{BESIDE}{first}: {verify.compare('', own, other).detail}"]


def _observe(group: GroupRun, step: Step, audit: bool) -> tuple[list[Check], Seen]:
    kernels = KernelAudit(step.geometry) if audit else None
    step.ops.audit = kernels
    try:
        seen, watch = verify.observe(step, list(group.prefill.all_forwards()), partial(_run_live, step))
    finally:
        step.ops.audit = None
    checks = [watch.check(_reused_heads(group, step))] if step.variant.reuse == "on" else []
    checks += [check_moe(step, step.moe, None)] if step.moe else []
    return checks + ([kernels.check()] if kernels and step.variant.provider != "torch" else []), seen


def _reused_heads(group: GroupRun, step: Step) -> int:
    """Return how many heads all forwards together should find filled (specification 1.2)."""
    live = (forward for forward in group.prefill.all_forwards() if forward.live)
    return sum(reuse_saving(step.geometry, forward.batch, step.variant).calls for forward in live)


def _run_live(step: Step, forward: Forward) -> None:
    run_pieces(step.live_pieces(forward))
