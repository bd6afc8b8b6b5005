"""The options of `dsv4bench ab`: names, placeholders and help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SideA = Annotated[
    str,
    typer.Option(
        "--a",
        metavar="SWITCH=VALUE,...",
        help="Side a sets: reuse, compressor, graph, graph-mode, breaks, break-outputs, kv, provider, replay, path,"
        " moe or mhc.",
    ),
]
SideB = Annotated[
    str, typer.Option("--b", metavar="SWITCH=VALUE,...", help="The same switches with the values of side b.")
]
Pairs = Annotated[
    str | None,
    typer.Option(
        "--pairs",
        metavar="N",
        help="Pairs at the most. [until all is known to half of --min-effect, 60 s a cell; fresh, or on a CPU: as many"
        " as a verdict on all cells needs, 9 for 7]",
    ),
]
Samples = Annotated[
    str | None,
    typer.Option("--samples", metavar="N", help="Samples of each side in a pair. [2; fresh 11, on a CPU 3]"),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Every side of every pair in a process of its own. [one process where possible]")
]
SourceA = Annotated[
    str,
    typer.Option(
        "--a-src",
        metavar="DIR|REV|DIR@REV",
        help="Source tree whose packages side a takes first: a folder, or a git revision of it. [installed ones]",
    ),
]
SourceB = Annotated[
    str, typer.Option("--b-src", metavar="DIR|REV|DIR@REV", help="The same for side b. [installed ones]")
]
EnvironmentA = Annotated[
    str, typer.Option("--a-env", metavar="PYTHON", help="Python of the environment of side a. [this one]")
]
EnvironmentB = Annotated[str, typer.Option("--b-env", metavar="PYTHON", help="The same for side b. [this one]")]
Effect = Annotated[
    str,
    typer.Option(
        "--min-effect", metavar="PCT|US", help="Least difference that matters: 0.5% or 50us. [graph 0.5%, eager 1%]"
    ),
]
Same = Annotated[bool, typer.Option("--aa", help="Both sides are a: the noise floor of this machine.")]
TimeLimit = Annotated[
    str,
    typer.Option("--time-limit", metavar="S|10m", help="Take no more pairs than that time allows. [no limit]"),
]
Gate = Annotated[bool, typer.Option("--gate", help="Exit with 1 if a cell is SLOWER.")]
Strict = Annotated[bool, typer.Option("--strict", help="With --gate: exit with 3 if a cell is INCONCLUSIVE.")]
Markdown = Annotated[
    str, typer.Option("--md", metavar="FILE|-", help="Write a block for a pull request there, - for stdout. [nowhere]")
]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where records go. [results/<UTC time>-ab]")]
Resume = Annotated[
    Path | None,
    typer.Option("--resume", metavar="DIR", help="Go on with a run: only cells that are missing; with --fresh, pairs."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print cells, pairs, modelled time, and what a cell can tell from noise.")
]
