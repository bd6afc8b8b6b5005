"""The PR block's part on launches: what of a forward is launched before and after, per kv_source and place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsv4bench.dashboards.cells import grouped
from dsv4bench.dashboards.markdown import code, item, table_lines
from dsv4bench.dashboards.style import arrow
from dsv4bench.dashboards.table import Column
from dsv4bench.dashboards.trial_cells import said_of_trials, side_records
from dsv4bench.results.counts import COMPRESSED, DEVICE, SWA, Row, Sides, add, added, side_by_side
from dsv4bench.results.verdict import Verdict
from dsv4bench.units import format_percent

PLACES = {"eager": "eager", "segment": "in segments", "break": "in breaks"}
NOT_COMPARED = "not compared for added kernels and copies: the counts of a side are missing"
TOTALS = {"kernels": "every kernel", "copies": "every copy", "sets": "every memset", "calls": "every call"}
LAUNCHED_BY = {"graph", "graph-mode", "breaks"}  # switches that move an operation to another place

Places = dict[str, list[Sides]]  # before and after in each place, cell by cell


def count_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a set's launches as markdown, and whether B launches more of anything; nothing where none were counted.

    Rows: the dequants, every other operation that changed, and the sums; sources that changed alike share a row.
    """
    both = [one for one in verdicts if all(_sides(one))]
    counted = both or [one for one in verdicts if any(_sides(one))]
    if not counted:
        return []
    on_device = all(row.get(name) is not None for one in counted for row in _rows(one) for name in DEVICE)
    classes = DEVICE if on_device else ("calls",)
    sums = [(TOTALS[name], "all", _changes(counted, (name,))[()]) for name in classes]
    rows = [
        *_operations(counted, classes),
        *(row for row in sums if any(any(pair) for one in row[2].values() for pair in one)),
    ]
    places = [place for place in PLACES if any(place in changes for _, _, changes in rows)]
    columns = [Column("operation", (), right=False), Column("kv_source", (), right=False)]
    cells = [[op, source, *(_text(changes.get(place, [])) for place in places)] for op, source, changes in rows]
    lines = table_lines([*columns, *(Column(PLACES[place], ()) for place in places)], cells)
    return [*lines, "", *_added(verdicts), *map(item, _notes(counted, on_device))]


def _added(verdicts: Sequence[Verdict]) -> list[str]:
    """Return whether no other kernel or copy was added, and what was; cells without the counts of a side are named."""
    reports = {id(one): added(*_comparable(one)) if all(_sides(one)) else None for one in verdicts}
    compared = [report for report in reports.values() if report is not None]
    said = said_of_trials(verdicts, lambda one: [f"added: {text}" for text in reports[id(one)] or []])
    gaps = said_of_trials(verdicts, lambda one: [NOT_COMPARED] if reports[id(one)] is None else [])
    answer = [f"- no other kernel or copy added: **{str(not any(compared)).lower()}**"] if compared else []
    return [*answer, *map(item, [*said, *gaps])]


def _sides(verdict: Verdict) -> tuple[Sequence[Row], Sequence[Row]]:
    trial = verdict.trial
    return (trial.a.counts if trial.a else [], trial.b.counts if trial.b else [])


def _comparable(verdict: Verdict) -> tuple[Sequence[Row], Sequence[Row]]:
    """Return the counts of both sides; of sides that are launched in different ways without the place."""
    a, b = _sides(verdict)
    if not verdict.trial.switched & LAUNCHED_BY:
        return a, b
    return [{**row, "where": "eager"} for row in a], [{**row, "where": "eager"} for row in b]


def _rows(verdict: Verdict) -> list[Row]:
    return [row for side in _sides(verdict) for row in side]


def _changes(counted: Sequence[Verdict], classes: Sequence[str], *keys: str) -> dict[tuple[Any, ...], Places]:
    """Return before and after of the `classes` together; 0 where a cell ran a place but launched nothing of a key."""
    cells = [side_by_side(*_sides(one), *keys, "where") for one in counted]
    found: dict[tuple[Any, ...], Places] = {}
    for key in dict.fromkeys(key[:-1] for cell in cells for key in cell):
        for cell in cells:
            for place in dict.fromkeys(key[-1] for key in cell):
                one = cell.get((*key, place))
                sides = [add(one[name][side] for name in classes) if one else 0 for side in (0, 1)]
                found.setdefault(key, {}).setdefault(place, []).append((sides[0], sides[1]))
    return found


def _operations(counted: Sequence[Verdict], classes: Sequence[str]) -> list[tuple[str, str, Places]]:
    """Return the rows of the dequants and of what else changed: operation, sources, and what became of them."""
    sums = _changes(counted, classes, "op")
    changed = [op for (op,), places in sums.items() if any(map(_changed, places.values()))]
    per_source = _changes(counted, classes, "op", "kv_source")
    found = []
    for op in dict.fromkeys([COMPRESSED, SWA, *sorted(changed)]):
        found += [] if op == SWA else _sources(op, {key[1]: one for key, one in per_source.items() if key[0] == op})
        found += [(code(op), "all", sums[(op,)])] if (op,) in sums else []
    return found


def _changed(cells: Sequence[Sides]) -> bool:
    """Return whether some cell launched it unlike on its sides; of a side that was not counted nothing is known."""
    return any(old != new for old, new in cells if old is not None and new is not None)


def _sources(op: str, places: dict[int | None, Places]) -> list[tuple[str, str, Places]]:
    """Return the rows of an operation's sources; those that changed alike share one."""
    ordered = sorted(places, key=lambda source: (source is None, source))
    alike = grouped(ordered, lambda source: str(places[source]))
    return [(code(op), _name(same), places[same[0]]) for same in alike] if ordered != [None] else []


def _name(sources: Sequence[int | None]) -> str:
    names = ", ".join("none" if source is None else str(source) for source in sources)
    return f"{names} (each)" if len(sources) > 1 else names


def _text(sides: Sequence[Sides]) -> str:
    """Return "6 -> 1", of cells that differ "6..7 -> 1", and "0" where there is nothing on both sides."""
    if not any(any(pair) for pair in sides):
        return "0"
    return arrow(*(_span([one[side] for one in sides]) for side in (0, 1)), always=True)


def _span(counts: Sequence[int | None]) -> str | None:
    known = [count for count in counts if count is not None]
    if not known:
        return None
    return f"{known[0]}" if min(known) == max(known) else f"{min(known)}..{max(known)}"


def _notes(counted: Sequence[Verdict], on_device: bool) -> list[str]:
    what = "kernels, copies and memsets" if on_device else "calls of operations, not launches: nothing ran on a GPU"
    records = [record for one in counted for record in side_records(one.trial)]
    forms = [
        f"{record.graph['segments']} segments and {record.graph['breaks']} breaks" for record in records if record.graph
    ]
    found = [f"per forward; {what}"]
    found += [f"a graph step is {' or '.join(dict.fromkeys(forms))}; the host launches a segment once"] if forms else []
    seen = [record.coverage for record in records if record.coverage]
    attributed = sum(one.get("attributed") or 0 for one in seen)
    lost = sum(int(one.get(name) or 0) for one in seen for name in ("unattributed", "ambiguous"))
    if seen:
        methods = ", ".join(dict.fromkeys(str(one.get("method")) for one in seen))
        share = attributed / (attributed + lost) if attributed + lost else 1.0
        found.append(f"coverage {format_percent(share)} of what was launched, by {methods}")
    disagreements = dict.fromkeys(str(one["disagreement"]) for one in seen if one.get("disagreement"))
    return found + [f"the sources of counts disagree: {text}" for text in disagreements]
