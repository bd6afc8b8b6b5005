"""Figures of a comparison frame; each is one function from frame to figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from dsv4bench.dashboards.cells import IN_STEP, batch_text, heading, in_step, provenance, settings
from dsv4bench.dashboards.panels import mode_panels, sections
from dsv4bench.dashboards.style import AFTER_COLOUR, BEFORE_COLOUR, MUTED_COLOUR, PREDICTED_COLOUR
from dsv4bench.results.compare import NOT_RESOLVABLE
from dsv4bench.results.record import Record
from dsv4bench.results.stats import Interval
from dsv4bench.units import NS_PER_US, in_unit, time_unit

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# the mark of before is a ring that stays visible around the mark of after
SIDES = (
    ("before", {"color": BEFORE_COLOUR, "marker": "o", "markerfacecolor": "white", "markersize": 8}),
    ("after", {"color": AFTER_COLOUR, "marker": "s", "markersize": 4}),
)
REUSE = ("reuse off", "reuse on")
AXIS_LABELS = {"requests": "requests in the batch", "rows": "rows in the batch"}
PANEL_INCHES = 4.2
HEIGHT_INCHES = 5.4
FONT_POINTS = 9
MARGIN = 1.4
ROOM = 1.04
TITLE_CHARACTERS = 120
# what a title says of ranks where it is something else
USUAL = {"dep-simulated": 1, "dep": None, "align": None}


def step_time_figure(frame: pd.DataFrame, title: str = "") -> Figure:
    """Draw step time against batch, before and after, with intervals; below it their difference and the predicted one.

    `frame` is one section of a comparison frame or a verdict frame (ValueError for several). Each launch mode has a
    column of panels, with each compressor where there are two. A cell without a time is a cross on the axis, with its
    status. `title` takes the place of the settings of reuse off and on.
    """
    from matplotlib.figure import Figure

    if len(sections(frame)) != 1:
        raise ValueError("the frame holds no cells, or cells of several settings: draw its sections one by one")
    parts, across = mode_panels(frame), axis_of(frame.to_dict("records"))
    highest = [value for side in ("before", "after") for value in frame[f"{side}_high_ns"].dropna()]
    scale, unit = time_unit(highest)
    with styled():
        figure = Figure(figsize=(max(2, len(parts)) * PANEL_INCHES, HEIGHT_INCHES), layout="constrained")
        panels = figure.subplots(2, len(parts), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 2))
        for column, (name, part) in enumerate(parts):
            _draw_times(panels[0][column], part.sort_values(across), across, scale)
            _draw_differences(panels[1][column], part.sort_values(across), across)
            panels[0][column].set_title(name, fontsize=FONT_POINTS)
            batch_axis(panels[1][column], {place: str(place) for place in sorted(frame[across])}, AXIS_LABELS[across])
        from_zero(panels[0][0], in_unit(max(highest, default=0), scale))
        panels[0][0].set_ylabel(f"step time, {unit} (median, interval)")
        panels[1][0].set_ylabel("difference, us")
        figure.suptitle(title or _title(frame), fontsize=FONT_POINTS + 1)
    return figure


def styled() -> AbstractContextManager[None]:
    """Return the context in which figures are drawn; a dollar sign in a name begins no formula."""
    from matplotlib import rc_context

    spines: dict[Any, Any] = {"axes.spines.top": False, "axes.spines.right": False}
    return rc_context({"font.size": FONT_POINTS, "text.parse_math": False} | spines)


def axis_of(batches: Sequence[Mapping[Any, Any]]) -> str:
    """Return what of the batches of a figure lies along its axis: "requests", or "rows" where only these differ."""
    requests, rows = ({batch.get(name) for batch in batches} for name in ("requests", "rows"))
    return "rows" if len(requests) == 1 and len(rows - {None}) > 1 else "requests"


def batches(records: Sequence[Record], across: str) -> tuple[dict[int, str], str]:
    """Return the places of batches along an axis, with their texts and what the axis is called."""
    texts = {record.batch[across]: batch_text(record) for record in records}
    if across == "rows":
        return {place: str(place) for place in sorted(texts)}, AXIS_LABELS[across]
    return {place: texts[place] for place in sorted(texts)}, "batch: requests x new tokens of each"


def batch_axis(axes: Axes, places: Mapping[int, str], label: str) -> None:
    """Make the axis of batches logarithmic, with the texts in `places` at their numbers, least first."""
    from matplotlib.ticker import NullFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.set_xlim(min(places) / MARGIN, max(places) * MARGIN)  # one batch alone stands in the middle
    axes.set_xticks([*places], [*places.values()])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(label)


def draw_intervals(axes: Axes, places: Sequence[float], bounds: Iterable[Any], **style: Any) -> None:
    """Draw values with their intervals, if there are any; `bounds` are the values, their lower and their upper bounds.

    All three are arrays, in the unit of the axis.
    """
    middle, low, high = bounds
    if len(middle):
        axes.errorbar(places, middle, yerr=[middle - low, high - middle], capsize=3, **style)


def bounds_of(intervals: Sequence[Interval]) -> np.ndarray[Any, Any]:
    """Return values, lower and upper bounds as f64 [3, intervals]."""
    return np.array([[one.value, one.low, one.high] for one in intervals]).reshape(-1, 3).T


def from_zero(axes: Axes, highest: float) -> None:
    """Let an axis of times begin at 0, with room for the mark of the highest."""
    axes.set_ylim(0, max(axes.get_ylim()[1], ROOM * highest))


def logarithmic(axes: Axes) -> None:
    """Make the axis of times logarithmic, with numbers written out."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def draw_lost(axes: Axes, places: Sequence[float], statuses: Iterable[object]) -> None:
    """Draw cells that have no time as crosses on the axis, if there are any; their statuses go into the legend."""
    if places:
        label = ", ".join(sorted({str(status) for status in statuses}))
        axes.plot(places, [0] * len(places), "x", color=MUTED_COLOUR, label=label, clip_on=False)


