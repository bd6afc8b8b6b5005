"""`dsv4bench plot` and `dsv4bench report`: figures of stored runs as files, and everything of them as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Paths = Annotated[list[Path], typer.Argument(metavar="PATH...", help="Results directories or .jsonl files.")]
Page = Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the page goes.")]
WithModel = Annotated[
    bool, typer.Option("--with-model", help="Show modelled records too, hatched and labelled. [left out]")
]


def plot(
    paths: Paths,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the figures go. [the first PATH, or its folder]")
    ] = None,
    with_model: WithModel = False,
) -> None:
    """Draw step time, verdicts, launches, memory, machines and kernels, as PNG and SVG.

    Several runs are drawn together; machines that ran the same cells stand beside each other.
    """
    from dsv4bench.cli_report_run import run_plot

    run_plot(paths, out or (paths[0] if paths[0].is_dir() else paths[0].parent), with_model)


def report(paths: Paths, out: Page = Path("report.html"), with_model: WithModel = False) -> None:
    """Write one HTML page of everything the records of these runs hold.

    Verdicts or step times in tables that sort and filter, figures, all tables of `show`, what the doctor finds in
    traces beside the records, the environment, and all numbers to download. The page needs no network.
    """
    from dsv4bench.cli_report_run import run_report

    run_report(paths, out, with_model)
