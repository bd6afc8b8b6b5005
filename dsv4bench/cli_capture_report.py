"""What `dsv4bench check capture` does and prints, apart from its options: everything heavy is imported here."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from dsv4bench.errors import CaptureError, CellError
from dsv4bench.profiling.capture_check import CaptureReport, Unsafe, check_capture
from dsv4bench.workloads.cells import cells
from dsv4bench.workloads.memory import free_bytes, refuse_too_large
from dsv4bench.workloads.options import PrefillArguments, prefill_options
from dsv4bench.workloads.weights import make_model

WIDTH = 80
FEW_PIECES = 3


def capture_reports(arguments: PrefillArguments) -> tuple[list[CaptureReport], bool]:
    """Check every cell of the arguments; return their reports and whether Ctrl-C came before the last one."""
    reports: list[CaptureReport] = []
    try:
        reports.extend(_reports(arguments))
    except KeyboardInterrupt:
        return reports, True
    return reports, False


def _reports(arguments: PrefillArguments) -> Iterator[CaptureReport]:
    """Yield the report of every cell, in order; of one that fails with the reason."""
    import torch

    model, groups = None, cells(prefill_options(arguments))
    refuse_too_large(groups, free_bytes("cpu"))
    for cell in (cell for group in groups for cell in group):
        if model is None or model.geometry != cell.geometry:
            model = make_model(cell.geometry, torch.device("cpu"), cell.seed)
        try:
            yield check_capture(cell, model)
        except (CaptureError, CellError) as error:
            yield CaptureReport(cell, failed=str(error))


def as_text(reports: list[CaptureReport]) -> str:
    """Return the lines of a terminal: each cell, then what was found in it."""
    return "\n".join(line for report in reports for line in (*_head(report), *_found(report)))


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
    refused += [f"  not checked: {kernel}" for kernel in report.uncaptured]
    verdict = ["  graph-safe"] if report.captures and not report.unsafe else []
    failed = textwrap.wrap(f"failed: {report.failed}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    return [*lines, *refused, *verdict, *(failed if report.failed else ())]


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


def as_json(reports: list[CaptureReport]) -> str:
    """Return a list of an object a cell."""
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
        "uncaptured": list(report.uncaptured),
        "failed": report.failed,
        "unsafe": [
            {"place": one.place, "what": one.rule.text, "mend": one.rule.mend, "pieces": list(one.pieces)}
            for one in report.unsafe
        ],
    }
