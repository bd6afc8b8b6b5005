"""The figure of change G: the ratio-2 compressor of one source alone, on the torch path and fused, and its speed-up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsv4bench.dashboards.cells import mode_text, records_of
from dsv4bench.dashboards.compressor_tables import COMPRESSOR_METRIC
from dsv4bench.dashboards.plots import (
    FONT_POINTS,
    axis_of,
    batch_axis,
    batches,
    bounds_of,
    draw_intervals,
    legend,
    logarithmic,
    styled,
    titled,
)
from dsv4bench.dashboards.style import AFTER_COLOUR, BEFORE_COLOUR, MUTED_COLOUR
from dsv4bench.results.compare import Pair
from dsv4bench.results.record import Record
from dsv4bench.results.stats import Interval, median_interval
from dsv4bench.units import in_unit, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_INCHES = 8.4
HEIGHT_INCHES = 6.4
SIDES = (
    {"label": "torch path", "color": BEFORE_COLOUR, "marker": "o"},
    {"label": "fused", "color": AFTER_COLOUR, "marker": "s"},
)
MARKS = {"markersize": 4, "linewidth": 1.2}


def compressor_figure(alone: Sequence[Pair]) -> Figure:
    """Draw the time of one ratio-2 source's compressor against rows, torch path and fused, on logarithmic axes.

    `alone` are pairs of `timed_alone` with the same settings. Below stands the speed-up: the median of the ratios of
    samples taken one after the other, with its interval.
    """
    from matplotlib.figure import Figure

    records = records_of(alone)
    across = axis_of([record.batch for record in records])
    alone = sorted(alone, key=lambda pair: int(pair.any.batch[across]))
    with styled():
        figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), layout="constrained")
        panels = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        _draw_times(panels[0], alone, across)
        _draw_speed_up(panels[1], alone, across)
        places, label = batches(records, across)
        batch_axis(panels[1], places, f"T, {label}" if across == "rows" else label)
        how = f"in a run of {mode_text(records[0])}, reuse {records[0].variant.get('reuse')}"
        panels[0].set_title(f"captured alone, {how}", fontsize=FONT_POINTS)
        panels[1].set_title("speed-up: median of paired ratios, with its interval", fontsize=FONT_POINTS)
        what = "Ratio-2 compressor of one source alone"
        figure.suptitle(titled(what, records, "compressor"), fontsize=FONT_POINTS)
    return figure


def speed_up(pair: Pair) -> Interval | None:
    """Return how many times as long the torch path takes as the fused compressor; None if not sampled in turn."""
    torch, fused = map(_samples, pair.records)
    if len(torch) != len(fused) or 0 in fused:
        return None
    return median_interval([slow / fast for slow, fast in zip(torch, fused, strict=True)])


def _samples(record: Record) -> list[int]:
    return record.samples_ns[COMPRESSOR_METRIC]


def _draw_times(axes: Axes, alone: Sequence[Pair], across: str) -> None:
    sides = [[median_interval(_samples(pair.records[side])) for pair in alone] for side in range(len(SIDES))]
    scale, unit = time_unit([time.high for times in sides for time in times])
    for times, style in zip(sides, SIDES, strict=True):
        draw_intervals(axes, _places(alone, across), in_unit(bounds_of(times), scale), **MARKS, **style)
    logarithmic(axes)
    legend(axes)
    axes.set_ylabel(f"time, {unit} (median, interval)")


def _draw_speed_up(axes: Axes, alone: Sequence[Pair], across: str) -> None:
    told = [(pair, found) for pair in alone if (found := speed_up(pair))]
    axes.axhline(1, color=MUTED_COLOUR, linewidth=0.8)
    places, bounds = _places([pair for pair, _ in told], across), bounds_of([found for _, found in told])
    draw_intervals(axes, places, bounds, color=AFTER_COLOUR, marker="s", **MARKS)
    legend(axes)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("torch path / fused")


def _places(alone: Sequence[Pair], across: str) -> list[int]:
    return [pair.any.batch[across] for pair in alone]
