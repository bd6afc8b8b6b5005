"""What every layer does to its rows outside the attention core: rows in, norms, projections, and the output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dsv4bench.kernels.layout import FULL_PAGE, HEAD_DIM
from dsv4bench.workloads import mhc
from dsv4bench.workloads.geometry import LayerKind

if TYPE_CHECKING:
    from dsv4bench.workloads.step import Step


def take_in(step: Step, kind: LayerKind, rows: int) -> None:
    """Copy the hidden states into the residual stream, and into the four of mHC where they are in the step."""
    with step.ops.within(kind, "load_input"):
        step.buffers.residual[:rows].copy_(step.inputs.hidden[:rows])
    if step.variant.mhc == "on":
        mhc.enter(step, kind, rows)


def enter_tail(step: Step, kind: LayerKind, tail_rows: int) -> None:
    """Take the tail's rows out of the residual stream; a padded row takes the first one and counts for nothing."""
    assert step.tail is not None
    assert step.forward.tail_rows is not None
    if tail_rows:
        with step.ops.within(kind, "enter_tail"):
            torch.index_select(
                step.buffers.residual,
                0,
                step.forward.tail_rows[:tail_rows],
                out=step.tail.buffers.residual[:tail_rows],
            )
        if step.variant.mhc == "on":
            mhc.enter_tail(step, step.tail, kind, step.forward.tail_rows[:tail_rows])


def input_norm(step: Step, kind: LayerKind, rows: int) -> None:
    """Norm the rows that enter a layer (step 1)."""
    step.ops.run(
        kind,
        "input_norm",
        "rms_norm",
        x=step.buffers.residual[:rows],
        weight=step.weights[kind.layer].input_norm,
        eps=step.geometry.eps,
        out=step.buffers.x[:rows],
    )


def project(step: Step, kind: LayerKind, rows: int) -> None:
    """Norm, fused q_a / kv projection, q norm, wq_b, q RoPE, and the sliding-window writer (steps 1 to 5)."""
    ops, weights, eps = step.ops, step.weights[kind.layer], step.geometry.eps
    buffers, inputs = step.buffers, step.inputs
    x, qkv, q_lora, q = buffers.x[:rows], buffers.qkv[:rows], buffers.q_lora[:rows], buffers.q[:rows]
    freqs, positions = step.freqs[kind.ratio], inputs.positions[:rows]
    rank = step.geometry.q_rank
    input_norm(step, kind, rows)
    ops.matmul(kind, "qkv_proj", x, weights.qkv, qkv)
    ops.run(kind, "q_norm", "rms_norm", x=qkv[:, :rank], weight=weights.q_norm, eps=eps, out=q_lora)
    ops.matmul(kind, "q_proj", q_lora, weights.query, q.view(rows, -1))
    ops.run(kind, "q_rope", "rope", x=q, freqs=freqs, positions=positions, inverse=False)
    ops.run(
        kind,
        "norm_rope_store",
        "norm_rope_store",
        kv=qkv[:, rank : rank + HEAD_DIM],
        weight=weights.kv_norm,
        eps=eps,
        freqs=freqs,
        positions=positions,
        loc=inputs.swa_loc[:rows],
        cache=step.pools.swa[kind.layer],
        page_size=FULL_PAGE,
        layout=step.pools.swa_layout,
    )


def output(step: Step, kind: LayerKind, rows: int) -> None:
    """Inverse RoPE, grouped wo_a, and wo_b added to the residual stream (step 13)."""
    ops, weights, buffers = step.ops, step.weights[kind.layer], step.buffers
    attention, output_a = buffers.attention[:rows], buffers.output_a[:rows]
    positions = step.inputs.positions[:rows]
    ops.run(kind, "inverse_rope", "rope", x=attention, freqs=step.freqs[kind.ratio], positions=positions, inverse=True)
    groups = step.geometry.o_groups
    with ops.within(kind, "o_proj_a"):
        torch.bmm(attention.view(rows, groups, -1).transpose(0, 1), weights.output_a, out=output_a.transpose(0, 1))
    with ops.within(kind, "o_proj_b"):
        buffers.residual[:rows].addmm_(output_a.view(rows, -1), weights.output_b)
