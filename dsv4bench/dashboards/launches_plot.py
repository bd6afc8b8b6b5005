"""The figure of what is launched: a bar for each kv_source and side, stacked by operation, what changed first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsv4bench.dashboards.cells import batch_text, records_of
from dsv4bench.dashboards.drawing import number_part
from dsv4bench.dashboards.panels import largest, launch_panels
from dsv4bench.dashboards.plots import FONT_POINTS, styled, titled
from dsv4bench.dashboards.style import OTHERS_COLOUR, SIDE_HATCH, STACK, arrow
from dsv4bench.results.compare import Pair
from dsv4bench.results.counts import DEVICE
from dsv4bench.results.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_INCHES = 8.4
BAR_INCHES = 0.17
HEAD_INCHES, TITLE_INCHES = 0.7, 0.9
OTHERS = "others"
ROOM = 0.015  # of the axis: a part as long as this has its number in it
NO_SOURCE = "none"
Bars = dict[str, Counter[str]]  # kv_source -> operation -> launches


def counted(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs whose launches were counted, on every side that ran."""
    return [pair for pair in pairs if all(record.counts for record in pair.records)]


def launches_figure(pairs: Sequence[Pair], sides: tuple[str, str], *without: str) -> Figure:
    """Draw the launches of a forward by kv_source, stacked by operation: on a GPU kernels, copies and sets, else calls.

    `pairs` are counted cells of the same settings, `sides` what before and after are. Each launch mode has a panel, of
    its `largest` batch. Operations whose number changed come first and are striped. Each has a number, in the legend
    and in its parts that have room for it. `without`: settings of the sides.
    """
    from matplotlib.figure import Figure

    panels = [(title, largest(same)) for title, same in launch_panels(pairs)]
    shown = [[(name, _bars(side)) for name, side in _sides(pair, sides) if side] for _, pair in panels]
    colours = _colours(shown)
    counts = [sum(len(bars) + 1 for _, bars in both) for both in shown]
    height = TITLE_INCHES + sum(BAR_INCHES * count + HEAD_INCHES for count in counts)
    with styled():
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
        rows = figure.subplots(len(panels), 1, squeeze=False, height_ratios=counts)[:, 0]
        for axes, (title, pair), both in zip(rows, panels, shown, strict=True):
            _draw(axes, both, colours)
            total = arrow(*(sum(sum(one.values()) for one in both[end][1].values()) for end in (0, -1)))
            axes.set_title(f"{title}, batch {batch_text(pair.any)}: {total} in all", fontsize=FONT_POINTS)
        rows[-1].set_xlabel(_what(panels[0][1].any))
        _legend(figure, colours, shown)
        what = f"Launches of a forward by kv_source and op, {' and '.join(name for name, _ in shown[0])}"
        figure.suptitle(titled(what, records_of([pair for _, pair in panels]), *without), fontsize=FONT_POINTS)
    return figure


def _sides(pair: Pair, names: tuple[str, str]) -> list[tuple[str, Record | None]]:
    return [(names[0], pair.before), (names[1], pair.after)]


def _what(record: Record) -> str:
    return "kernels, copies and sets of a forward" if record.engine == "gpu" else "calls of a forward (CPU reference)"


def _bars(record: Record) -> Bars:
    classes = DEVICE if record.engine == "gpu" else ("calls",)
    found: Bars = {}
    for row in record.counts:
        source = NO_SOURCE if row["kv_source"] is None else str(row["kv_source"])
        found.setdefault(source, Counter())[str(row["op"])] += sum(row[name] or 0 for name in classes)
    return dict(sorted(found.items(), key=lambda item: (item[0] == NO_SOURCE, item[0].zfill(9))))


def _by_operation(bars: Bars) -> Counter[str]:
    return sum(bars.values(), Counter[str]())


def _colours(shown: Sequence[Sequence[tuple[str, Bars]]]) -> dict[str, tuple[str, str]]:
    """Return the colour and hatch of each operation that has its own: those that changed, then the most launched."""
    first, last = (sum((_by_operation(both[end][1]) for both in shown), Counter[str]()) for end in (0, -1))
    order = sorted(first | last, key=lambda op: (-abs(last[op] - first[op]), -(first | last)[op], op))
    hatches = (SIDE_HATCH if first[op] != last[op] else "" for op in order)
    return {op: (colour, hatch) for op, colour, hatch in zip(order, STACK, hatches, strict=False)}


def _draw(axes: Axes, both: Sequence[tuple[str, Bars]], colours: Mapping[str, tuple[str, str]]) -> None:
    sources = list(dict.fromkeys(source for _, bars in both for source in bars))
    place, ticks, labels = 0.0, [], []
    longest = max(sum(counts.values()) for _, bars in both for counts in bars.values())
    for source in sources:
        for name, bars in both:
            _draw_bar(axes, place, bars.get(source, Counter()), colours, ROOM * longest)
            ticks.append(place)
            labels.append(f"{'no kv_source' if source == NO_SOURCE else f'kv_source {source}'}, {name}")
            place += 1
        place += 0.5
    axes.set_yticks(ticks, labels, fontsize=FONT_POINTS - 1)
    axes.invert_yaxis()
    axes.margins(x=0.06)
    axes.set_xlim(left=0)
    axes.set_axisbelow(True)
    axes.grid(axis="x", alpha=0.3)


def _draw_bar(
    axes: Axes, place: float, counts: Counter[str], colours: Mapping[str, tuple[str, str]], room: float
) -> None:
    others = sum(count for op, count in counts.items() if op not in colours)
    left = 0
    for number, (op, (colour, hatch)) in enumerate([*colours.items(), (OTHERS, (OTHERS_COLOUR, ""))], 1):
        count = others if op == OTHERS else counts[op]
        if count:
            style: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.5}
            axes.barh(place, count, left=left, height=0.85, label=op, **style)
            if op != OTHERS and count >= room:
                number_part(axes, (left + count / 2, place), number, colour)
            left += count
    axes.annotate(str(left), (left, place), xytext=(4, 0), textcoords="offset points", verticalalignment="center")


def _legend(
    figure: Figure, colours: Mapping[str, tuple[str, str]], shown: Sequence[Sequence[tuple[str, Bars]]]
) -> None:
    """Add the operations with their numbers before and after, where all panels have the same."""
    from matplotlib.patches import Patch

    entries = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=f"{number} {_entry(op, shown)}")
        for number, (op, (colour, hatch)) in enumerate(colours.items(), 1)
    ]
    if any(op not in colours for both in shown for _, bars in both for op in _by_operation(bars)):
        entries.append(Patch(facecolor=OTHERS_COLOUR, label=OTHERS))
    figure.legend(handles=entries, loc="outside lower center", ncols=3, frameon=False, fontsize=FONT_POINTS - 1)


def _entry(op: str, shown: Sequence[Sequence[tuple[str, Bars]]]) -> str:
    numbers = {arrow(*(_by_operation(both[end][1])[op] for end in (0, -1))) for both in shown}
    return f"{op}: {numbers.pop()}" if len(numbers) == 1 else op
