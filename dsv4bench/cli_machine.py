"""`dsv4bench env` and `dsv4bench list`: what this machine can run, and what there is to run."""

from __future__ import annotations

import json
import sys
from typing import Any

from dsv4bench.dashboards.table import Column, Table, cell
from dsv4bench.dashboards.tables import show_tables
from dsv4bench.kernels import CATALOGUE, kernel
from dsv4bench.profiling.environment import environment
from dsv4bench.ranges import timing_mark
from dsv4bench.workloads.geometry import GEOMETRIES
from dsv4bench.workloads.options import resolve_device
from dsv4bench.workloads.variant import COMPRESSORS, FAULTS, GRAPH_MODES, KV_PAIRS


def show_environment(as_json: bool) -> None:
    """Print this machine's facts, and every provider with the reason where it cannot run here."""
    device = resolve_device("auto")
    facts = {"device": device, "timing mark": timing_mark()[1], **environment(device)}
    providers = [row for name in CATALOGUE for row in _providers(name, device)]
    if as_json:
        _print_json({"environment": facts, "providers": providers})
        return
    rows = tuple((cell(name), cell(value)) for name, value in facts.items() if value is not None)
    machine = Table("this machine", (Column("fact", ("fact",), False), Column("value", ("value",), False)), rows)
    show_tables([machine, _provider_table(providers)], "table", sys.stdout)


def _providers(name: str, device: str) -> list[dict[str, Any]]:
    reasons = [(provider.name, provider.needs.why_not(device)) for provider in kernel(name).providers]
    return [{"kernel": name, "provider": provider, "why_not": reason} for provider, reason in reasons]


def _provider_table(providers: list[dict[str, Any]]) -> Table:
    columns = (
        Column("kernel", ("kernel",), False),
        Column("provider", ("provider",), False),
        Column("runs here", ("why_not",), False),
    )
    rows = [
        (
            cell(row["kernel"]),
            cell(row["provider"]),
            cell(row["why_not"], f"no: {row['why_not']}" if row["why_not"] else "yes"),
        )
        for row in providers
    ]
    return Table("providers", columns, tuple(rows))


def show_catalogue(as_json: bool) -> None:
    """Print kernels with their providers, geometries, KV formats, compressors, graph modes and faults."""
    kernels = {name: [provider.name for provider in kernel(name).providers] for name in CATALOGUE}
    words = {
        "geometry": list(GEOMETRIES),
        "kv": list(KV_PAIRS),
        "compressor": list(COMPRESSORS),
        "graph-mode": list(GRAPH_MODES),
        "fault": list(FAULTS),
    }
    if as_json:
        _print_json({"kernels": kernels, **words})
        return
    left = (Column("kernel", ("kernel",), False), Column("providers", ("providers",), False))
    found = tuple((cell(name), cell(", ".join(names))) for name, names in kernels.items())
    right = (Column("option", ("option",), False), Column("values", ("values",), False))
    options = tuple((cell(f"--{name}"), cell(", ".join(values))) for name, values in words.items())
    show_tables([Table("kernels", left, found), Table("values of options", right, options)], "table", sys.stdout)


def _print_json(what: dict[str, Any]) -> None:
    print(json.dumps(what, indent=1))
