"""The table of a self-test of the counters: what every way of counting found, and whether they agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsv4bench.dashboards.style import yes
from dsv4bench.dashboards.table import Cell, Column, Table, cell
from dsv4bench.results.agreement import Agreement, Source, words

TITLES = {
    "layer map": "map",
    "calls": "calls",
    "calls, graph": "graph",
    "profiler, eager": "profiler",
    "capture ledger": "ledger",
    "profiler, replay": "replay",
    "Triton hook, eager": "hook",
    "Triton hook, capture": "capture",
}  # the other sources are shown where they differ, and in CSV
CALLS = "map, calls, graph: calls by the layer map, heard in an eager step, heard while it was captured"
LAUNCHES = (
    "profiler, ledger, replay: kernels/copies/sets of an eager step, captured, seen in a replay;"
    " hook, capture: launches of Triton kernels by Triton's own hook, eagerly and at capture"
)
SWITCHES = ("kv", "reuse", "compressor", "breaks", "provider")


def counter_tables(found: Sequence[Agreement]) -> list[Table]:
    """Return one table for each cell."""
    return [_table(one) for one in found]


def counters_plain(found: Sequence[Agreement]) -> list[dict[str, Any]]:
    """Return the cells as plain values: counts by source and operation, and what differs."""
    return [
        {
            **one.cell,
            "agreed": one.agreed,
            "sources": {source.name: {op: list(source.of(op)) for op in one.ops} for source in one.sources},
            "differences": _differences(one),
            "absent": list(one.absent),
        }
        for one in found
    ]


def _table(one: Agreement) -> Table:
    columns = (
        Column("op", ("op",), right=False),
        *(Column(TITLES.get(source.name, ""), (source.name,)) for source in one.sources),
        Column("agree", ("agree",), right=False),
    )
    rows = tuple(_row(one, op) for op in one.ops)
    cell_of = ", ".join(f"{name} {one.cell[name]}" for name in SWITCHES if name in one.cell)
    title = f"Counters of one step of {one.cell['geometry']}, {one.cell['rows']} rows: {cell_of}"
    found = [f"every source agrees: {yes(one.agreed, '')}", *_differences(one)]
    launches = [LAUNCHES] if len(one.sources) > 3 else []  # a CPU has calls alone
    return Table(title, columns, rows, (*found, CALLS, *launches, *one.absent))


def _row(one: Agreement, op: str) -> tuple[Cell, ...]:
    different = one.differences(op)
    return (cell(op), *(_counted(source, op) for source in one.sources), cell(not different, yes(not different, "")))


def _counted(source: Source, op: str) -> Cell:
    text = words(source.of(op))
    return cell(text)


def _differences(one: Agreement) -> list[str]:
    return [*(text for op in one.ops for text in one.differences(op)), *one.other]
