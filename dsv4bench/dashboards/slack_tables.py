"""What weights and pools of `--mem-fraction` leave free while a cell runs, and what reuse takes of that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dsv4bench.dashboards.cells import (
    batch_text,
    both_ran,
    cells_text,
    grouped,
    heading,
    mode_notes,
    notes_of,
    records_of,
    said_of,
    section,
    settings,
    short_modes,
    sides_run,
    status_of,
)
from dsv4bench.dashboards.memory_tables import size_cell
from dsv4bench.dashboards.table import Cell, Column, Table, cell, empty
from dsv4bench.dashboards.time_tables import CELL_COLUMNS, cell_cells
from dsv4bench.results.compare import Pair
from dsv4bench.results.record import Record
from dsv4bench.units import format_bytes, format_count

READ = ("batch", "mode")
LEAST = "lowest_free_bytes"
SIZES = {LEAST: "least free", "workspace_bytes": "workspace", "peak_reserved_bytes": "peak"}
UNREAD = ("peak_allocated_bytes", "device_bytes", "weights_bytes", "full_pool_tokens", "window_pool_tokens")
MODELLED = "modelled"


def slack_tables(compared: Sequence[Pair]) -> list[Table]:
    """Return the memory of every cell that ran at a fraction; one table for cells with the same settings."""
    asked = [pair for pair in compared if "mem-fraction" in pair.any.variant]
    return [_slack_table(same) for same in grouped(asked, section)]


def _slack_table(same: Sequence[Pair]) -> Table:
    records, switches = records_of(same), same[0].any.variant
    mode, both = short_modes(records), both_ran(same)
    columns = (
        *(column if column.title in READ else replace(column, title="") for column in CELL_COLUMNS),
        Column(SIZES[LEAST], _names(LEAST)),
        Column("reuse takes" if both else "", ("taken_bytes",)),
        *(Column(title, _names(name)) for name, title in list(SIZES.items())[1:]),
        Column("rank", _names("lowest_free_rank")),
        *(Column("", _names(name)) for name in UNREAD),
    )
    recipe = f", recipe {switches['recipe']}" if "recipe" in switches else ""
    modelled = " (modelled)" if any(_how(one).startswith(MODELLED) for one in records) else ""
    title = f"Memory at mem-fraction {switches['mem-fraction']:g}{recipe}{modelled}, {sides_run(same)}"
    notes = [*_verdict(same), *_given(records), *said_of(records, lambda one: [_how(one)] if _how(one) else [])]
    notes += [
        settings(same[0].any, "mem-fraction", "recipe", "device-memory"),
        *mode_notes(records),
        *notes_of(records),
    ]
    return Table(heading(title, same[0].any), columns, tuple(_row(pair, both, mode) for pair in same), tuple(notes))


def _names(name: str) -> tuple[str, ...]:
    return tuple(f"{name}_{side}" for side in ("before", "after"))


def _how(record: Record) -> str:
    return str(record.memory.get("slack_how", ""))


def _row(pair: Pair, both: bool, mode: Callable[[Record], str]) -> tuple[Cell, ...]:
    sides = (pair.before, pair.after)

    def of(name: str) -> list[int | None]:
        return [record.memory.get(name) if record else None for record in sides]

    least = size_cell(both, of(LEAST))
    ranks = of("lowest_free_rank")
    return (
        *cell_cells(pair.any, mode),
        least if least.text else Cell(status_of(pair), least.values),
        _taken_cell(taken_bytes(pair)) if both else empty(),
        *(size_cell(both, of(name)) for name in list(SIZES)[1:]),
        Cell(" ".join(dict.fromkeys(str(rank) for rank in ranks if rank is not None)), tuple(ranks)),
        *(Cell("", tuple(of(name))) for name in UNREAD),
    )


def taken_bytes(pair: Pair) -> int | None:
    """Return how much less is free after than before at the least; None where a side does not say."""
    before, after = ((record.memory.get(LEAST) if record else None) for record in (pair.before, pair.after))
    return None if before is None or after is None else before - after


def _taken_cell(taken: int | None) -> Cell:
    return cell(taken, "" if taken is None else format_bytes(taken))


def _verdict(same: Sequence[Pair]) -> list[str]:
    """Return what became of the slack: cells that ran out of it, the least of all, and the most that reuse takes."""
    records = records_of(same)
    lost = [record for record in records if record.status == "out_of_memory"]
    known = [record for record in records if LEAST in record.memory]
    found = [
        f"out of memory: {cells_text(lost)}" if lost else f"no out-of-memory in {format_count(len(records), 'cell')}"
    ]
    if known:
        least = min(known, key=lambda record: record.memory[LEAST])
        rank = least.memory.get("lowest_free_rank")
        where = f"{batch_text(least)}, {least.mode}, reuse {least.variant['reuse']}" + (
            f", rank {rank}" if rank is not None else ""
        )
        found.append(f"least free of all: {format_bytes(least.memory[LEAST])} ({where})")
    taken = [one for pair in same if (one := taken_bytes(pair)) is not None]
    if taken:
        found.append(
            f"reuse takes of the slack, in {format_count(len(taken), 'cell')}: at most {format_bytes(max(taken))}"
        )
    return found


def _given(records: Sequence[Record]) -> list[str]:
    """Return what every cell was given: weights and pools."""
    return said_of(
        records,
        lambda one: (
            [
                f"of {format_bytes(one.memory['device_bytes'])}: weights {format_bytes(one.memory['weights_bytes'])}"
                f" (modelled), pools of {one.memory['full_pool_tokens']} full and {one.memory['window_pool_tokens']}"
                " window tokens"
            ]
            if LEAST in one.memory
            else []
        ),
    )
