"""`dsv4bench check capture`: a workload on the tape, and what of it a CUDA graph would refuse or replay wrong."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv4bench import cli_options as options

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def capture(
    batch: options.Batch = ["2"],
    extend: options.Extend = None,
    prefix: options.Prefix = None,
    requests: options.Requests = "",
    chunk: options.Chunk = None,
    kv: options.Kv = ["v41+fp4"],
    compressor: options.Compressor = ["both"],
    breaks: options.Breaks = ["sm100"],
    buckets: options.Buckets = "",
    provider: options.Provider = ["auto"],
    replay: options.Replay = ["off"],
    path: options.AttentionPath = ["sparse"],
    geometry: options.Geometry = None,
    dep_simulated: options.DepSimulated = ["1"],
    seed: options.Seed = "0",
    as_json: Json = False,
) -> None:
    """Find what is not graph-safe in a prefill, on a CPU: each bucket is captured with several batches and compared.

    Listed is what a capture refuses (a value read to the host, a size that depends on data, fresh host memory) and what
    a replay would keep of its first batch (a shape, a number, a tensor that nobody refreshes).
    """
    given = dict(locals())
    from dsv4bench import cli_capture_report as report
    from dsv4bench.cli import FAILED, INTERRUPTED, NOTHING, OK
    from dsv4bench.workloads.options import PrefillArguments

    typed = {name: value for name, value in given.items() if name != "as_json" and value is not None}
    reports, interrupted = report.capture_reports(PrefillArguments(**typed, graph=True, reuse="on", device="cpu"))
    typer.echo(report.as_json(reports) if as_json else report.as_text(reports))
    if interrupted:
        done = "1 cell was" if len(reports) == 1 else f"{len(reports)} cells were"
        typer.echo(f"interrupted: {done} checked", err=True)
        raise typer.Exit(INTERRUPTED)
    if any(one.unsafe or one.failed for one in reports):
        raise typer.Exit(FAILED)
    raise typer.Exit(OK if any(one.captures for one in reports) else NOTHING)
