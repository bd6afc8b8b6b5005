"""The PR block's evidence beside times and launches: checks, memory, what was not measured, environment, commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import filterfalse
from typing import Any

from dsv4bench.dashboards.cells import batch_text, grouped, said_of
from dsv4bench.dashboards.markdown import code, item, prose, table_lines
from dsv4bench.dashboards.pr_subject import facts
from dsv4bench.dashboards.style import arrow
from dsv4bench.dashboards.table import Column, printable
from dsv4bench.dashboards.trial_cells import modes, said_of_trials, side_records
from dsv4bench.results.compare import NOT_RESOLVABLE, without_place
from dsv4bench.results.pinned import pinned, source_option
from dsv4bench.results.record import BESIDE, Record
from dsv4bench.results.trials import ONE_PROCESS, SIDES
from dsv4bench.results.verdict import Verdict
from dsv4bench.units import format_bytes, format_count

HEADS = "reused heads"
TOO_SMALL = f"effects smaller than these pairs can name ({NOT_RESOLVABLE})"
AFTER = ", after timing"
# what a check of reused heads says: all are right, some are not, or others were reused than should be
ALL_EQUAL = re.compile(r"(\d+) reused heads equal")
SOME_DIFFER = re.compile(r"(\d+) of (\d+) reused heads differ")
OTHERS_REUSED = re.compile(r"(\d+) heads were reused, expected (\d+)")
MEMORY = {"peak_bytes": "peak", "workspace_bytes": "workspace"}


def check_lines(records: Sequence[Record]) -> list[str]:
    """Return which checks of the records passed, reused heads first, and all that did not."""
    checks = [(record, check) for record in records for check in record.checks]
    named = grouped(checks, lambda pair: str(pair[1]["name"]).removesuffix(AFTER))
    lines = [_heads_line([check for _, check in same]) for same in named if _name(same) == HEADS]
    lines = lines or ["- reused heads: not checked (no side that ran reuses any)"]
    lines += [_passed_line(_name(same), [check for _, check in same]) for same in named if _name(same) != HEADS]
    lines += map(item, said_of(records, lambda record: filter(_is_beside, record.note), _sides(records)))
    wrong = said_of(records, lambda record: [_said(check) for check in record.checks if not check["passed"]])
    return [*(f"- **WRONG** {prose(text)}" for text in wrong), *lines]


def _sides(records: Sequence[Record]) -> dict[str, list[Record]]:
    return {side: [record for record in records if (record.ab or {}).get("side") == side] for side in SIDES}


def _is_beside(note: str) -> bool:
    return note.startswith(BESIDE)


def _name(same: Sequence[tuple[Record, Mapping[str, Any]]]) -> str:
    return str(same[0][1]["name"]).removesuffix(AFTER)


def _heads_line(checks: Sequence[Mapping[str, Any]]) -> str:
    """Return "n of n reused heads byte-equal", summed over the checks, those after timing apart."""
    parts = []
    for again in (False, True):
        found = [_heads(check) for check in checks if str(check["name"]).endswith(AFTER) is again]
        equal, every = (sum(pair[side] for pair in found) for side in (0, 1))
        parts += [f"**{equal} of {every}** reused heads byte-equal to a fresh dequant"] if found and not again else []
        parts += [f"after timing {equal} of {every}"] if found and again else []
    return f"- {'; '.join(parts)}"


def _heads(check: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many heads were right and how many should be; (0, 0) where the check came to neither."""
    detail = str(check.get("detail"))
    if equal := ALL_EQUAL.search(detail):
        return int(equal[1]), int(equal[1])
    if differ := SOME_DIFFER.search(detail):
        return int(differ[2]) - int(differ[1]), int(differ[2])
    others = OTHERS_REUSED.search(detail)
    return (int(others[1]), int(others[2])) if others else (0, 0)


def _passed_line(name: str, checks: Sequence[Mapping[str, Any]]) -> str:
    passed = [check for check in checks if check["passed"]]
    details = list(dict.fromkeys(str(check.get("detail") or "") for check in passed))
    detail = f": {details[0]}" if len(details) == 1 and details[0] else ""
    return item(f"{name}: {len(passed)} of {format_count(len(checks), 'check')} passed{detail}")


def _said(check: Mapping[str, Any]) -> str:
    return f"{check['name']}: {check.get('detail')}"


