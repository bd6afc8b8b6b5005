"""Whole steps of a trace as cells that expectations are held against, and what of a file a trace cannot answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsv4bench.errors import UsageError
from dsv4bench.results.counts import DEVICE, OPERATIONS_CLASS, Row
from dsv4bench.results.expectations import Expectation, Expectations, Values
from dsv4bench.results.record import CLASSES

ENGINE = "gpu"  # whatever a trace shows ran there
NOT_IN_TRACES = tuple(name for name in CLASSES if name not in DEVICE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceStep:
    """One whole step of the trace of one rank: its counts, and what is known of how it ran.

    A row of `counts` tells its device `operations` too. `variant` are the switches that the trace, or the record that
    names it, tells; `unplaced` counts, by kernel, the operations that belong to no operation of the step, or to no
    kv_source where one is asked for, of `total`. `number` is None for a trace that marks no steps; `how` says by which
    methods places were found, `outside` how many operations of the trace lie in no whole step.
    """

    source: str
    rank: int | None
    number: int | None
    mode: str
    device: str
    counts: list[dict[str, Any]]
    variant: Mapping[str, Any] = field(default_factory=dict)
    unplaced: Mapping[str, int] = field(default_factory=dict)
    total: int = 0
    outside: int = 0
    how: str = ""
    notes: tuple[str, ...] = ()
    engine: str = ENGINE
    status: str = "ok"

    @property
    def coverage(self) -> dict[str, int]:
        """How many operations have no place, as a record's coverage says it."""
        return {"unattributed": sum(self.unplaced.values())}


def asks_sources(expectations: Expectations) -> bool:
    """Return whether an entry that a trace can answer tells kv_sources apart."""
    return any(entry.kv_sources or "kv_source" in entry.by for entry in _about_traces(expectations))


def refuse_calls(expectations: Expectations) -> None:
    """Raise UsageError for an entry about a class that no trace holds; one about other engines alone is not asked."""
    for entry in _about_traces(expectations):
        for name in NOT_IN_TRACES:
            if name in entry.bounds:
                raise UsageError(
                    f"--expect {expectations.name}: entry {entry.number}: {name}: a trace holds no {name};"
                    f" expected {', '.join(DEVICE)} or {OPERATIONS_CLASS} (--allow-uncounted passes it over)"
                )


def refuse_untold(expectations: Expectations, typed: Iterable[str], steps: Sequence[TraceStep]) -> None:
    """Raise UsageError for a switch, typed or of an entry's variant, that the trace does not tell."""
    told = _told(steps)
    for name in typed:
        if name not in told:
            raise UsageError(f"--{name}: {_untold(name, steps[0].source, told)}")
    for entry in _about_traces(expectations):
        for name in entry.variant:
            if name not in told:
                at = f"--expect {expectations.name}: entry {entry.number}: variant"
                raise UsageError(f"{at}: {_untold(name, steps[0].source, told)}")


def taken(cells: Mapping[str, Values], steps: Sequence[TraceStep]) -> dict[str, Values]:
    """Return the switches of `cells` that the trace does not tell: they are taken on trust."""
    return {name: values for name, values in cells.items() if values and name not in _told(steps)}


def unequal(steps: Sequence[TraceStep]) -> list[str]:
    """Return a sentence on the sums in which steps of one rank differ, none where they are equal."""
    tables = {step.number: _sums(step.counts) for step in steps}
    keys = dict.fromkeys(key for table in tables.values() for key in table)
    spans = {key: [table.get(key, 0) for table in tables.values()] for key in keys}
    differ = {key: (min(found), max(found)) for key, found in spans.items() if min(found) < max(found)}
    if not differ:
        return []
    usual = Counter(tuple(sorted(table.items(), key=str)) for table in tables.values()).most_common(1)[0][0]
    odd = [number for number, table in tables.items() if tuple(sorted(table.items(), key=str)) != usual]
    (op, source, name), (least, most) = next(iter(differ.items()))
    of = "" if source is None else f" of kv_source {source}"
    more = f", and {len(differ) - 1} more" if len(differ) > 1 else ""
    return [f"steps differ ({numbers(odd)} from most): {op}{of}: {least}..{most} {name}{more}"]


def numbers(found: Iterable[int | None]) -> str:
    """Return numbers of steps as a text, consecutive ones as "3-5"."""
    runs: list[list[int]] = []
    for number in sorted(one for one in found if one is not None):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _sums(rows: Sequence[Row]) -> dict[tuple[Any, ...], int]:
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        for name in DEVICE:
            found[row.get("op"), row.get("kv_source"), name] += row.get(name) or 0
    return {key: count for key, count in found.items() if count}


def _about_traces(expectations: Expectations) -> list[Expectation]:
    return [entry for entry in expectations.entries if not entry.engines or ENGINE in entry.engines]


def _told(steps: Sequence[TraceStep]) -> list[str]:
    """Return the switches that every trace tells."""
    return [name for name in steps[0].variant if all(name in step.variant for step in steps)]


def _untold(name: str, source: str, told: Sequence[str]) -> str:
    return f"{source} does not tell {name}, so nothing can be chosen by it; it tells {', '.join(told) or 'no switch'}"
