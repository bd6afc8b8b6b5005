"""The options of `dsv4bench kernels`: names, placeholders and help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Names = Annotated[
    list[str] | None, typer.Argument(metavar="[NAMES]...", help="Kernels, short names too: c1 c2 attention. [all]")
]
Rows = Annotated[
    list[str] | None,
    typer.Option("--rows", metavar="AXIS", help="Rows of a call. [each kernel's own; on a CPU at most 64]"),
]
Kv = Annotated[
    list[str] | None,
    typer.Option("--kv", metavar="AXIS", help="Cache layouts of the kernels that know them. [each kernel's own]"),
]
Case = Annotated[
    list[str] | None,
    typer.Option("--case", metavar="TEXT", help='Only these cases, as a table names them: "width 640".'),
]
Provider = Annotated[
    list[str],
    typer.Option(
        "--provider",
        metavar="AXIS",
        help="auto (all, torch only where nobody else can run), all, torch, triton, sglang, ..., or my.py:fn.",
    ),
]
Samples = Annotated[
    str | None, typer.Option("--samples", metavar="N", help="Samples of each loop. [until known to 1 %; on a CPU 3]")
]
Seed = Annotated[str, typer.Option("--seed", metavar="N", help="Seed of the inputs.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Where records go. [results/<UTC time>-kernels]")
]
Plot = Annotated[bool, typer.Option("--plot", help="Draw a roofline and bars beside the records, as PNG and SVG.")]
Once = Annotated[
    bool, typer.Option("--once", help="Call one kernel once between profiler start and stop; time nothing.")
]
Ncu = Annotated[bool, typer.Option("--ncu", help="Print the command that profiles one kernel with Nsight Compute.")]
NcuReport = Annotated[
    Path | None, typer.Option("--ncu-report", metavar="FILE", help="Read a report of ncu (or its raw CSV) back.")
]
Digest = Annotated[
    bool, typer.Option("--digest", help="Run fresh processes on the same inputs and compare the hash of every output.")
]
SourceA = Annotated[
    str, typer.Option("--a-src", metavar="REF|DIR", help="Tree A of --digest: a git ref or a directory.")
]
SourceB = Annotated[str, typer.Option("--b-src", metavar="REF|DIR", help="Tree B of --digest. [this one, as it is]")]
Control = Annotated[
    str | None,
    typer.Option("--control", metavar="EPS", help="Perturb one input by EPS as well: some output must differ."),
]
