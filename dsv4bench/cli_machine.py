"""`dsv4bench env` and `dsv4bench list`: what this machine can run, and what there is to run."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

from dsv4bench.dashboards.render import show_tables
from dsv4bench.dashboards.table import Cell, Column, Table, cell
from dsv4bench.kernels import CATALOGUE, kernel
from dsv4bench.kernels.contract import TRITON
from dsv4bench.profiling.environment import environment
from dsv4bench.ranges import timing_mark
from dsv4bench.workloads.geometry import GEOMETRIES
from dsv4bench.workloads.options import resolve_device
from dsv4bench.workloads.rank_weights import RECIPES
from dsv4bench.workloads.variant import BREAK_OUTPUTS, BREAKS, COMPRESSORS, FAULTS, GRAPH_MODES, KV_PAIRS, MOES

RUNS_HERE = Column("runs here", ("why_not",), False)
PARTS = (  # part, its package, the module that it imports, and where it runs
    ("graph capture", "cuda-bindings", "cuda.bindings.runtime", "cuda"),
    ("clocks and power", "nvidia-ml-py", "pynvml", "cuda"),
    ("NVTX ranges", "nvtx", "nvtx", "any"),
)


def show_environment(as_json: bool) -> None:
    """Print this machine's facts, and every optional part and provider with the reason where it cannot run here."""
    device = resolve_device("auto")
    facts = {"device": device, "timing mark": timing_mark()[1], **environment(device)}
    parts, providers = optional_parts(device), [row for name in CATALOGUE for row in _providers(name, device)]
    if as_json:
        _print_json({"environment": facts, "parts": parts, "providers": providers})
        return
    rows = tuple((cell(name), cell(value)) for name, value in facts.items() if value is not None)
    machine = Table("this machine", (Column("fact", ("fact",), False), Column("value", ("value",), False)), rows)
    show_tables([machine, _part_table(parts), _provider_table(providers)], "table", sys.stdout)


def optional_parts(device: str) -> list[dict[str, Any]]:
    """Return the parts that need a package of their own or a GPU: `part`, and `why_not`, None where it runs here."""
    rows = [(part, _why_not(package, module, where, device)) for part, package, module, where in PARTS]
    rows.append(("Triton kernels", TRITON.why_not(device)))
    return [{"part": part, "why_not": reason} for part, reason in rows]


def _why_not(package: str, module: str, where: str, device: str) -> str | None:
    if where == "cuda" and device != "cuda":
        return "needs a CUDA device"  # and no package, which could do nothing here
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # not even the package that would hold it
        found = None
    return f"the package {package!r} is not installed" if found is None else None


def _providers(name: str, device: str) -> list[dict[str, Any]]:
    reasons = [(provider.name, provider.needs.why_not(device)) for provider in kernel(name).providers]
    return [{"kernel": name, "provider": provider, "why_not": reason} for provider, reason in reasons]


def _part_table(parts: list[dict[str, Any]]) -> Table:
    columns = (Column("part", ("part",), False), RUNS_HERE)
    return Table("optional parts", columns, tuple((cell(row["part"]), _answer(row)) for row in parts))


def _provider_table(providers: list[dict[str, Any]]) -> Table:
    columns = (Column("kernel", ("kernel",), False), Column("provider", ("provider",), False), RUNS_HERE)
    rows = tuple((cell(row["kernel"]), cell(row["provider"]), _answer(row)) for row in providers)
    return Table("providers", columns, rows)


def _answer(row: dict[str, Any]) -> Cell:
    return cell(row["why_not"], f"no: {row['why_not']}" if row["why_not"] else "yes")


def show_catalogue(as_json: bool) -> None:
    """Print kernels with their providers, geometries, KV formats, compressors, graph modes and faults."""
    kernels = {name: [provider.name for provider in kernel(name).providers] for name in CATALOGUE}
    words = {
        "geometry": list(GEOMETRIES),
        "kv": list(KV_PAIRS),
        "compressor": list(COMPRESSORS),
        "graph-mode": list(GRAPH_MODES),
        "breaks": list(BREAKS),
        "break-outputs": list(BREAK_OUTPUTS),
        "moe": list(MOES),
        "recipe": list(RECIPES),
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
