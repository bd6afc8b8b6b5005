"""The plan of `--dry-run` as a table: every figure in it is modelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsv4bench.dashboards.table import Cell, Column, Table, cell
from dsv4bench.units import format_bytes, format_ns

COLUMNS = (
    Column("batch", ("requests",)),
    Column("rows", ("rows",)),
    Column("fwd", ("forwards",)),
    Column("prefix", ("prefix",)),
    Column("mode", ("mode",), right=False),
    Column("reuse", ("reuse",), right=False),
    Column("kv", ("kv",), right=False),
    Column("compr", ("compressor",), right=False),
    Column("step", ("step_ns",)),
    Column("cell", ("cell_ns",)),
    Column("memory", ("memory_bytes",)),
)


def plan_table(planned: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> Table:
    """Return the table of planned cells: mappings with the names of `COLUMNS`, times in ns and memory in bytes."""
    total_ns = sum(one["cell_ns"] for one in planned)
    title = f"plan: {len(planned)} cells, about {format_ns(total_ns, 2)} of running (modelled)"
    return Table(title, COLUMNS, tuple(_row(one) for one in planned), tuple(notes))


def _row(one: Mapping[str, Any]) -> tuple[Cell, ...]:
    texts = {
        "step_ns": format_ns(one["step_ns"], 3),
        "cell_ns": format_ns(one["cell_ns"], 2),
        "memory_bytes": format_bytes(one["memory_bytes"]),
    }
    names = [name for column in COLUMNS for name in column.names]
    return tuple(cell(one[name], texts.get(name)) for name in names)
