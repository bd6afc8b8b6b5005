"""What `dsv4bench compare` does after parsing: read two runs, compare, print, and say what stops the gate."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4bench.cli import FAILED, INCOMPLETE, NOTHING, OK
from dsv4bench.cli_gate import added_launches, counted, no_time, slower, tell_gate
from dsv4bench.dashboards.compare_tables import BY, stored_tables
from dsv4bench.dashboards.render import show_tables
from dsv4bench.dashboards.stored_cells import batch_words, cell_words, kind_words, several_geometries
from dsv4bench.errors import UsageError, nearest
from dsv4bench.results.comparability import MACHINE
from dsv4bench.results.record import Record
from dsv4bench.results.store import read_records
from dsv4bench.results.stored import TWO_MACHINES, StoredCell, compare_stored


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for; `least` is the share that a word needs, None where nothing was said of it."""

    before: Path
    after: Path
    by: str
    least: float | None
    gate: bool
    strict: bool
    form: str


def run_compare(request: Request) -> int:
    """Run the command and return its exit code."""
    if request.by not in BY:
        raise UsageError(f"--by {request.by}: expected one of {', '.join(BY)}{nearest(request.by, BY)}")
    cells = compare_stored(read(request.before), read(request.after), request.least)
    _show(cells, request.by, request.form)
    return _gated(cells, request.strict) if request.gate else _code(cells)


def read(path: Path) -> list[Record]:
    """Return the records of a run and say what was left out; UsageError where there are none."""
    reading = read_records(path)
    tell(*(f"warning: {warning}" for warning in reading.warnings))
    if not reading.records:
        raise UsageError(f"{path}: no records here")
    return reading.records


def _show(cells: Sequence[StoredCell], by: str, form: str) -> None:
    """Print the cells as tables, or as plain objects."""
    if form == "json":
        print(json.dumps([_plain(one) for one in cells], indent=1, allow_nan=False))
    elif form == "jsonl":
        for one in cells:
            print(json.dumps(_plain(one), allow_nan=False))
    else:
        show_tables(stored_tables(cells, by), form, sys.stdout)


def _code(cells: Sequence[StoredCell]) -> int:
    """Return the exit code without a gate: whether what was asked for could be shown."""
    if any(one.refused for one in cells):
        return INCOMPLETE
    return OK if any(one.old and one.new for one in cells) else NOTHING


def _gated(cells: Sequence[StoredCell], strict: bool) -> int:
    """Say on stderr what stops the gate, or what it let pass, and return its exit code."""
    several = several_geometries(cells)
    red = [line for one in cells for line in _red(one, several)]
    doubts = [(f"{TWO_MACHINES} ({_machines(one)})", one) for one in cells if one.two_machines]
    doubts += [(one.reason, one) for one in cells if one.refused]
    passed = [("INCONCLUSIVE", one) for one in cells if one.word == "INCONCLUSIVE"]
    passed += [(one.reason, one) for one in cells if _not_run(one)]
    passed += [(f"not timed before ({one.reason.removeprefix('before: ')})", one) for one in cells if _new_time(one)]
    passed += [("launches not counted after", one) for one in cells if _uncounted(one)]
    tell_gate([*red, *_counted(doubts, several)], _counted(passed, several), strict)
    if red:
        return FAILED
    if not any(one.old and one.after_ns for one in cells):
        return NOTHING
    return INCOMPLETE if doubts or (strict and passed) else OK


def _machines(one: StoredCell) -> str:
    """Return by which facts two machines are told apart."""
    return "; ".join(str(found) for found in one.differences if found.what in MACHINE)


def _not_run(one: StoredCell) -> bool:
    """Return whether AFTER has nothing of a cell of BEFORE: no record of it, or one that was skipped or refused."""
    return not one.new or bool(one.before_ns and not one.after_ns and not one.lost)


def _new_time(one: StoredCell) -> bool:
    """Return whether BEFORE ran a cell and has no time of it, so that the one of AFTER was held against nothing."""
    return bool(one.old and not one.before_ns and one.after_ns)


def _uncounted(one: StoredCell) -> bool:
    """Return whether AFTER does not say what it launched, where BEFORE does."""
    return bool(one.word and one.added is None and one.before and _counts(one.before))


def _counts(record: Record) -> bool:
    return bool(record.counts) if record.kernel is None else record.kernel.get("launches") is not None


def _counted(said: Sequence[tuple[str, StoredCell]], geometry: bool) -> list[str]:
    return counted([(why, (kind_words(one.any, geometry), batch_words(one.any))) for why, one in said])


def _red(one: StoredCell, geometry: bool) -> list[str]:
    """Return why a cell stops the gate; its name says the `geometry` where that is asked for."""
    name = cell_words(one.any, geometry)
    found = added_launches(name, one.added)
    if one.word == "SLOWER" and one.ratio:
        found.append(slower(name, one.ratio))
    return [*found, no_time(name, one.reason)] if one.lost else found


def _plain(one: StoredCell) -> dict[str, Any]:
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
