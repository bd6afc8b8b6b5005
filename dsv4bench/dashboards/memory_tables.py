"""Tables of what comes with a step's time: host submit, memory and checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dsv4bench.dashboards.cells import (
    both_ran,
    grouped,
    heading,
    mode_notes,
    notes_of,
    records_of,
    rows_notes,
    said_of,
    section,
    settings,
    short_modes,
    sides_run,
    sides_text,
)
from dsv4bench.dashboards.table import Cell, Column, Table
from dsv4bench.dashboards.time_tables import CELL_COLUMNS, cell_cells
from dsv4bench.results.compare import Pair
from dsv4bench.results.record import Record
from dsv4bench.results.stats import median_interval
from dsv4bench.units import format_bytes, format_in_unit, time_unit

BYTES = {"peak_bytes": "peak", "workspace_bytes": "workspace", "pool_bytes": "pools"}
GRAPH = {"memory_bytes": "graph_bytes", "capture_ns": "capture_ns"}
SIDES = ("before", "after")
SUBMIT_NOTE = (
    "submit: what the host takes to enqueue a step; peak: the most in use while the cell ran;"
    " checks: byte equality or tolerance"
)


def memory_tables(compared: Sequence[Pair]) -> list[Table]:
    """Return host submit, memory and checks of every cell that ran; one table for cells with the same settings."""
    ran = [
        pair for pair in compared if any(record.samples_ns or record.checks or record.memory for record in pair.records)
    ]
    return [_memory_table(same) for same in grouped(ran, section)]


def _memory_table(same: Sequence[Pair]) -> Table:
    records = records_of(same)
    mode = short_modes(records)
    scale, unit = time_unit([time for record in records if (time := _host_submit(record)) is not None])
    columns = (
        *CELL_COLUMNS,
        Column(f"submit {unit}", _names("host_submit_ns")),
        *(Column(title, _names(name)) for name, title in BYTES.items()),
        Column("checks", _names("checks"), right=False),
        *(Column("", _names(name)) for name in GRAPH.values()),
    )
    notes = [settings(same[0].any), SUBMIT_NOTE, *said_of(records, _failed_checks)]
    notes += [*rows_notes(records), *mode_notes(records), *notes_of(records)]
    title = heading(f"Host submit, memory and checks, {sides_run(same)}", same[0].any)
    return Table(title, columns, tuple(_memory_row(pair, scale, both_ran(same), mode) for pair in same), tuple(notes))


def _names(name: str) -> tuple[str, ...]:
    return tuple(f"{name}_{side}" for side in SIDES)


def _host_submit(record: Record | None) -> float | None:
    samples = record.samples_ns.get("host_submit") if record else None
    return median_interval(samples).value if samples else None


def _memory_row(pair: Pair, scale: int, both: bool, mode: Callable[[Record], str]) -> tuple[Cell, ...]:
    sides = (pair.before, pair.after)
    submits = tuple(_host_submit(record) for record in sides)
    checks = tuple(_checks(record.checks) if record else "" for record in sides)
    graphs = [(record.graph if record else None) or {} for record in sides]
    return (
        *cell_cells(pair.any, mode),
        Cell(sides_text(both, *(format_in_unit(submit, scale, digits=3) or None for submit in submits)), submits),
        *(size_cell(both, [record.memory.get(name) if record else None for record in sides]) for name in BYTES),
        Cell(_checks([check for record in pair.records for check in record.checks]), checks),
        *(Cell("", tuple(graph.get(name) for graph in graphs)) for name in GRAPH),
    )


def size_cell(both: bool, sizes: Sequence[int | None]) -> Cell:
    """Return the bytes of both sides, of one where they are equal or only one was run."""
    words = sides_text(both, *(None if size is None else format_bytes(size) for size in sizes)).split()
    if len(words) == 5 and words[1] == words[4]:  # "1 GiB -> 2 GiB" reads as well with one unit
        del words[1]
    return Cell(" ".join(words), tuple(sizes))


def _checks(checks: Sequence[dict[str, Any]]) -> str:
    failed = sum(not check["passed"] for check in checks)
    if failed:
        return f"{failed} of {len(checks)} WRONG"
    return f"all {len(checks)} hold" if checks else ""


def _failed_checks(record: Record) -> list[str]:
    return [f"WRONG {check['name']}: {check.get('detail')}" for check in record.checks if not check["passed"]]
