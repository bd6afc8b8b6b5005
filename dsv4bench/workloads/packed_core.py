"""The attention core over packed caches: no workspace, no dequant; slots of window and top-k, then one attention (6.1).

Window slots are made once a forward, by the first layer that wants them, and the slots of a top-k by the layer that
chose it; layers that share a top-k share its slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dsv4bench.kernels.layout import FULL_PAGE
from dsv4bench.workloads.forward import Forward
from dsv4bench.workloads.geometry import LayerKind
from dsv4bench.workloads.late_layers import packed_ratios

if TYPE_CHECKING:
    from dsv4bench.workloads.step import Step


def attend(step: Step, kind: LayerKind, forward: Forward, out: torch.Tensor) -> None:
    """Write the attention output [live, heads, 512] of a layer of ratio 1 or 2."""
    live, buffers = forward.live, step.buffers
    if kind.layer == _first(step, forward):
        _window_slots(step, kind, forward)
    if kind.owns_index:
        _compressed_slots(step, kind, forward)
    slots, lens = _chosen(step, kind)
    compressed = step.compressed(kind)
    step.ops.run(
        kind,
        "paged_attention",
        "paged_attention",
        q=buffers.q[:live],
        main=step.pools.swa[kind.layer],
        main_slots=buffers.window_slots[:live],
        main_lens=buffers.window_slot_lens[:live],
        main_page_size=FULL_PAGE,
        main_layout=step.pools.swa_layout,
        extra=compressed["cache"],
        extra_slots=slots[:live],
        extra_lens=lens[:live],
        extra_page_size=compressed["page_size"],
        extra_layout=compressed["layout"],
        sink=step.weights[kind.layer].sink,
        scale=step.geometry.attention_scale,
        out=out,
    )


def _first(step: Step, forward: Forward) -> int:
    """Return the first layer of this step that attends packed caches."""
    if step.packed:
        assert step.geometry.late_start is not None
        return step.geometry.late_start
    ratios = packed_ratios(step.variant, forward.batch)
    return next(kind.layer for kind in step.geometry.layers if kind.ratio in ratios)


def _chosen(step: Step, kind: LayerKind) -> tuple[torch.Tensor, torch.Tensor]:
    buffers = step.buffers
    if kind.ratio == 1:
        return buffers.slots_1, buffers.slot_lens_1
    return buffers.slots_2, buffers.slot_lens_2


def _window_slots(step: Step, kind: LayerKind, forward: Forward) -> None:
    live, inputs, tables = forward.live, step.inputs, step.pools.tables
    step.ops.run(
        kind,
        "window_slots",
        "window_slots",
        positions=inputs.positions[:live],
        req=inputs.req[:live],
        loc=inputs.loc[:live],
        page_table=tables.page_table,
        full_to_swa=tables.full_to_swa,
        floor=forward.floor,
        window=step.geometry.window,
        slots=step.buffers.window_slots[:live],
        lens=step.buffers.window_slot_lens[:live],
    )


def _compressed_slots(step: Step, kind: LayerKind, forward: Forward) -> None:
    live, inputs, buffers = forward.live, step.inputs, step.buffers
    slots, lens = _chosen(step, kind)
    step.ops.run(
        kind,
        "compressed_slots",
        "compressed_slots",
        raw=(buffers.raw_1 if kind.ratio == 1 else buffers.raw_2)[:live],
        positions=inputs.positions[:live],
        req=inputs.req[:live],
        loc=inputs.loc[:live],
        page_table=step.pools.tables.page_table,
        ratio=kind.ratio,
        slots=slots[:live],
        lens=lens[:live],
    )
