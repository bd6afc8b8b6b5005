"""The tables of two traces compared: whether they are alike, what a step launches and takes, new and gone kernels."""

from __future__ import annotations

from collections.abc import Sequence

from dsv4bench.dashboards.finding_table import finding_table
from dsv4bench.dashboards.review_tables import between, coverage_text, kernel_title
from dsv4bench.dashboards.style import arrow
from dsv4bench.dashboards.table import Cell, Column, Table, cell, shortened
from dsv4bench.results.trace_diffs import DiffRow, KernelChange, Likeness, Span, TraceDiff
from dsv4bench.units import NS_PER_US, format_in_unit, format_percent, time_unit

MOST_ROWS, MOST_KERNELS = 50, 20
KEY_LETTERS, SIDE_LETTERS = 28, 28
SPREAD = "times are medians over whole steps, ± is the farthest step"
NO_SPREAD = "one whole step of a side tells no spread of its times"
RIGHT = ("layer", "kv_source", "device", "stream")


def diff_tables(diff: TraceDiff, everything: bool = False) -> list[Table]:
    """Return the tables of a comparison, what is compared first before them; `everything` leaves no row out."""
    findings = [_of_side(side, finding_table(found)) for side, found in diff.findings.items() if found]
    kernels = _kernel_tables(diff, everything)
    return [likeness_table(diff), *findings, _row_table(diff, everything), _total_table(diff), *kernels]


def likeness_table(diff: TraceDiff) -> Table:
    """Return what is compared before any number; NO is a difference that refuses the comparison."""
    columns = tuple(Column(name, (name,), right=False) for name in ("what", "before", "after", "alike"))
    cover = [f"{side}: {coverage_text(found)}" for side, found in diff.coverage.items()]
    rows = tuple(map(_likeness, diff.likeness))
    return Table(f"Before {_file(diff.before)}, after {_file(diff.after)}", columns, rows, (*cover, *diff.notes))


def _file(source: str) -> str:
    """Return the last part of a path: a title is no place for all of it."""
    return source.rstrip("/").rsplit("/", 1)[-1]


def _of_side(side: str, table: Table) -> Table:
    return Table(f"{side}: {table.title}", table.columns, table.rows, table.notes)


def _likeness(one: Likeness) -> tuple[Cell, ...]:
    verdict = "yes" if one.alike else "NO" if one.refuses else "differs"
    sides = (cell(said, shortened(said, SIDE_LETTERS)) for said in (one.before, one.after))
    return (cell(one.what), *sides, cell(one.alike, verdict))


def nothing_added_text(diff: TraceDiff) -> str:
    """Return the sentence on what runs more often after than before."""
    added = diff.nothing_added
    said = "not known, kernels were not recorded" if added is None else str(added).lower()
    return f"no other kernel or copy added: {said}"


def _row_table(diff: TraceDiff, everything: bool) -> Table:
    scale, unit = time_unit([time.median for row in diff.rows for time in (row.before_ns, row.after_ns)])
    keys = list(diff.rows[0].keys) if diff.rows else [diff.axis]
    columns = (
        *(Column(key, (key,), right=key in RIGHT) for key in keys),
        Column("launches", ("before", "before_most", "after", "after_most")),
        Column(unit, ("before_ns", "after_ns")),
        Column("diff", ("difference_ns", "before_least_ns", "before_most_ns", "after_least_ns", "after_most_ns")),
        Column("share", ("before_share", "after_share")),
    )
    most = len(diff.rows) if everything else MOST_ROWS
    ordered = sorted(diff.rows, key=lambda row: not row.changed)  # what launches otherwise comes first
    more = [f"{len(diff.rows) - most} more rows: --csv or --json"] if len(diff.rows) > most else []
    spread = min(diff.steps) > 1
    notes = [
        f"counts are exact; {SPREAD if spread else NO_SPREAD}",
        *more,
        nothing_added_text(diff),
    ]
    rows = tuple(_row(row, scale, spread) for row in ordered[:most])
    return Table(f"By {diff.axis}, a step, before -> after", columns, rows, tuple(notes))


def _row(row: DiffRow, scale: int, spread: bool) -> tuple[Cell, ...]:
    counts = arrow(between(row.before.least, row.before.most), between(row.after.least, row.after.most))
    reach = f" ±{format_in_unit(max(map(_reach, (row.before_ns, row.after_ns))), scale)}" if spread else ""
    difference = row.after_ns.median - row.before_ns.median
    times = [format_in_unit(span.median, scale) for span in (row.before_ns, row.after_ns)]
    limits = (row.before_ns.least, row.before_ns.most, row.after_ns.least, row.after_ns.most)
    return (
        *(cell(value, "-" if value is None else kernel_title(str(value), KEY_LETTERS)) for value in row.keys.values()),
        Cell(counts, (row.before.least, row.before.most, row.after.least, row.after.most)),
        Cell(" -> ".join(times), (row.before_ns.median, row.after_ns.median)),
        Cell(f"{format_in_unit(difference, scale, signed=True)}{reach}", (difference, *limits)),
        Cell(format_percent(row.after_share), (row.before_share, row.after_share)),
    )


def _reach(span: Span) -> float:
    """Return the distance from the median to the farther end."""
    return max(span.median - span.least, span.most - span.median)


def _total_table(diff: TraceDiff) -> Table:
    columns = (
        Column("a whole step", ("what",), right=False),
        Column("before", ("before", "before_least", "before_most")),
        Column("after", ("after", "after_least", "after_most")),
        Column("diff", ("difference",)),
    )
    rows = [
        (cell(name, _title(name)), _total(name, before), _total(name, after), _difference(name, before, after))
        for name, (before, after) in diff.totals.items()
    ]
    return Table("Totals of a whole step", columns, tuple(rows))


def _title(name: str) -> str:
    return f"{name.removesuffix('_ns').replace('_', ' ')}{', us' if name.endswith('_ns') else ''}"


def _number(name: str, value: float, signed: bool = False) -> str:
    if name.endswith("_ns"):
        return format_in_unit(value, NS_PER_US, signed)
    return f"{value:+g}" if signed and value else f"{value:g}"


def _total(name: str, span: Span | None) -> Cell:
    if span is None:
        return Cell("not recorded", (None, None, None))
    text = _number(name, span.median)
    spread = "" if span.exact is not None else f" ({_number(name, span.least)}..{_number(name, span.most)})"
    return Cell(f"{text}{spread}", (span.median, span.least, span.most))


def _difference(name: str, before: Span | None, after: Span | None) -> Cell:
    if before is None or after is None:
        return cell(None)
    return cell(after.median - before.median, _number(name, after.median - before.median, signed=True))


def _kernel_tables(diff: TraceDiff, everything: bool) -> list[Table]:
    kinds = (
        ("New kernels and copies", diff.new),
        ("Gone kernels and copies", diff.gone),
        ("Launched more often", diff.more),
    )
    return [_kernel_table(title, changes, everything) for title, changes in kinds if changes]


def _kernel_table(title: str, changes: Sequence[KernelChange], everything: bool) -> Table:
    columns = (Column("kernel", ("kernel",), right=False), Column("a step", ("before", "after")))
    most = len(changes) if everything else MOST_KERNELS
    rows = tuple(
        (cell(one.name, kernel_title(one.name, 64)), Cell(f"{one.before} -> {one.after}", (one.before, one.after)))
        for one in changes[:most]
    )
    more = (f"{len(changes) - most} more: --csv or --json",) if len(changes) > most else ()
    return Table(f"{title}: {len(changes)}", columns, rows, more)
