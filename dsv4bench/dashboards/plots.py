"""Figures of a comparison frame; each is one function from frame to figure, saved as PNG and SVG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4bench.dashboards.style import AFTER_COLOUR, BEFORE_COLOUR, MUTED_COLOUR, PREDICTED_COLOUR
from dsv4bench.errors import UsageError
from dsv4bench.results.compare import NOT_RESOLVABLE
from dsv4bench.units import NS_PER_US, in_unit, time_unit

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODES = ("eager", "graph", "full graph", "tape", "full tape")
PANEL_TITLES = {
    "eager": "eager",
    "graph": "graph (breakable)",
    "full graph": "graph (whole stack)",
    "tape": "tape, no CUDA graph",
    "full tape": "tape (whole stack), no CUDA graph",
}
# what the points of one figure have in common
SECTION = (
    *("label", "machine", "geometry", "kv", "compressor", "provider"),
    *("prefix", "source", "ranks", "fault", "chunk", "seed"),
)
# the mark of before is a ring that stays visible around the mark of after
SIDES = (
    ("before", {"color": BEFORE_COLOUR, "marker": "o", "markerfacecolor": "white", "markersize": 8}),
    ("after", {"color": AFTER_COLOUR, "marker": "s", "markersize": 4}),
)
PIXELS_PER_INCH = 150
PANEL_INCHES = 4.2
HEIGHT_INCHES = 5.4
FONT_POINTS = 9
MARGIN = 1.4


def sections(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Split a comparison frame into parts that fit in one figure each, with a name for the file of each."""
    if frame.empty:
        return []
    keys = [name for name in SECTION if name in frame and frame[name].nunique(dropna=False) > 1]
    # eager cells have no breaks, and share a figure with graphs of one form
    keys += [name for name in ("breaks", "break-outputs") if name in frame and frame[name].nunique() > 1]
    if frame.duplicated([*keys, "mode", "requests"]).any():
        keys.append("extend")
    if not keys:
        return [("step-time", frame)]
    parts = frame.groupby(keys, sort=False, dropna=False)
    return [("-".join(["step-time", *map(_word, values)]), part) for values, part in parts]


def step_time_figure(frame: pd.DataFrame) -> Figure:
    """Draw step time against batch, before and after, with intervals; below it their difference and the predicted one.

    `frame` is one section of a comparison frame (ValueError for several); each launch mode has a column of panels. A
    cell without a time is a cross on the axis, with its status.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    if len(sections(frame)) != 1:
        raise ValueError("the frame holds no cells, or cells of several settings: draw its sections one by one")
    modes = [mode for mode in MODES if (frame["mode"] == mode).any()]
    scale, unit = time_unit([value for side in ("before", "after") for value in frame[f"{side}_high_ns"].dropna()])
    with rc_context({"font.size": FONT_POINTS, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(max(2, len(modes)) * PANEL_INCHES, HEIGHT_INCHES), layout="constrained")
        panels = figure.subplots(2, len(modes), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 2))
        for column, mode in enumerate(modes):
            part = frame[frame["mode"] == mode].sort_values("requests")
            _draw_times(panels[0][column], part, scale)
            _draw_differences(panels[1][column], part)
            panels[0][column].set_title(PANEL_TITLES[mode], fontsize=FONT_POINTS)
            _batch_axis(panels[1][column], frame)
        panels[0][0].set_ylim(bottom=0)
        panels[0][0].set_ylabel(f"step time, {unit} (median, interval)")
        panels[1][0].set_ylabel("difference, us")
        figure.suptitle(_title(frame), fontsize=FONT_POINTS + 1)
    return figure


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Save a figure as `stem`.png and `stem`.svg and return their paths; the same figure gives the same bytes.

    UsageError if the files cannot be written.
    """
    from matplotlib import rc_context

    paths = [stem.with_name(f"{stem.name}{ending}") for ending in (".png", ".svg")]
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        with rc_context({"svg.hashsalt": "dsv4bench"}):
            figure.savefig(paths[0], dpi=PIXELS_PER_INCH, metadata={"Software": None})
            figure.savefig(paths[1], metadata={"Date": None})
    except OSError as error:
        raise UsageError(f"{stem.parent}: cannot write the figure: {error.strerror}") from None
    return paths


