"""The operations of layers that were found from kernels: by name, and where a kernel serves several by its place.

A place is a stretch of the layer (specification 6.1) and the number of such kernels in it: of two GEMMs before the
window row is stored the first is the q_a and kv projection and the second the q projection. Where there is another
number of them than a layer has, they have no name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dsv4bench.profiling.traces.columns import NO_ID
from dsv4bench.profiling.traces.kernel_ops import CODES, OPS

Rows = npt.NDArray[Any]
# a source's work before its layer begins (replay of the late layers), up to the writer of window rows, up to the
# attention, and behind it
AHEAD, ENTRY, MIDDLE, EXIT = range(4)
_SOURCE = ("compress_proj", "index_q_proj", "index_weights_proj", "index_k_proj")
BY_ORDER: Mapping[tuple[int, str], tuple[tuple[str, ...], ...]] = {
    (AHEAD, "rms_norm"): (("input_norm",),),
    (AHEAD, "gemm"): (("compress_proj", "index_k_proj"),),
    (ENTRY, "rms_norm"): (("input_norm", "q_norm"),),
    (ENTRY, "gemm"): (("qkv_proj", "q_proj"),),
    (ENTRY, "rope"): (("q_rope",),),
    (MIDDLE, "rms_norm"): (("latent_norm", "index_k_norm"),),
    (MIDDLE, "gemm"): (("index_q_proj", "index_weights_proj"), _SOURCE, ("compress_proj", *_SOURCE)),
    (EXIT, "rope"): (("inverse_rope",),),
    (EXIT, "gemm"): (("o_proj_a", "o_proj_b"),),
}
_BY_PLACE = ("rms_norm", "gemm", "rope")
_NAMED = dict.fromkeys(name for choices in BY_ORDER.values() for names in choices for name in names)
INFERRED_OPS = (*OPS, *_NAMED, "break_copy", "zero_padding", "load_input")
_OF = {op: code for code, op in enumerate(INFERRED_OPS)}


@dataclass(frozen=True, slots=True)
class Borders:
    """Where each visit of a layer begins, and its entry (behind what runs ahead), window row's writer and attention."""

    begins: Rows
    entries: Rows
    stores: Rows
    attention: Rows


@dataclass(frozen=True, slots=True)
class Landmarks:
    """The visit of a layer, the layer and the step of each kernel of a stream, NO_ID outside; where the visits lie."""

    visit: Rows
    layer: Rows
    step: Rows
    borders: Borders


def ops_of_layers(found: Landmarks, kernels: Rows, copies: Rows, breakable: bool) -> Rows:
    """Return the index in `INFERRED_OPS` of every kernel of the stream, NO_ID for one that is not known.

    `breakable`: the trace has graphs, so that breaks may copy what they return.
    """
    at, borders = np.arange(len(kernels)), found.borders
    inside = found.visit != NO_ID
    stretch = np.zeros(len(kernels), dtype=np.int64)
    for border in (borders.entries, borders.stores, borders.attention):
        stretch += at >= border[found.visit]
    op = np.where(np.isin(kernels, [CODES[name] for name in (*_BY_PLACE, "gemm_part", "fill")]), NO_ID, kernels)
    visits = pd.Series(found.visit)
    for (wanted, kernel), choices in BY_ORDER.items():
        rows = np.flatnonzero(inside & (stretch == wanted) & (kernels == CODES[kernel]))
        groups = visits.iloc[rows].groupby(visits.iloc[rows])
        nth, size = groups.cumcount().to_numpy(), groups.transform("size").to_numpy()
        for names in choices:
            fits = size == len(names)
            op[rows[fits]] = np.array([_OF[name] for name in names])[nth[fits]]
    _after_their_like(op, kernels)
    _index_queries(op, found)
    if breakable:
        _returned(op, kernels, copies, found, stretch)
    copied_in = inside & copies & (at < borders.begins[found.visit])
    op[copied_in] = _OF["load_input"]
    _pools(op, kernels, found, stretch)
    return np.where(inside, op, NO_ID)


