"""Arithmetic on a record's counts: sums, what was added, and how many operations a compressor launches.

A count row is a dict of `op`, `kv_source`, `where` and one number per class; None means that it was not counted there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dsv4bench.results.record import CLASSES

Row = Mapping[str, Any]
Counted = dict[str, int | None]

COMPRESSED = "dequant_compressed"
SWA = "dequant_swa"
DEVICE = ("kernels", "copies", "sets")
POOLING = ("compress_pool", "compress_c2")
# the operations of a ratio-2 source after its projection, and their launches (specification 3.6)
COMPRESSOR = (*POOLING, "latent_norm", "fake_quant", "store", "index_k_proj", "index_k_norm", "index_key", "index_pack")
SPECIFIED_TORCH = {"v41+fp4": 61, "v41": 62, "v4": 62}
SPECIFIED_FUSED = 4


def is_gemm(op: str | None) -> bool:
    """Return whether an operation is a matrix product: one operation, whatever number of kernels it takes."""
    return "_proj" in (op or "")


def add(values: Iterable[int | None]) -> int | None:
    """Return the sum, or None as soon as one value was not counted."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def sums(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], Counted]:
    """Return the sum of every class for each combination of the `keys`, in the order of first appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return {key: {name: add(row.get(name) for row in group) for name in CLASSES} for key, group in groups.items()}


def operations(op: str | None, counted: Counted) -> int | None:
    """Return the device operations of an op: kernels, copies and sets, or its calls where it is a matrix product."""
    return counted["calls"] if is_gemm(op) else add(counted[name] for name in DEVICE)


def added(before: Iterable[Row], after: Iterable[Row]) -> list[str] | None:
    """Return what `after` launches more of than `before`, a sentence each; None if the two have no class in common.

    Every (op, kv_source, where) is compared class by class: kernels, copies and sets where both counted them, else
    calls and aten operations. The compressed dequant, whose calls reuse removes, may not take more of a class per call.
    """
    old, new = (sums(rows, "op", "kv_source", "where") for rows in (before, after))
    classes = _common_classes(old, new)
    if not classes:
        return None
    nothing: Counted = dict.fromkeys(CLASSES, 0)
    found = []
    for (op, source, where), now in new.items():
        was = old.get((op, source, where), nothing)
        for name in classes:
            if _grew(op, name, was, now):
                place = where if source is None else f"kv_source {source}, {where}"
                found.append(f"{op} ({place}): {name} {was[name]} -> {now[name]}")
    return found


def operation_differences(eager: Iterable[Row], graph: Iterable[Row]) -> list[str] | None:
    """Return the ops whose device operations differ between an eager step and segments plus breaks of a graph.

    None if one of the two did not count device operations.
    """
    one, other = (
        {op: operations(op, counted) for (op,), counted in sums(rows, "op").items()} for rows in (eager, graph)
    )
    if not one or not other or None in one.values() or None in other.values():
        return None
    ops = sorted({*one, *other}, key=str)
    return [f"{op}: {one.get(op, 0)} and {other.get(op, 0)}" for op in ops if one.get(op, 0) != other.get(op, 0)]


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


def _common_classes(old: Mapping[Any, Counted], new: Mapping[Any, Counted]) -> tuple[str, ...]:
    every = [*old.values(), *new.values()]
    for names in (DEVICE, ("calls", "aten_ops"), ("calls",)):
        if old and new and all(counted[name] is not None for counted in every for name in names):
            return names
    return ()


def _grew(op: str | None, name: str, was: Counted, now: Counted) -> bool:
    old, new = was[name] or 0, now[name] or 0
    if op != COMPRESSED or name == "calls":
        return new > old
    # cross-multiplied "per call": fewer calls must not hide a copy that each of them newly makes
    old_calls, new_calls = was["calls"], now["calls"]
    if not old_calls or new_calls is None:
        return new > old
    return new * old_calls > old * new_calls
