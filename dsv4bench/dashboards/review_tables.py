"""The tables of a trace's review: head, findings, steps, groups, kernels, ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from statistics import median

from dsv4bench.dashboards.finding_table import finding_table
from dsv4bench.dashboards.redundancy_tables import repeated_table
from dsv4bench.dashboards.table import Cell, Column, Table, cell, shortened
from dsv4bench.ranges import PREFIX
from dsv4bench.results.reviews import Coverage, GroupRow, Head, RankRow, Review, StepRow, Totals, whole
from dsv4bench.units import format_bytes, format_in_unit, format_ns, format_percent, time_unit

NOT_RECORDED = "not recorded"
MOST_STEPS, MOST_GROUPS, MOST_KERNELS = 12, 50, 10  # lines of a table in text; CSV and JSON have all
NAME_LETTERS, STEP_LETTERS = 34, 15
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::")
MADE_BY = ("nsys", "schema", "driver", "collected", "cuda_graph_trace", "world_size", "with_stack")
SHOWN_COUNTS = ("kernels", "copies", "sets", "graph_launches", "kernels_in_graphs")


def review_tables(review: Review, asked: str | None = None, everything: bool = False) -> list[Table]:
    """Return the tables of a review, the doctor's findings after the head.

    `asked` is the axis that was asked for, which stands before the steps; `everything` leaves no row out.
    """
    groups = {axis: group_table(axis, rows, everything) for axis, rows in review.by.items()}
    lead = [groups.pop(asked)] if asked in groups else []
    ranks = [_rank_table(review.ranks)] if review.ranks else []
    head = [_head_table(review), finding_table(review.findings)]
    again = [repeated_table(review.repeated)] if review.repeated else []
    return [*head, *lead, _step_table(review, everything), *ranks, *again, *groups.values()]


def coverage_text(cover: Coverage) -> str:
    """Return how many operations have a place, by which method, and what has none."""
    if cover.share is None:
        return "coverage: there is no device operation"
    parts = (
        (cover.unattributed, "unattributed"),
        (cover.ambiguous, "ambiguous"),
        (cover.in_graphs, "in graphs, no range"),
    )
    rest = "".join(f", {count} {what}" for count, what in parts if count)
    lost = f"; {cover.lost} launches without a kernel" if cover.lost else ""
    return f"coverage: {format_percent(cover.share)} of {cover.total} operations{rest}{lost}; method: {cover.method}"


def group_table(axis: str, rows: Sequence[GroupRow], everything: bool = False) -> Table:
    """Return the groups of an axis, the longest time first."""
    most = len(rows) if everything else MOST_KERNELS if axis == "kernel" else MOST_GROUPS
    scale, unit = time_unit([row.time_ns for row in rows])
    keys = list(rows[0].keys) if rows else [axis]
    columns = (
        *(Column(key, (key,), right=key in ("layer", "kv_source", "device", "stream")) for key in keys),
        *(Column(name, (name,)) for name in ("kernels", "copies", "sets")),
        Column("in graphs", ("in_graphs",)),
        Column("a step", ("least_per_step", "most_per_step")),
        Column(unit, ("time_ns",)),
        Column("share", ("share",)),
        Column("", ("bytes",)),
    )
    notes = [f"{len(rows) - most} more rows: --csv or --json"] if len(rows) > most else []
    cells = tuple(_group_row(row, scale) for row in rows[:most])
    return Table(f"By {axis}: launches and time, {len(rows)} rows", columns, cells, tuple(notes))


def _group_row(row: GroupRow, scale: int) -> tuple[Cell, ...]:
    least, most = row.per_step or (None, None)
    return (
        *(cell(value, "-" if value is None else kernel_title(str(value))) for value in row.keys.values()),
        *(cell(count, str(count) if count else "") for count in (row.kernels, row.copies, row.sets, row.in_graphs)),
        Cell("" if least is None else between(least, most), (least, most)),
        cell(row.time_ns, format_in_unit(row.time_ns, scale)),
        cell(row.share, format_percent(row.share)),
        cell(row.bytes, ""),
    )


def between(least: int | None, most: int | None) -> str:
    """Return "5" for equal numbers, "5..7" for others."""
    return f"{least}" if least == most else f"{least}..{most}"


def kernel_title(name: str, letters: int = NAME_LETTERS) -> str:
    """Return what tells a long kernel name apart: without its namespaces, then with its middle left out."""
    if len(name) <= letters:
        return name
    plain = _UNNAMED.sub("", name.removeprefix("void "))
    end = next((at for at, sign in enumerate(plain) if sign in "<("), len(plain))
    return shortened(plain[:end].rsplit("::", 1)[-1] + plain[end:], letters)


def _head_table(review: Review) -> Table:
    head, totals = review.head, review.totals
    facts = (
        ("format", head.format),
        ("device", "; ".join(head.devices) or NOT_RECORDED),
        ("tool", ", ".join(_tool(head)) or NOT_RECORDED),
        ("launched", head.graph_mode),
        ("recorded", ", ".join(head.recorded).replace("_", " ") or "nothing"),
        (NOT_RECORDED, ", ".join(head.not_recorded).replace("_", " ")),
        ("totals", _totals_text(totals)),
    )
    rows = tuple((cell(what), cell(said)) for what, said in facts if said)
    lines = [f"{what}: {said}" for what, said in facts if said]
    columns = (Column("", ("what",)), Column("", ("value",)))
    return Table(f"Trace {head.source}", columns, rows, (*lines, coverage_text(review.coverage), *review.notes))


def _tool(head: Head) -> list[str]:
    """Return the facts that say how a trace was made; JSON has all of them."""
    return [f"{name} {value}" for name, value in head.facts.items() if name in MADE_BY or name.endswith("version")]


def _totals_text(totals: Totals) -> str:
    """Return the totals as one sentence, with "not recorded" for what is not there."""
    words = [_counted(getattr(totals, name), name.replace("_", " ")) for name in SHOWN_COUNTS]
    words += [f"kernel time {format_ns(totals.kernel_sum_ns)}"] if totals.kernel_sum_ns is not None else []
    sizes = ((totals.copy_bytes, "copied"), (totals.set_bytes, "set"))
    return ", ".join([*words, *(f"{format_bytes(size)} {what}" for size, what in sizes if size)])


def _counted(count: int | None, what: str) -> str:
    return f"{what} {NOT_RECORDED}" if count is None else f"{count} {what}"


STEP_TIMES: tuple[tuple[str, Callable[[StepRow], int | None]], ...] = (
    ("host", lambda step: step.host_ns),
    ("span", lambda step: step.span_ns),
    ("busy", lambda step: step.busy_ns),
    ("sum", lambda step: step.kernel_sum_ns),
    ("wait", lambda step: step.waiting_ns),
)


def _step_table(review: Review, everything: bool) -> Table:
    steps, good = review.steps, whole(review.steps)
    scale, unit = time_unit([value for step in steps for _, time in STEP_TIMES if (value := time(step)) is not None])
    columns = (
        Column("step", ("number", "name"), right=False),
        Column("rank", ("rank",)),
        *(
            Column(short, (name,))
            for short, name in zip(("kern", "copy", "set", "graph", "in graph"), SHOWN_COUNTS, strict=True)
        ),
        *(Column(f"{what} {unit}" if at == 0 else what, (f"{what}_ns",)) for at, (what, _) in enumerate(STEP_TIMES)),
        Column("cut", ("cut",), right=False),
    )
    most = len(steps) if everything else MOST_STEPS
    rows = [_step_row(step, scale, len(review.ranks) > 1) for step in steps[:most]]
    if len(good) > 1 and not everything:
        rows.append(_median_row(good, scale))
    title = (
        f"Steps: {len(steps)}, {len(steps) - len(good)} cut"
        if review.marked
        else "Steps: none marked, the trace is one"
    )
    if not steps:
        return Table("Steps: none", (), (), ())
    return Table(title, columns, tuple(rows), tuple(_step_notes(review, good, len(steps) - most)))


def _step_row(step: StepRow, scale: int, several: bool) -> tuple[Cell, ...]:
    named = str(step.number) in step.name or step.name.startswith("whole")
    name = step.name.removeprefix(PREFIX).removesuffix(f" rank={step.rank}") if named else f"{step.number} {step.name}"
    return (
        Cell(shortened(name, STEP_LETTERS - 5 * several), (step.number, step.name)),
        cell(step.rank, str(step.rank) if several and step.rank is not None else ""),
        *(cell(getattr(step, count)) for count in SHOWN_COUNTS),
        *(cell(time(step), format_in_unit(time(step), scale)) for _, time in STEP_TIMES),
        cell(step.cut, "cut" if step.cut else ""),
    )


def _median_row(good: Sequence[StepRow], scale: int) -> tuple[Cell, ...]:
    times = [_median([time(step) for step in good]) for _, time in STEP_TIMES]
    counts = [[getattr(step, name) for step in good] for name in SHOWN_COUNTS]
    return (
        Cell("median", (None, "median")),
        cell(None),
        *(cell(None, "" if None in values else between(min(values), max(values))) for values in counts),
        *(cell(value, format_in_unit(value, scale)) for value in times),
        cell(None),
    )


def _median(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _step_notes(review: Review, good: Sequence[StepRow], more: int) -> list[str]:
    notes = [f"{more} more steps: --csv or --json"] if more > 0 else []
    notes += [f"step {step.number} is cut: {step.cut}" for step in review.steps[:MOST_STEPS] if step.cut]
    span, busy, waiting = (
        sum(getattr(step, name) or 0 for step in good) for name in ("span_ns", "busy_ns", "waiting_ns")
    )
    if span and {"kernels", "graph_runs"} & set(review.head.recorded):
        told = any(step.waiting_ns is not None for step in good)
        launch = (
            f"; {format_percent(waiting / span)} waits for a launch"
            if told
            else "; how much waits for launches is not known"
        )
        notes.append(f"the device is idle in {format_percent((span - busy) / span)} of the span{launch}")
    return notes


def _rank_table(ranks: Sequence[RankRow]) -> Table:
    scale, unit = time_unit([row.span_ns for row in ranks if row.span_ns])
    columns = (
        Column("rank", ("rank",)),
        Column("steps", ("steps",)),
        Column("kernels", ("kernels",)),
        Column(f"span {unit}", ("span_ns",)),
        Column("slowest in", ("slowest",)),
        Column("", ("source",)),
    )
    rows = tuple(
        (
            cell(row.rank),
            cell(row.steps),
            cell(row.kernels),
            cell(row.span_ns, format_in_unit(row.span_ns, scale)),
            cell(row.slowest, format_percent(row.slowest)),
            cell(row.source, ""),
        )
        for row in ranks
    )
    note = "span: median over whole steps, each by its rank's own clock; slowest in: share of the common steps"
    return Table(f"Ranks: {len(ranks)}", columns, rows, (note,))
