"""Which layers of a forward attend packed caches, and which rows they run: the recipe's two switches (1.2, 6.1).

`--replay on` runs the late layers, from the last kv_source on, over each request's last 128 new tokens at most. There
the sparse path is off: window and top-k rows are decoded where attention reads them. `--path recipe` goes packed, in
layers of ratio 1 or 2, where few queries meet a long context, so that gathering all of it would cost more.
"""

from __future__ import annotations

from dsv4bench.workloads.batch import Batch
from dsv4bench.workloads.geometry import Geometry, LayerKind
from dsv4bench.workloads.variant import Variant

# the recipe goes packed with at most so many rows, and at least so many compressed rows, in all and a row (6.1)
PACKED_ROWS = 1024
PACKED_CONTEXT, PACKED_CONTEXT_PER_ROW = 32_768, 192


def early(geometry: Geometry, variant: Variant) -> tuple[LayerKind, ...]:
    """Return the layers that run over every row: all of them without a replay."""
    return geometry.layers if variant.replay == "off" else geometry.layers[: geometry.late_start]


def late(geometry: Geometry, variant: Variant) -> tuple[LayerKind, ...]:
    """Return the layers that run over the tail."""
    return geometry.layers[len(early(geometry, variant)) :]


def packed_ratios(variant: Variant, batch: Batch) -> frozenset[int]:
    """Return the ratios whose layers attend packed caches when they run over every row (specification 6.1)."""
    if variant.path == "sparse" or variant.kv.extra.encoding != "fp4" or batch.live > PACKED_ROWS:
        return frozenset()
    least = max(PACKED_CONTEXT, PACKED_CONTEXT_PER_ROW * batch.live)
    return frozenset(ratio for ratio in (1, 2) if batch.live and sum(batch.seq_lens) // ratio >= least)


def sparse_layers(geometry: Geometry, variant: Variant, batch: Batch) -> tuple[LayerKind, ...]:
    """Return the layers that gather into the workspace, in order."""
    packed = packed_ratios(variant, batch)
    return tuple(kind for kind in early(geometry, variant) if kind.ratio not in packed)
