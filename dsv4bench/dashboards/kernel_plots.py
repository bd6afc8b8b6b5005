"""Figures of kernels: a roofline of all of them, and for each kernel bars of its providers' times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dsv4bench.dashboards.cells import grouped
from dsv4bench.dashboards.drawing import Drawing, hover
from dsv4bench.dashboards.panels import file_words
from dsv4bench.dashboards.plots import FONT_POINTS, styled
from dsv4bench.dashboards.style import MUTED_COLOUR, PROVIDERS
from dsv4bench.results.compare import latest
from dsv4bench.results.record import Record
from dsv4bench.results.speed import Speed, provider, speed
from dsv4bench.units import NS_PER_S, format_flop_rate, format_rate, in_unit, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "sD^vP*Xhp<>d"  # of kernels; a circle in the legend is of a provider
BAR_INCHES = 0.32
WIDTH_INCHES = 8.0
LEAST_HEIGHT_INCHES = 2.6
ROOFLINE = "Arithmetic rate of every kernel and provider against its intensity, under the ceilings of the same run."
BARS = (
    "Cold time of one kernel by every provider, shape by shape, with its interval; a tick is the time at the ceiling."
)
Timed = tuple[Record, Speed]


def kernel_figures(records: Sequence[Record]) -> Iterator[Drawing]:
    """Yield the roofline of all kernels of a machine with a time, and the bars of each kernel.

    Kernels without arithmetic have no roofline.
    """
    parts = grouped(timed_kernels(records), lambda one: (one[0].label, one[0].engine, one[0].machine))
    for timed in parts:
        end = file_words(f"-{timed[0][0].label}-{timed[0][0].machine}") if len(parts) > 1 else ""
        if any(seen.intensity > 0 for _, seen in timed):
            yield Drawing(f"roofline{end}", ROOFLINE, roofline_figure(timed))
        for same in grouped(timed, lambda one: _name(one[0])):
            yield Drawing(f"kernel-{file_words(_name(same[0][0]))}{end}", BARS, bars_figure(same))


def timed_kernels(records: Sequence[Record]) -> list[Timed]:
    """Return the last record of every kernel that has a time, with its speed."""
    return [(record, seen) for record in latest(records) if (seen := speed(record)) is not None]


def roofline_figure(timed: Sequence[Timed]) -> Figure:
    """Draw arithmetic rate against intensity under the roofs of this run: large elementwise pass and bf16 matmul.

    A kernel has a marker, a provider a colour and what of its markers is filled; kernels without arithmetic have no
    place here.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    points = [(record, seen) for record, seen in timed if seen.intensity > 0]
    best = (timed[0][0].kernel or {})["ceilings"]
    with styled():
        figure = Figure(figsize=(WIDTH_INCHES, 5.2), layout="constrained")
        axes = figure.subplots()
        _draw_roofs(axes, points, float(best["copy_bytes_per_s"]), float(best["matmul_flops_per_s"]))
        for place, same in enumerate(grouped(points, lambda one: _name(one[0]))):
            marker = MARKERS[place % len(MARKERS)]
            for record, seen in same:
                look = _look(provider(record))
                axes.plot(seen.intensity, flop_rate(record, seen), marker, label=hover(_says(record, seen)), **look)
            axes.plot([], [], marker, color=MUTED_COLOUR, linestyle="none", label=_name(same[0][0]))
        for name in dict.fromkeys(provider(record) for record, _ in points):
            axes.plot([], [], "o", label=name, **_look(name))
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlabel("arithmetic intensity, FLOP per byte (modelled least work)")
        axes.set_ylabel("FLOP per second, cold")
        axes.grid(alpha=0.3, which="major")
        if points:
            figure.legend(loc="outside right upper", frameon=False, fontsize=FONT_POINTS - 1)
        axes.set_title(f"Roofline: {_where(timed[0][0])}", fontsize=FONT_POINTS + 1)
    return figure


