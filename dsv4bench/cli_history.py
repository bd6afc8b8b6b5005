"""`dsv4bench history`: a cell's step time over time and commits, from any number of run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dsv4bench import cli_options as options

EPILOG = "Exit codes: 0 ok; 2 usage."
NUMBERS = ("batch", "extend", "prefix")  # options of numbers; all others are words

Words = list[str] | None
Folders = Annotated[
    list[Path] | None, typer.Argument(metavar="[DIR...]", help="Results directories or .jsonl files. [results]")
]
Batch = Annotated[Words, typer.Option("--batch", metavar="AXIS", help="Only such cells, e.g. 1..64. [all]")]
Extend = Annotated[Words, typer.Option("--extend", metavar="AXIS", help="Only such cells, e.g. 1k. [all]")]
Prefix = Annotated[Words, typer.Option("--prefix", metavar="AXIS", help="Only such cells, e.g. 8k. [all]")]
Mode = Annotated[
    Words, typer.Option("--mode", metavar="MODE", help="eager, graph, full graph, tape or full tape. [all]")
]
Kv = Annotated[Words, typer.Option("--kv", metavar="KV", help="Only such cells, e.g. v4. [all]")]
Reuse = Annotated[Words, typer.Option("--reuse", metavar="on|off", help="Only such cells. [all]")]
Compressor = Annotated[Words, typer.Option("--compressor", metavar="torch|fused", help="Only such cells. [all]")]
Provider = Annotated[Words, typer.Option("--provider", metavar="NAME", help="Only such cells or kernels. [all]")]
Geometry = Annotated[Words, typer.Option("--geometry", metavar="NAME", help="Only such cells. [all]")]
Kernel = Annotated[Words, typer.Option("--kernel", metavar="NAME", help="Only such kernels alone. [all]")]
Case = Annotated[Words, typer.Option("--case", metavar="CASE", help="Only such cases of kernels. [all]")]
Machine = Annotated[Words, typer.Option("--machine", metavar="NAME", help="Only what this GPU or CPU ran. [all]")]


def history(
    folders: Folders = None,
    batch: Batch = None,
    extend: Extend = None,
    prefix: Prefix = None,
    mode: Mode = None,
    kv: Kv = None,
    reuse: Reuse = None,
    compressor: Compressor = None,
    provider: Provider = None,
    geometry: Geometry = None,
    kernel: Kernel = None,
    case: Case = None,
    machine: Machine = None,
    form: options.Format = "table",
    as_json: options.Json = False,
) -> None:
    """Show a cell's step time over time and commits, oldest first."""
    given = dict(locals())
    from dsv4bench.cli import output_format
    from dsv4bench.cli_history_run import run_history

    other = ("folders", "form", "as_json")
    typed = {name: values for name, values in given.items() if values and name not in other}
    wanted = {name: _values(name, values) for name, values in typed.items()}
    run_history(folders or [Path("results")], wanted, output_format(form, as_json))


def _values(name: str, typed: list[str]) -> list[Any]:
    """Return the values of an option: an axis of numbers, or words with commas between them."""
    from dsv4bench.workloads.axis import number_axis

    if name in NUMBERS:
        return list(number_axis(f"--{name}", typed, least=0))
    whole = name in ("case", "machine")  # whose names may hold a comma
    return [word.strip() for text in typed for word in ([text] if whole else text.split(","))]
