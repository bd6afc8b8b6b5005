"""Which parts of a layer are breaks in a breakable prefill graph, and what a break's output costs (specification 6.6).

`sm100`: attention cores, source projections and full top-k layers are breaks; the compressor and the index kernels lie
in segments. `hopper`: the whole source step is one break over the live rows. Upstream has one break more, Engram's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from dsv4bench.kernels.layout import HEAD_DIM, INDEX_DIM
from dsv4bench.workloads.geometry import Geometry, LayerKind
from dsv4bench.workloads.mhc import MHC_COLLAPSE, MHC_POST, MHC_PRE
from dsv4bench.workloads.variant import Variant

if TYPE_CHECKING:
    from dsv4bench.workloads.step import Step

Where = Literal["segment", "break"]
# the parts of a layer, in the order in which they run
INPUT = "input"
PROJECT = "project"
SOURCE_PROJECTIONS = "source projections"
COMPRESS = "compress"
INDEX_QUERIES = "index queries"
TOP_K = "top-k"
SOURCE_STEP = "source step"  # the four above in one
ATTENTION = "attention"
OUTPUT = "output"

BREAK_COPY = "break_copy"  # the operation
BF16_BYTES, F32_BYTES = 2, 4


@dataclass(frozen=True, slots=True)
class Form:
    """How pieces are cut: `breaks` as above, and whether breaks return tensors that are copied into static buffers."""

    breaks: Literal["sm100", "hopper"] = "sm100"
    copies: bool = False


# a break that nothing is captured around copies nothing
EAGER = Form()


def form_of(variant: Variant) -> Form:
    """Return the form of a variant's pieces; only a breakable graph has breaks, and copies of what they return."""
    return Form(variant.breaks, variant.break_outputs == "copy") if variant.breakable else EAGER


def layer_parts(kind: LayerKind, form: Form, variant: Variant) -> Iterator[tuple[str, Where]]:
    """Yield the parts of a layer in order, and whether a graph may capture each."""
    if kind.layer == 0:
        yield INPUT, "segment"
    if variant.mhc == "on":
        yield MHC_PRE if kind.layer else MHC_COLLAPSE, "segment"  # INPUT makes the first mixes
    yield PROJECT, "segment"
    yield from source_parts(kind, form)
    yield ATTENTION, "break"
    yield OUTPUT, "segment"
    if variant.mhc == "on":
        yield MHC_POST, "segment"


def source_parts(kind: LayerKind, form: Form) -> Iterator[tuple[str, Where]]:
    """Yield what a source layer adds; nothing for any other layer."""
    if not (kind.owns_kv or kind.owns_index):
        return
    if form.breaks == "hopper":
        yield SOURCE_STEP, "break"
        return
    yield SOURCE_PROJECTIONS, "break"
    if kind.owns_kv:
        yield COMPRESS, "segment"
    if kind.owns_index:
        yield INDEX_QUERIES, "segment"
        # candidate consumers score a bounded number of positions, so upstream captures them
        yield TOP_K, "segment" if kind.candidates == "consume" else "break"


def copied_row_bytes(geometry: Geometry, kind: LayerKind, variant: Variant) -> list[int]:
    """Return the bytes of a row of each tensor that a layer's breaks copy: attention, then source projections."""
    form = form_of(variant)
    if not form.copies:
        return []
    found = [geometry.heads * HEAD_DIM * BF16_BYTES]
    if form.breaks == "sm100" and kind.owns_kv:
        halves = 2 if kind.ratio == 2 and variant.compressor == "torch" else 1
        found += [HEAD_DIM * (2 * F32_BYTES if kind.ratio == 2 else BF16_BYTES) // halves] * halves
    if form.breaks == "sm100" and kind.owns_index:
        found += [geometry.index_heads * INDEX_DIM * BF16_BYTES, geometry.index_heads * BF16_BYTES]
    return found


def returned(step: Step, out: torch.Tensor, copies: bool) -> torch.Tensor:
    """Return where a break writes what is to stand in the static `out`: with copies a tensor of its own.

    That is memory of one buffer, which every break uses anew: no allocation is timed.
    """
    return step.buffers.own(out) if copies else out


def publish(step: Step, kind: LayerKind, made: torch.Tensor, out: torch.Tensor) -> None:
    """Copy what a break returned into the static `out`, unless it was written there."""
    if made is not out:
        with step.ops.within(kind, BREAK_COPY):
            out.copy_(made)
