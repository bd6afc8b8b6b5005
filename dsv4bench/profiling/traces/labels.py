"""Where every operation of a trace belongs: layer, kv_source and operation, by the first means that tells.

1. The ranges around it, read by patterns: the innermost that tells a layer or source, and the innermost that tells an
   operation; ours say all three. In a range that is not ours a known kernel's name says the operation.
2. In replays of graphs that a record of ours has captured: the capture ledger, by node ids or order
   (`replay_match.py`).
3. Where neither tells a layer: the sequence of kernels, checked against a geometry (`infer_layers.py`) and against the
   layers that are told.

A geometry adds the kv_source and the ratio to a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dsv4bench.profiling.replay_match import Replayed, match_replay
from dsv4bench.profiling.traces.columns import NO_ID, Codes, Trace
from dsv4bench.profiling.traces.infer_layers import Inferred, infer
from dsv4bench.profiling.traces.kernel_ops import CODES, OPS, kernel_codes
from dsv4bench.profiling.traces.range_patterns import KNOWN, Patterns, Place
from dsv4bench.profiling.traces.ranges_of import BY_SEQUENCE, METHODS, Coverage, RangesOf, coverage
from dsv4bench.ranges import PREFIX
from dsv4bench.results.counts import MISNAMED
from dsv4bench.results.ledger_table import Graph
from dsv4bench.workloads.geometry import Geometry

Rows = npt.NDArray[Any]
WEAK = ("rms_norm", "rope", "gemm", "gemm_part", "store", "fake_quant", "fill")  # several operations have such kernels


@dataclass(frozen=True, slots=True)
class Labels:
    """Where each operation belongs: arrays with an entry an operation, NO_ID where it is not known.

    `op` is an index into `ops`, `method` a code of `ranges_of.METHODS`. `step` is told by a map or inferred only.
    `sourceless` says which lie in a layer that is known to read no compressed KV, `own` which a range of ours places.
    `coverage` says how many have a layer, source or operation of ours (or, where none has one, a range).
    `notes` are sentences on what had to be assumed and why layers were not inferred.
    """

    layer: Rows
    ratio: Rows
    kv_source: Rows
    sourceless: Rows
    own: Rows
    op: Rows
    step: Rows
    method: Rows
    ops: Sequence[str]
    coverage: Coverage
    notes: tuple[str, ...]

    def known(self, axis: str) -> Rows:
        """Return which operations have a place on an axis: "layer", "kv_source" or "op".

        An operation of a layer that reads no compressed KV has its place among the sources: that of none. Of a layer
        alone, without a geometry, no source is known.
        """
        if axis == "kv_source":
            return np.asarray(self.sourceless | (self.kv_source != NO_ID))
        return np.asarray((self.layer if axis == "layer" else self.op) != NO_ID)


def label(
    trace: Trace,
    found: RangesOf,
    patterns: Patterns = KNOWN,
    geometry: Geometry | None = None,
    infer_from: Geometry | None = None,
    graphs: Sequence[Graph] = (),
) -> Labels:
    """Return where the operations of a trace belong; `found` are their ranges.

    `infer_from` is the geometry to infer layers from where nothing tells them, None infers nothing; `graphs` are the
    captured graphs of a record (`read_ledger`) whose replays the trace shows.
    """
    kernels = kernel_codes(trace, patterns.op_of)
    told = _Told(trace, found, patterns)
    told.name_kernels(kernels)
    notes = found.notes + _idle_patterns(trace, patterns)
    if graphs:
        notes += told.replay(match_replay(trace, graphs))
    if infer_from is not None and len(kernels) and not told.placed.all():
        notes += told.infer(infer(trace, infer_from, kernels), infer_from)
    if geometry is not None:
        told.add_sources(geometry)
    known = told.placed if told.placed.any() else found.range != NO_ID
    return Labels(
        layer=told.layer,
        ratio=told.ratio,
        kv_source=told.kv_source,
        sourceless=told.sourceless,
        own=told.own,
        op=told.op,
        step=told.step,
        method=told.method,
        ops=tuple(told.ops.values),
        coverage=coverage(found, known, told.method, found.ambiguous),
        notes=notes,
    )


def _idle_patterns(trace: Trace, patterns: Patterns) -> tuple[str, ...]:
    """Return a note on the patterns of a file that fit nothing in the trace: a reviewer believes that they do."""
    if patterns.source is None:
        return ()
    texts, names = (_texts(trace, table, column) for table, column in (("annotations", "text"), ("operations", "name")))
    idle = [pattern.text.pattern for pattern in patterns.added if not any(map(pattern.text.search, texts))]
    idle += [pattern.pattern for pattern, _ in patterns.kernels if not any(map(pattern.search, names))]
    return tuple(f"{patterns.source}: nothing fits {pattern!r}" for pattern in idle)


def _texts(trace: Trace, table: str, column: str) -> list[str]:
    return [str(trace.strings[code]) for code in getattr(trace, table)[column].unique() if code != NO_ID]


class _Told:
    """What is known of each operation so far; at first what the ranges tell."""

    def __init__(self, trace: Trace, found: RangesOf, patterns: Patterns) -> None:
        self.ops = Codes()
        self.method = found.method.copy()
        self.in_geometry = False  # whether a geometry says which sources layers read
        texts, text_of = np.unique(trace.annotations["text"].to_numpy(), return_inverse=True)
        read = [patterns.read(str(trace.strings[code])) or Place() for code in texts]
        where = _Chain(
            found.parents, [place.layer is not None or place.kv_source is not None for place in read], text_of
        )
        what = _Chain(found.parents, [place.op is not None for place in read], text_of)
        when = _Chain(found.parents, [place.step is not None for place in read], text_of)
        self.layer = where.told([place.layer for place in read], found.range)
        self.kv_source = where.told([place.kv_source for place in read], found.range)
        self.ratio = where.told([place.ratio for place in read], found.range)
        self.op = what.told([None if place.op is None else self.ops[place.op] for place in read], found.range)
        ours = [int(str(trace.strings[code]).startswith(PREFIX)) for code in texts]
        self.own = (where.told(ours, found.range) == 1) | (what.told(ours, found.range) == 1)
        # a step is that of the launch, also of what a graph replays
        self.step = when.told([place.step for place in read], found.around)

    @property
    def placed(self) -> Rows:
        """Which operations have a place."""
        return np.asarray((self.layer != NO_ID) | (self.kv_source != NO_ID) | self.own)

    @property
    def sourceless(self) -> Rows:
        """Which operations lie in a layer that reads no source: a range of ours or a geometry says what layers read."""
        return np.asarray((self.layer != NO_ID) & (self.own | self.in_geometry) & (self.kv_source == NO_ID))

    def name_kernels(self, kernels: Rows) -> None:
        """Let a kernel's name say the operation where no range of ours does; a name of several as a last resort."""
        weak = np.isin(kernels, [CODES[op] for op in WEAK]) & (self.op != NO_ID)
        self._take_ops(kernels, OPS, (kernels != NO_ID) & ~weak & ~self.own)

    def replay(self, found: Replayed) -> tuple[str, ...]:
        """Take the places of captured nodes for what replays ran and no range tells; return what did not fit."""
        placed = self.placed
        for launch in found.launches:
            for one in launch.matched:
                row, node = one.operation.row, one.node
                if node is None or not node.placed or placed[row]:
                    continue
                self.layer[row], self.kv_source[row] = _code(node.layer), _code(node.kv_source)
                self.op[row] = NO_ID if node.op is None else self.ops[node.op]
                self.own[row], self.method[row] = True, METHODS.index(launch.method)
        wrong = [f"{MISNAMED}: {found.misnamed}"] if found.misnamed else []
        return (*(f"not matched with the capture ledger: {why}" for why in found.why), *wrong)

    def infer(self, found: Inferred | str, geometry: Geometry) -> tuple[str, ...]:
        """Take inferred layers where none are known; return the notes on why they were not inferred or not used."""
        if isinstance(found, str):
            return () if self.placed.any() else (f"layers not inferred: {found}",)
        both = (found.layer != NO_ID) & (self.layer != NO_ID)
        differ = int((found.layer[both] != self.layer[both]).sum())
        if differ:
            return (f"inferred layers not used: {differ} of {both.sum()} differ from those of the ranges",)
        fresh = (found.layer != NO_ID) & ~self.placed
        self.layer = np.where(fresh, found.layer, self.layer)
        self.step = np.where(self.step == NO_ID, found.step, self.step)
        self.method[fresh] = BY_SEQUENCE
        self._take_ops(found.op, found.ops, fresh & (found.op != NO_ID))
        self.add_sources(geometry)
        return ()

    def add_sources(self, geometry: Geometry) -> None:
        """Add kv_source and ratio where a layer is known and they are not; a layer beyond the geometry has none."""
        self.in_geometry = True
        kinds = geometry.layers
        inside = (self.layer >= 0) & (self.layer < len(kinds))
        at = np.where(inside, self.layer, NO_ID)
        sources = _picked(np.array([_code(kind.kv_source) for kind in kinds]), at)
        ratios = _picked(np.array([kind.ratio for kind in kinds]), at)
        self.kv_source = np.where(self.kv_source == NO_ID, sources, self.kv_source)
        self.ratio = np.where(self.ratio == NO_ID, ratios, self.ratio)

    def _take_ops(self, codes: Rows, names: Sequence[str], which: Rows) -> None:
        """Take the operations of these names where `which` says so."""
        used, inverse = np.unique(codes[which], return_inverse=True)
        self.op[which] = np.array([self.ops[names[code]] for code in used], dtype=np.int64)[inverse]


