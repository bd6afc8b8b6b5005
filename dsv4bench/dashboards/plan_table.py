"""The plan of `--dry-run` as tables: its cells, and what reuse should save of each load; every figure is modelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsv4bench.dashboards.cells import grouped
from dsv4bench.dashboards.table import Cell, Column, Table, cell, joined
from dsv4bench.results.compare import NOT_RESOLVABLE
from dsv4bench.units import NS_PER_US, format_bytes, format_in_unit, format_ns, format_percent, format_share

Planned = Mapping[str, Any]

BATCH = {"requests": "batch", "rows": "rows", "forwards": "fwd"}
# an axis is a column to be read where it varies, and is named under the table where it does not; CSV holds every one
IN_STEP = {"moe": "off", "mhc": "off", "replay": "off", "path": "sparse"}  # what it is where nobody asks
LOAD_AXES = {name: name for name in ("geometry", "extend", "prefix", "chunk", "ranks", "kv", *IN_STEP, "fault")}
HOW_AXES = {"breaks": "breaks", "break_outputs": "outputs", "compressor": "compr", "provider": "provider"}
MODE = {"mode": "mode", "reuse": "reuse"}
WORDS = ("geometry", "kv", "fault", *IN_STEP, *HOW_AXES, *MODE)
POOLS = (
    "free: before weights; slack: what weights and pools leave; memory above: what the cells use, not the whole pools"
)
# most paired differences measured on an H200 have an interval wider than this share of the step (results/)
RESOLVABLE_SHARE = 0.005


def plan_tables(planned: Sequence[Planned], notes: Sequence[str]) -> list[Table]:
    """Return the table of planned cells and that of their loads' savings.

    `planned` are mappings as the plan's JSON shows them: times in ns (None for a cell that the graph refuses), memory
    in bytes, shares of 1. The total is of the cells that run.
    """
    sized = [one for one in planned if "mem_fraction" in one]
    return [
        _cell_table(planned, notes),
        *([_saving_table(planned)] if planned else []),
        *([_pool_table(sized)] if sized else []),
    ]


def _cell_table(planned: Sequence[Planned], notes: Sequence[str]) -> Table:
    total_ns = sum(one["cell_ns"] or 0 for one in planned)
    what = f"plan: {len(planned)} cells of the {_in_step(planned)}"
    title = f"{what}, about {format_ns(total_ns, 2)} of running (modelled)"
    axes = {**BATCH, **LOAD_AXES, **MODE, **HOW_AXES}
    columns = (
        *axis_columns(axes, planned),
        Column("bucket", ("buckets",)),
        Column("pads", ("padded_rows",)),
        *(Column(name, (f"{name}_ns",)) for name in ("step", "cell")),
        Column("memory", ("memory_bytes",)),
        Column("", ("status",)),
        Column("", ("label",)),
    )
    rows = tuple((*(cell(one[name]) for name in axes), *_padding(one), *_figures(one)) for one in planned)
    return Table(title, columns, rows, (*shared_settings(planned), *notes))


def _saving_table(planned: Sequence[Planned]) -> Table:
    """Return what reuse saves of each load: how a cell is launched changes nothing about that."""
    axes = {**BATCH, **LOAD_AXES}
    columns = (
        *axis_columns(axes, planned),
        Column("rows saved", ("saved_rows",)),
        Column("bytes saved", ("saved_bytes",)),
        Column("us saved", ("saved_ns",)),
        Column("of the step", ("saved_share",)),
    )
    loads = [same[0] for same in grouped(planned, lambda one: tuple(one[name] for name in axes))]
    rows = tuple((*(cell(one[name]) for name in axes), *_savings(one)) for one in loads)
    notes = [*_stack_share(planned), "of the step: of the load's first cell above, without reuse"]
    if any(one["ranks"] > 1 for one in loads):
        notes.append("rows and bytes saved: of all ranks; us saved: of the rank that saves most")
    if any(one["saved_share"] < RESOLVABLE_SHARE for one in loads):
        notes.append(f"? {NOT_RESOLVABLE} is to be expected: under {format_percent(RESOLVABLE_SHARE)} of the step")
    return Table(f"Saving of reuse per step, {_in_step(planned)} (modelled)", columns, rows, tuple(notes))


def _in_step(planned: Sequence[Planned]) -> str:
    """Return what is in every step; what only some have more is in a note."""
    kinds = {one["in_step"].removesuffix(" only") for one in planned}
    return kinds.pop() if len(kinds) == 1 else "attention stack"


def _pool_table(planned: Sequence[Planned]) -> Table:
    """Return the pools that a fraction of memory gives, once for each geometry and KV pair."""
    axes = {"geometry": "geometry", "kv": "kv"}
    sizes = {"device_bytes": "free", "weights_bytes": "weights", "pool_bytes": "pools", "slack_bytes": "slack"}
    tokens = {"full_pool_tokens": "full tokens", "window_pool_tokens": "window tokens"}
    columns = (
        *axis_columns(axes, planned),
        *(Column(title, (name,)) for name, title in (*sizes.items(), *tokens.items())),
        *(Column("", (name,)) for name in ("mem_fraction", "recipe")),
    )
    each = [same[0] for same in grouped(planned, lambda one: tuple(one[name] for name in axes))]
    rows = tuple(
        (
            *(cell(one[name]) for name in axes),
            *(cell(one[name], format_bytes(one[name])) for name in sizes),
            *(cell(one[name]) for name in (*tokens, "mem_fraction", "recipe")),
        )
        for one in each
    )
    recipe = f", recipe {planned[0]['recipe']}" if planned[0]["recipe"] else ""
    return Table(
        f"Pools of a rank at mem-fraction {planned[0]['mem_fraction']:g}{recipe} (modelled)", columns, rows, (POOLS,)
    )


def axis_columns(axes: Mapping[str, str], planned: Sequence[Planned]) -> list[Column]:
    """Return the columns of the axes; one with a single value is only in CSV."""
    shared = _shared(planned)
    return [Column("" if name in shared else title, (name,), right=name not in WORDS) for name, title in axes.items()]


def shared_settings(planned: Sequence[Planned]) -> list[str]:
    """Return one line of what all cells share, and one of the stack's share of the FLOPs."""
    told = {name: value for name, value in _shared(planned).items() if value not in (None, IN_STEP.get(name))}
    words = [f"{name.replace('_', ' ')} {value}" for name, value in told.items()]
    return [", ".join(words), *_stack_share(planned)] if words else _stack_share(planned)


