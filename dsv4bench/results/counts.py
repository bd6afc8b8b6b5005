"""Arithmetic on a record's counts: sums, what was added, and how many operations a compressor launches.

A count row is a dict of `op`, `kv_source`, `where` and one number per class; None means that it was not counted there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dsv4bench.results.record import CLASSES

Row = Mapping[str, Any]
Counted = dict[str, int | None]
Sides = tuple[int | None, int | None]

COMPRESSED = "dequant_compressed"
SWA = "dequant_swa"
BREAK_COPY = "break_copy"
DEVICE = ("kernels", "copies", "sets")
MISNAMED = "copies and fills under each other's name in the trace, told by their place in the graph"
POOLING = ("compress_pool", "compress_c2")
# the operations of a ratio-2 source after its projection, and their launches (specification 3.6)
COMPRESSOR = (*POOLING, "latent_norm", "fake_quant", "store", "index_k_proj", "index_k_norm", "index_key", "index_pack")
# every operation that a step has; "other" is what lies in a range of ours that names none
OPERATIONS = (
    *("input_norm", "qkv_proj", "q_norm", "q_proj", "q_rope", "norm_rope_store", "load_input", "zero_padding"),
    *("compress_proj", "index_q_proj", "index_weights_proj", "compress_c1", *COMPRESSOR),
    *("index_query", "index_logits", "index_topk", "index_candidates"),
    *("combine", COMPRESSED, SWA, "sparse_attention", "window_slots", "compressed_slots", "paged_attention"),
    *("mhc_enter", "mhc_pre", "mhc_stats", "mhc_mix", "mhc_post"),
    *("moe_norm", "moe_gather", "moe_router_proj", "moe_route", "moe_experts", "moe_return", "moe_add"),
    *("moe_shared_proj", "enter_tail", "inverse_rope", "o_proj_a", "o_proj_b", "break_copy", "other"),
)
OPERATIONS_CLASS = "operations"
COUNTED = (*CLASSES, OPERATIONS_CLASS)  # what can be expected of rows: their classes, and device operations together
SPECIFIED_TORCH = {"v41+fp4": 61, "v41": 62, "v4": 62, "v41_new+fp4_new": 61, "v41_new": 62, "uniform": 62}
SPECIFIED_FUSED = 4


def is_gemm(op: str | None) -> bool:
    """Return whether an operation is a matrix product: one operation, whatever number of kernels it takes."""
    return "_proj" in (op or "")


def add(values: Iterable[int | None]) -> int | None:
    """Return the sum, or None as soon as one value was not counted."""
    known = list(values)
    return None if None in known else sum(filter(None, known))


def sums(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], Counted]:
    """Return the sum of every class for each combination of the `keys`, in the order of first appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return {key: {name: add(row.get(name) for row in group) for name in CLASSES} for key, group in groups.items()}


def side_by_side(before: Sequence[Row], after: Sequence[Row], *keys: str) -> dict[tuple[Any, ...], dict[str, Sides]]:
    """Return (before, after) of every class for each combination of the `keys`.

    A side without rows was not run: None. A side that counted a class but has no row for a combination launched 0.
    """
    sides = [sums(rows, *keys) for rows in (before, after)]
    every = dict.fromkeys(key for side in sides for key in side)
    return {key: {name: (_of(sides[0], key, name), _of(sides[1], key, name)) for name in CLASSES} for key in every}


def added(before: Sequence[Row], after: Sequence[Row]) -> list[str] | None:
    """Return what `after` launches more of than `before`, a sentence each; None if the two have no class in common.

    Every (op, kv_source, where) is compared class by class: kernels, copies and sets where both counted them, else
    calls and aten operations. The compressed dequant, whose calls reuse removes, may not take more of a class per call.
    """
    changes = side_by_side(before, after, "op", "kv_source", "where")
    classes = _compared_classes(changes.values())
    grown = [
        (key, name, *change[name]) for key, change in changes.items() for name in classes if _grew(key[0], name, change)
    ]
    return [f"{_place(*key)}: {name} {old} -> {new}" for key, name, old, new in grown] if classes else None


def incomplete(coverage: Mapping[str, Any] | None) -> bool:
    """Return whether something that ran found no range, or two counts of one step disagree."""
    return any((coverage or {}).get(name) for name in ("unattributed", "ambiguous", "lost", "disagreement"))


def operations(op: str | None, counted: Counted) -> int | None:
    """Return the device operations of an op: kernels, copies and sets, or its calls where it is a matrix product."""
    return counted["calls"] if is_gemm(op) else add(counted[name] for name in DEVICE)


def compressor_sources(rows: Iterable[Row]) -> dict[int, Counted]:
    """Return the counts of each ratio-2 source's compressor, the projection apart, with its device `operations`."""
    rows = [row for row in rows if row.get("op") in COMPRESSOR]
    pooled = {row.get("kv_source") for row in rows if row.get("op") in POOLING}
    found: dict[int, Counted] = {}
    for source in sorted(source for source in pooled if source is not None):
        ops = sums((row for row in rows if row.get("kv_source") == source), "op")
        total = {name: add(counted[name] for counted in ops.values()) for name in CLASSES}
        found[source] = {**total, "operations": add(operations(op, counted) for (op,), counted in ops.items())}
    return found


def _place(op: str | None, source: int | None, where: str) -> str:
    return f"{op} ({where})" if source is None else f"{op} (kv_source {source}, {where})"


def _of(side: Mapping[tuple[Any, ...], Counted], key: tuple[Any, ...], name: str) -> int | None:
    if key in side:
        return side[key][name]
    return 0 if side and all(counted[name] is not None for counted in side.values()) else None


def _compared_classes(changes: Iterable[Mapping[str, Sides]]) -> tuple[str, ...]:
    changes = list(changes)
    for names in (DEVICE, ("calls", "aten_ops"), ("calls",)):
        if changes and all(None not in change[name] for change in changes for name in names):
            return names
    return ()


def _grew(op: str | None, name: str, change: Mapping[str, Sides]) -> bool:
    old, new = (side or 0 for side in change[name])
    old_calls, new_calls = change["calls"]
    if new > old or op != COMPRESSED or old_calls is None or new_calls is None:
        return new > old
    # cross-multiplied "per call": fewer calls must not hide a copy that each of them newly makes
    return new * old_calls > old * new_calls
