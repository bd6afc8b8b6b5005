"""The 40-layer attention forward as a list of pieces, in the order of the specification (6.1).

A piece is a segment (fixed rows, capturable) or a break (runs eagerly between segments, at the live row count);
`break_forms.py` says which is which. An eager step runs all pieces; a breakable graph captures the segments; a full
graph captures everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch

from dsv4bench.kernels.layout import FULL_PAGE
from dsv4bench.workloads import attention_core, mhc, projections, sources
from dsv4bench.workloads.break_forms import (
    ATTENTION,
    COMPRESS,
    EAGER,
    INDEX_QUERIES,
    INPUT,
    OUTPUT,
    PROJECT,
    SOURCE_PROJECTIONS,
    SOURCE_STEP,
    TOP_K,
    Form,
    Where,
    layer_parts,
    source_parts,
)
from dsv4bench.workloads.buffers import StepBuffers
from dsv4bench.workloads.forward import Forward, Gather, RowInputs
from dsv4bench.workloads.geometry import LayerKind
from dsv4bench.workloads.kv_buffer import SparsePrefillKVBuffer
from dsv4bench.workloads.late_layers import early, late
from dsv4bench.workloads.mhc import MHC_COLLAPSE, MHC_POST, MHC_PRE, MixWeights
from dsv4bench.workloads.moe import MOE, Moe
from dsv4bench.workloads.ops import Ops
from dsv4bench.workloads.pools import Pools
from dsv4bench.workloads.variant import Variant
from dsv4bench.workloads.weights import Model

SOURCE_NORM = "source norm"
ENTER_TAIL = "enter tail"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a step: a segment that a graph may capture, or a break that runs eagerly.

    `part` is what it does and is the same in every layer; `layer` is None for a piece of no layer.
    """

    part: str
    kind: Where
    run: Callable[[], None]
    layer: int | None = None

    @property
    def name(self) -> str:
        """What an error message calls it, e.g. "layer 2 compress"."""
        return self.part if self.layer is None else f"layer {self.layer} {self.part}"


class Observer(Protocol):
    """Looks at a step from inside its breaks, while a cell is verified."""

    def layer_input(self, kind: LayerKind, residual: torch.Tensor) -> None:
        """See the residual stream [live, hidden] that enters a layer."""

    def reused_head(self, step: Step, kind: LayerKind, gather: Gather, head: torch.Tensor) -> None:
        """See the head rows [n, 1, 512] that a layer is about to read without dequantising them."""


