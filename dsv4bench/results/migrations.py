"""Records of older versions made complete: a table from the version of the schema to a function of plain values.

A function gets a record as its file holds it and returns what its version would write today, without changing what it
was given. The last version has one too where its first records left out what later ones say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Plain = dict[str, Any]

# in the order in which a record has them; what follows is how the step is run
SWITCHES = (
    *("kv", "reuse", "compressor", "graph", "graph-mode", "provider", "fault", "replay", "path"),
    *("breaks", "break-outputs", "moe", "mhc"),
)


def unsaid_switches(found: Plain) -> Plain:
    """Return a record with the switches that came to `variant` later, each with what ran before there was a choice.

    Until `replay` and `path` came, no step replayed its late layers and every core gathered; until `breaks` came, a
    breakable graph was cut as on SM100 and its breaks wrote their results in place; until `moe` and `mhc`
    came, nothing stood in for MoE and residual streams. Kernels alone have none of these.
    """
    variant = found.get("variant")
    if not isinstance(variant, dict) or "graph" not in variant or "mhc" in variant:
        return found
    breakable = variant["graph"] and variant.get("graph-mode") != "full"
    breaks = {"breaks": "sm100", "break-outputs": "static"} if breakable else dict.fromkeys(("breaks", "break-outputs"))
    said = {"replay": "off", "path": "sparse", **breaks, "moe": "off", "mhc": "off", **variant}
    return {**found, "variant": {name: said[name] for name in SWITCHES if name in said} | said}


MIGRATIONS: dict[int, Callable[[Plain], Plain]] = {1: unsaid_switches}


def migrate(found: Plain, schema: int) -> Plain:
    """Return a record of the version `schema` as the newest version has it."""
    for version, completed in sorted(MIGRATIONS.items()):
        if version >= schema:
            found = completed(found)
    return found