def _after_their_like(op: Rows, kernels: Rows) -> None:
    """Name what goes with the kernel before it: the sum of a split GEMM, the store of packed keys."""
    following, before = np.arange(1, len(op)), np.arange(len(op) - 1)
    gemms = np.isin(kernels[before], [CODES["gemm"], CODES["gemm_part"]])
    parts = following[gemms & (kernels[following] == CODES["gemm_part"])]
    op[parts] = op[parts - 1]
    packs = (kernels[following] == CODES["store"]) & (kernels[before] == CODES["index_pack"])
    op[following[packs]] = _OF["index_pack"]


def _index_queries(op: Rows, found: Landmarks) -> None:
    """Name the fake quant that is a layer's index query: the last one before the logits, where no other kernel is."""
    visits = np.arange(len(found.borders.begins))
    logits = np.flatnonzero((op == _OF["index_logits"]) & (found.visit != NO_ID))
    first = np.full(len(visits), NO_ID)
    first[found.visit[logits][::-1]] = logits[::-1]
    first[found.visit[(op == _OF["index_query"]) & (found.visit != NO_ID)]] = NO_ID
    quants = np.flatnonzero((op == _OF["fake_quant"]) & (found.visit != NO_ID))
    quants = quants[quants < first[found.visit[quants]]]
    last = np.full(len(visits), NO_ID)
    last[found.visit[quants]] = quants
    op[last[last != NO_ID]] = _OF["index_query"]


def _returned(op: Rows, kernels: Rows, copies: Rows, found: Landmarks, stretch: Rows) -> None:
    """Name what a break does with what it returns: a copy into the static buffer, and zeros in the rows of padding.

    Projections are all copied or none is, so that a copy behind the last of them alone is another operation's. Of the
    copies behind an attention the last is the break's; what is before it the attention's provider makes.
    """
    following, before = np.arange(1, len(op)), np.arange(len(op) - 1)
    behind_gemm = copies[following] & np.isin(kernels[before], [CODES["gemm"], CODES["gemm_part"]])
    first = (stretch[before] == MIDDLE) & (op[before] == _OF["compress_proj"])
    first |= (stretch[before] == MIDDLE) & (op[before] == _OF["index_q_proj"])
    copied = np.zeros(len(found.borders.begins), dtype=bool)
    copied[found.visit[before[first & behind_gemm]]] = True
    attention = np.isin(kernels, [CODES[name] for name in ("sparse_attention", "paged_attention")])
    behind = attention[np.maximum.accumulate(np.where(copies, 0, np.arange(len(op))))]  # what ran before the copies
    last = copies & ~np.append(copies[1:], False)
    op[behind & last] = _OF["break_copy"]
    op[following[behind_gemm & copied[found.visit[before]]]] = _OF["break_copy"]
    fills = kernels[following] == CODES["fill"]
    op[following[fills & (attention[before] | (op[before] == _OF["break_copy"]))]] = _OF["zero_padding"]


def _pools(op: Rows, kernels: Rows, found: Landmarks, stretch: Rows) -> None:
    """Name what a compressor in plain torch runs before its first norm: many kernels of names that say nothing."""
    norms = np.flatnonzero((stretch == MIDDLE) & (kernels == CODES["rms_norm"]) & (found.visit != NO_ID))
    first = np.full(len(found.borders.begins), NO_ID)
    first[found.visit[norms][::-1]] = norms[::-1]
    last_gemm = np.full(len(found.borders.begins), len(op))
    gemms = np.flatnonzero((stretch == MIDDLE) & (op == _OF["index_weights_proj"]))
    last_gemm[found.visit[gemms]] = gemms
    at = np.arange(len(op))
    between = (at > last_gemm[found.visit]) & (at < first[found.visit]) & (found.visit != NO_ID)
    op[between & (op == NO_ID)] = _OF["compress_pool"]