class Step:
    """One prefill forward of the attention stack over static buffers; `load` a forward, then run its pieces."""

    def __init__(self, model: Model, variant: Variant, pools: Pools, buffers: StepBuffers, inputs: RowInputs) -> None:
        self.geometry = model.geometry
        self.weights = model.weights
        self.variant = variant
        self.pools = pools
        self.buffers = buffers
        self.inputs = inputs
        self.ops = Ops(variant.provider, model.device.type)
        self.kv_buffer = SparsePrefillKVBuffer(buffers.residual.device)
        self.freqs: dict[int, torch.Tensor] = {}
        self.capacity: dict[int, int] = {}
        self.tail: Step | None = None  # runs the late layers where they are replayed
        self.moe: Moe | None = None  # what stands in for the MoE behind each layer
        self.packed = False  # whether every layer attends packed caches
        self.mix_weights: MixWeights | None = None  # of the residual streams, where they are in the step
        self._observer: Observer | None = None
        self._forward: Forward | None = None

    @property
    def observer(self) -> Observer | None:
        """Who watches the layers, those of the tail included."""
        return self._observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self._observer = observer
        if self.tail is not None:
            self.tail.observer = observer

    def replay(self, tail: Step) -> None:
        """Let `tail` run the late layers: a step over buffers of its own, on the same pools and operations."""
        tail.ops, tail.freqs, tail.capacity = self.ops, self.freqs, self.capacity
        tail.packed, tail.mix_weights = True, self.mix_weights
        self.tail = tail

    @property
    def forward(self) -> Forward:
        """The loaded forward."""
        assert self._forward is not None, "load a forward first"
        return self._forward

    def load(self, forward: Forward) -> None:
        """Make `forward` the next one to run: refresh static inputs in place, hand over the rest by reference."""
        beyond = [r for r, columns in forward.visible.items() if columns > self.capacity.get(r, 0)]
        if beyond or forward.inputs.loc.shape[0] > self.inputs.loc.shape[0]:
            raise ValueError(f"the forward exceeds the step's capacity (rows or visible positions {self.capacity})")
        self.inputs.load(forward.inputs)
        self.ops.rank = forward.batch.rank
        self._forward = forward
        if self.moe is not None:
            self.moe.load(forward.live)
        if self.tail is not None:
            assert forward.tail is not None, "a replay needs the forward's tail"
            self.tail.load(forward.tail)

    def live_pieces(self, forward: Forward) -> list[Piece]:
        """Return the pieces of a step over a forward's live rows."""
        return self.pieces(forward.live, forward.tail.live if forward.tail else 0)

    def padded_pieces(self, forward: Forward, form: Form = EAGER) -> list[Piece]:
        """Return the pieces of a step over all rows of a forward, padding included."""
        return self.pieces(forward.batch.rows, forward.tail.batch.rows if forward.tail else 0, form, padded=True)

    def pieces(self, rows: int, tail_rows: int = 0, form: Form = EAGER, padded: bool = False) -> list[Piece]:
        """Return the pieces of a step over the first `rows` rows of the buffers, and `tail_rows` of the tail's.

        `padded`: all ranks run as many rows. A rank without rows has nothing but its part in the exchanges.
        """
        kinds = early(self.geometry, self.variant)
        found = [piece for kind in kinds for piece in (*self.layer(kind, rows, form), *self._moe(kind, rows, padded))]
        if self.tail is None or not rows:
            return found
        found += self.tail_pieces(rows, tail_rows, form)
        return found + [piece for kind in self.late_layers for piece in self.tail.layer(kind, tail_rows, form)]

    @property
    def late_layers(self) -> tuple[LayerKind, ...]:
        """The layers that the tail runs; the first's compressor ran before, over every row."""
        first, *rest = late(self.geometry, self.variant)
        return (replace(first, owns_kv=False), *rest)

    def tail_pieces(self, rows: int, tail_rows: int, form: Form = EAGER) -> list[Piece]:
        """Return what lies between early and late layers: all rows of the last source, then the tail's inputs."""
        first = replace(late(self.geometry, self.variant)[0], owns_index=False)
        made: list[tuple[str, Where]] = [(MHC_COLLAPSE, "segment")] if self.variant.mhc == "on" else []
        made += [(SOURCE_NORM, "segment"), *source_parts(first, form)]
        found = [self._piece(part, where, first, rows, form) for part, where in made]
        return [*found, self._piece(ENTER_TAIL, "break", first, tail_rows, form)]

    def layer(self, kind: LayerKind, rows: int, form: Form = EAGER) -> list[Piece]:
        """Return the pieces of one layer over the first `rows` rows; layer 0 takes in the hidden states first.

        There are none without rows: a rank that sits an eager step out launches nothing.
        """
        parts = layer_parts(kind, form, self.variant) if rows else ()
        return [self._piece(part, where, kind, rows, form) for part, where in parts]

    def _moe(self, kind: LayerKind, rows: int, padded: bool) -> Iterator[Piece]:
        if self.moe is not None:
            mixed = bool(rows) and self.variant.mhc == "on"
            around = [
                [self._piece(part, "segment", kind, rows, EAGER)] if mixed else [] for part in (MHC_PRE, MHC_POST)
            ]
            run = partial(self.moe.run, self, kind, rows, padded)
            yield from (*around[0], Piece(MOE, "segment", run, kind.layer), *around[1])

    def _piece(self, part: str, where: Where, kind: LayerKind, rows: int, form: Form) -> Piece:
        if part in _RETURNING:
            return Piece(part, where, partial(_RETURNING[part], self, kind, rows, form.copies), kind.layer)
        return Piece(part, where, partial(_PARTS[part], self, kind, rows), kind.layer)

    def compressed(self, kind: LayerKind) -> dict[str, Any]:
        """Return what a dequant of a layer's compressed rows reads: cache, page size and layout."""
        assert kind.kv_source is not None
        cache = self.pools.compressed[kind.kv_source]
        return {"cache": cache, "page_size": FULL_PAGE // kind.ratio, "layout": self.pools.compressed_layout}

    def poison(self) -> None:
        """Fill buffers and workspace with NaN, so that what is read before it is written shows."""
        self.buffers.poison()
        self.kv_buffer.poison()
        if self.moe is not None:
            self.moe.poison()
        if self.tail is not None:
            self.tail.poison()

    def output(self, rows: int) -> torch.Tensor:
        """Return the residual stream [rows, hidden] after the last layer that runs over these rows."""
        return self.buffers.residual[:rows]

    def result(self, forward: Forward) -> torch.Tensor:
        """Return what the last layer made of a forward's live rows, or of its tail's where the late layers replay."""
        if self.tail is not None and forward.tail is not None:
            return self.tail.output(forward.tail.live)
        return self.output(forward.live)


_PARTS: dict[str, Callable[[Step, LayerKind, int], None]] = {
    INPUT: projections.take_in,
    PROJECT: projections.project,
    SOURCE_NORM: projections.input_norm,
    SOURCE_STEP: sources.source_step,
    COMPRESS: sources.compress,
    INDEX_QUERIES: sources.index_queries,
    TOP_K: sources.select,
    ENTER_TAIL: projections.enter_tail,
    OUTPUT: projections.output,
    **mhc.PARTS,
}
# breaks that return tensors, which a graph copies into static ones
_RETURNING: dict[str, Callable[[Step, LayerKind, int, bool], None]] = {
    SOURCE_PROJECTIONS: sources.project,
    ATTENTION: attention_core.attend,
}
