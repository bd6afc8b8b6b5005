"""All figures of a set of records, as files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsv4bench.dashboards.cells import both_ran, records_of
from dsv4bench.dashboards.compressor_plot import compressor_figure
from dsv4bench.dashboards.compressor_tables import timed_alone
from dsv4bench.dashboards.kernel_plots import draw_kernels
from dsv4bench.dashboards.mode_plot import mode_figure
from dsv4bench.dashboards.panels import sections
from dsv4bench.dashboards.plots import save_figure, step_time_figure
from dsv4bench.results.compare import Pair, pairs
from dsv4bench.results.frame import comparison_frame
from dsv4bench.results.record import Record

if TYPE_CHECKING:
    import pandas as pd

Part = tuple[str, "pd.DataFrame", list[Pair]]


def draw(records: Sequence[Record], folder: Path) -> Iterator[Path]:
    """Save every figure that the records can fill in `folder` and yield its files, each as soon as it is there.

    Step time: before and after reuse, or by launch mode where one side was run; the compressor alone, where both were
    timed; kernels by all providers.
    """
    steps = [record for record in records if record.kernel is None]
    for end, frame, same in _parts(steps, "reuse", "off", "on"):
        figure = step_time_figure(frame) if both_ran(same) else mode_figure([pair.any for pair in same])
        yield from save_figure(figure, folder / f"step-time{'' if both_ran(same) else _by(frame)}{end}")
    alone = records_of(timed_alone(pairs(steps, "compressor", "torch", "fused")))
    for end, _, same in _parts(alone, "compressor", "torch", "fused", "reuse", "mode", "breaks", "break-outputs"):
        yield from save_figure(compressor_figure(same), folder / f"compressor-torch-and-fused{end}")
    yield from draw_kernels(records, folder)


def _parts(records: Sequence[Record], switch: str, before: str, after: str, *apart: str) -> list[Part]:
    """Return the parts of a comparison that have a figure each: the end of its name, its frame and its pairs."""
    found = pairs(records, switch, before, after)
    frame = comparison_frame(records, switch, before, after)
    return [(end, part, [found[place] for place in part.index]) for end, part in sections(frame, *apart)]


def _by(frame: pd.DataFrame) -> str:
    """Return by what the lines of a run of one side differ, for the name of its file."""
    modes = [name for name in ("mode", "breaks", "break-outputs") if name in frame]
    several = {"mode": len(frame[modes].drop_duplicates()) > 1, "compressor": frame["compressor"].nunique() > 1}
    words = [name for name, differs in several.items() if differs]
    return f"-by-{'-and-'.join(words)}" if words else ""
