"""The plan of `dsv4bench ab --dry-run`: what runs, how long, and what each cell can tell from noise; all modelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsv4bench.dashboards.plan_table import BATCH, HOW_AXES, LOAD_AXES, MODE, axis_columns, shared_settings
from dsv4bench.dashboards.table import Cell, Column, Table, cell
from dsv4bench.results.compare import NOT_RESOLVABLE
from dsv4bench.units import NS_PER_US, format_count, format_in_unit, format_ns

AXES = {**BATCH, **LOAD_AXES, **MODE, **HOW_AXES}
FIGURES = {"pred": "predicted", "min": "min_effect", "tells": "resolvable"}


def ab_plan_table(planned: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> Table:
    """Return a row for each cell of both sides.

    `planned` are mappings as the plan's JSON shows them: times in ns, None where nothing is predicted, or for a cell
    that the graph refuses; an axis that the sides name is None.
    """
    first = planned[0]
    total_ns = sum(one["time_ns"] or 0 for one in planned)
    how = "in pairs of fresh processes" if first["fresh"] else "by turns in one process"
    title = (
        f"plan: {first['sides']['a'] or 'installed'} (a) against {first['sides']['b'] or 'installed'} (b),"
        f" {format_count(len(planned), 'cell')} {how}, {format_count(first['block'], 'sample')} of a side in a pair,"
        f" about {format_ns(total_ns, 2)} of running (modelled)"
    )
    columns = (
        *axis_columns(AXES, planned),
        *(Column(side, (f"{side}_step_ns",)) for side in ("a", "b")),
        Column("pairs", ("pairs",)),
        Column("time", ("time_ns",)),
        *(Column(f"{name} us", (f"{field}_ns",)) for name, field in FIGURES.items()),
        Column("", ("resolvable",)),
        Column("", ("label",)),
    )
    return Table(title, columns, tuple(map(_row, planned)), (*shared_settings(planned), *_legend(planned), *notes))


def _row(one: Mapping[str, Any]) -> tuple[Cell, ...]:
    steps = [cell(ns, "refused" if ns is None else format_ns(ns, 3)) for ns in (one["a_step_ns"], one["b_step_ns"])]
    time = cell(one["time_ns"], "" if one["time_ns"] is None else format_ns(one["time_ns"], 2))
    predicted = format_in_unit(one["predicted_ns"], NS_PER_US, signed=True)
    bounds = [cell(one[name], format_in_unit(one[name], NS_PER_US)) for name in ("min_effect_ns", "resolvable_ns")]
    mark = " ?" if one["resolvable"] is False else ""
    return (
        *(cell(one[name]) for name in AXES),
        *steps,
        cell(one["pairs"]),
        time,
        cell(one["predicted_ns"], predicted + mark),
        *bounds,
        cell(one["resolvable"], ""),
        cell(one["label"]),
    )


def _legend(planned: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the columns say."""
    lines = [
        "pred: b - a, modelled; min: the least effect that a verdict may name; tells: the least true difference that so"
        " many pairs are expected to name"
    ]
    if any(one["resolvable"] is False for one in planned):
        lines.append(f"? {NOT_RESOLVABLE}: the predicted effect is smaller than what the cell tells")
    return lines
