"""The figure of a run of one side: its launch modes beside each other, and what each takes more than the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsv4bench.dashboards.cells import grouped, mode_text
from dsv4bench.dashboards.panels import BEST_CASE
from dsv4bench.dashboards.plots import (
    FONT_POINTS,
    axis_of,
    batch_axis,
    batches,
    bounds_of,
    draw_intervals,
    draw_lost,
    entries_of,
    from_zero,
    styled,
    titled,
)
from dsv4bench.dashboards.style import LINES, MUTED_COLOUR
from dsv4bench.results.compare import NOT_RESOLVABLE, Comparison, Pair, compare, without_place
from dsv4bench.results.record import Record
from dsv4bench.results.stats import Interval, median_interval
from dsv4bench.units import in_unit, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_INCHES = 8.4
PANEL_INCHES = 3.5
ASIDE = 0.11  # what lies between the intervals of two modes of one batch, in doublings of it, and of all of them
WIDEST = 0.8
PERCENT = 100
LEGEND_CHARACTERS = 90
BARE = {"linestyle": "none", "markersize": 4}
PAIRED = "median of paired differences to {first}, with its interval"
APART = "difference of medians to {first}, with the interval of each (not paired: not sampled in turn)"


def mode_figure(records: Sequence[Record]) -> Figure:
    """Draw step time against batch, a line a launch mode, with intervals; below, each one's difference to the first.

    `records` are cells of one side (reuse on or off) with the same settings. The first mode is eager where that was
    run; each compressor has lines of its own. Differences are paired where all were sampled in turn, which eager steps
    and graphs are not: there each median has its own interval. One mode alone has no panel below.
    """
    from matplotlib.figure import Figure

    several = len({record.variant.get("compressor") for record in records}) > 1
    across = axis_of([record.batch for record in records])
    lines = _lines(sorted(records, key=lambda record: int(record.batch[across])), several)
    compared = _compared([*lines.values()])
    both = any(one.before and one.after for same in compared[1:] for one in same)
    with styled():
        figure = Figure(figsize=(WIDTH_INCHES, PANEL_INCHES * (1 + both)), layout="constrained")
        panels = figure.subplots(1 + both, 1, sharex=True, squeeze=False)[:, 0]
        _draw_times(panels[0], lines, across)
        if both:
            _draw_differences(panels[1], compared, across, next(iter(lines)))
        _legend(figure)
        batch_axis(panels[-1], *batches(records, across))
        what = f"Step time, reuse {records[0].variant.get('reuse')}"
        figure.suptitle(titled(what, records, *["compressor"] * several), fontsize=FONT_POINTS)
    return figure


def _lines(records: Sequence[Record], several: bool) -> dict[str, list[Record]]:
    """Return the cells of each line by what it is called, eager first; with the compressor where there are several."""
    found = {}
    for same in grouped(records, lambda record: (mode_text(record), several and record.variant.get("compressor"))):
        words = [mode_text(same[0]), *([f"compressor {same[0].variant.get('compressor')}"] if several else [])]
        found[", ".join(words) + (BEST_CASE if same[0].mode.startswith("full") else "")] = same
    return dict(sorted(found.items(), key=lambda line: line[1][0].mode != "eager"))


def _compared(lines: Sequence[Sequence[Record]]) -> list[list[Comparison]]:
    """Return every cell beside the one of the first line that ran together with it."""
    first = {_run(record): record for record in lines[0]}
    return [[compare(Pair(first.get(_run(record)), record)) for record in same] for same in lines]


def _draw_times(axes: Axes, lines: Mapping[str, Sequence[Record]], across: str) -> None:
    timed = {label: [one for one in same if one.step_samples_ns] for label, same in lines.items()}
    times = {label: [median_interval(one.step_samples_ns) for one in same] for label, same in timed.items()}
    scale, unit = time_unit([time.high for same in times.values() for time in same])
    for place, (label, same) in enumerate(timed.items()):
        bounds = in_unit(bounds_of(times[label]), scale)
        draw_intervals(axes, [one.batch[across] for one in same], bounds, label=label, linewidth=1.2, **_style(place))
    lost = [record for same in lines.values() for record in same if not record.step_samples_ns]
    draw_lost(axes, [record.batch[across] for record in lost], [record.status for record in lost])
    axes.grid(axis="y", alpha=0.3)
    from_zero(axes, max((in_unit(time.high, scale) for same in times.values() for time in same), default=0))
    axes.set_ylabel(f"step time, {unit} (median, interval)")


def _draw_differences(axes: Axes, compared: Sequence[Sequence[Comparison]], across: str, first: str) -> None:
    paired = all(_alternated(one) for same in compared[1:] for one in same if one.before and one.after)
    axes.axhline(0, color=MUTED_COLOUR, linewidth=0.8)
    shown = range(int(paired), len(compared))  # paired with itself the first mode has no difference
    step = min(ASIDE, WIDEST / len(shown))
    for place in shown:
        changes = [(one, found) for one in compared[place] if (found := _change(one, paired))]
        aside = 2 ** (step * (place - (shown[0] + shown[-1]) / 2))
        for hollow in (False, True):
            drawn = [(one, found) for one, found in changes if hollow == (paired and bool(one.unresolved))]
            style = _style(place) | BARE | ({"markerfacecolor": "white"} if hollow else {})
            places = [one.pair.any.batch[across] * aside for one, _ in drawn]
            draw_intervals(axes, places, bounds_of([found for _, found in drawn]), **style)
    if paired and any(one.unresolved for same in compared[1:] for one in same):
        axes.plot([], [], "o", color=MUTED_COLOUR, markerfacecolor="white", label=NOT_RESOLVABLE)
    axes.set_title((PAIRED if paired else APART).format(first=first), fontsize=FONT_POINTS)
    axes.set_ylabel("difference, %")
    axes.grid(axis="y", alpha=0.3)


def _legend(figure: Figure) -> None:
    """Add one legend below all panels, where it covers nothing."""
    entries = {label: one for axes in figure.axes for label, one in entries_of(axes).items()}
    beside = len(entries) if len("".join(entries)) < LEGEND_CHARACTERS else 2
    style = {"frameon": False, "fontsize": FONT_POINTS - 1, "ncols": beside}
    figure.legend([*entries.values()], [*entries], loc="outside lower center", **style)


def _change(one: Comparison, paired: bool) -> Interval | None:
    """Return the change in percent of the time before: of paired differences, or of a median with bounds of its own."""
    before, after = one.before, one.after
    if before is None or after is None or not before.value:
        return None
    if paired and one.difference is not None:
        return one.difference.scaled(PERCENT / before.value)
    value, low, high = (PERCENT * (bound / before.value - 1) for bound in (after.value, after.low, after.high))
    return Interval(value, low, high, after.confidence)


def _alternated(one: Comparison) -> bool:
    """Return whether both were sampled in turn: eager cells of a group are, and its graph cells are, by themselves."""
    graphs = {bool(record.variant.get("graph")) for record in one.pair.records}
    return one.difference is not None and len(graphs) == 1


def _run(record: Record) -> str:
    """Return what ran together: a group of one command and one state of the code."""
    code = [record.environment.get(name) for name in ("commit", "diff", "src")]
    return str((record.group, code, without_place(record.argv)))


def _style(place: int) -> dict[str, Any]:
    """Return how the line at a place looks: the first mark is hollow, and beyond the last of `LINES` all others are."""
    again, which = divmod(place, len(LINES))
    colour, marker, size, dash = LINES[which]
    face = colour if bool(which) != bool(again) else "white"
    return {"color": colour, "marker": marker, "markersize": size, "linestyle": dash, "markerfacecolor": face}
