"""`dsv4bench check counts`: what a step launches against expectations, in records, in a trace or in a run made here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsv4bench import cli_options as options

Expect = Annotated[
    str, typer.Option("--expect", metavar="FILE", help="Expectations: a TOML file, or a shipped one by its name.")
]
Path_ = Annotated[
    Path | None,
    typer.Argument(metavar="[PATH]", help="Results (a directory, a .jsonl file) or a trace. [a run made here]"),
]
Words = list[str] | None
Batch = Annotated[Words, typer.Option("--batch", metavar="AXIS", help="Requests, e.g. 1,8. [1]")]
Reuse = Annotated[Words, typer.Option("--reuse", metavar="on|off|both", help="Only such cells. [as the file says]")]
Kv = Annotated[Words, typer.Option("--kv", metavar="KV", help="Only such cells. [as the file says]")]
Compressor = Annotated[
    Words, typer.Option("--compressor", metavar="torch|fused|both", help="Only such cells. [as the file says]")
]
GraphMode = Annotated[Words, typer.Option("--graph-mode", metavar="MODE", help="Only such cells. [as the file says]")]
Breaks = Annotated[
    Words, typer.Option("--breaks", metavar="sm100|hopper|both", help="Only such cells. [as the file says]")
]
BreakOutputs = Annotated[
    Words, typer.Option("--break-outputs", metavar="copy|static|both", help="Only such cells. [as the file says]")
]
Replay = Annotated[Words, typer.Option("--replay", metavar="off|on", help="Only such cells. [as the file says]")]
AttentionPath = Annotated[
    Words, typer.Option("--path", metavar="sparse|recipe", help="Only such cells. [as the file says]")
]
Moe = Annotated[
    Words, typer.Option("--moe", metavar="off|collectives|experts", help="Only such cells. [as the file says]")
]
Mhc = Annotated[
    bool | None, typer.Option("--mhc/--no-mhc", help="Only cells with or without residual streams. [as the file says]")
]
Provider = Annotated[Words, typer.Option("--provider", metavar="NAME", help="Whose kernels, as for prefill. [auto]")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Keep the records of the run there. [nowhere]")]
AllowUncounted = Annotated[
    bool, typer.Option("--allow-uncounted", help="Let a class pass that was not counted here, e.g. kernels on a CPU.")
]
Map = Annotated[
    Path | None,
    typer.Option("--map", metavar="FILE", help="Of a trace: TOML with patterns of your ranges and kernels."),
]
Infer = Annotated[
    str, typer.Option("--infer", metavar="NAME|off", help="Of a trace: find layers from kernels where no range does.")
]
Ledger = Annotated[
    Path | None,
    typer.Option("--ledger", metavar="RECORDS", help="Of a trace: records of its run, with the nodes of its graphs."),
]
Steps = Annotated[str, typer.Option("--steps", metavar="A-B", help="Of a trace: only these steps, e.g. 3-5.")]
AllowUnattributed = Annotated[
    bool, typer.Option("--allow-unattributed", help="Of a trace: exit with 0 where operations have no place.")
]


def counts(
    expect: Expect,
    path: Path_ = None,
    batch: Batch = None,
    extend: options.Extend = None,
    prefix: options.Prefix = None,
    graph: options.Graph = None,
    graph_mode: GraphMode = None,
    breaks: Breaks = None,
    break_outputs: BreakOutputs = None,
    reuse: Reuse = None,
    kv: Kv = None,
    compressor: Compressor = None,
    provider: Provider = None,
    replay: Replay = None,
    attention_path: AttentionPath = None,
    moe: Moe = None,
    mhc: Mhc = None,
    geometry: options.Geometry = None,
    device: Annotated[str | None, typer.Option("--device", metavar="auto|cpu|cuda", help="Where to run.")] = None,
    seed: Annotated[str | None, typer.Option("--seed", metavar="N", help="Seed of the run. [0]")] = None,
    fault: Annotated[str | None, typer.Option("--fault", metavar="FAULT", help="Plant a fault in the run.")] = None,
    out: Out = None,
    allow_uncounted: AllowUncounted = False,
    patterns: Map = None,
    infer: Infer = "v41-flash",
    ledger: Ledger = None,
    steps: Steps = "",
    allow_unattributed: AllowUnattributed = False,
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help="Output: table, md or json.")] = "table",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Check what a step launches against expectations, in records, in a trace or in a prefill run made here.

    Without PATH the cells run here once, checked as prefill checks them. Options choose among the records of PATH; of
    a trace each whole step is checked.
    """
    given = dict(locals())
    from dsv4bench.cli_expect import Request, TraceOptions, run_check

    typed = {name: value for name, value in given.items() if value not in (None, [], ())}
    typed["path"] = typed.pop("attention_path", None)
    typed["mhc"] = None if mhc is None else ["on" if mhc else "off"]
    trace = TraceOptions(patterns, infer, ledger, steps, allow_unattributed)
    request = Request(expect, path, typed, out, allow_uncounted, "json" if as_json else form, quiet, trace)
    raise typer.Exit(run_check(request))
