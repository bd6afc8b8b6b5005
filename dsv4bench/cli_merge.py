"""`dsv4bench merge`: run folders, of shards for instance, joined into one, and what is missing of their plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsv4bench import cli_options as options

EPILOG = "Exit codes: 0 joined; 2 usage; 3 joined, and cells of a plan have no record."


def merge(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Results directories or .jsonl files.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new folder, which none of them holds.")],
    form: options.Format = "table",
    as_json: options.Json = False,
) -> None:
    """Join run folders: every record as it is, one file for each session; nothing is averaged.

    The plan of each prefill and kernels command is worked out again, to say which of its cells have no record.
    """
    from dsv4bench.cli import output_format
    from dsv4bench.cli_merge_run import run_merge

    raise typer.Exit(run_merge(folders, out, output_format(form, as_json)))