def legend(axes: Axes) -> None:
    """Add the legend, measured points first, and the grid that goes with it."""
    entries = entries_of(axes)
    if entries:
        axes.legend(entries.values(), entries, frameon=False, fontsize=FONT_POINTS - 1)
    axes.grid(axis="y", alpha=0.3)


def entries_of(axes: Axes) -> dict[str, Any]:
    """Return what a legend of these axes shows by its label, measured points first."""
    from matplotlib.container import ErrorbarContainer

    handles, labels = axes.get_legend_handles_labels()
    entries = sorted(zip(handles, labels, strict=True), key=lambda entry: not isinstance(entry[0], ErrorbarContainer))
    return {label: one for one, label in entries}


def titled(what: str, records: Sequence[Record], *without: str) -> str:
    """Return a title in the words of tables: what is shown and of what, the settings but `without`, versions, days."""
    first, days = records[0], sorted({record.created[:10] for record in records})
    day = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    lines = (heading(what, first, *without), settings(first, *without), "; ".join([*provenance(records), day]))
    return "\n".join(fill(line, TITLE_CHARACTERS) for line in lines)


def side_names(frame: pd.DataFrame) -> tuple[str, str]:
    """Return what the sides of a frame are: those of a verdict frame, or reuse off and on."""
    if "before_side" not in frame:
        return REUSE
    return str(frame["before_side"].iloc[0]), str(frame["after_side"].iloc[0])


def _draw_times(axes: Axes, part: pd.DataFrame, across: str, scale: int) -> None:
    for (side, style), name in zip(SIDES, side_names(part), strict=True):
        label = f"{side}: {name}"
        _draw(axes, part.dropna(subset=[f"{side}_ns"]), across, side, scale, label=label, linewidth=1.2, **style)
    lost = part[part["before_ns"].isna() & part["after_ns"].isna()]
    draw_lost(axes, list(lost[across]), [*lost["before_status"].dropna(), *lost["after_status"].dropna()])
    _plain_legend(axes)


def _draw_differences(axes: Axes, part: pd.DataFrame, across: str) -> None:
    axes.axhline(0, color=MUTED_COLOUR, linewidth=0.8)
    told = part.dropna(subset=["difference_ns"])
    clear = told["unresolved"].isna()
    style = {"color": AFTER_COLOUR, "linestyle": "none", "marker": "s", "markersize": 4}
    _draw(axes, told[clear], across, "difference", NS_PER_US, label="after - before", **style)
    hollow = style | {"markerfacecolor": "white"}
    _draw(axes, told[~clear], across, "difference", NS_PER_US, label=NOT_RESOLVABLE, **hollow)
    guess = part.dropna(subset=["predicted_ns"])
    if len(guess):
        heights = in_unit(guess["predicted_ns"], NS_PER_US)
        axes.plot(guess[across], heights, "--", marker="_", color=PREDICTED_COLOUR, linewidth=1, label="predicted")
    _plain_legend(axes)


def _plain_legend(axes: Axes) -> None:
    legend(axes)
    axes.ticklabel_format(axis="y", style="plain", useOffset=False)


def _draw(axes: Axes, rows: pd.DataFrame, across: str, name: str, scale: int, **style: Any) -> None:
    """Draw medians with their intervals, if there are any rows."""
    bounds = [in_unit(rows[f"{name}{end}_ns"], scale) for end in ("", "_low", "_high")]
    draw_intervals(axes, list(rows[across]), bounds, **style)


def _title(frame: pd.DataFrame) -> str:
    first = frame.iloc[0]
    days = sorted({str(created)[:10] for created in frame["created"]})
    prefix = "" if frame["prefix"].isna().any() else f", prefix {first['prefix']}"
    compressor = " and ".join(frame["compressor"].unique())
    stack = f"{in_step({name: first.get(name) for name in IN_STEP})} of {first['geometry']}"
    said = first.reindex([*USUAL]).dropna()
    more = "".join(f", {name} {said[name]}" for name in said.index if said[name] != USUAL[str(name)])
    what = f"{stack[0].upper()}{stack[1:]}: kv {first['kv']}, compressor {compressor}{prefix}{more}"
    day = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    engines = ", ".join(frame["engine"].unique())
    return f"{what}\n{first['label']}, {engines}, {first['machine']}, provider {first['provider']}, {day}"