def _draw_times(axes: Axes, part: pd.DataFrame, scale: int) -> None:
    for side, style in SIDES:
        label = f"{side}: reuse {'off' if side == 'before' else 'on'}"
        _draw(axes, part.dropna(subset=[f"{side}_ns"]), side, scale, label=label, linewidth=1.2, **style)
    lost = part[part["before_ns"].isna() & part["after_ns"].isna()]
    if len(lost):
        statuses = sorted({*lost["before_status"].dropna(), *lost["after_status"].dropna()})
        axes.plot(lost["requests"], [0] * len(lost), "x", color=MUTED_COLOUR, label=", ".join(statuses), clip_on=False)
    _legend(axes)


def _draw_differences(axes: Axes, part: pd.DataFrame) -> None:
    axes.axhline(0, color=MUTED_COLOUR, linewidth=0.8)
    told = part.dropna(subset=["difference_ns"])
    clear = told["unresolved"].isna()
    style = {"color": AFTER_COLOUR, "linestyle": "none", "marker": "s", "markersize": 4}
    _draw(axes, told[clear], "difference", NS_PER_US, label="after - before", **style)
    hollow = style | {"markerfacecolor": "white"}
    _draw(axes, told[~clear], "difference", NS_PER_US, label=NOT_RESOLVABLE, **hollow)
    guess = part.dropna(subset=["predicted_ns"])
    if len(guess):
        heights = in_unit(guess["predicted_ns"], NS_PER_US)
        axes.plot(guess["requests"], heights, "--", marker="_", color=PREDICTED_COLOUR, linewidth=1, label="predicted")
    _legend(axes)


def _legend(axes: Axes) -> None:
    """Add the legend, measured points first, and the grid that goes with it."""
    from matplotlib.container import ErrorbarContainer

    handles, labels = axes.get_legend_handles_labels()
    entries = sorted(zip(handles, labels, strict=True), key=lambda entry: not isinstance(entry[0], ErrorbarContainer))
    if entries:
        axes.legend(
            [one for one, _ in entries], [label for _, label in entries], frameon=False, fontsize=FONT_POINTS - 1
        )
    axes.grid(axis="y", alpha=0.3)
    axes.ticklabel_format(axis="y", style="plain", useOffset=False)


def _draw(axes: Axes, rows: pd.DataFrame, name: str, scale: int, **style: Any) -> None:
    """Draw medians with their intervals, if there are any rows."""
    if not len(rows):
        return
    middle = rows[f"{name}_ns"]
    bounds = [in_unit(far, scale) for far in (middle - rows[f"{name}_low_ns"], rows[f"{name}_high_ns"] - middle)]
    axes.errorbar(rows["requests"], in_unit(middle, scale), yerr=bounds, capsize=3, **style)


def _batch_axis(axes: Axes, frame: pd.DataFrame) -> None:
    from matplotlib.ticker import NullFormatter, NullLocator

    batches = sorted(frame["requests"].unique())
    axes.set_xscale("log", base=2)
    axes.set_xlim(batches[0] / MARGIN, batches[-1] * MARGIN)  # one batch alone stands in the middle
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("requests in the batch")


def _title(frame: pd.DataFrame) -> str:
    first = frame.iloc[0]
    days = sorted({str(created)[:10] for created in frame["created"]})
    prefix = "" if frame["prefix"].isna().any() else f", prefix {int(first['prefix'])}"
    what = f"Attention stack of {first['geometry']}: kv {first['kv']}, compressor {first['compressor']}{prefix}"
    day = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    engines = ", ".join(frame["engine"].unique())
    return f"{what}\n{first['label']}, {engines}, {first['machine']}, provider {first['provider']}, {day}"


def _word(value: object) -> str:
    # a column of whole numbers with a gap in it holds floats
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return "".join(sign if sign.isalnum() else "-" for sign in text).strip("-").lower()
