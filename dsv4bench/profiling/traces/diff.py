"""Two traces compared: first whether they are alike, then what a step launches in each, exactly, and what it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dsv4bench.profiling.traces.columns import COPY, SET
from dsv4bench.profiling.traces.groups import AXES, key_names, key_values
from dsv4bench.profiling.traces.placed import Placed
from dsv4bench.profiling.traces.review import head
from dsv4bench.results.reviews import Finding, Value, whole
from dsv4bench.results.trace_diffs import DiffRow, KernelChange, Likeness, Span, TraceDiff

NOTHING = Span(0.0, 0, 0)
TOTALS = (
    *("kernels", "copies", "sets", "graph_launches", "kernels_in_graphs"),
    *("kernel_sum_ns", "busy_ns", "span_ns", "host_ns"),
)
SAME_SUM, OTHER_SPAN = 0.02, 0.10  # shares: kernels that take as long, in steps that do not
_STANDS_FOR = {COPY: "copies", SET: "fills"}  # where each side has names of its own for them

Table = dict[tuple[Value, ...], tuple[Span, Span]]  # keys of a group -> its launches and its time in a step


def diff(before: Placed, after: Placed, axis: str, findings: Mapping[str, Sequence[Finding]]) -> TraceDiff:
    """Compare two traces by an axis of `groups.AXES`; `findings` are the doctor's, "before" and "after".

    Numbers are those of whole steps; of a trace that marks no steps, of all of it.
    """
    sides = (before, after)
    likeness = alike(before, after)
    foreign = any(not one.alike for one in likeness if one.what in ("format", "graph mode"))
    tables = [_table(placed, axis, foreign) for placed in sides]
    kernels = [_table(placed, "kernel", foreign) for placed in sides]
    names = list(dict.fromkeys(name for table in kernels for name in table))
    launches = {str(name[0]): tuple(table.get(name, (NOTHING,))[0] for table in kernels) for name in names}
    changes = [KernelChange(name, first.most, second.most) for name, (first, second) in launches.items()]
    totals = {name: (_total(before, name), _total(after, name)) for name in TOTALS}
    return TraceDiff(
        before=before.trace.source,
        after=after.trace.source,
        axis=axis,
        steps=(len(_whole_steps(before)), len(_whole_steps(after))),
        likeness=likeness,
        totals=totals,
        rows=_rows(tables[0], tables[1], axis),
        new=[one for one in changes if not one.before],
        gone=[one for one in changes if not one.after],
        more=[change for name, both in launches.items() if (change := _more_often(name, *both)) is not None],
        findings=findings,
        coverage={"before": before.coverage, "after": after.coverage},
        notes=_notes(sides, totals, foreign),
    )


def _more_often(name: str, before: Span, after: Span) -> KernelChange | None:
    """Return a kernel of both sides that some step, or else every step, of after launches more often."""
    if not before.most:
        return None
    pairs = ((before.most, after.most), (before.least, after.least))
    return next((KernelChange(name, *pair) for pair in pairs if pair[0] < pair[1]), None)


def alike(before: Placed, after: Placed) -> list[Likeness]:
    """Return what is compared before any number: devices and graph modes must be equal, the others are told."""
    heads = [head([placed.trace]) for placed in (before, after)]
    steps = [placed.told if placed.steps.marked else [] for placed in (before, after)]
    devices = [", ".join(sorted(set(one.devices))) or "not recorded" for one in heads]
    recorded = [" ".join(name for name in ("kernels", "copies", "sets") if name in one.recorded) for one in heads]
    known = "not recorded" not in devices
    pairs = [
        ("devices", devices, known),
        ("graph mode", [one.graph_mode for one in heads], True),
        ("kernels", ["recorded" if "kernels" in one.recorded else "not recorded" for one in heads], True),
        ("recorded", recorded, False),
        ("format", [one.format for one in heads], False),
        ("graph launches a step", [_graphs(placed) for placed in (before, after)], False),
        ("whole steps", [str(len(whole(own))) if own else "not marked" for own in steps], False),
    ]
    return [Likeness(what, said[0], said[1], refuses) for what, said, refuses in pairs]


def _graphs(placed: Placed) -> str:
    """Return how many graphs a whole step launches, as many as it has segments."""
    found = _total(placed, "graph_launches")
    return (
        "not recorded"
        if found is None
        else f"{found.least}"
        if found.exact is not None
        else f"{found.least}..{found.most}"
    )


def step_table(rows: pd.DataFrame, keys: list[str], steps: Sequence[int]) -> dict[Any, tuple[Span, Span]]:
    """Return for each group the span of its operations and of its time over these steps."""
    inside = rows[rows["step"].isin(steps)]
    lasts = inside[[*keys, "step"]].assign(time_ns=inside["end_ns"] - inside["start_ns"])
    summed = lasts.groupby([*keys, "step"], sort=False)["time_ns"].agg(["size", "sum"])
    tables = [summed[name].unstack("step", fill_value=0) for name in ("size", "sum")]
    tables = [table.reindex(columns=list(steps), fill_value=0) for table in tables]
    names = tables[0].index.tolist()
    counts, times = (table.to_numpy() for table in tables)
    return {name: (_span(counts[at]), _span(times[at])) for at, name in enumerate(names)}


def compared(placed: Placed) -> npt.NDArray[np.bool_]:
    """Return which operations a comparison counts: those of whole steps."""
    return placed.rows["step"].isin(_whole_steps(placed)).to_numpy()


def _whole_steps(placed: Placed) -> list[int]:
    good = {id(step) for step in whole(placed.told)}
    return [at for at, step in enumerate(placed.told) if id(step) in good]


def _table(placed: Placed, axis: str, foreign: bool) -> Table:
    """Return launches and time per whole step of each group, by its plain keys."""
    keys, whole_steps = list(AXES[axis]), _whole_steps(placed)
    if not (foreign and axis == "kernel"):
        return {
            _plain(key_values(placed, axis, name)): both
            for name, both in step_table(placed.rows, keys, whole_steps).items()
        }
    # each kind of copy or fill becomes one row
    kernels = ~placed.rows["kind"].isin(_STANDS_FOR)
    named = step_table(placed.rows[kernels], keys, whole_steps)
    kinds = step_table(placed.rows[~kernels], ["kind"], whole_steps)
    found = {_plain(key_values(placed, axis, name)): both for name, both in named.items()}
    return found | {(_STANDS_FOR[kind],): both for kind, both in kinds.items()}


def _rows(before: Table, after: Table, axis: str) -> list[DiffRow]:
    """Return the groups of both sides, the longest time first."""
    sums = [max(sum(time.median for _, time in table.values()), 1) for table in (before, after)]
    names = key_names(axis)
    rows = []
    for key in dict.fromkeys((*before, *after)):
        (first, first_ns), (second, second_ns) = (table.get(key, (NOTHING, NOTHING)) for table in (before, after))
        shares = first_ns.median / sums[0], second_ns.median / sums[1]
        rows.append(DiffRow(dict(zip(names, key, strict=True)), first, second, first_ns, second_ns, *shares))
    return sorted(rows, key=lambda row: -max(row.before_ns.median, row.after_ns.median))


def _total(placed: Placed, name: str) -> Span | None:
    """Return a number of whole steps, None where the trace does not record it."""
    values = [getattr(step, name) for step in whole(placed.told)]
    return None if not values or None in values else _span(np.asarray(values))


def _notes(sides: Sequence[Placed], totals: Mapping[str, tuple[Span | None, Span | None]], foreign: bool) -> list[str]:
    notes = [
        f"{side} marks no steps: its numbers are those of the whole trace"
        for side, placed in zip(("before", "after"), sides, strict=True)
        if not placed.steps.marked
    ]
    left_out = [(side, int((~compared(placed)).sum())) for side, placed in zip(("before", "after"), sides, strict=True)]
    notes += [
        f"{side}: {count} operations outside of whole steps are not compared" for side, count in left_out if count
    ]
    if foreign:
        notes.append("formats or graph modes name copies and fills in their own ways: each is one row here")
    changes = [_change(*totals[name]) for name in ("kernel_sum_ns", "span_ns")]
    if None not in changes and abs(changes[0] or 0) <= SAME_SUM and abs(changes[1] or 0) > OTHER_SPAN:
        notes.append("kernels take as long in both, the steps do not: they differ in gaps, not in kernels")
    return [*notes, *dict.fromkeys(note for placed in sides for note in placed.notes)]


def _change(before: Span | None, after: Span | None) -> float | None:
    return None if before is None or after is None or not before.median else after.median / before.median - 1


def _span(values: Any) -> Span:
    return Span(float(np.median(values)), int(values.min()), int(values.max()))


def _plain(values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return keys without what exporters change in names: white space."""
    return tuple(" ".join(value.split()) if isinstance(value, str) else value for value in values)
