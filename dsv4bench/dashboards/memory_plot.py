"""The figure of memory: the most in use and the workspace, a bar for each batch and side, a column for each mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsv4bench.dashboards.cells import batch_text, records_of
from dsv4bench.dashboards.memory_tables import BYTES
from dsv4bench.dashboards.panels import launch_panels
from dsv4bench.dashboards.plots import FONT_POINTS, PANEL_INCHES, styled, titled
from dsv4bench.dashboards.style import AFTER_COLOUR, BEFORE_COLOUR, SIDE_HATCH
from dsv4bench.results.compare import Pair
from dsv4bench.results.record import Record
from dsv4bench.units import GIB, MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DRAWN = ("peak_bytes", "workspace_bytes")
LOOKS: tuple[dict[str, Any], ...] = (
    {"color": BEFORE_COLOUR, "hatch": SIDE_HATCH},
    {"color": AFTER_COLOUR, "hatch": ""},
)
ROW_INCHES, TITLE_INCHES = 2.3, 0.9
BAR = 0.38  # of the distance between two batches


def with_memory(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs of which some memory is known."""
    return [pair for pair in pairs if any(_size(record, name) for record in pair.records for name in DRAWN)]


def memory_figure(pairs: Sequence[Pair], sides: tuple[str, str], *without: str) -> Figure:
    """Draw peak and workspace of every batch, before and after; what no cell knows has no row.

    `pairs` are cells of the same settings with some memory known, `sides` what before and after are. `without`:
    settings of the sides.
    """
    from matplotlib.figure import Figure

    records, columns = records_of(pairs), launch_panels(pairs)
    names = [name for name in DRAWN if any(_size(record, name) for record in records)]
    size = (max(2, len(columns)) * PANEL_INCHES, TITLE_INCHES + ROW_INCHES * len(names))
    with styled():
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(len(names), len(columns), sharex="col", sharey="row", squeeze=False)
        for row, name in zip(panels, names, strict=True):
            scale, unit = (GIB, "GiB") if max(_size(one, name) for one in records) >= GIB else (MIB, "MiB")
            for axes, (_, same) in zip(row, columns, strict=True):
                _draw(axes, same, name, sides, scale)
            row[0].set_ylabel(f"{BYTES[name]}, {unit}")
        for axes, (title, same) in zip(panels[0], columns, strict=True):
            axes.set_title(title, fontsize=FONT_POINTS)
            axes.set_xticks(range(len(same)), [batch_text(pair.any) for pair in same])
        for axes in panels[-1]:
            axes.set_xlabel("batch: requests x new tokens of each")
            axes.tick_params(axis="x", labelrotation=30)
        figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
        figure.suptitle(titled("Memory", records, *without), fontsize=FONT_POINTS)
    return figure


def _size(record: Record | None, name: str) -> int:
    return int((record.memory.get(name) if record else None) or 0)


def _draw(axes: Axes, pairs: Sequence[Pair], name: str, sides: tuple[str, str], scale: int) -> None:
    ran = [any(getattr(pair, side) for pair in pairs) for side in ("before", "after")]
    for place, (side, look, there) in enumerate(zip(sides, LOOKS, ran, strict=True)):
        aside = (place - 0.5) * BAR if all(ran) else 0
        heights = [_size((pair.before, pair.after)[place], name) / scale for pair in pairs]
        if there:
            places = [at + aside for at in range(len(pairs))]
            axes.bar(places, heights, width=BAR, label=side, edgecolor="white", linewidth=0.5, **look)
    axes.set_axisbelow(True)
    axes.grid(axis="y", alpha=0.3)