class _Chain:
    """Annotations that tell something, each with those around it."""

    def __init__(self, parents: Rows, tells: Sequence[bool], text_of: Rows) -> None:
        """`tells` says of each text whether it tells it, `text_of` which text an annotation has."""
        self._text_of = text_of
        told = np.array(tells, dtype=bool)[text_of] if len(text_of) else np.zeros(0, dtype=bool)
        self._first = np.where(told, np.arange(len(told)), NO_ID)
        above = parents
        while len(at := np.flatnonzero((self._first == NO_ID) & (above != NO_ID))):  # twice as far each time
            self._first[at], further = self._first[above[at]], above.copy()
            further[at] = above[above[at]]
            above = further

    def told(self, values: Sequence[int | None], rows: Rows) -> Rows:
        """Return the value of the first annotation that tells, from `rows` outwards; `values` are those of texts."""
        by_text = np.array([_code(value) for value in values], dtype=np.int64)
        return _picked(by_text, _picked(self._text_of, _picked(self._first, rows)))


def _code(value: int | None) -> int:
    return NO_ID if value is None else value


def _picked(values: Rows, rows: Rows) -> Rows:
    """Return `values[rows]`, NO_ID where a row is NO_ID."""
    return np.where(rows == NO_ID, NO_ID, values[rows]) if len(values) else np.full(len(rows), NO_ID, dtype=np.int64)
