"""`dsv4bench check replay`: proves that the graph of each bucket does for every batch what an eager run does."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv4bench import cli_options as options

Buckets = Annotated[
    str,
    typer.Option("--buckets", metavar="LIST", help="Rows of the graphs, ascending, or all. [8,256,8192; CPU: 8,64]"),
]
Format = Annotated[str, typer.Option("--format", metavar="FORMAT", help="Output: table, md, csv or json.")]
OWN = ("buckets", "late_replay", "form", "as_json", "quiet")


def replay(
    buckets: Buckets = "",
    compressor: options.Compressor = ["both"],
    breaks: options.Breaks = ["sm100"],
    break_outputs: options.BreakOutputs = ["copy"],
    kv: options.Kv = ["v41+fp4"],
    provider: options.Provider = ["auto"],
    late_replay: options.Replay = ["off"],
    path: options.AttentionPath = ["sparse"],
    geometry: options.Geometry = None,
    device: options.Device = "auto",
    seed: options.Seed = "0",
    form: Format = "table",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Prove graph replays: each bucket is captured once and replays twelve batches, compared with eager runs.

    The batches: full, three requests, one token, none, many requests, lengths of the other parity, a chunk on an odd
    prefix, two chunks of one request, an idle rank. Buffers and slots to be written are poisoned before each replay. On
    a CPU the graphs are tapes.
    """
    given = dict(locals())
    from dsv4bench.cli_replay_proof import run_replay_proof
    from dsv4bench.workloads.options import PrefillArguments

    typed = {name: value for name, value in given.items() if name not in OWN and value is not None}
    arguments = PrefillArguments(**typed, replay=late_replay, graph=True, reuse="on")
    raise typer.Exit(run_replay_proof(arguments, buckets, "json" if as_json else form, quiet))
