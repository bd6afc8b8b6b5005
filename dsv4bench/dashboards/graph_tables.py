"""The table of a graph's form: its segments and breaks, what is launched in the breaks, and what a capture takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dsv4bench.dashboards.cells import (
    batch_text,
    both_ran,
    grouped,
    heading,
    mode_notes,
    mode_text,
    notes_of,
    records_of,
    said_of,
    section,
    settings,
    short_modes,
    sides_run,
    sides_text,
)
from dsv4bench.dashboards.table import Cell, Column, Table, cell
from dsv4bench.results.compare import Pair
from dsv4bench.results.counts import BREAK_COPY, DEVICE, add
from dsv4bench.results.record import Record
from dsv4bench.units import format_bytes, format_ns

Graph = Mapping[str, Any]

SIDES = ("before", "after")
FORMS = {
    "sm100": "attention cores, source projections and full top-k layers",
    "hopper": "attention cores and whole source steps",
}
HOW_COUNTED = "launches (without a GPU: calls) in the breaks of the forward that was counted"
HOW_MADE = f"graphs: captured segments, one launch each; in breaks: {HOW_COUNTED}"
COPIED = "copied: what breaks return, into static buffers, for a full bucket (modelled)"
OF_BOTH = "; capture, memory: with reuse on"
LEFT_OUT = "upstream has one break more, Engram's, which is left out"


def graph_tables(compared: Sequence[Pair]) -> list[Table]:
    """Return how the graphs of all cells are made, a row for each bucket; nothing where none was captured."""
    captured = [pair for pair in compared if any(record.graph for record in pair.records)]
    return [_graph_table(same) for same in grouped(captured, section)]


def _graph_table(same: Sequence[Pair]) -> Table:
    columns = (
        Column("batch", ("requests", "extend")),
        Column("mode", ("mode",), right=False),
        *(Column(name, (name,)) for name in ("bucket", "graphs", "breaks")),
        Column("in breaks", (*_names("break_launches"), *_names("break_calls"))),
        Column("", _names("break_copies")),
        Column("copied", ("copied_bytes",)),
        Column("capture", _names("capture_ns")),
        Column("memory", _names("memory_bytes")),
    )
    records = records_of(same)
    mode = short_modes(records)
    rows = tuple(_graph_row(pair, bucket, both_ran(same), mode) for pair in same for bucket in _buckets(pair))
    general = (HOW_MADE, COPIED + (OF_BOTH if both_ran(same) else ""), LEFT_OUT)
    notes = (
        settings(same[0].any),
        *general,
        *mode_notes(records_of(same)),
        *said_of(records_of(same), _form),
        *notes_of(records_of(same)),
    )
    return Table(heading(f"Graph form, {sides_run(same)}", same[0].any), columns, rows, notes)


def _names(name: str) -> tuple[str, ...]:
    return tuple(f"{name}_{side}" for side in SIDES)


def _graphs(record: Record | None) -> dict[int | None, Graph]:
    """Return a record's graphs by bucket, in the order of their capture; an older record holds only their sum."""
    graph = (record.graph if record else None) or {}
    each = graph.get("each") or ([graph] if graph else [])
    return {one.get("bucket"): one for one in each}


def _buckets(pair: Pair) -> list[int | None]:
    return list(dict.fromkeys(bucket for record in pair.records for bucket in _graphs(record)))


def _graph_row(pair: Pair, bucket: int | None, both: bool, mode: Callable[[Record], str]) -> tuple[Cell, ...]:
    sides = (pair.before, pair.after)
    graphs = [_graphs(record).get(bucket) or {} for record in sides]
    one, batch = graphs[1] or graphs[0], pair.any.batch
    counted = [record if record and next(iter(_graphs(record)), None) == bucket else None for record in sides]
    launches, calls = ([_in_breaks(record, classes) for record in counted] for classes in (DEVICE, ("calls",)))
    copies = [_in_breaks(record, ("calls",), BREAK_COPY) for record in counted]
    copied = one.get("copied_bytes")
    return (
        Cell(batch_text(pair.any), (batch.get("requests"), batch.get("extend"))),
        cell(mode_text(pair.any), mode(pair.any)),
        *(cell(one.get(name)) for name in ("bucket", "segments", "breaks")),
        Cell(sides_text(both, *launches) or sides_text(both, *calls), (*launches, *calls)),
        Cell("", tuple(copies)),
        cell(copied, format_bytes(copied) if copied else ""),
        *(
            Cell(written(one.get(name)), tuple(graph.get(name) for graph in graphs))
            for name, written in (("capture_ns", _time), ("memory_bytes", format_bytes))
        ),
    )


def _time(ns: float | None) -> str:
    return format_ns(ns, 3)


def _in_breaks(record: Record | None, classes: Sequence[str], op: str | None = None) -> int | None:
    """Return how many of some classes were counted in the breaks of a record, of one operation or of all."""
    if record is None or not record.counts:
        return None
    rows = [row for row in record.counts if row["where"] == "break" and op in (None, row["op"])]
    return add(row.get(name) for row in rows for name in classes)


def _form(record: Record) -> list[str]:
    breaks, copies = record.variant.get("breaks"), _in_breaks(record, ("calls",), BREAK_COPY)
    return [f"breaks {breaks}: {FORMS[breaks]}, {copies or 0} copies"] if breaks in FORMS else []
