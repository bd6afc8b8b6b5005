"""Tables of change G: the ratio-2 compressor on the torch path and fused, its launches and the step's time."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4bench.dashboards.cells import cells_text, grouped, heading, notes_of, records_of, section, settings
from dsv4bench.dashboards.table import Cell, Column, Table, cell, joined
from dsv4bench.dashboards.time_tables import time_table
from dsv4bench.results.compare import Pair, compare
from dsv4bench.results.counts import SPECIFIED_FUSED, SPECIFIED_TORCH, Counted, compressor_sources

# graph cells hold samples of one source's compressor alone, which say more than those of the step around it
COMPRESSOR_METRIC = "compressor"
SIDES = ("torch", "fused")


def compressor_tables(compared: Sequence[Pair]) -> list[Table]:
    """Return launches per source layer and times of torch path and fused; nothing where one of them did not run.

    `compared` are pairs of the switch "compressor". Where both are there, cells with reuse on stand for all.
    """
    both = _both(compared)
    counted = [pair for pair in both if all(compressor_sources(record.counts) for record in pair.records)]
    launches = [_launch_table(same) for same in grouped(counted, _launch_signature)]
    return [
        *launches,
        *(
            _times(same, "Ratio-2 compressor of one source alone", COMPRESSOR_METRIC)
            for same in grouped(timed_alone(compared), section)
        ),
        *(_times(same, "Step time", None) for same in grouped(both, section)),
    ]


def timed_alone(compared: Sequence[Pair]) -> list[Pair]:
    """Return the pairs whose compressor was timed alone on both paths, with reuse on where that was run."""
    return [pair for pair in _both(compared) if all(COMPRESSOR_METRIC in record.samples_ns for record in pair.records)]


def _both(compared: Sequence[Pair]) -> list[Pair]:
    both = [pair for pair in compared if pair.before and pair.after]
    return [pair for pair in both if pair.any.variant.get("reuse") == "on"] or both


def _sides(pair: Pair) -> list[dict[int, Counted]]:
    return [compressor_sources(record.counts) for record in pair.records]


def _launch_signature(pair: Pair) -> str:
    return str((heading("", pair.any), pair.any.variant.get("kv"), _sides(pair)))


def _launch_table(same: Sequence[Pair]) -> Table:
    on_gpu = same[0].any.engine == "gpu"
    what = "launches" if on_gpu else "aten"
    columns = (
        Column("kv_source", ("kv_source",)),
        *(
            Column(title, (name,))
            for side in SIDES
            for title, name in (
                (f"{side} {what}", f"{side}_{'operations' if on_gpu else 'aten_ops'}"),
                (f"{side} specified", f"{side}_specified"),
            )
        ),
    )
    torch, fused = _sides(same[0])
    specified = (SPECIFIED_TORCH.get(str(same[0].any.variant.get("kv"))), SPECIFIED_FUSED)
    rows = [
        (cell(source), *_own_and_specified((torch.get(source), fused.get(source)), specified, on_gpu))
        for source in sorted({*torch, *fused})
    ]
    title = heading("Launches of a ratio-2 compressor per source layer", same[0].any)
    return Table(title, columns, tuple(rows), tuple(_launch_notes(same, on_gpu)))


def _own_and_specified(
    sides: tuple[Counted | None, Counted | None], specified: tuple[int | None, int], on_gpu: bool
) -> list[Cell]:
    cells = []
    for side, wanted in zip(sides, specified, strict=True):
        count = side["operations" if on_gpu else "aten_ops"] if side else None
        cells += [cell(count, "-" if count is None else str(count)), cell(wanted)]
    return cells


def _launch_notes(same: Sequence[Pair], on_gpu: bool) -> list[str]:
    notes = ["specified: specification 3.6, launches on a GPU; the projection apart, a matrix product is one launch"]
    if not on_gpu:
        notes.append("counted here are aten operations of the CPU reference, not launches: the two do not compare")
    kv = joined([pair.any.variant.get("kv") for pair in same])
    return [*notes, f"{cells_text([pair.any for pair in same])}; kv {kv}", *notes_of(records_of(same))]


def _times(same: Sequence[Pair], what: str, metric: str | None) -> Table:
    first = same[0].any
    title = heading(f"{what}, torch path and fused", first)
    notes = [f"{settings(first, 'compressor')}, reuse {first.variant.get('reuse')}", *notes_of(records_of(same))]
    return time_table(title, SIDES, [compare(pair, metric) for pair in same], notes)
