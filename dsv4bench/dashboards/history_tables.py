"""Tables of histories: a cell's step time over time and commits, and the cells that were measured once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from dsv4bench.dashboards.cells import grouped, in_step, mode_words
from dsv4bench.dashboards.table import Cell, Column, Table, cell, empty
from dsv4bench.results.comparability import CHIP
from dsv4bench.results.histories import CELL, History
from dsv4bench.units import format_percent, format_plus_minus, time_unit

KEY_DIGITS = 8  # enough for `dsv4bench repro`
COMMIT_DIGITS = 7
TIME_FORMAT = "%Y-%m-%d %H:%M"
# what is said of a cell by its title or by columns
TITLED = (
    *("geometry", "kernel", "requests", "extend", "reuse"),
    *("graph", "graph-mode", "breaks", "break-outputs"),
)
FACTS = ("src", "torch", "triton", "cuda", "driver")
NO_VERDICT = "change: from the last time above, as a share; no verdict: dsv4bench compare and ab judge"
OF_A_SESSION = "A/B: the side (how many processes, if several, of which the time is the median); no change in a session"
TIME = ("time_ns", "time_low_ns", "time_high_ns")

Runs = Mapping[str, int]


def history_tables(found: Sequence[History]) -> list[Table]:
    """Return a table for each cell with several records, and the others in one for each run and set of settings."""
    several, once = ([one for one in found if (len(one.rows) == 1) == single] for single in (False, True))
    runs = _numbered(several)
    alike = grouped(once, lambda one: (_place(one), _settings(one, TITLED), one.rows[0]["run"]))
    return [*(_history(one, runs) for one in several), *map(_once, alike)]


def history_name(one: History) -> str:
    """Return what a cell is called, e.g. "eager, batch 8 x 1024, reuse on, kv v4" or "dequant by triton, v4 4096"."""
    get = one.cell.get
    if get("kernel"):
        return f"{get('kernel')} by {get('provider')}, {get('case')} {get('rows')}"
    return f"{_mode(one)}, batch {_batch(one)}, reuse {get('reuse')}, kv {get('kv')}"


def _mode(one: History) -> str:
    return mode_words(one.rows[-1]["mode"], one.cell.get("breaks"), one.cell.get("break-outputs"))


def _batch(one: History) -> str:
    requests, extend = one.cell.get("requests"), one.cell.get("extend")
    return f"{requests} x {extend}" if extend else f"{requests}"


def _numbered(found: Sequence[History]) -> Runs:
    """Return a number for each run, the same in all tables: folders are too long for a column."""
    names = (row["run"] for one in found for row in one.rows)
    return {name: number for number, name in enumerate(filter(None, dict.fromkeys(names)), start=1)}


def _history(one: History, runs: Runs) -> Table:
    scale, unit = _unit([one])
    sides = [Column("A/B", ("side", "processes"), right=False)] if any(row["session"] for row in one.rows) else []
    columns = (
        *_seen_columns(f"step {unit}"),
        Column("change", ("change",)),
        Column("launches", ("launches",)),
        *sides,
        *_WHENCE,
    )
    rows = []
    last: float | None = None
    session: str | None = None
    moves = _moves(one.rows)
    for place, row in enumerate(one.rows):
        last = None if place in moves else last
        within = row["session"] is not None and row["session"] == session
        change = row["time_ns"] / last - 1 if row["time_ns"] and last and not within else None
        shown = cell(change, "" if change is None else format_percent(change, signed=True))
        side = [_side(row)] * len(sides)
        rows.append((*_seen_cells(row, scale), shown, cell(row["launches"]), *side, *_whence(row, runs)))
        last, session = row["time_ns"] or last, row["session"]
    notes = [
        *filter(None, [_settings(one, (*TITLED, "kv"))]),
        *_legend(one.rows, runs),
        NO_VERDICT,
        *([OF_A_SESSION] if sides else []),
        *_changes(one.rows),
        *moves.values(),
    ]
    notes += _reasons(one.rows)
    return Table(f"History of {history_name(one)}{_place(one)}", columns, tuple(rows), tuple(notes))


def _moves(rows: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Return by its place what is said of each row that is known to be of another chip or host than those above."""
    found: dict[int, str] = {}
    where: dict[str, str] = {}
    for place, row in enumerate(rows):
        here = {name: row[name] for name in CHIP if row[name] is not None}
        moved = [f"{name} {where[name]} -> {there}" for name, there in here.items() if where.get(name, there) != there]
        if moved:
            found[place] = f"{_when(row)}{'; '.join(moved)}: two machines, no change is given"
        where |= here
    return found


