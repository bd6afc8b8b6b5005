"""`dsv4bench trace`: what a trace of nsys or torch.profiler shows, how two differ, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EPILOG = (
    "Exit codes: 0 ok; 1 the trace cannot be read, or (doctor) its counts are wrong; 2 usage; 3 operations without a"
    " place where the answer depends on it, or traces that cannot be compared; 4 there is nothing to group."
)

trace = typer.Typer(name="trace", epilog=EPILOG, no_args_is_help=True, rich_markup_mode=None)

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="An nsys export, a .nsys-rep, Kineto JSON, or a folder of ranks.")
]
Before = Annotated[Path, typer.Argument(metavar="BEFORE", help="The trace of before, as for review.")]
After = Annotated[Path, typer.Argument(metavar="AFTER", help="The trace of after.")]
By = Annotated[
    str, typer.Option("--by", metavar="AXIS", help="Group by layer, kv_source, op, kernel, range or stream.")
]
DiffBy = Annotated[
    str, typer.Option("--by", metavar="AXIS", help="kv_source, op, layer or kernel. [kv_source where known, or kernel]")
]
Steps = Annotated[str, typer.Option("--steps", metavar="A-B", help="Only these steps, e.g. 3-5, or one: 4.")]
Csv = Annotated[bool, typer.Option("--csv", help="All rows as CSV.")]
Md = Annotated[bool, typer.Option("--md", help="Tables as markdown.")]
Json = Annotated[bool, typer.Option("--json", help="Everything as one JSON object.")]
Map = Annotated[
    Path | None, typer.Option("--map", metavar="FILE", help="TOML with patterns of your ranges and kernels.")
]
Geometry = Annotated[
    str, typer.Option("--geometry", metavar="NAME", help="Whose layers map to kv_sources: a name or a config.json.")
]
Infer = Annotated[
    str, typer.Option("--infer", metavar="NAME|off", help="Find layers from kernels where no range names one.")
]
NvtxKind = Annotated[
    str, typer.Option("--nvtx-kind", metavar="push-pop|start-end", help="Which NVTX ranges hold what is launched.")
]
Ledger = Annotated[
    Path | None,
    typer.Option("--ledger", metavar="RECORDS", help="Records whose captured graphs the trace replays: their nodes."),
]
Allow = Annotated[bool, typer.Option("--allow-unattributed", help="Exit with 0 where operations have no place.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw one step as .png or .svg.")]
Rank = Annotated[
    int | None, typer.Option("--rank", metavar="N", help="Which rank to compare, where a trace has several.")
]
Unlike = Annotated[bool, typer.Option("--allow-unlike", help="Show numbers of unlike traces, labelled.")]


@trace.callback()
def group() -> None:
    """Review anyone's trace: nsys or torch.profiler, without a GPU and without nsys installed."""


@trace.command(epilog=EPILOG)
def review(
    path: File,
    by: By = "",
    steps: Steps = "",
    as_json: Json = False,
    as_csv: Csv = False,
    as_md: Md = False,
    patterns: Map = None,
    geometry: Geometry = "",
    infer: Infer = "v41-flash",
    nvtx_kind: NvtxKind = "push-pop",
    ledger: Ledger = None,
    allow: Allow = False,
    plot: Plot = None,
) -> None:
    """Say what a trace holds: findings, steps, launches per operation and kv_source, kernels, copies, gaps, ranks."""
    from dsv4bench.cli_trace_run import Reading, run_review

    reading = Reading(patterns, geometry, infer, nvtx_kind, ledger)
    form = _form(as_json, as_csv, as_md)
    raise typer.Exit(run_review(path, reading, by, steps, form, allow, plot))


@trace.command(epilog=EPILOG)
def diff(
    before: Before,
    after: After,
    by: DiffBy = "",
    as_json: Json = False,
    as_csv: Csv = False,
    as_md: Md = False,
    patterns: Map = None,
    geometry: Geometry = "",
    infer: Infer = "v41-flash",
    nvtx_kind: NvtxKind = "push-pop",
    ledger: Ledger = None,
    rank: Rank = None,
    allow: Allow = False,
    unlike: Unlike = False,
) -> None:
    """Compare two traces: launches exactly, times as medians over steps, new and gone kernels; like with like only."""
    from dsv4bench.cli_trace_run import Reading, run_diff

    reading = Reading(patterns, geometry, infer, nvtx_kind, ledger)
    sides = {"before": (before, rank), "after": (after, rank)}
    raise typer.Exit(run_diff(sides, reading, by, _form(as_json, as_csv, as_md), allow, unlike))


@trace.command(epilog=EPILOG)
def doctor(
    path: File,
    as_json: Json = False,
    nvtx_kind: NvtxKind = "push-pop",
) -> None:
    """List what is wrong with a trace, with the numbers behind it and the command that would record it right."""
    from dsv4bench.cli_trace_run import Reading, run_doctor

    raise typer.Exit(run_doctor(path, Reading(None, "", "off", nvtx_kind), as_json))


def _form(as_json: bool, as_csv: bool, as_md: bool) -> str:
    """Return the format that was asked for; UsageError for several at once."""
    from dsv4bench.errors import UsageError

    asked = [form for form, wanted in (("json", as_json), ("csv", as_csv), ("md", as_md)) if wanted]
    if len(asked) > 1:
        raise UsageError(f"--{' --'.join(asked)}: expected one format at a time")
    return asked[0] if asked else "table"
