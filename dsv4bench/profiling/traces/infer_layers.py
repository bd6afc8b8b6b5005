"""Layers of a trace without any range, from the sequence of kernels on a stream, checked against the geometry.

One attention kernel runs a layer. A layer begins with its input norm: the last norm but one before the window row is
stored (specification 6.1), or the norm before a source's projections where these come first, as in a replay of the late
layers. What every layer contains is compared with what the geometry says it must: which layers own a compressor, which
an indexer, where indices are combined and how many dequants there are. All attention kernels of a stream must belong
to steps of all layers in order, but for a first and a last one that the trace has cut; anything else is a refusal with
its reason. The result is inferred, never measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dsv4bench.profiling.traces.columns import COPY, NO_ID, Trace
from dsv4bench.profiling.traces.infer_ops import INFERRED_OPS, Borders, Landmarks, ops_of_layers
from dsv4bench.profiling.traces.kernel_ops import ATTENTION, CODES
from dsv4bench.profiling.traces.ranges_of import classes, graph_launch_rows
from dsv4bench.workloads.geometry import Geometry, LayerKind

Rows = npt.NDArray[Any]
_NORMS = 2  # of a layer before it stores the window row: the input's and the q's
COMPRESSORS = {1: ("compress_c1",), 2: ("compress_c2", "compress_pool")}


@dataclass(frozen=True, slots=True)
class Inferred:
    """Layer, step and operation of each operation of a trace, NO_ID where it has none; `op` is an index into `ops`."""

    layer: Rows
    step: Rows
    op: Rows
    ops: Sequence[str]


def infer(trace: Trace, geometry: Geometry, kernels: Rows) -> Inferred | str:
    """Return the layers of a trace's operations, or one sentence saying why its kernels do not tell them.

    `kernels` are what `kernel_codes` says of the trace. Streams without an attention kernel have no layers.
    """
    count = len(trace.operations)
    layer, step, op = (np.full(count, NO_ID, dtype=np.int64) for _ in range(3))
    steps = 0
    streams = list(_streams(trace, kernels))
    if not streams:
        return "no attention kernel of this model is known in it"
    copies, breakable = classes(trace) == COPY, len(graph_launch_rows(trace)) > 0
    for rows in streams:
        stream = _Stream(kernels[rows], copies[rows], geometry)
        found = stream.layers()
        if isinstance(found, str):
            return found
        layer[rows], step[rows] = found.layer, np.where(found.step == NO_ID, NO_ID, found.step + steps)
        op[rows] = ops_of_layers(found, kernels[rows], copies[rows], breakable)
        steps += int(found.step.max(initial=NO_ID)) + 1
    return Inferred(layer, step, op, INFERRED_OPS)


def _streams(trace: Trace, kernels: Rows) -> list[Rows]:
    """Return the rows of each stream that has attention kernels, in the order in which they ran."""
    keys = trace.operations[["process", "device", "stream"]]
    attends = np.isin(kernels, [CODES[op] for op in ATTENTION])
    groups = keys.groupby(["process", "device", "stream"], sort=True).indices.values()
    starts = trace.operations["start_ns"].to_numpy()
    streams = [np.asarray(rows) for rows in groups]
    return [rows[np.argsort(starts[rows], kind="stable")] for rows in streams if attends[rows].any()]


class _Stream:
    """The kernels of one stream in order."""

    def __init__(self, kernels: Rows, copies: Rows, geometry: Geometry) -> None:
        self._kernels = kernels
        self._copies = copies
        self._kinds = geometry.layers
        self._attention = self._places(*ATTENTION)

    def layers(self) -> Landmarks | str:
        """Return where the layers lie, or why they cannot be told."""
        borders = self._borders()
        if isinstance(borders, str):
            return borders
        visit = np.searchsorted(borders.begins, np.arange(len(self._kernels)), side="right") - 1
        counts = self._counts(visit, borders.stores)
        fits = np.stack([self._fits(kind, counts) for kind in self._kinds], axis=1)
        layers, steps = _aligned(fits)
        if (layers == NO_ID).any():
            return self._mismatch(fits, layers, counts)
        return self._landmarks(visit, borders, layers, steps)

    def _borders(self) -> Borders | str:
        """Return where the layer of each attention kernel lies, or what of one is missing."""
        previous = np.concatenate([[NO_ID], self._attention[:-1]])
        writers, norms = self._places("norm_rope_store"), self._places("rms_norm")
        stores = np.minimum(_next_after(writers, previous, len(self._kernels)), self._attention)
        # what the trace has of layers before the first attention is not known: only the last writer is its own
        stores[0] = max(writers[writers < self._attention[0]], default=stores[0])
        missing = stores == self._attention
        if missing[1:].any():
            return f"no writer of window rows is known before attention kernel {1 + int(np.argmax(missing[1:]))}"
        # a first layer without its writer is cut in two: nothing before its attention is known to be its own
        entries = np.where(missing, self._attention, _last_before(norms, stores, previous, _NORMS))
        sources = _next_after(self._places(*COMPRESSORS[1], *COMPRESSORS[2]), previous, len(self._kernels))
        begins = np.where(sources < entries, _last_before(norms, sources, previous, 1), entries)
        few = np.searchsorted(norms, stores) - np.searchsorted(norms, previous, side="right") < _NORMS
        few = (few & ~few[1:].all()) | (begins == sources)
        if few[1:].any():
            return f"a norm is missing before attention kernel {1 + int(np.argmax(few[1:]))}"
        return Borders(begins, entries, stores, self._attention)

    def _places(self, *ops: str) -> Rows:
        return np.flatnonzero(np.isin(self._kernels, [CODES[op] for op in ops]))

    def _counts(self, visit: Rows, stores: Rows) -> dict[str, Rows]:
        """Return how often each kind of kernel runs in each layer, up to its attention.

        "late norms" run behind the writer of window rows: those of a compressor in plain torch.
        """
        at, size = np.arange(len(visit)), len(self._attention)
        before = (visit != NO_ID) & (at <= self._attention[visit])
        late = before & (at > stores[visit]) & (self._kernels == CODES["rms_norm"])
        counts = {op: before & (self._kernels == code) for op, code in CODES.items()} | {"late norms": late}
        return {name: np.bincount(visit[which], minlength=size) for name, which in counts.items()}

    def _fits(self, kind: LayerKind, counts: dict[str, Rows]) -> Rows:
        """Return which visits contain what a layer of this kind must, and nothing that it cannot."""
        return np.asarray(np.all([right for _, right in self._checks(kind, counts)], axis=0))

    def _checks(self, kind: LayerKind, counts: dict[str, Rows]) -> list[tuple[str, Rows]]:
        """Return (what such a layer has, which visits have it)."""
        own = sum((counts[op] for op in COMPRESSORS.get(kind.ratio, ())), np.zeros_like(counts["combine"]))
        own = own + (counts["late norms"] if kind.ratio == 2 else 0)
        other = sum(counts[op] for ratio, ops in COMPRESSORS.items() if ratio != kind.ratio for op in ops)
        packed = counts["paged_attention"] > 0
        head = counts["dequant_compressed"]
        first = kind.ratio == 0 and kind.layer == next(k.layer for k in self._kinds if k.ratio == 0)
        combines = int(kind.ratio != 0 or first)
        least, most = int(kind.owns_kv), int(kind.ratio != 0)
        indexed = counts["index_query"] + counts["index_topk"] > 0
        return [
            ("one writer of window rows", counts["norm_rope_store"] == 1),
            (f"{_some(kind.owns_kv)} compressor of ratio {kind.ratio}", (own > 0) == kind.owns_kv),
            ("no compressor of another ratio", other == 0),
            (f"{_some(kind.owns_index)} indexer", indexed == kind.owns_index),
            (f"indices combined {combines} times", (counts["combine"] == combines) | packed),
            ("one dequant of the window", (counts["dequant_swa"] == 1) | packed),
            (f"{least} to {most} dequants of compressed rows", (head >= least) & (head <= most) | packed),
        ]

    def _mismatch(self, fits: Rows, layers: Rows, counts: dict[str, Rows]) -> str:
        """Return the first thing that does not fit, from the first attention kernel on that belongs to no step."""
        begin, count = int(np.argmax(layers == NO_ID)), len(self._kinds)
        visits = np.arange(begin, len(fits))
        run = {start: fits[visits, (start + visits - begin) % count] for start in range(count)}
        length = {start: len(right) if right.all() else int(np.argmin(right)) for start, right in run.items()}
        start = max(length, key=lambda one: (length[one], -one))
        visit = begin + length[start]
        if visit == len(fits):
            return (
                f"its {len(visits)} attention kernels from number {begin} on are no whole step and fit several layers"
            )
        kind = self._kinds[(start + length[start]) % count]
        wrong = next(what for what, right in self._checks(kind, counts) if not right[visit])
        return f"attention kernel {visit} of a stream should be layer {kind.layer}, which has {wrong}; this one has not"

    def _landmarks(self, visit: Rows, borders: Borders, layers: Rows, steps: Rows) -> Landmarks:
        """Return the layer and step of every kernel; behind a step only what every layer has behind its attention."""
        begins = borders.begins
        ends = np.append(begins[1:], len(visit))
        inner = layers != len(self._kinds) - 1
        inner[-1] = False
        behind = (ends - borders.attention)[inner]
        ends = np.where(inner, ends, np.minimum(ends, borders.attention + behind.min(initial=len(visit))))
        own = np.where((visit != NO_ID) & (np.arange(len(visit)) < ends[visit]), visit, NO_ID)
        # the rows of the batch are copied in before layer 0
        first = np.flatnonzero((layers == 0) & (begins > 0))
        first = first[self._copies[begins[first] - 1]]
        own[begins[first] - 1] = first
        step, layer = (np.where(own == NO_ID, NO_ID, values[own]) for values in (steps, layers))
        return Landmarks(own, layer, step, borders)


def _last_before(places: Rows, ends: Rows, starts: Rows, back: int) -> Rows:
    """Return the `back`-th of `places` before each end, a later one where that lies before the start, or the end."""
    found = ends.copy()
    at = np.searchsorted(places, ends, side="left")
    for step in range(1, back + 1):
        index = at - step
        able = index >= 0
        value = places[np.maximum(index, 0)] if len(places) else found
        better = able & (value > starts) if len(places) else np.zeros(len(ends), dtype=bool)
        found = np.where(better, value, found)
    return found


def _next_after(places: Rows, starts: Rows, none: int) -> Rows:
    """Return the first of `places` after each start, `none` where there is none."""
    padded = np.append(places, none)
    return padded[np.searchsorted(places, starts, side="right")]


def _aligned(fits: Rows) -> tuple[Rows, Rows]:
    """Return layer and step of each visit, given which layers it could be; NO_ID for one that is of no step.

    Whole steps first, then what lies before the first and behind the last of them.
    """
    visits, count = fits.shape
    layers, steps = (np.full(visits, NO_ID, dtype=np.int64) for _ in range(2))
    whole = np.ones(max(visits - count + 1, 0), dtype=bool)
    for layer in range(count if len(whole) else 0):
        whole &= fits[layer : layer + len(whole), layer]
    starts: list[int] = []
    for start in np.flatnonzero(whole).tolist():
        if not starts or start >= starts[-1] + count:
            starts.append(start)
    if not starts:
        return _cut(fits)
    # the very first layer may be cut itself, so that it need not fit
    if 0 < starts[0] < count and all(fits[at, at - starts[0]] for at in range(1, starts[0])):
        starts.insert(0, starts[0] - count)
    after = starts[-1] + count
    if 0 < visits - after < count and all(fits[at, at - after] for at in range(after, visits)):
        starts.append(after)
    for number, start in enumerate(starts):
        own = np.arange(max(start, 0), min(start + count, visits))
        layers[own], steps[own] = own - start, number
    return layers, steps


def _cut(fits: Rows) -> tuple[Rows, Rows]:
    """Return layer and step of visits that are no whole step: the one way in which they fit, else NO_ID."""
    visits, count = fits.shape
    able = [start for start in range(count) if all(fits[at, (start + at) % count] for at in range(1, visits))]
    if len(able) != 1:
        return (np.full(visits, NO_ID, dtype=np.int64),) * 2
    at = able[0] + np.arange(visits)
    return at % count, at // count


def _some(present: bool) -> str:
    return "a" if present else "no"
