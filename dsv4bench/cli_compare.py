"""`dsv4bench compare`: two stored runs, cell by cell; with `--gate` for continuous integration."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from dsv4bench import cli_options as options

if TYPE_CHECKING:
    from dsv4bench.results.record import Record
    from dsv4bench.results.stored import StoredCell

EPILOG = (
    "Exit codes: 0 ok; 1 (--gate) a cell is SLOWER, launches more or has no time any more; 2 usage; 3 runs that must"
    " not be compared, and with --gate two machines, with --strict an INCONCLUSIVE cell or one of BEFORE that was not"
    " run; 4 no cell is on both sides."
)
GATE_PERCENT = "2"

Before = Annotated[Path, typer.Argument(metavar="BEFORE", help="A results directory or a .jsonl file.")]
After = Annotated[Path, typer.Argument(metavar="AFTER", help="The run of after.")]
By = Annotated[str, typer.Option("--by", metavar="AXIS", help="A row for each cell, mode, batch or kv.")]
Gate = Annotated[
    str,
    typer.Option(
        "--gate", metavar="[PCT]", help="Exit with 1 if a cell is slower beyond PCT % or launches more. [off; PCT: 2]"
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="With --gate: exit with 3 if a cell is INCONCLUSIVE. [off]")]


class Compare(TyperCommand):
    """The command, whose option --gate may stand without its value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what was typed, with 2 for the value of a bare --gate."""
        return super().parse_args(ctx, with_percent(args))


def with_percent(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the default of --gate behind one that no number follows."""
    found: list[str] = []
    for place, argument in enumerate(arguments):
        found.append(argument)
        if argument == "--gate" and _percent(arguments[place + 1] if place + 1 < len(arguments) else "") is None:
            found.append(GATE_PERCENT)
    return found


def compare(
    before: Before,
    after: After,
    by: By = "cell",
    gate: Gate = "",
    strict: Strict = False,
    form: options.Format = "table",
    as_json: options.Json = False,
) -> None:
    """Compare two stored runs: launches exactly, times by medians, like with like only.

    Cells meet by geometry, batch, switches and ranks, whatever the commit. Runs of two machines are shown side by side.
    """
    from dsv4bench.cli import output_format
    from dsv4bench.errors import UsageError, nearest
    from dsv4bench.results.stored import compare_stored

    known = ("cell", "mode", "batch", "kv")
    if by not in known:
        raise UsageError(f"--by {by}: expected one of {', '.join(known)}{nearest(by, known)}")
    if strict and not gate:
        raise UsageError("--strict: only --gate has something to be strict about; expected --gate [PCT] --strict")
    least = _least(gate)
    form = output_format(form, as_json)
    cells = compare_stored(read(before), read(after), least)
    show(cells, by, form)
    raise typer.Exit(gated(cells, strict) if gate else code(cells))


def read(path: Path) -> list[Record]:
    """Return the records of a run and say what was left out; UsageError where there are none."""
    from dsv4bench.errors import UsageError
    from dsv4bench.results.store import read_records

    reading = read_records(path)
    tell(*(f"warning: {warning}" for warning in reading.warnings))
    if not reading.records:
        raise UsageError(f"{path}: no records here")
    return reading.records


def show(cells: Sequence[StoredCell], by: str, form: str) -> None:
    """Print the cells as tables, or as plain objects."""
    from dsv4bench.dashboards.compare_tables import stored_tables
    from dsv4bench.dashboards.render import show_tables

    if form == "json":
        print(json.dumps([plain(one) for one in cells], indent=1, allow_nan=False))
    elif form == "jsonl":
        for one in cells:
            print(json.dumps(plain(one), allow_nan=False))
    else:
        show_tables(stored_tables(cells, by), form, sys.stdout)


def code(cells: Sequence[StoredCell]) -> int:
    """Return the exit code without a gate: whether what was asked for could be shown."""
    from dsv4bench.cli import INCOMPLETE, NOTHING, OK

    if any(one.refused for one in cells):
        return INCOMPLETE
    return OK if any(one.old and one.new for one in cells) else NOTHING