def memory_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the most memory of either side, and a folded table of all cells; nothing where none was measured."""
    known = [one for one in verdicts if all(record.memory for record in side_records(one.trial))]
    titles = {name: title for name, title in MEMORY.items() if any(any(_bytes(one, name)) for one in known)}
    if not titles:
        return []
    lines = [item(f"{title}: at most {_most(known, name)}") for name, title in titles.items()]
    if known[0].trial.how == ONE_PROCESS and "peak_bytes" in titles:
        lines.append("- the peak holds both sides, which ran in one process; with `--fresh` each has its own")
    columns = [
        Column("batch", (), right=False),
        Column("mode", (), right=False),
        *(Column(t, ()) for t in titles.values()),
    ]
    rows = [
        [prose(batch_text(one.trial.any)), prose(mode), *(_sizes(_bytes(one, name)) for name in titles)]
        for one, mode in zip(known, modes(known), strict=True)
    ]
    return [*lines, "", *folded("Memory of every cell", table_lines(columns, rows))]


def _bytes(verdict: Verdict, name: str) -> list[int | None]:
    return [None if record is None else record.memory.get(name) for record in (verdict.trial.a, verdict.trial.b)]


def _sizes(sizes: Sequence[int | None]) -> str:
    return arrow(*(None if size is None else format_bytes(size) for size in sizes), always=True)


def _most(known: Sequence[Verdict], name: str) -> str:
    sides = zip(*(_bytes(one, name) for one in known), strict=True)
    return _sizes([max((size for size in side if size is not None), default=None) for side in sides])


def unmeasured_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Return what a reader must not take these numbers for, and every cell without a verdict or beyond resolution."""
    records = [record for one in verdicts for record in side_records(one.trial)]
    ranks = sorted({record.ranks for record in records})
    lines = said_of(records, lambda record: filterfalse(_is_beside, record.note), _sides(records))
    lines += ["one rank: no communication, no other ranks to wait for"] if ranks == [1] else []
    lines += [f"{' or '.join(map(str, ranks))} ranks, run one after another on one device"] if ranks != [1] else []
    lines += ["no GPU: these are times of the CPU reference"] if any(r.engine != "gpu" for r in records) else []
    lines += said_of_trials(verdicts, lambda one: [] if one.word else [f"no verdict: {one.reason}"])
    lines += said_of_trials(verdicts, lambda one: [TOO_SMALL] if NOT_RESOLVABLE in one.marks else [])
    return list(map(item, lines))


def environment_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a folded table of the facts of both sides; where the cells of a side differ, with all values."""
    sides = [[facts(side) for one in verdicts if (side := getattr(one.trial, which))] for which in SIDES]
    names = dict.fromkeys(name for side in sides for one in side for name in one)
    rows = [
        (name, *(", ".join(dict.fromkeys(one[name] for one in side if name in one)) for side in sides))
        for name in names
    ]
    same = all(a == b for _, a, b in rows)
    columns = [Column(title, (), right=False) for title in (("fact", "A and B") if same else ("fact", "A", "B"))]
    cells = [[code(text) if text else "" for text in (row[:2] if same else row)] for row in rows]
    return folded("Environment", table_lines(columns, cells))


def command_lines(records: Sequence[Record]) -> list[str]:
    """Return the code and the commands that measured the records, folded, as they can be typed again."""
    same_code = grouped(records, lambda record: tuple(record.environment.get(name) for name in ("commit", "diff")))
    lines = [line for same in same_code for line in dict.fromkeys([*_code(same), *_commands(same)])]
    return folded("Commands that repeat both sides", fenced(lines))


def _code(same: Sequence[Record]) -> list[str]:
    """Return what is checked out to make records of one code again; comments name what no checkout holds."""
    here = same[0].environment
    lines = [shlex.join(["git", "checkout", here["commit"]])] if here.get("commit") else []
    lines += [f"# with{_changes(here)}"] if here.get("dirty") else []
    trees = [((one.ab or {}).get("side"), tree) for one in same if (tree := one.environment.get("src"))]
    return lines + [
        f"# {side}: {tree.get('name')} at {tree.get('commit') or 'no commit'}{_changes(tree, ' with')}"
        for side, tree in trees
    ]


def _changes(state: Mapping[str, Any], before: str = "") -> str:
    return f"{before} local changes {state.get('diff') or ''}".rstrip() if state.get("dirty") else ""


def _commands(same: Sequence[Record]) -> list[str]:
    sessions = grouped([record for record in same if record.argv], lambda record: (record.ab or {}).get("session"))
    return [shlex.join(command) for session in sessions for command in _pinned(session)]


def _pinned(session: Sequence[Record]) -> list[list[str]]:
    """Return the commands of a session, with the commit of each side's tree where a revision was typed."""
    trees = {source_option(record): record for record in session if record.environment.get("src")}
    commands = [without_place(record.argv) for record in session]
    for record in trees.values():
        commands = [pinned(command, record) for command in commands]
    return commands


def fenced(lines: Iterable[str]) -> list[str]:
    """Return lines as a block of code, behind a fence that none of them can close."""
    shown = [printable(line) for line in lines]
    ticks = max((len(found) for line in shown for found in re.findall("`+", line)), default=0)
    fence = "`" * max(3, ticks + 1)
    return [f"{fence}sh", *shown, fence]


def folded(title: str, lines: Sequence[str]) -> list[str]:
    """Return lines of markdown that GitHub shows when the title is clicked."""
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "", "</details>"]
