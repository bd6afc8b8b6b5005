"""`dsv4bench check capture`: a workload on the tape, and what of it a CUDA graph would refuse or replay wrong."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsv4bench import cli_options as options

if TYPE_CHECKING:
    from dsv4bench.profiling.capture_check import CaptureReport, Unsafe

WIDTH = 80
FEW_PIECES = 3
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def capture(
    context: typer.Context,
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
    from dsv4bench.cli import FAILED, NOTHING, OK
    from dsv4bench.workloads.options import PrefillArguments

    typed = {name: value for name, value in context.params.items() if name != "as_json" and value is not None}
    reports = _reports(PrefillArguments(**typed, graph=True, reuse="on", device="cpu"))
    typer.echo(_json(reports) if as_json else "\n".join(_lines(reports)))
    if any(report.unsafe for report in reports):
        raise typer.Exit(FAILED)
    raise typer.Exit(OK if any(report.captures for report in reports) else NOTHING)


def _reports(arguments: Any) -> list[CaptureReport]:
    import torch

    from dsv4bench.profiling.capture_check import check_capture
    from dsv4bench.workloads.cells import cells
    from dsv4bench.workloads.options import prefill_options
    from dsv4bench.workloads.weights import make_model

    reports, model = [], None
    for cell in (cell for group in cells(prefill_options(arguments)) for cell in group):
        if model is None or model.geometry != cell.geometry:
            model = make_model(cell.geometry, torch.device("cpu"), cell.seed)
        reports.append(check_capture(cell, model))
    return reports


def _lines(reports: list[CaptureReport]) -> list[str]:
    return [line for report in reports for line in (*_head(report), *_found(report))]


def _head(report: CaptureReport) -> list[str]:
    load = report.cell.load
    lengths = f" x {load.extend}" if load.extend else ""
    words = [f"batch {len(load.requests)}{lengths}", *_switches(report)]
    if report.captures:
        buckets = ", ".join(map(str, report.buckets))
        words += [f"bucket {buckets}", f"{report.captures} captures", f"{report.segments} segments"]
        words += [f"{report.breaks} breaks", f"{report.nodes} nodes"]
    lines = textwrap.wrap(", ".join(words), WIDTH, subsequent_indent="  ")
    refused = [f"  not captured: {reason}" for reason in report.refused]
    verdict = ["  graph-safe"] if report.captures and not report.unsafe else []
    return [*lines, *refused, *verdict]


def _switches(report: CaptureReport) -> list[str]:
    """Return the switches that change what is captured, "compressor fused" and the like."""
    names = ("kv", "compressor", "breaks", "replay", "path")
    return [f"{name} {value}" for name, value in report.cell.variant.switches().items() if name in names]


def _found(report: CaptureReport) -> list[str]:
    return [line for one in report.unsafe for line in _unsafe(one)]


def _unsafe(one: Unsafe) -> list[str]:
    more = f" and {len(one.pieces) - FEW_PIECES} more" if len(one.pieces) > FEW_PIECES else ""
    text = [one.rule.text, f"in {', '.join(one.pieces[:FEW_PIECES])}{more}", f"mend: {one.rule.mend}"]
    wrapped = (textwrap.wrap(part, WIDTH, initial_indent="    ", subsequent_indent="      ") for part in text)
    return [f"  {one.place}", *(line for lines in wrapped for line in lines)]


def _json(reports: list[CaptureReport]) -> str:
    return json.dumps([_plain(report) for report in reports], indent=1)


def _plain(report: CaptureReport) -> dict[str, Any]:
    load = report.cell.load
    return {
        "requests": len(load.requests),
        "rows": load.rows,
        "variant": report.cell.variant.switches(),
        "buckets": list(report.buckets),
        "captures": report.captures,
        "segments": report.segments,
        "breaks": report.breaks,
        "nodes": report.nodes,
        "refused": list(report.refused),
        "unsafe": [
            {"place": one.place, "what": one.rule.text, "mend": one.rule.mend, "pieces": list(one.pieces)}
            for one in report.unsafe
        ],
    }
