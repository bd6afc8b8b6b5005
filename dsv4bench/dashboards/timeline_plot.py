"""The picture of one step: time to the right, a lane for each kv_source, a colour and a number for each operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4bench.dashboards.drawing import number_part
from dsv4bench.dashboards.style import OTHERS_COLOUR, STACK
from dsv4bench.dashboards.table import printable, shortened
from dsv4bench.errors import UsageError
from dsv4bench.results.timelines import Lane, Timeline
from dsv4bench.units import in_unit, time_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OTHERS = "others"
PIXELS_PER_INCH = 150
WIDTH_INCHES = 11
LANE_INCHES, MARGIN_INCHES, ENTRY_INCHES = 0.55, 1.3, 0.19
FONT_POINTS = 9
BAR = 0.8  # of a lane's height
ROOM = 0.009  # of the axis: a bar as long as this has its operation's number in it
ENDINGS = (".png", ".svg")


def timeline_figure(timeline: Timeline) -> Figure:
    """Draw the lanes; the operations with the longest time have colours, numbers and times of their own."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    times = _times(timeline.lanes)
    colours = dict(zip((what for what, _ in times.most_common(len(STACK))), STACK, strict=False))
    end_ns = max(
        start + length for lane in timeline.lanes for start, length in zip(lane.starts_ns, lane.lengths_ns, strict=True)
    )
    scale, unit = time_unit([end_ns])
    height = max(len(timeline.lanes) * LANE_INCHES, (len(colours) + 1) * ENTRY_INCHES) + MARGIN_INCHES
    with rc_context({"font.size": FONT_POINTS, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
        axes = figure.subplots()
        for place, lane in enumerate(timeline.lanes):
            shades = [colours.get(what, OTHERS_COLOUR) for what in lane.whats]
            bars = [
                (in_unit(s, scale), in_unit(n, scale)) for s, n in zip(lane.starts_ns, lane.lengths_ns, strict=True)
            ]
            axes.broken_barh(bars, (place - BAR / 2, BAR), facecolors=shades, linewidth=0)
            for what, (start, length), colour in zip(lane.whats, bars, shades, strict=True):
                if what in colours and length >= ROOM * in_unit(end_ns, scale):
                    number_part(axes, (start + length / 2, place), [*colours].index(what) + 1, colour)
        axes.set_yticks(range(len(timeline.lanes)), [lane.name for lane in timeline.lanes])
        axes.set_ylim(len(timeline.lanes) - 0.4, -0.6)
        axes.set_xlim(0, in_unit(end_ns, scale))
        axes.set_xlabel(f"{unit} since the first operation of the step")
        entries = [
            Patch(color=colour, label=f"{number} {_entry(what, times[what], scale, unit)}")
            for number, (what, colour) in enumerate(colours.items(), 1)
        ]
        rest = sum(time for what, time in times.items() if what not in colours)
        entries += [Patch(color=OTHERS_COLOUR, label=_entry(OTHERS, rest, scale, unit))] if rest else []
        axes.legend(
            handles=entries, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=FONT_POINTS - 1
        )
        figure.suptitle(f"{_words(timeline.title, 110)}, by {timeline.by}", fontsize=FONT_POINTS + 1)
    return figure


def save_timeline(timeline: Timeline, file: Path) -> None:
    """Save the picture as PNG or SVG, by the file's ending; UsageError for another ending or a file that cannot be."""
    from matplotlib import rc_context

    if file.suffix not in ENDINGS:
        raise UsageError(f"--plot {file}: expected a file that ends in {' or '.join(ENDINGS)}")
    metadata = {"Software": None} if file.suffix == ".png" else {"Date": None}
    try:
        with rc_context({"svg.hashsalt": "dsv4bench"}):
            timeline_figure(timeline).savefig(file, dpi=PIXELS_PER_INCH, metadata=metadata)
    except OSError as error:
        raise UsageError(f"--plot {file}: cannot write the figure: {error.strerror}") from None


def _times(lanes: Sequence[Lane]) -> Counter[str]:
    """Return the time of each operation over all lanes."""
    found: Counter[str] = Counter()
    for lane in lanes:
        for what, length in zip(lane.whats, lane.lengths_ns, strict=True):
            found[what] += length
    return found


def _entry(what: str, time_ns: int, scale: int, unit: str) -> str:
    return f"{_words(what, 30)}: {in_unit(time_ns, scale):.3g} {unit}"


def _words(name: str, letters: int) -> str:
    """Return a name as matplotlib draws it as it stands: a dollar sign would begin a formula."""
    return printable(shortened(name, letters)).replace("$", r"\$")
