"""Tables of what two stored runs of a cell launch differently, per operation and kv_source."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4bench.dashboards.cells import cells_text, grouped, heading
from dsv4bench.dashboards.stored_cells import section
from dsv4bench.dashboards.style import arrow, yes
from dsv4bench.dashboards.table import Cell, Column, Table, cell
from dsv4bench.results.counts import Sides, side_by_side
from dsv4bench.results.record import CLASSES
from dsv4bench.results.stored import StoredCell

Changes = dict[tuple[object, ...], dict[str, Sides]]


def launch_change_tables(cells: Sequence[StoredCell]) -> list[Table]:
    """Return what is launched otherwise after than before, one table for cells in which it is the same."""
    groups = grouped([one for one in cells if _changes(one)], lambda one: str((_changes(one), one.added)))
    return [_launch_table(same) for same in groups]


def _changes(one: StoredCell) -> Changes:
    before, after = one.old[-1].counts, one.new[-1].counts
    if not before or not after:
        return {}
    both = side_by_side(before, after, "op", "kv_source", "where")
    return {
        key: change
        for key, change in both.items()
        if any(None not in sides and sides[0] != sides[1] for sides in change.values())
    }


def _launch_table(same: Sequence[StoredCell]) -> Table:
    changes = _changes(same[0])
    shown = [name for name in CLASSES if any(change[name][0] != change[name][1] for change in changes.values())]
    columns = (
        Column("op", ("op",), right=False),
        Column("kv_source", ("kv_source",)),
        Column("where", ("where",), right=False),
        *(Column(name.replace("_", " "), (f"{name}_before", f"{name}_after")) for name in shown),
    )
    rows = tuple(
        (*map(cell, key), *(Cell(arrow(*change[name]), change[name]) for name in shown))
        for key, change in changes.items()
    )
    added = same[0].added
    notes = [
        f"no other kernel or copy added: {yes(None if added is None else not added, 'not compared')}",
        *(f"added: {sentence}" for sentence in added or ()),
        *(f"{cells_text([one.any for one in part])}; {section(part[0])[1]}" for part in grouped(same, section)),
    ]
    return Table(heading("Launches that changed, per forward", same[0].any), columns, rows, tuple(notes))
