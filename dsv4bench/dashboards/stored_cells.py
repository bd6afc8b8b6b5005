"""How cells of stored runs are called: steps by mode, batch and switches, kernels by name, case and provider."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4bench.dashboards.cells import batch_text, grouped, heading, mode_text, settings
from dsv4bench.results.record import Record
from dsv4bench.results.stored import StoredCell

MOST_NAMES = 8
# what goes without saying in a cell's name: the defaults of a run
USUAL = {"compressor": "fused", "replay": "off", "path": "sparse", "moe": "off", "mhc": "off", "align": "barrier"}


def section(one: StoredCell) -> tuple[str, str]:
    """Return what the cells of one table have in common: all but the batch and the mode, or but a kernel's case."""
    return (title_of("", one.any), shared_settings(one.any))


def title_of(what: str, record: Record) -> str:
    """Return a title: what is shown, of which geometry or kernel, and how, by what and where it was seen."""
    if record.kernel:
        return f"{what}, {record.kernel.get('name')} alone: {record.label}, {record.engine}, {record.machine}"
    return heading(what, record)


def shared_settings(record: Record) -> str:
    """Return the settings of a table of steps, e.g. "reuse on, kv v4, prefix 8192"; nothing for kernels."""
    if record.kernel:
        return ""
    reuse = record.variant.get("reuse")
    return ", ".join(filter(None, [reuse and f"reuse {reuse}", settings(record)]))


def several_geometries(cells: Sequence[StoredCell]) -> bool:
    """Return whether cells that are spoken of together must be called by their geometry too."""
    return len({one.any.geometry for one in cells if not one.any.kernel}) > 1


def cell_words(record: Record, geometry: bool = False) -> str:
    """Return what a cell is called in a sentence, e.g. "graph sm100, reuse on, kv v4, batch 8 x 1024"."""
    return f"{kind_words(record, geometry)} {batch_words(record) if record.kernel else batch_text(record)}"


def kind_words(record: Record, geometry: bool = False) -> str:
    """Return how the name of a cell begins, up to its batch or case: "eager, reuse on, kv v4, batch".

    Of a step it says the geometry where that is asked for.
    """
    if record.kernel:
        return f"{record.kernel.get('name')} by {record.kernel.get('provider')},"
    return f"{f'{record.geometry} ' if geometry else ''}{mode_text(record)}{switch_words(record)}, batch"


def batch_words(record: Record) -> str:
    """Return a cell's number of requests, or a kernel's case and rows."""
    if record.kernel:
        return " ".join(str(record.kernel.get(name)) for name in ("case", "rows"))
    return str(record.batch.get("requests"))


def which(cells: Sequence[StoredCell], geometry: bool = False) -> str:
    """Return which cells are meant, those that differ only in their batch or case together."""
    return together([(kind_words(one.any, geometry), batch_words(one.any)) for one in cells])


def together(names: Sequence[tuple[str, str]]) -> str:
    """Return the names of cells, each given as its beginning and its batch or case, in one sentence."""
    found = []
    for same in grouped(names, lambda name: name[0]):
        batches = list(dict.fromkeys(batch for _, batch in same))
        more = f" and {len(batches) - MOST_NAMES} more" if len(batches) > MOST_NAMES else ""
        found.append(f"{same[0][0]} {', '.join(batches[:MOST_NAMES])}{more}")
    return "; ".join(found)


def switch_words(record: Record, *without: str) -> str:
    """Return the switches that a cell's name says but for some: reuse, KV, and others where they are not as usual."""
    names = [name for name in ("reuse", "kv", *USUAL) if name not in without]
    said = {name: record.variant[name] for name in names if record.variant.get(name)}
    words = [f"{name} {value}" for name, value in said.items() if USUAL.get(name) != value]
    return "".join(f", {word}" for word in [*words, *([f"{record.ranks} ranks"] if record.ranks > 1 else [])])


def kernel_values(record: Record) -> tuple[object, ...]:
    """Return a kernel's name, case, rows and provider."""
    kernel = record.kernel or {}
    return tuple(kernel.get(name) for name in ("name", "case", "rows", "provider"))
