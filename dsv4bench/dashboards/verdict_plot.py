"""The figure of verdicts: the change of every cell with its interval, over what noise alone does on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dsv4bench.dashboards.panels import mode_panels
from dsv4bench.dashboards.plots import (
    AXIS_LABELS,
    FONT_POINTS,
    PANEL_INCHES,
    axis_of,
    batch_axis,
    draw_intervals,
    draw_lost,
    entries_of,
    side_names,
    styled,
)
from dsv4bench.dashboards.style import AFTER_COLOUR, BEFORE_COLOUR, MUTED_COLOUR, PREDICTED_COLOUR

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PERCENT = 100
HEIGHT_INCHES = 4.4
# a triangle points to where the time went, a hollow mark decides nothing
WORDS: dict[str, dict[str, Any]] = {
    "FASTER": {"marker": "v", "color": AFTER_COLOUR},
    "SLOWER": {"marker": "^", "color": BEFORE_COLOUR},
    "SAME": {"marker": "s", "color": "#000000"},
    "INCONCLUSIVE": {"marker": "o", "color": MUTED_COLOUR, "markerfacecolor": "white"},
}
FLOOR = "A/A: the same on both sides"
FLOOR_LOOK: dict[str, Any] = {"color": "#DDDDDD", "linewidth": 0, "zorder": 0}
# an A/A trial and a trial of the same cell share these
CELL = ("label", "machine", "geometry", "kv", "prefix", "source", "mode", "breaks", "requests", "extend")


def speed_up_figure(frame: pd.DataFrame, floors: pd.DataFrame, title: str) -> Figure:
    """Draw the change of step time against batch with its interval and verdict, a column for each launch mode.

    `frame` is one section of a verdict frame, `floors` the verdict frame of A/A trials: the interval of each, made to
    hold 0, is a grey band behind the same cell. Dotted lines are the least effect that a verdict may name; a dash is
    the predicted change.
    """
    from matplotlib.figure import Figure

    parts, across = mode_panels(frame), axis_of(frame.to_dict("records"))
    with styled():
        size = (max(2, len(parts)) * PANEL_INCHES, HEIGHT_INCHES)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(parts), sharey=True, squeeze=False)[0]
        for axes, (name, part) in zip(panels, parts, strict=True):
            _draw(axes, part.sort_values(across), floors, across)
            axes.set_title(name, fontsize=FONT_POINTS)
            batch_axis(axes, {place: str(place) for place in sorted(frame[across])}, AXIS_LABELS[across])
        a, b = side_names(frame)
        panels[0].set_ylabel(f"change of step time, % (below 0: {b} is faster)" if a != b else "change of step time, %")
        entries = {label: one for axes in panels for label, one in entries_of(axes).items()}
        style = {"frameon": False, "fontsize": FONT_POINTS - 1, "ncols": 4}
        figure.legend([*entries.values()], [*entries], loc="outside lower center", **style)
        figure.suptitle(title, fontsize=FONT_POINTS)
    return figure


def _draw(axes: Axes, part: pd.DataFrame, floors: pd.DataFrame, across: str) -> None:
    axes.axhline(0, color=MUTED_COLOUR, linewidth=0.8)
    _draw_floor(axes, part, floors, across)
    for word, look in WORDS.items():
        rows = part[part["verdict"] == word]
        bounds = [PERCENT * rows[name].to_numpy(float) for name in ("change", "change_low", "change_high")]
        draw_intervals(axes, list(rows[across]), bounds, linestyle="none", markersize=6, label=word, **look)
    judged = part.dropna(subset=["change"])
    for sign, side in ((1, "least effect named"), (-1, "_")):
        least = sign * PERCENT * judged["least"]
        axes.plot(judged[across], least, ":", color="#000000", linewidth=1, label=side)
    guess = judged.dropna(subset=["predicted_ns"])
    if len(guess):
        heights = PERCENT * guess["predicted_ns"] / guess["before_ns"]
        axes.plot(guess[across], heights, "_", markersize=14, color=PREDICTED_COLOUR, label="predicted (modelled)")
    lost = part[part["change"].isna()]
    draw_lost(axes, list(lost[across]), [*lost["before_status"].dropna(), *lost["after_status"].dropna()])
    axes.grid(axis="y", alpha=0.3)


def _draw_floor(axes: Axes, part: pd.DataFrame, floors: pd.DataFrame, across: str) -> None:
    """Draw the A/A interval of every cell that has one as a band half way to the next doubling on either side."""
    if floors.empty:
        return
    wanted = {_cell(row) for row in part.to_dict("records")}
    same = [row for row in floors.dropna(subset=["change"]).to_dict("records") if _cell(row) in wanted]
    for place, row in enumerate(same):
        at = row[across] * np.array([2**-0.5, 2**0.5])
        low, high = (PERCENT * bound for bound in (min(0, row["change_low"]), max(0, row["change_high"])))
        axes.fill_between(at, low, high, label=FLOOR if place == 0 else "_", **FLOOR_LOOK)


def _cell(row: dict[Any, Any]) -> tuple[str, ...]:
    return tuple(str(row.get(name)) for name in CELL)