def gated(cells: Sequence[StoredCell], strict: bool) -> int:
    """Say on stderr what stops the gate, or what it let pass, and return its exit code."""
    from dsv4bench.cli import FAILED, INCOMPLETE, NOTHING, OK
    from dsv4bench.results.stored import TWO_MACHINES

    red = [line for one in cells for line in _red(one)]
    doubts = [(TWO_MACHINES, one) for one in cells if one.two_machines]
    doubts += [(one.reason, one) for one in cells if one.refused]
    passed = [("INCONCLUSIVE", one) for one in cells if one.word == "INCONCLUSIVE"]
    passed += [(one.reason, one) for one in cells if not one.new]
    tell(*(f"gate: {line}" for line in [*red, *_counted(doubts)]))
    tell(*(f"gate: {'' if strict else 'passed: '}{line}" for line in _counted(passed)))
    if red:
        return FAILED
    if not any(one.old and one.new for one in cells):
        return NOTHING
    return INCOMPLETE if doubts or (strict and passed) else OK


def _counted(said: Sequence[tuple[str, StoredCell]]) -> list[str]:
    """Return one line for each reason, with its cells."""
    from dsv4bench.dashboards.cells import grouped
    from dsv4bench.dashboards.stored_cells import which

    return [f"{same[0][0]}: {which([one for _, one in same])}" for same in grouped(said, lambda pair: pair[0])]


def _red(one: StoredCell) -> list[str]:
    """Return why a cell stops the gate."""
    from dsv4bench.units import format_percent

    found = [f"added launches: {_name(one)}: {sentence}" for sentence in one.added or ()]
    if one.word == "SLOWER" and one.ratio:
        low, high = (format_percent(share - 1, signed=True) for share in (one.ratio.low, one.ratio.high))
        found.append(f"SLOWER: {_name(one)}: {format_percent(one.ratio.value - 1, signed=True)} [{low}, {high}]")
    return found + ([f"no time any more: {_name(one)}: {one.reason}"] if one.lost else [])


def _name(one: StoredCell) -> str:
    from dsv4bench.dashboards.stored_cells import cell_words

    return cell_words(one.any)


def plain(one: StoredCell) -> dict[str, Any]:
    """Return a cell as a JSON object; times in nanoseconds with the bounds of their 95 % intervals."""
    record = one.any
    bounds = {
        name: None if seen is None else {"value": seen.value, "low": seen.low, "high": seen.high}
        for name, seen in (("before_ns", one.before_ns), ("after_ns", one.after_ns), ("ratio", one.ratio))
    }
    runs = {side: [run.key for run in records] for side, records in (("before", one.old), ("after", one.new))}
    names = ("geometry", "batch", "variant", "ranks", "mode")
    kernel = {name: record.kernel.get(name) for name in ("name", "case", "rows")} if record.kernel else None
    unlike = [{"what": found.what, "before": found.before, "after": found.after} for found in one.differences]
    return {
        **{name: getattr(record, name) for name in names},
        "kernel": kernel,
        "verdict": one.word,
        "reason": one.reason,
        "least": one.least,
        **bounds,
        "added": one.added,
        "two_machines": one.two_machines,
        "differences": unlike,
        "unknown": list(one.unknown),
        "keys": runs,
        "left_out": one.left_out,
    }


def tell(*lines: str) -> None:
    """Print lines on stderr."""
    for line in lines:
        print(line, file=sys.stderr)


def _least(gate: str) -> float | None:
    """Return the share that --gate names; UsageError for anything but a percentage."""
    from dsv4bench.errors import UsageError

    if not gate:
        return None
    percent = _percent(gate)
    if percent is None or not 0 < percent < 100:
        raise UsageError(f"--gate {gate}: expected a percentage above 0 and below 100, e.g. --gate 2")
    return percent / 100


def _percent(text: str) -> float | None:
    try:
        return float(text.removesuffix("%"))
    except ValueError:
        return None
