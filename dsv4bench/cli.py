"""The command line: every command parses, calls one function and prints. Heavy imports stay inside the commands."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dsv4bench import __version__, cli_compare, cli_history, cli_merge, cli_project, cli_report, cli_repro
from dsv4bench import cli_kernel_options as kernel_options
from dsv4bench import cli_options as options
from dsv4bench.cli_ab import ab
from dsv4bench.cli_check import check
from dsv4bench.cli_mistakes import NOT_TYPED_SO, mistake
from dsv4bench.cli_output import guard_output
from dsv4bench.cli_place import is_rank, place_of
from dsv4bench.cli_trace import trace
from dsv4bench.errors import DsvError, RecordError, UsageError

OK, FAILED, USAGE, INCOMPLETE, NOTHING, INTERRUPTED = 0, 1, 2, 3, 4, 130

EPILOG = (
    "Exit codes: 0 ok; 1 a cell failed or is wrong, reuse launched something more, or a trace was not recorded; "
    "2 usage; 3 not everything that ran could be attributed, or (prefill) --time-limit left cells out; "
    "4 nothing was measured; 130 Ctrl-C or SIGTERM, everything finished is kept."
)
AXIS = "Every option that takes an AXIS may be given several values or repeated; the run is their product."
AXES = ("extend", "prefix", "chunk", "geometry")  # whose default depends on the device


class Commands(TyperGroup):
    """The commands; Ctrl-C is a line, not a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for and flush what it printed."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()  # or else Python would, when it is too late to catch an error
        except KeyboardInterrupt:  # where there is nothing to keep
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="dsv4bench",
    cls=Commands,
    help="Before/after measurements of DeepSeek-V4 and V4.1 attention kernels.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(ab)
app.add_typer(check)
app.add_typer(trace)


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