def bars_figure(timed: Sequence[Timed]) -> Figure:
    """Draw a kernel's cold time by every provider, shape by shape, with its interval; a tick is the ceiling's time."""
    from matplotlib.figure import Figure

    groups = grouped(timed, lambda one: one[0].group)
    panels = grouped(groups, lambda group: (group[0][0].kernel or {}).get("rows"))
    count = len(timed) + len(groups) + 2 * len(panels)
    with styled():
        height = max(LEAST_HEIGHT_INCHES, 1.0 + BAR_INCHES * count)
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
        ratios = [sum(len(group) + 1 for group in panel) for panel in panels]
        rows = figure.subplots(len(panels), 1, squeeze=False, height_ratios=ratios)
        for axes, panel in zip(rows[:, 0], panels, strict=True):
            _draw_bars(axes, panel)
        figure.legend(handles=[_ceiling_mark()], loc="outside lower center", frameon=False)
        figure.suptitle(f"{_name(timed[0][0])}, cold: {_where(timed[0][0])}", fontsize=FONT_POINTS + 1)
    return figure


def flop_rate(record: Record, seen: Speed) -> float:
    """Return the FLOPs per second of a kernel, also where bytes bind it."""
    return int((record.kernel or {})["flops"]) * NS_PER_S / max(seen.cold.value, 1.0)


def _says(record: Record, seen: Speed) -> str:
    rate = f"{format_flop_rate(flop_rate(record, seen))}, {seen.share:.0%} of the ceiling of {seen.bound}"
    return f"{_name(record)} {_shape(record)}, {provider(record)}\n{rate}"


def _draw_roofs(axes: Axes, points: Sequence[Timed], memory: float, compute: float) -> None:
    ridge = compute / memory
    intensities = [seen.intensity for _, seen in points] or [ridge]
    low, high = min(*intensities, ridge) / 3, max(*intensities, ridge) * 3
    axes.plot([low, ridge, high], [low * memory, compute, compute], color="black", linewidth=1.2)
    middle = math.sqrt(low * ridge)
    beside: dict[str, Any] = {"xytext": (-8, 4), "textcoords": "offset points", "horizontalalignment": "right"}
    axes.annotate(format_rate(memory), (middle, middle * memory), **beside)
    axes.annotate(format_flop_rate(compute), (high, compute), **beside)


def _draw_bars(axes: Axes, groups: Sequence[Sequence[Timed]]) -> None:
    times = [seen.cold.high for group in groups for _, seen in group]
    scale, unit = time_unit(times)
    place, ticks, labels = 0.0, [], []
    for group in groups:
        for record, seen in group:
            ticks.append(place)
            labels.append(", ".join(word for word in (_shape(record), provider(record)) if word))
            error = [
                [in_unit(seen.cold.value - seen.cold.low, scale)],
                [in_unit(seen.cold.high - seen.cold.value, scale)],
            ]
            value = in_unit(seen.cold.value, scale)
            axes.barh(place, value, xerr=error, height=0.8, color=_colour(provider(record)), capsize=2)
            axes.plot([in_unit(seen.least_ns, scale)] * 2, [place - 0.45, place + 0.45], color="black", linewidth=1.5)
            rate = format_rate(seen.rate) if seen.bound == "memory" else format_flop_rate(seen.rate)
            text = f"{rate}, {seen.share:.0%} of the ceiling"
            axes.annotate(
                text,
                (in_unit(seen.cold.high, scale), place),
                xytext=(8, 0),
                textcoords="offset points",
                verticalalignment="center",
            )
            place += 1
        place += 1
    axes.set_yticks(ticks, labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.7 * in_unit(max(times), scale))
    axes.set_xlabel(f"time of a call, {unit}")
    axes.grid(axis="x", alpha=0.3)


def _ceiling_mark() -> object:
    from matplotlib.lines import Line2D

    return Line2D([], [], color="black", marker="|", markersize=9, linestyle="none", label="at the ceiling")


def _look(name: str) -> dict[str, Any]:
    """Return how the marks of a provider look."""
    colour, fill = PROVIDERS.get(name, PROVIDERS[""])
    white = {"markerfacecolor": "white"} if fill == "none" else {"markerfacecoloralt": "white", "fillstyle": fill}
    return {"color": colour, "markersize": 7, "alpha": 0.85, "linestyle": "none", **white}


def _colour(name: str) -> str:
    return PROVIDERS.get(name, PROVIDERS[""])[0]


def _name(record: Record) -> str:
    return str((record.kernel or {}).get("name"))


def _shape(record: Record) -> str:
    found = record.kernel or {}
    rows = found.get("rows")
    return " ".join(word for word in (str(found.get("case") or ""), f"{rows} rows" if rows else "") if word)


def _where(record: Record) -> str:
    return f"{record.label}, {record.engine}, {record.machine}, {record.created[:10]}"
