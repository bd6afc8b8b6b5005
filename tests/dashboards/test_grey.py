"""Figures printed in grey: what a legend lists differs in mark, fill, dash or hatch, or in how dark it is."""

from dataclasses import replace
from itertools import combinations

import pytest
from matplotlib.colors import to_rgb
from matplotlib.container import ErrorbarContainer
from matplotlib.patches import Patch

from dsv4bench.dashboards.figures import figures
from dsv4bench.dashboards.kernel_plots import roofline_figure, timed_kernels
from dsv4bench.dashboards.style import PROVIDERS
from tests.dashboards.drawn import compressors, modes
from tests.results.kernel_records import kernel_record
from tests.results.synthetic import sweep, with_side

LEAST = 0.08  # of the way from black to white: what is closer looks alike
AB = [with_side(one, "a" if one.variant["reuse"] == "off" else "b") for one in sweep()]
KERNELS = [
    replace(kernel_record(name, flops=4 * 10**6, name=kernel), key=f"{name}-{kernel}", group=kernel)
    for name in PROVIDERS
    for kernel in ("dequant", "store", "compress_c1", "compress_c2", "combine", "index_key")
]
RUNS = {
    "both sides": sweep(),
    "an A/B": AB,
    "modes": modes("eager", "graph sm100", "graph hopper", "graph sm100 static", "full graph"),
    "compressors": compressors(reuse=("off", "on")),
    "kernels": KERNELS,
}


def darkness(colour):
    """How dark a colour is printed: ITU-R BT.709, 1 for white."""
    red, green, blue = to_rgb(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def look(handle, label):
    """What is seen of an entry in grey but how dark it is, and how dark that is."""
    if isinstance(handle, Patch):
        number = label.split()[0] if label[0].isdigit() else ""  # that stands in the parts of a stack, too
        return ("bar", handle.get_hatch(), number), darkness(handle.get_facecolor()[:3])
    hollow = handle.get_markerfacecolor() == "white"
    seen = (handle.get_marker(), handle.get_markersize(), handle.get_fillstyle(), hollow, handle.get_linestyle())
    return seen, darkness(handle.get_color())


def legends(figure):
    axes = [one.get_legend() for one in figure.axes]
    return [one for one in (*figure.legends, *axes) if one]


def marks(figure):
    """The mark of each label whose points have intervals; of these a legend keeps only the bars."""
    found = [one for axes in figure.axes for one in axes.containers if isinstance(one, ErrorbarContainer)]
    return {one.get_label(): one.lines[0] for one in found}


def alike(figure):
    """The pairs of entries of one legend that cannot be told apart."""
    found, of_intervals = [], marks(figure)
    for legend in legends(figure):
        texts = [text.get_text() for text in legend.get_texts()]
        handles = zip(texts, legend.legend_handles, strict=True)
        seen = [(text, *look(of_intervals.get(text, one), text)) for text, one in handles]
        pairs = combinations(seen, 2)
        found += [(a[0], b[0]) for a, b in pairs if a[1] == b[1] and abs(a[2] - b[2]) < LEAST]
    return found


@pytest.mark.parametrize("records", RUNS.values(), ids=RUNS)
def test_no_two_entries_of_a_legend_look_alike(records):
    drawn = list(figures(records))
    assert any(legends(one.figure) for one in drawn)
    assert {one.name: alike(one.figure) for one in drawn} == {one.name: [] for one in drawn}


def test_providers_alike_would_be_seen(monkeypatch):
    monkeypatch.setitem(PROVIDERS, "sglang", PROVIDERS["triton"])
    assert alike(roofline_figure(timed_kernels(KERNELS))) == [("triton", "sglang")]
