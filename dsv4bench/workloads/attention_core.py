"""The attention core of one layer: combine, compressed dequant unless the head is filled, window dequant, attention.

In this order (specification 6.1). It reads the live forward by reference and runs at the live row count; rows past it
come out zero. Change R lives here: layers that share a kv_source read the same head of the workspace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dsv4bench.kernels.layout import FULL_PAGE
from dsv4bench.workloads import packed_core
from dsv4bench.workloads.break_forms import publish, returned
from dsv4bench.workloads.forward import Forward, Gather
from dsv4bench.workloads.geometry import LayerKind
from dsv4bench.workloads.late_layers import packed_ratios

if TYPE_CHECKING:
    from dsv4bench.workloads.step import Step


def attend(step: Step, kind: LayerKind, rows: int, copies: bool = False) -> None:
    """Write the attention output of the live rows, by way of a copy if asked for, and zero the padded ones."""
    forward, live = step.forward, step.forward.live
    if kind.layer == 0:
        step.kv_buffer.forget_head()  # a new forward: caches changed since the head was filled
    if step.observer is not None:
        step.observer.layer_input(kind, step.buffers.residual[:live])
    if live:
        static = step.buffers.attention[:live]
        made = returned(step, static, copies)
        packed = step.packed or kind.ratio in packed_ratios(step.variant, forward.batch)
        (packed_core.attend if packed else _attend)(step, kind, forward, made)
        publish(step, kind, made, static)
    if live < rows:
        with step.ops.within(kind, "zero_padding"):
            step.buffers.attention[live:rows].zero_()


def _attend(step: Step, kind: LayerKind, forward: Forward, out: torch.Tensor) -> None:
    """Write the attention output [live, heads, 512] by way of the workspace."""
    indices, lens = _combine(step, kind, forward, forward.live)
    workspace = _fill_workspace(step, kind, forward, forward.gathers[kind.ratio])
    step.ops.run(
        kind,
        "sparse_attention",
        "sparse_attention",
        q=step.buffers.q[: forward.live],
        kv=workspace,
        indices=indices,
        lens=lens,
        sink=step.weights[kind.layer].sink,
        scale=step.geometry.attention_scale,
        out=out,
    )


def _combine(step: Step, kind: LayerKind, forward: Forward, live: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the workspace rows that each query reads and how many; ratio 0 builds them once per forward."""
    buffers, geometry = step.buffers, step.geometry
    if kind.ratio == 0:
        raw, topk, indices, lens = None, 0, buffers.window_indices[:live], buffers.window_lens[:live]
        if kind.layer != geometry.ratios.index(0):
            return indices, lens
    else:
        raw = (buffers.raw_1 if kind.ratio == 1 else buffers.raw_2)[:live]
        topk, indices, lens = geometry.index_topk, buffers.indices[:live], buffers.lens[:live]
    gather = forward.gathers[kind.ratio]
    step.ops.run(
        kind,
        "combine",
        "combine",
        raw=raw,
        query_start=forward.query_start,
        positions=step.inputs.positions[:live],
        seq_lens=forward.seq_lens,
        gather_lens=forward.gather_lens,
        compressed_bases=gather.bases,
        swa_bases=gather.swa_bases,
        window=geometry.window,
        ratio=kind.ratio,
        topk=topk,
        indices=indices,
        lens=lens,
    )
    return indices, lens


def _fill_workspace(step: Step, kind: LayerKind, forward: Forward, gather: Gather) -> torch.Tensor:
    """Return the workspace [n, 1, 512]: compressed rows at its head, window rows after them."""
    total = gather.rows + forward.swa_rows
    workspace = _fill_head(step, kind, gather, total) if kind.ratio else step.kv_buffer.get(total)
    step.ops.run(
        kind,
        "dequant_swa",
        "dequant",
        cache=step.pools.swa[kind.layer],
        ids=forward.swa_ids,
        page_size=FULL_PAGE,
        layout=step.pools.swa_layout,
        out=workspace[gather.rows :],
    )
    return workspace


def _fill_head(step: Step, kind: LayerKind, gather: Gather, total: int) -> torch.Tensor:
    fault = step.variant.fault if step.variant.reuse == "on" else None  # planted in the reuse that is under test
    if step.variant.reuse == "off":
        workspace, filled = step.kv_buffer.get(total), False
    else:
        pointer = 0 if fault == "stale-head" else step.compressed(kind)["cache"].data_ptr()
        workspace, filled = step.kv_buffer.get_with_head(total, (pointer, gather.ids.data_ptr(), gather.rows))
    head = workspace[: gather.rows]
    if not filled:
        ids = gather.ids.roll(1) if fault == "wrong-row" else gather.ids
        step.ops.run(kind, "dequant_compressed", "dequant", ids=ids, out=head, **step.compressed(kind))
    elif step.observer is not None:
        step.observer.reused_head(step, kind, gather, head)
    if fault == "extra-copy":
        with step.ops.within(kind, None):
            head.clone()
    return workspace