@app.command(epilog=f"{AXIS} {EPILOG}")
def prefill(
    batch: options.Batch = ["1"],
    extend: options.Extend = None,
    prefix: options.Prefix = None,
    requests: options.Requests = "",
    chunk: options.Chunk = None,
    graph: options.Graph = None,
    graph_mode: options.GraphMode = ["breakable"],
    breaks: options.Breaks = ["sm100"],
    break_outputs: options.BreakOutputs = ["copy"],
    buckets: options.Buckets = "",
    reuse: options.Reuse = ["both"],
    kv: options.Kv = ["v41+fp4"],
    compressor: options.Compressor = ["fused"],
    provider: options.Provider = ["auto"],
    replay: options.Replay = ["off"],
    path: options.AttentionPath = ["sparse"],
    moe: options.Moe = ["off"],
    mhc: options.Mhc = False,
    geometry: options.Geometry = None,
    dep_simulated: options.DepSimulated = ["1"],
    dep: options.Dep = "",
    align: options.Align = "barrier",
    device: options.Device = "auto",
    seed: options.Seed = "0",
    samples: options.Samples = None,
    quick: options.Quick = False,
    fault: options.Fault = "",
    mem_fraction: options.MemFraction = "",
    recipe: options.Recipe = "",
    device_memory: options.DeviceMemory = "",
    out: options.Out = None,
    resume: options.Resume = None,
    src: options.Source = None,
    profile: options.Profile = "",
    time_limit: options.TimeLimit = "",
    shard: options.Share = "",
    dry_run: options.DryRun = False,
    form: options.Format = "table",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run the 40-layer attention stack of a prefill, before and after, and count and time it."""
    typed = dict(locals())  # not a context's `params`, which some versions of typer do not convert
    from dsv4bench.cli_source import enter

    tree = enter(src)  # before anything heavy is imported
    from dsv4bench.cli_prefill import run_typed

    raise typer.Exit(run_typed(typed, tree, output_format(form, as_json)))


@app.command(epilog=EPILOG)
def kernels(
    names: kernel_options.Names = None,
    rows: kernel_options.Rows = None,
    kv: kernel_options.Kv = None,
    case: kernel_options.Case = None,
    provider: kernel_options.Provider = ["auto"],
    device: options.Device = "auto",
    seed: kernel_options.Seed = "0",
    samples: kernel_options.Samples = None,
    quick: options.Quick = False,
    out: kernel_options.Out = None,
    resume: options.Resume = None,
    shard: options.Share = "",
    plot: kernel_options.Plot = False,
    form: options.Format = "table",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    src: options.Source = None,
    digest: kernel_options.Digest = False,
    a_src: kernel_options.SourceA = "HEAD",
    b_src: kernel_options.SourceB = "",
    control: kernel_options.Control = None,
    once: kernel_options.Once = False,
    ncu: kernel_options.Ncu = False,
    ncu_report: kernel_options.NcuReport = None,
) -> None:
    """Time kernels by all their providers side by side, cold and hot, against the ceilings of this device.

    A provider is checked against the reference first; a wrong result has no speed.
    """
    given = dict(locals())
    from dsv4bench.cli_source import enter

    tree = enter(src)  # before anything heavy is imported
    from dsv4bench import cli_kernels
    from dsv4bench.workloads.kernel_cells import KernelArguments

    cli_kernels.check_modes(given)
    typed = KernelArguments(names or (), rows or (), kv or (), case or (), provider, device, seed, samples, quick)
    if once or ncu or ncu_report:
        from dsv4bench import cli_ncu

        asked = cli_ncu.Request(typed, once, ncu, ncu_report, output_format(form, as_json), src)
        raise typer.Exit(cli_ncu.run_ncu(asked))
    if digest:
        from dsv4bench.cli_digest import run_digest

        raise typer.Exit(run_digest(typed, a_src, b_src, control, output_format(form, as_json)))
    request = cli_kernels.Request(typed, out, resume, output_format(form, as_json), plot, quiet, tree, shard)
    raise typer.Exit(cli_kernels.run_kernels(request))


@app.command(epilog=cli_history.EPILOG)
def show(
    path: Annotated[Path, typer.Argument(help="A results directory or a .jsonl file.")],
    form: options.Format = "table",
    as_json: options.Json = False,
) -> None:
    """Print the tables of a run again."""
    from dsv4bench.dashboards import tables
    from dsv4bench.results.store import read_records

    form = output_format(form, as_json)
    reading = read_records(path)
    _warn(reading.warnings)
    if not reading.records:
        raise UsageError(f"{path}: no records here")
    tables.show(reading.records, form, sys.stdout)


app.command(epilog=cli_history.EPILOG)(cli_report.plot)
app.command(epilog=cli_history.EPILOG)(cli_report.report)


@app.command()
def env(as_json: options.Json = False) -> None:
    """Say what this machine can run, provider by provider, with the reason where not."""
    from dsv4bench.cli_machine import show_environment

    show_environment(as_json)


@app.command("list")
def list_(as_json: options.Json = False) -> None:
    """List kernels with their providers, geometries, KV formats and faults."""
    from dsv4bench.cli_machine import show_catalogue

    show_catalogue(as_json)


app.command("compare", cls=cli_compare.Compare, epilog=cli_compare.EPILOG)(cli_compare.compare)
app.command("history", epilog=cli_history.EPILOG)(cli_history.history)
app.command("merge", epilog=cli_merge.EPILOG)(cli_merge.merge)
app.command("repro", epilog=cli_repro.EPILOG)(cli_repro.repro)
app.command("project", epilog=cli_project.EPILOG)(cli_project.project)


def _warn(warnings: list[str]) -> None:
    """Say on stderr what was left out of the records that were read."""
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)


def output_format(form: str, as_json: bool) -> str:
    """Return the format that was asked for; UsageError for one that does not exist."""
    from dsv4bench.dashboards.tables import FORMATS
    from dsv4bench.errors import nearest

    if form not in FORMATS:
        raise UsageError(f"--format {form}: expected one of {', '.join(FORMATS)}{nearest(form, FORMATS)}")
    return "json" if as_json else form


def _terminated(*_: object) -> None:
    """Do what Ctrl-C does, once: `timeout` sends SIGTERM twice, and the second must not break off the first one's."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _say_what_was_mistyped(error: Any) -> None:
    """Say it in one line; help where nothing was typed at all."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    elif _speaks():
        typer.echo(mistake(error, typer.main.get_command(app), sys.argv[1:]), err=True)


def _speaks(for_its_host: bool = False) -> bool:
    """Return whether this process complains; of a run's ranks, which share a command, the first does (of its host)."""
    try:
        place = place_of(os.environ)
    except UsageError:
        return True
    return place is None or (place.local_rank if for_its_host else place.rank) == 0


def main() -> None:
    """Run the command line; an error of ours is one line on stderr and an exit code."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        raise SystemExit(app(standalone_mode=False))
    except typer.Abort:  # Ctrl-C before a command, in some versions of typer
        raise SystemExit(INTERRUPTED) from None
    except NOT_TYPED_SO as error:
        _say_what_was_mistyped(error)
        raise SystemExit(USAGE) from None
    except (UsageError, RecordError) as error:
        if _speaks(for_its_host=True):  # what is asked for may be missing on one of the hosts
            typer.echo(f"dsv4bench: {error}", err=True)
        raise SystemExit(USAGE) from None
    except DsvError as error:
        typer.echo(f"dsv4bench: {error}", err=True)
        raise SystemExit(FAILED) from None


def run() -> None:
    """Run the command line as a process of its own; a rank that somebody else has started has an end of its own."""
    guard_output()
    if is_rank(os.environ):
        from dsv4bench.profiling.leave import leave_after

        leave_after(main)
    main()
