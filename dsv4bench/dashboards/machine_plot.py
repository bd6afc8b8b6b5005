"""The figure of several machines: a column for each, measured ones plain and modelled ones hatched and labelled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dsv4bench.dashboards.cells import grouped
from dsv4bench.dashboards.panels import MACHINE, mode_panels
from dsv4bench.dashboards.plots import (
    AXIS_LABELS,
    FONT_POINTS,
    SIDES,
    axis_of,
    batch_axis,
    draw_intervals,
    entries_of,
    logarithmic,
    side_names,
    styled,
)
from dsv4bench.dashboards.style import LINES, MODELLED_HATCH, MUTED_COLOUR
from dsv4bench.units import in_unit, time_unit

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN_INCHES, ROW_INCHES, TITLE_INCHES = 2.8, 2.3, 1.2
LEAST_WIDTH_INCHES = 7.0
PERCENT = 100
MODELLED = "modelled, not measured"
HATCH: dict[str, Any] = {
    "facecolor": "none",
    "edgecolor": "#DDDDDD",
    "hatch": MODELLED_HATCH,
    "linewidth": 0,
    "zorder": 0,
}
CHANGE = {"color": "#000000", "markersize": 4, "linewidth": 1}
ASIDE = 1.06  # the second mode stands a little aside, so that both intervals are seen
COMMIT_CHARACTERS = 7


def machines(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the cells of each machine and state of the code, measured before modelled."""
    rows = frame.to_dict("records")
    parts = grouped(range(len(rows)), lambda at: tuple(str(rows[at].get(name)) for name in MACHINE))
    return sorted((frame.iloc[same] for same in parts), key=lambda part: bool(part["label"].iloc[0] == "modelled"))


def machines_figure(frame: pd.DataFrame, title: str) -> Figure:
    """Draw step time against batch on each machine, before and after, and the change on each; logarithmic times.

    `frame` is a comparison frame of the same settings on several machines, without cells that no side timed. A machine
    is a column, a launch mode a row; the last row is the change in percent, where both sides ran. What a machine did
    not run has no panel. Modelled panels are hatched and say so, and their points are hollow.
    """
    from matplotlib.figure import Figure

    columns, modes, across = machines(frame), mode_panels(frame), axis_of(frame.to_dict("records"))
    scale, unit = time_unit([time for side in ("before", "after") for time in frame[f"{side}_ns"].dropna()])
    both = bool(frame["difference_ns"].notna().any())
    size = (max(LEAST_WIDTH_INCHES, COLUMN_INCHES * len(columns)), TITLE_INCHES + ROW_INCHES * (len(modes) + both))
    with styled():
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(len(modes) + both, len(columns), sharex=True, sharey="row", squeeze=False)
        for column, part in zip(panels.T, columns, strict=True):
            for axes, (_, same) in zip(column, modes, strict=False):
                _draw_times(axes, part[part.index.isin(same.index)], across, scale)
            if both:
                _draw_changes(column[-1], part, _changed(modes), across)
            shown = _shown(column)
            shown[0].set_title(_machine(part), fontsize=FONT_POINTS)
            batch_axis(shown[-1], {at: str(at) for at in sorted(frame[across])}, AXIS_LABELS[across])
            shown[-1].tick_params(labelbottom=True)
            if _modelled(part):
                _hatch(shown)
        for row, (name, _) in zip(panels, modes, strict=False):
            logarithmic(_shown(row)[0])
            _label(row, f"{_short(name)}\nstep time, {unit}")
        if both:
            _label(panels[-1], "change, %")
        _legend(figure)
        figure.suptitle(title, fontsize=FONT_POINTS)
    return figure


def _shown(panels: Iterable[Axes]) -> list[Axes]:
    """Return the panels that hold points, and hide the others."""
    for axes in panels:
        axes.set_visible(bool(axes.containers))
    return [axes for axes in panels if axes.get_visible()]


def _label(row: Iterable[Axes], text: str) -> None:
    """Say at the first panel of a row what its heights are."""
    first = _shown(row)[0]
    first.set_ylabel(text)
    first.tick_params(labelleft=True)


def _changed(modes: Iterable[tuple[str, pd.DataFrame]]) -> list[tuple[str, pd.DataFrame]]:
    """Return the launch modes of which both sides ran on some machine."""
    return [(name, same) for name, same in modes if same["difference_ns"].notna().any()]


def _draw_times(axes: Axes, part: pd.DataFrame, across: str, scale: int) -> None:
    part = part.sort_values(across)
    for (side, look), name in zip(SIDES, side_names(part) if len(part) else ("", ""), strict=True):
        rows = part.dropna(subset=[f"{side}_ns"])
        bounds = [in_unit(rows[f"{side}{end}_ns"], scale) for end in ("", "_low", "_high")]
        hollow = {"markerfacecolor": "white", "linestyle": "--"} if _modelled(part) else {}
        draw_intervals(axes, list(rows[across]), bounds, label=f"{side}: {name}", linewidth=1, **(look | hollow))
    axes.grid(axis="y", alpha=0.3)


def _draw_changes(axes: Axes, part: pd.DataFrame, modes: list[tuple[str, pd.DataFrame]], across: str) -> None:
    axes.axhline(0, color=MUTED_COLOUR, linewidth=0.8)
    for place, ((_, marker, _, dash), (name, same)) in enumerate(zip(LINES, modes, strict=False)):
        rows = part[part.index.isin(same.index)].dropna(subset=["difference_ns"]).sort_values(across)
        bounds = [PERCENT * rows[f"difference{end}_ns"] / rows["before_ns"] for end in ("", "_low", "_high")]
        face = {"markerfacecolor": "white"} if _modelled(part) or marker == LINES[0][1] else {}
        look: dict[str, Any] = {**CHANGE, "marker": marker, "linestyle": dash}
        draw_intervals(
            axes, list(rows[across] * ASIDE**place), bounds, label=f"change, {_short(name)}", **(look | face)
        )
    axes.grid(axis="y", alpha=0.3)


def _short(title: str) -> str:
    """Return a launch mode, and its compressor where there are two, without what must be read with it."""
    mode, *compressor = title.partition(", compressor ")
    return "".join([mode.split(":")[0].split(" (")[0], *compressor])


def _modelled(part: pd.DataFrame) -> bool:
    return bool(len(part)) and bool(part["label"].iloc[0] == "modelled")


def _machine(part: pd.DataFrame) -> str:
    """Return the title of a column; the machine of a modelled one says that already."""
    first = part.iloc[0]
    name, label, commit = str(first["machine"]), str(first["label"]), first["commit"]
    lines = [name] if label in name else [name, label]
    return "\n".join([*lines, *([f"commit {commit[:COMMIT_CHARACTERS]}"] if isinstance(commit, str) else [])])


def _hatch(column: Any) -> None:
    """Hatch the panels of a modelled machine and write above them what they are, where it covers nothing."""
    from matplotlib.patches import Rectangle

    for axes in column:
        axes.add_patch(Rectangle((0, 0), 1, 1, transform=axes.transAxes, **HATCH))
        above = axes.get_title()
        axes.set_title("\n".join([above] * bool(above) + [MODELLED]), fontsize=FONT_POINTS)


def _legend(figure: Figure) -> None:
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        found = entries_of(axes)  # the first column of each is shown, which is measured where one is
        entries |= {label: one for label, one in found.items() if label not in entries}
    style = {"frameon": False, "fontsize": FONT_POINTS - 1, "ncols": 4}
    figure.legend([*entries.values()], [*entries], loc="outside lower center", **style)
