"""`dsv4bench project`: what measured steps would take on another GPU, modelled."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsv4bench import cli_options as options

EPILOG = "Exit codes: 0 ok; 2 usage; 4 nothing could be projected."


def project(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Results directories or .jsonl files of a GPU.")],
    to: Annotated[
        list[str],
        typer.Option(metavar="DEVICES", help="h100, h200, b200, gb200, b300, gb300, or of --peaks."),
    ] = ["b300,gb300"],
    peaks: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A TOML file of your figures, over those shipped. [none]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where records go. [results/<UTC time>-project]")
    ] = None,
    form: options.Format = "table",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Model what measured steps would take on other GPUs; never a measurement.

    A roofline with a fixed cost a launch is fitted on the device times of the runs and scaled by each GPU's peaks.
    Its error, measured on cells that it was not fitted on, is printed with every projection.
    """
    from dsv4bench.cli_project_run import Request, run_project

    raise typer.Exit(run_project(Request(runs, to, peaks, out, "json" if as_json else form, quiet)))