def _when(row: Mapping[str, Any]) -> str:
    return "" if row["created"] is None else f"{row['created']:{TIME_FORMAT}}: "


def _once(found: Sequence[History]) -> Table:
    scale, unit = _unit(found)
    names = ("case", "rows", "provider") if found[0].cell.get("kernel") else ("batch", "mode", "reuse")
    columns = (
        *(Column(name, (name,), right=name in ("batch", "rows")) for name in names),
        *_seen_columns(unit),
        *_WHENCE,
    )
    seen, rows = [one.rows[0] for one in found], []
    for one, row in zip(found, seen, strict=True):
        said = {"batch": _batch(one), "mode": _mode(one)} | one.cell
        rows.append((*(cell(said.get(name)) for name in names), *_seen_cells(row, scale), *_whence(row, {})))
    run = seen[0]["run"] and f"run: {seen[0]['run']}"
    notes = [*filter(None, [_settings(found[0], TITLED), run, _processes(seen)]), *_reasons(seen)]
    return Table(f"Measured once{_place(found[0])}", columns, tuple(rows), tuple(notes))


_WHENCE = (Column("run", ("run",)), Column("key", ("key",), right=False))


def _seen_columns(time: str) -> tuple[Column, ...]:
    return (
        Column("UTC", ("created",), right=False),
        Column("commit", ("commit", "dirty"), right=False),
        Column(time, TIME),
    )


def _seen_cells(row: Mapping[str, Any], scale: int) -> tuple[Cell, ...]:
    when = None if row["created"] is None else row["created"].isoformat()
    changes = "+" if row["dirty"] else ""
    return (
        cell(when, "" if when is None else f"{row['created']:{TIME_FORMAT}}"),
        Cell(f"{(row['commit'] or '-')[:COMMIT_DIGITS]}{changes}", (row["commit"], row["dirty"])),
        _time(row, scale),
    )


def _time(row: Mapping[str, Any], scale: int) -> Cell:
    value, low, high = (row[name] for name in TIME)
    if value is None:
        return Cell(row["status"], empty(3).values)
    return Cell(format_plus_minus(value, max(value - low, high - value), scale), (value, low, high))


def _side(row: Mapping[str, Any]) -> Cell:
    """Return which side of an A/B a row is, and of how many processes."""
    side, processes = row["side"], row["processes"]
    if side is None:
        return empty(2)
    return Cell(f"{side} ({processes})" if processes > 1 else side, (side, processes))


def _whence(row: Mapping[str, Any], runs: Runs) -> tuple[Cell, Cell]:
    """Return by which run and key a record is found."""
    return cell(row["run"], str(runs.get(row["run"], ""))), cell(row["key"], row["key"][:KEY_DIGITS])


def _legend(rows: Sequence[Mapping[str, Any]], runs: Runs) -> list[str]:
    own = [name for name in runs if any(row["run"] == name for row in rows)]
    return [f"run: {', '.join(f'{runs[name]}={name}' for name in own)}"] if own else []


def _unit(found: Sequence[History]) -> tuple[int, str]:
    return time_unit([row["time_ns"] for one in found for row in one.rows if row["time_ns"]])


def _place(one: History) -> str:
    get = one.cell.get
    what = f", {get('kernel')} alone" if get("kernel") else f", {in_step(one.cell)} of {get('geometry')}"
    return f"{what}: {get('label')}, {get('engine')}, {get('machine')}"


def _settings(one: History, shown: Sequence[str]) -> str:
    """Return the settings of a cell but for those `shown` elsewhere and what is usual."""
    said = {*shown, "case", "rows", "provider"} if one.cell.get("kernel") else {*shown, "rows"}
    usual = {"ranks": 1, "source": "uniform"}
    return ", ".join(
        f"{name} {one.cell[name]}"
        for name in CELL
        if name in one.cell and name not in said and one.cell[name] != usual.get(name)
    )


def _changes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which versions changed between two records, and when."""
    return [
        f"{new['created']:{TIME_FORMAT}}: {name} {old[name]} -> {new[name]}"
        for old, new in pairwise(rows)
        for name in FACTS
        if old[name] != new[name] and new["created"] is not None
    ]


def _processes(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return of how many processes the times are, where they are of several."""
    numbers = sorted({row["processes"] or 1 for row in rows})
    many = " to ".join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
    return f"the time of a row is the median of {many} processes of an A/B" if numbers[-1] > 1 else ""


def _reasons(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(f"{row['status']}: {row['reason']}" for row in rows if row["reason"]))
