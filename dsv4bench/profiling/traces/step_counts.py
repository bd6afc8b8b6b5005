"""What each whole step of a trace launches per operation and kv_source, as the rows that records have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dsv4bench.profiling.ledger import OUTSIDE_OPS, Where
from dsv4bench.profiling.traces.columns import KERNEL, NO_ID, Trace
from dsv4bench.profiling.traces.kernel_ops import op_of
from dsv4bench.profiling.traces.nsys_reader import FORMAT
from dsv4bench.profiling.traces.placed import Placed
from dsv4bench.profiling.traces.records import METRICS
from dsv4bench.profiling.traces.review import head
from dsv4bench.ranges import PREFIX
from dsv4bench.results.counts import DEVICE, OPERATIONS, OPERATIONS_CLASS, add, is_gemm
from dsv4bench.results.ledger_table import kernel_name
from dsv4bench.results.reviews import StepRow
from dsv4bench.results.trace_steps import TraceStep

Flags = npt.NDArray[np.bool_]
Row = dict[str, Any]
GEMM, GEMM_PART = "gemm", "gemm_part"
# how a trace was launched -> whether it is a graph cell; any other mode does not say
GRAPHS = {"eager": False, "graphs": True, "graphs, traced as wholes": True}


def count_steps(placed: Placed, steps: Sequence[StepRow], sources: bool, variant: Mapping[str, Any]) -> list[TraceStep]:
    """Return what these steps of a trace (of `placed.told`) launched, each as a cell for expectations.

    `sources` says that kv_sources are asked for, so that an operation without one has no place; `variant` are the
    switches that somebody else tells of the trace.
    """
    rows, said = _read(placed, sources), head([placed.trace])
    graph = {"graph": GRAPHS[said.graph_mode]} if said.graph_mode in GRAPHS else {}
    places = {id(step): at for at, step in enumerate(placed.told)}
    parts = [rows[rows["step"] == places[id(step)]] for step in steps]
    outside = len(rows) - sum(map(len, parts))
    return [
        TraceStep(
            source=placed.trace.source,
            rank=placed.trace.rank,
            number=step.number if placed.steps.marked else None,
            mode=said.graph_mode,
            device=" and ".join(dict.fromkeys(one.name or "a device" for one in placed.trace.devices)),
            counts=_rows(own, placed.trace),
            variant={**graph, **variant},
            unplaced=Counter(kernel_name(placed.trace.strings[code]) for code in own["name"][~own["placed"]]),
            total=len(own),
            outside=outside,
            how=placed.coverage.method,
            notes=placed.notes,
        )
        for step, own in zip(steps, parts, strict=True)
    ]


def sources_told(placed: Placed) -> bool:
    """Return whether the kv_source of any operation is known."""
    return bool((placed.rows["kv_source"] != NO_ID).any())


def _read(placed: Placed, sources: bool) -> pd.DataFrame:
    """Return the operations with `op` as a name ("" for none) and whether each is `placed`.

    What lies in a range of ours that names no operation is "other", as in a record. Elsewhere a name that is none of
    the step's operations is a kernel that serves several of them, or somebody else's word: it says not which one.
    """
    rows = placed.rows
    op = np.array([*placed.ops, ""], dtype=object)[rows["op"].to_numpy()]
    ours, known = _in_ours(placed), np.isin(op, OPERATIONS)
    op = np.where(ours & ~known, OUTSIDE_OPS, op)
    known |= ours
    if sources:
        known &= ours | placed.known("kv_source")
    return rows[["step", "kind", "name", "kv_source", "in_graph"]].assign(op=op, placed=known)


def _in_ours(placed: Placed) -> Flags:
    """Return which operations lie in a range of ours, or were captured in one."""
    used, inverse = np.unique(placed.rows["range"].to_numpy(), return_inverse=True)
    texts = [code != NO_ID and placed.trace.strings[code].startswith(PREFIX) for code in used]
    around: Flags = np.array(texts, dtype=np.bool_)[inverse]
    return around if placed.labels is None else around | placed.labels.own


def _counted(trace: Trace) -> frozenset[str]:
    """Return the classes that a trace counts: those it recorded.

    nsys collects kernels, copies and sets together and makes no table of what did not happen, so that in a file of it
    that is whole and has kernels the others are none.
    """
    told = trace.format == FORMAT and "kernels" in trace.recorded and not trace.repairs
    return frozenset(DEVICE) if told else trace.recorded


def _rows(own: pd.DataFrame, trace: Trace) -> list[Row]:
    """Return the count rows of one step; where nothing ran, one of zeros."""
    eager: Where = "break" if own["in_graph"].any() else "eager"
    kinds: dict[tuple[str, int, str], Counter[str]] = {}
    names: dict[tuple[str, int, str], Counter[str | None]] = {}
    columns = (own[name].tolist() for name in ("op", "kv_source", "in_graph", "kind", "name"))
    for op, source, in_graph, kind, name in zip(*columns, strict=True):
        key = (op, source, "segment" if in_graph else eager)
        kinds.setdefault(key, Counter())[METRICS[kind]] += 1
        if kind == KERNEL and is_gemm(op):
            names.setdefault(key, Counter())[op_of(trace.strings[name])] += 1
    keys = sorted(key for key in kinds if key[0]) or [("", NO_ID, eager)]
    return [_row(key, kinds.get(key, Counter()), names.get(key, Counter()), _counted(trace)) for key in keys]


def _row(key: tuple[str, int, str], kinds: Counter[str], names: Counter[str | None], counted: frozenset[str]) -> Row:
    """Return a count row; `names` are what the kernels of a matrix product are by their own names."""
    op, source, where = key
    numbers = {name: kinds[name] if name in counted else None for name in DEVICE}
    # a product is one operation; where a kernel is neither one nor a part of one their number is not known
    products = names[GEMM] if names[GEMM] and set(names) <= {GEMM, GEMM_PART} else None
    place = {"op": op or None, "kv_source": None if source == NO_ID else source, "where": where}
    return {**place, **numbers, OPERATIONS_CLASS: products if is_gemm(op) else add(numbers.values())}
