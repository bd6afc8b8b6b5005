"""`dsv4bench ab`: two sides measured next to each other, pair by pair, and whether one is faster."""

from __future__ import annotations

import typer

from dsv4bench import cli_ab_options as ab_options
from dsv4bench import cli_options as options

EPILOG = (
    "Exit codes: 0 ok; 1 a cell failed or is wrong, or with --gate is SLOWER; 2 usage; 3 not everything that ran could"
    " be attributed, or with --gate --strict a cell is INCONCLUSIVE; 4 nothing was measured; 130 Ctrl-C or SIGTERM,"
    " everything finished is kept."
)

ab = typer.Typer(name="ab", epilog=EPILOG, no_args_is_help=True, rich_markup_mode=None)


@ab.callback()
def group() -> None:
    """Measure two sides next to each other and say whether one is faster."""


@ab.command(epilog=EPILOG)
def prefill(
    a: ab_options.SideA = "",
    b: ab_options.SideB = "",
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
    geometry: options.Geometry = None,
    dep_simulated: options.DepSimulated = ["1"],
    device: options.Device = "auto",
    seed: options.Seed = "0",
    fault: options.Fault = "",
    pairs: ab_options.Pairs = None,
    samples: ab_options.Samples = None,
    fresh: ab_options.Fresh = False,
    a_src: ab_options.SourceA = "",
    b_src: ab_options.SourceB = "",
    a_env: ab_options.EnvironmentA = "",
    b_env: ab_options.EnvironmentB = "",
    min_effect: ab_options.Effect = "",
    aa: ab_options.Same = False,
    time_limit: ab_options.TimeLimit = "",
    gate: ab_options.Gate = False,
    strict: ab_options.Strict = False,
    md: ab_options.Markdown = "",
    out: ab_options.Out = None,
    resume: ab_options.Resume = None,
    dry_run: ab_options.DryRun = False,
    form: options.Format = "table",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure a prefill before (a) and after (b) in pairs, and say of each cell: FASTER, SLOWER, SAME, INCONCLUSIVE."""
    typed = dict(locals())  # a context's `params` are, in some versions of typer, not converted yet
    from dsv4bench.cli_ab_run import run_typed

    raise typer.Exit(run_typed(typed))
