"""The options of the command line: names, placeholders and help texts.

Names are written out: typer up to 0.27 takes a placeholder that equals the name (KV) for the option's own (--KV).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Format = Annotated[str, typer.Option("--format", help="Output: table, md, csv, json or jsonl.", metavar="FORMAT")]
Json = Annotated[bool, typer.Option("--json", help="Same as --format json.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.")]

Batch = Annotated[
    list[str],
    typer.Option("--batch", metavar="AXIS", help="Requests: 8 | 1,2,8 | 1..64 doubles | 1..64:+8 | 1..64:x4 | @file."),
]
Extend = Annotated[
    list[str] | None,
    typer.Option("--extend", metavar="AXIS", help="New tokens of each request, e.g. 1k. [1k; on a CPU 8]"),
]
Prefix = Annotated[
    list[str] | None,
    typer.Option("--prefix", metavar="AXIS", help="Cached tokens of each request, e.g. 8k,64k. [8k; on a CPU 120]"),
]
Requests = Annotated[
    str,
    typer.Option("--requests", metavar="FILE", help="Recorded request lengths, JSON lines; --batch takes the first N."),
]
Chunk = Annotated[
    list[str] | None,
    typer.Option("--chunk", metavar="AXIS", help="Token budget of one forward. [8192; recorded lengths on a CPU: 128]"),
]
Graph = Annotated[bool | None, typer.Option("--graph/--no-graph", help="Graph cells only, or eager only. [both]")]
GraphMode = Annotated[
    list[str],
    typer.Option("--graph-mode", metavar="MODE", help="breakable (as upstream ships it) or full (best case)."),
]
Breaks = Annotated[
    list[str],
    typer.Option(
        "--breaks",
        metavar="sm100|hopper|both",
        help="What runs eagerly between segments: 52 parts, or 48 with whole source steps, as upstream on Hopper.",
    ),
]
BreakOutputs = Annotated[
    list[str],
    typer.Option(
        "--break-outputs",
        metavar="copy|static|both",
        help="Breaks return tensors that are copied into static buffers, as upstream, or write them there.",
    ),
]
Buckets = Annotated[
    str,
    typer.Option(
        "--buckets",
        metavar="LIST",
        help="Rows of a breakable graph, ascending: 64,128,8192. [upstream's, up to --chunk]",
    ),
]
Reuse = Annotated[
    list[str], typer.Option("--reuse", metavar="on|off|both", help="Reuse the dequant of a shared kv_source.")
]
Kv = Annotated[
    list[str],
    typer.Option(
        "--kv", metavar="KV", help="KV formats, main+extra: v4, v41, v41+fp4, uniform; v41_new is interleaved."
    ),
]
Compressor = Annotated[
    list[str],
    typer.Option(
        "--compressor", metavar="torch|fused|both", help="Ratio-2 compressor: the torch path or the fused kernels."
    ),
]
Provider = Annotated[
    list[str],
    typer.Option(
        "--provider",
        metavar="NAME[/KERNEL=NAME]",
        help="Whose kernels: auto (triton on a GPU, torch on a CPU), torch, triton, sglang, flash_mla, deep_gemm;"
        " dequant=sglang or dequant=my.py:fn for one kernel.",
    ),
]
Replay = Annotated[
    list[str],
    typer.Option(
        "--replay",
        metavar="off|on|recipe",
        help="Late layers on each request's last 128 rows only, over packed caches; the recipe's default is on.",
    ),
]
AttentionPath = Annotated[
    list[str],
    typer.Option(
        "--path",
        metavar="sparse|recipe",
        help="Gather into a workspace always, or go packed where the recipe does (few rows, long context).",
    ),
]
Moe = Annotated[
    list[str],
    typer.Option(
        "--moe",
        metavar="off|collectives|experts",
        help="What stands in for the MoE behind each layer: nothing, the exchange between ranks, or experts too.",
    ),
]
Mhc = Annotated[
    bool,
    typer.Option("--mhc", help="Mix the four residual streams before and behind each attention (and MoE) too."),
]
Geometry = Annotated[
    list[str] | None,
    typer.Option(
        "--geometry", metavar="NAME", help="v41-flash, v41-flash-mini or a config.json. [v41-flash; CPU: mini]"
    ),
]
DepSimulated = Annotated[
    list[str],
    typer.Option("--dep-simulated", metavar="AXIS", help="Deal the requests to N ranks, run one after another here."),
]
Dep = Annotated[
    str,
    typer.Option("--dep", metavar="N", help="Deal the requests to N ranks, real processes with a device each."),
]
Align = Annotated[
    str,
    typer.Option("--align", metavar="barrier|free", help="How ranks of --dep begin a sample: together, or each alone."),
]
Device = Annotated[str, typer.Option("--device", metavar="auto|cpu|cuda", help="Where to run.")]
Seed = Annotated[str, typer.Option("--seed", metavar="N", help="Seed of weights, inputs and page tables.")]
Samples = Annotated[
    str | None,
    typer.Option(
        "--samples",
        metavar="N",
        help="Samples of each cell, after 20 warm-ups at most. [until the median is known to 1 %; on a CPU 3]",
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="One warm-up, and three samples or --samples; a CPU's default.")]
Fault = Annotated[
    str, typer.Option("--fault", metavar="FAULT", help="Plant a fault: stale-head, wrong-row or extra-copy.")
]
MemFraction = Annotated[
    str,
    typer.Option(
        "--mem-fraction",
        metavar="F",
        help="Reserve a rank's whole weights, size the pools so that both take F of device memory, and say what"
        " every cell leaves free.",
    ),
]
Recipe = Annotated[
    str,
    typer.Option(
        "--recipe", metavar="NAME", help="A stored fraction, chunk and ranks: dep4, b200-dep4, b200-dep2, gb300-dep2."
    ),
]
DeviceMemory = Annotated[
    str,
    typer.Option(
        "--device-memory", metavar="SIZE", help="Device memory to size pools for, on a CPU or with --dry-run: 141GB."
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Where records go. [results/<UTC time>-prefill]")
]
Resume = Annotated[
    Path | None,
    typer.Option("--resume", metavar="DIR", help="Go on with an interrupted run: skip cells that are there."),
]
Profile = Annotated[
    str,
    typer.Option(
        "--profile",
        metavar="torch|nsys",
        help="Also record one step of each largest cell, in processes of its own, before anything is timed.",
    ),
]
Share = Annotated[
    str,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Run the I-th of N even shares of the plan, in a folder of its own: for many machines. [all of it]",
    ),
]
TimeLimit = Annotated[
    str,
    typer.Option(
        "--time-limit",
        metavar="S|10m",
        help="Begin no group that would, by the longest so far, end later than that; --resume goes on. [no limit]",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan with modelled times and memory.")]
Source = Annotated[
    Path | None,
    typer.Option(
        "--src",
        metavar="DIR",
        help="Put the packages of a source tree (DIR or DIR/python) before the installed ones, in a fresh process.",
    ),
]
