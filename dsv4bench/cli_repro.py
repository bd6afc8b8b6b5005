"""`dsv4bench repro`: the command that makes a row again, with the code and the environment that it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EPILOG = "Exit codes: 0 ok; 2 usage."

Row = Annotated[
    str, typer.Argument(metavar="ROW", help="The start of a record's key, or DIR:N, line N of show DIR --format jsonl.")
]
Folder = Annotated[Path, typer.Argument(metavar="[DIR]", help="Where a key is looked for: a directory or a file.")]


def repro(row: Row, folder: Folder = Path("results")) -> None:
    """Print the commands that make a row again, and what must be as it was.

    Keys stand in `history`, in CSV of `compare` and in JSON. All that is printed can be pasted into a shell.
    """
    from dsv4bench.cli_repro_run import run_repro

    run_repro(row, folder)