def _shared(planned: Sequence[Planned]) -> dict[str, Any]:
    """Return the axes with one value only; a cell that has none, as an eager one has no breaks, does not count."""
    values = {name: {one[name] for one in planned if one[name] is not None} for name in (*LOAD_AXES, *HOW_AXES)}
    return {name: next(iter(found), None) for name, found in values.items() if len(found) < 2}


def _stack_share(planned: Sequence[Planned]) -> list[str]:
    """Return a line for each thing that cells run: what it is, and its shares of a layer's work."""
    return [
        f"{same[0]['in_step']}: about {_about(same, 'stack_share')} of the FLOPs and"
        f" {_about(same, 'stack_bytes_share')} of the bytes of v41-flash's layers (modelled)"
        for same in grouped(planned, lambda one: one["in_step"])
    ]


def _about(planned: Sequence[Planned], name: str) -> str:
    shares = sorted(one[name] for one in planned)
    return " to ".join(dict.fromkeys(map(format_share, (shares[0], shares[-1]))))


def _padding(one: Planned) -> tuple[Cell, Cell]:
    """Return the buckets that the graph pads the forwards to, and the rows that this adds."""
    pads = one["padded_rows"] - one["rows"] if one["buckets"] else 0
    buckets = joined(one["buckets"])
    return cell(buckets), cell(one["padded_rows"], str(pads) if pads else "")


def _figures(one: Planned) -> tuple[Cell, ...]:
    step = one["status"] if one["step_ns"] is None else format_ns(one["step_ns"], 3)
    whole = "" if one["cell_ns"] is None else format_ns(one["cell_ns"], 2)
    memory = cell(one["memory_bytes"], format_bytes(one["memory_bytes"]))
    return cell(one["step_ns"], step), cell(one["cell_ns"], whole), memory, cell(one["status"]), cell(one["label"])


def _savings(one: Planned) -> tuple[Cell, ...]:
    mark = " ?" if one["saved_share"] < RESOLVABLE_SHARE else ""
    return (
        cell(one["saved_rows"]),
        cell(one["saved_bytes"], format_bytes(one["saved_bytes"])),
        cell(one["saved_ns"], format_in_unit(one["saved_ns"], NS_PER_US)),
        cell(one["saved_share"], format_percent(one["saved_share"]) + mark),
    )
