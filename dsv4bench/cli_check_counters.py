"""`dsv4bench check counters`: whether the ways in which this project counts launches agree on this device."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from dsv4bench import cli_options as options
from dsv4bench.errors import UsageError, nearest

FORMATS = ("table", "md", "csv", "json")
ROWS = "64"  # fills a bucket, so that nothing is padded

Geometry = Annotated[
    str, typer.Option("--geometry", metavar="NAME|FILE", help="A model of `dsv4bench list`, or its config.json.")
]
Form = Annotated[str, typer.Option("--format", metavar="FORMAT", help="Output: table, md, csv or json.")]


def counters(
    geometry: Geometry = "v41-flash-mini",
    kv: options.Kv = ["v41+fp4"],
    compressor: options.Compressor = ["both"],
    reuse: options.Reuse = ["both"],
    breaks: options.Breaks = ["sm100"],
    provider: options.Provider = ["auto"],
    device: options.Device = "auto",
    seed: options.Seed = "0",
    form: Form = "table",
    as_json: options.Json = False,
) -> None:
    """Count one step in every way and compare: the layer map, calls, capture ledger, profiler, Triton's own hook.

    A step of 64 rows runs eagerly, is captured and replayed. A CPU launches nothing: there calls alone are compared.
    """
    from dsv4bench.cli import FAILED, OK
    from dsv4bench.dashboards.counter_table import counter_tables, counters_plain
    from dsv4bench.dashboards.render import show_tables
    from dsv4bench.profiling.counter_check import check_all
    from dsv4bench.workloads.options import PrefillArguments, prefill_options

    form = "json" if as_json else form
    if form not in FORMATS:
        raise UsageError(f"--format {form}: expected one of {', '.join(FORMATS)}{nearest(form, FORMATS)}")
    arguments = PrefillArguments(
        extend=ROWS,
        prefix="120",
        graph=True,
        geometry=geometry,
        kv=kv,
        compressor=compressor,
        reuse=reuse,
        breaks=breaks,
        provider=provider,
        device=device,
        seed=seed,
    )
    found = check_all(prefill_options(arguments))
    if form == "json":
        typer.echo(json.dumps(counters_plain(found), indent=1))
    else:
        show_tables(counter_tables(found), form, sys.stdout)
    raise typer.Exit(OK if all(one.agreed for one in found) else FAILED)
