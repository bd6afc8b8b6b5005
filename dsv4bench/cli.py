"""The command line: every command parses, calls one function and prints. Heavy imports stay inside the commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dsv4bench import __version__
from dsv4bench.errors import DsvError, RecordError, UsageError

OK, FAILED, USAGE, INCOMPLETE, NOTHING, INTERRUPTED = 0, 1, 2, 3, 4, 130

EPILOG = (
    "Exit codes: 0 ok; 1 a cell failed or is wrong; 2 usage; 3 not everything that ran could be attributed; "
    "4 nothing was measured; 130 Ctrl-C, everything finished is kept."
)
AXIS = "AXIS"

app = typer.Typer(
    name="dsv4bench",
    help="Before/after measurements of DeepSeek-V4 and V4.1 attention kernels.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Format = Annotated[str, typer.Option("--format", help="Output: table, md, csv, json or jsonl.", metavar="FORMAT")]
Json = Annotated[bool, typer.Option("--json", help="Same as --format json.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.")]
Axis = list[str]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"dsv4bench {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Before/after measurements of DeepSeek-V4 and V4.1 attention kernels."""


@app.command(epilog=EPILOG)
def prefill(
    batch: Annotated[
        Axis, typer.Option(metavar=AXIS, help="Requests: 8 | 1,2,8 | 1..64 doubles | 1..64:+8 | 1..64:x4 | @file.")
    ] = ["1"],
    extend: Annotated[
        Axis | None, typer.Option(metavar=AXIS, help="New tokens of each request, e.g. 1k. [1k; on a CPU 8]")
    ] = None,
    prefix: Annotated[
        Axis | None, typer.Option(metavar=AXIS, help="Cached tokens of each request, e.g. 8k,64k. [8k; on a CPU 120]")
    ] = None,
    requests: Annotated[
        str, typer.Option(metavar="FILE", help="Recorded request lengths, JSON lines; --batch takes the first N.")
    ] = "",
    chunk: Annotated[Axis | None, typer.Option(metavar=AXIS, help="Token budget of one forward. [8192]")] = None,
    graph: Annotated[
        bool | None, typer.Option("--graph/--no-graph", help="Graph cells only, or eager only. [both]")
    ] = None,
    graph_mode: Annotated[
        Axis, typer.Option(metavar="MODE", help="breakable (as upstream ships it) or full (best case).")
    ] = ["breakable"],
    reuse: Annotated[Axis, typer.Option(metavar="on|off|both", help="Reuse the dequant of a shared kv_source.")] = [
        "both"
    ],
    kv: Annotated[Axis, typer.Option(metavar="KV", help="KV formats, main+extra: v4, v41, v41+fp4.")] = ["v41+fp4"],
    compressor: Annotated[
        Axis, typer.Option(metavar="torch|fused|both", help="Ratio-2 compressor: the torch path or the fused kernels.")
    ] = ["fused"],
    provider: Annotated[
        Axis, typer.Option(metavar="auto|torch|triton", help="Whose kernels: triton on a GPU, torch on a CPU.")
    ] = ["auto"],
    geometry: Annotated[
        Axis | None,
        typer.Option(metavar="NAME", help="v41-flash, v41-flash-mini or a config.json. [v41-flash; CPU: mini]"),
    ] = None,
    dep_simulated: Annotated[
        Axis, typer.Option(metavar=AXIS, help="Deal the requests to N ranks, run one after another here.")
    ] = ["1"],
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to run.")] = "auto",
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of weights, inputs and page tables.")] = 0,
    samples: Annotated[
        int | None, typer.Option(metavar="N", help="Samples of each cell. [until the median is known to 1 %]")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One warm-up and three samples.")] = False,
    fault: Annotated[
        str, typer.Option(metavar="FAULT", help="Plant a fault: stale-head, wrong-row or extra-copy.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where records go. [results/<UTC time>-prefill]")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with an interrupted run: skip cells that are there.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan with modelled times and memory.")] = False,
    form: Format = "table",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run the 40-layer attention stack of a prefill, before and after, and count and time it.

    Every option that takes an AXIS may be given several values or repeated; the run is their product.
    """
    from dsv4bench.cli_prefill import Request, run_prefill
    from dsv4bench.workloads.options import PrefillArguments

    typed = PrefillArguments(
        batch=batch,
        extend=extend or "",
        prefix=prefix or "",
        requests=requests,
        chunk=chunk or "",
        graph=graph,
        graph_mode=graph_mode,
        reuse=reuse,
        kv=kv,
        compressor=compressor,
        provider=provider,
        geometry=geometry or "",
        dep_simulated=dep_simulated,
        device=device,
        seed=seed,
        samples=samples,
        quick=quick,
        fault=fault,
    )
    form = _form(form, as_json)
    raise typer.Exit(run_prefill(Request(typed, out, resume, dry_run, form, quiet)))


@app.command(epilog=EPILOG)
def show(
    path: Annotated[Path, typer.Argument(help="A results directory or a .jsonl file.")],
    form: Format = "table",
    as_json: Json = False,
) -> None:
    """Print the tables of a run again."""
    from dsv4bench.dashboards import tables
    from dsv4bench.results.store import read_records

    form = _form(form, as_json)
    reading = read_records(path)
    for warning in reading.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if not reading.records:
        raise UsageError(f"{path}: no records here")
    tables.show(reading.records, form, sys.stdout)


@app.command(epilog=EPILOG)
def plot(
    path: Annotated[Path, typer.Argument(help="A results directory or a .jsonl file.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the figures go. [PATH, or its folder]")] = None,
) -> None:
    """Draw step time against batch, before and after, with intervals, as PNG and SVG."""
    from dsv4bench.dashboards import plots
    from dsv4bench.results.frame import comparison_frame
    from dsv4bench.results.store import read_records

    found = comparison_frame(read_records(path).records)
    if found.empty:
        raise UsageError(f"{path}: no pair of reuse off and on to draw")
    folder = out or (path if path.is_dir() else path.parent)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in plots.sections(found):
        for file in plots.save_figure(plots.step_time_figure(part), folder / name):
            typer.echo(str(file))


@app.command()
def env(as_json: Json = False) -> None:
    """Say what this machine can run, provider by provider, with the reason where not."""
    from dsv4bench.cli_machine import show_environment

    show_environment(as_json)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List kernels with their providers, geometries, KV formats and faults."""
    from dsv4bench.cli_machine import show_catalogue

    show_catalogue(as_json)


def _form(form: str, as_json: bool) -> str:
    from dsv4bench.dashboards.tables import FORMATS
    from dsv4bench.errors import nearest

    if form not in FORMATS:
        raise UsageError(f"--format {form}: expected one of {', '.join(FORMATS)}{nearest(form, FORMATS)}")
    return "json" if as_json else form


def main() -> None:
    """Run the command line; an error of ours is one line on stderr and an exit code."""
    try:
        app()
    except (UsageError, RecordError) as error:
        typer.echo(f"dsv4bench: {error}", err=True)
        raise SystemExit(USAGE) from None
    except DsvError as error:
        typer.echo(f"dsv4bench: {error}", err=True)
        raise SystemExit(FAILED) from None
    except BrokenPipeError:
        # the reader of a pipe has gone (head, say): there is nobody to tell
        sys.stderr.close()
        raise SystemExit(OK) from None
