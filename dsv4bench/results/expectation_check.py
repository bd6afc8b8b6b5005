"""Expectations against cells, records or steps of a trace: what each entry finds in each cell that it speaks of.

A cell that was not measured, a class that was not counted and an entry that no cell answers are findings of their own:
nothing passes because nobody looked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from dsv4bench.errors import UsageError, nearest
from dsv4bench.results.compare import latest
from dsv4bench.results.counts import DEVICE, OPERATIONS_CLASS, Row, add, incomplete, operations
from dsv4bench.results.expectations import Bound, Expectation, Expectations, Values
from dsv4bench.results.record import CLASSES, Record

Place = dict[str, Any]  # op, kv_source, where of one sum, as far as the entry tells them apart


class Cell(Protocol):
    """What expectations are held against: counts to trust if its status is ok and it has rows."""

    @property
    def engine(self) -> str:
        """Where it ran, one of `ENGINES`."""

    @property
    def status(self) -> str:
        """What came of it, one of `STATUSES`."""

    @property
    def variant(self) -> Mapping[str, Any]:
        """Its switches with their values."""

    @property
    def counts(self) -> Sequence[Row]:
        """Its count rows; a row that tells its device `operations` itself is taken at its word."""

    @property
    def coverage(self) -> Mapping[str, Any] | None:
        """How much of what ran found its place, None where that was not asked."""


C = TypeVar("C", bound=Cell)


@dataclass(frozen=True, slots=True)
class Finding(Generic[C]):
    """One sum of one cell against its bound.

    `rows` is how many rows were summed; `found` is their sum, or None where the class was not counted.
    """

    entry: Expectation
    record: C
    place: Place
    counted: str
    bound: Bound
    rows: int
    found: int | None

    @property
    def holds(self) -> bool | None:
        """Whether the bound is kept; None where the class was not counted here.

        No row at all keeps a bound only where 0 is expected in so many words: "at most 1" of an operation that is not
        there may be a name from another step.
        """
        if self.found is None:
            return None
        return self.bound.holds(self.found) and (self.rows > 0 or self.bound.names_zero)


@dataclass(frozen=True, slots=True)
class Outcome(Generic[C]):
    """What came of a check: the cells that were to be checked, all findings, and the entries without any."""

    expectations: Expectations
    records: tuple[C, ...]
    findings: tuple[Finding[C], ...]
    unchecked: tuple[Expectation, ...]

    def broken(self, allow_uncounted: bool = False) -> list[Finding[C]]:
        """Return the findings that do not hold; what was not counted does not, unless that is allowed."""
        return [one for one in self.findings if not (allow_uncounted if one.holds is None else one.holds)]

    @property
    def uncounted(self) -> list[Finding[C]]:
        """The findings of classes that were not counted."""
        return [one for one in self.findings if one.holds is None]

    @property
    def checked(self) -> list[C]:
        """The cells that some entry was held against."""
        return [record for record in self.records if any(one.record is record for one in self.findings)]

    @property
    def incomplete(self) -> list[C]:
        """The checked cells of which not every device operation found its range: more may have run than was counted."""
        return [record for record in self.checked if incomplete(record.coverage)]

    @property
    def unmeasured(self) -> list[C]:
        """The cells that have no counts to trust, each with its status and its reason."""
        return [record for record in self.records if not _measured(record)]

    @property
    def failed(self) -> list[C]:
        """The unmeasured cells that failed or are wrong, whatever they counted."""
        return [record for record in self.unmeasured if record.status in ("failed", "wrong")]

    @property
    def other_engine(self) -> list[Expectation]:
        """The unchecked entries that are about an engine that no cell ran on."""
        engines = {record.engine for record in self.records}
        return [entry for entry in self.unchecked if entry.engines and not engines & set(entry.engines)]


def chosen(records: Iterable[Record], cells: Mapping[str, Values], name: str) -> list[Record]:
    """Return the last record of every cell that has one of the values of every switch; kernels apart.

    A switch without values asks for nothing. UsageError, naming `name`, where there are cells and none is such a one.
    """
    return having([record for record in latest(records) if record.kernel is None], cells, name)


def having(found: Sequence[C], switches: Mapping[str, Values], name: str) -> list[C]:
    """Return those of `found` that have one of the values of every switch, as `chosen`."""
    right = [one for one in found if _has(one, switches)]
    if found and not right:
        raise UsageError(f"{name}: {_nobody(switches, found)}")
    return right


def check(expectations: Expectations, records: Sequence[C]) -> Outcome[C]:
    """Hold every entry against every cell that it speaks of; UsageError for an entry that speaks of none.

    `records` are the cells that are to be checked, as `chosen` or `having` returns them. Entries about an engine that
    none of them ran on, and entries none of whose cells was measured, are left in `unchecked`.
    """
    findings, unchecked = [], []
    for entry in expectations.entries:
        spoken_of = [record for record in records if _has(record, entry.variant)]
        if records and not spoken_of:
            at = f"--expect {expectations.name}: entry {entry.number}"
            raise UsageError(f"{at}: {_nobody(entry.variant, records)}")
        measured = [one for one in spoken_of if _measured(one) and (not entry.engines or one.engine in entry.engines)]
        answering = [record for record in measured if not entry.wheres or _places(record) & set(entry.wheres)]
        if measured and not answering:
            raise UsageError(_nowhere(expectations.name, entry, measured))
        _check_sources(f"--expect {expectations.name}: entry {entry.number}", entry, answering)
        findings += [one for record in answering for one in _findings(entry, record)]
        unchecked += [] if answering else [entry]
    return Outcome(expectations, tuple(records), tuple(findings), tuple(unchecked))


def _measured(record: Cell) -> bool:
    return record.status == "ok" and bool(record.counts)


def _has(record: Cell, switches: Mapping[str, Values]) -> bool:
    return all(not values or record.variant.get(name) in values for name, values in switches.items())


def _places(record: Cell) -> set[str]:
    return {str(row.get("where")) for row in record.counts}


def _nobody(switches: Mapping[str, Values], records: Sequence[Cell]) -> str:
    """Return why no cell is meant: the first switch whose values none has, or all of them together."""
    wanted = {name: " or ".join(map(_word, values)) for name, values in switches.items() if values}
    for name, words in wanted.items():
        theirs = [_word(value) for value in dict.fromkeys(record.variant.get(name) for record in records)]
        if not any(record.variant.get(name) in switches[name] for record in records):
            return f"no cell with {name} {words}{nearest(words, theirs)}; here {name} is {', '.join(theirs)}"
    return f"no cell with {', '.join(f'{name} {words}' for name, words in wanted.items())} together"


def _word(value: Any) -> str:
    """Return a switch's value as it is written in a file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _nowhere(name: str, entry: Expectation, measured: Sequence[Cell]) -> str:
    places = sorted(set().union(*map(_places, measured)))
    return (
        f"--expect {name}: entry {entry.number}: no cell with operations in {' or '.join(entry.wheres)};"
        f" here they ran in {', '.join(places)}"
    )


def _check_sources(at: str, entry: Expectation, answering: Sequence[Cell]) -> None:
    """Raise UsageError where 0 is expected of a source that no cell has: it would hold whatever runs."""
    theirs = {row.get("kv_source") for record in answering for row in record.counts}
    for source in entry.kv_sources if any(bound.names_zero for bound in entry.bounds.values()) else ():
        if answering and source not in theirs:
            here = ", ".join(map(str, sorted(one for one in theirs if one is not None))) or "none"
            raise UsageError(f"{at}: no cell with kv_source {source}; here kv_source is {here}")


def _findings(entry: Expectation, record: C) -> list[Finding[C]]:
    rows = [row for row in record.counts if _named(entry, row)]
    return [
        Finding(entry, record, place, name, bound, len(inside), _found(name, inside, record))
        for place, inside in _groups(entry, rows)
        for name, bound in entry.bounds.items()
    ]


def _named(entry: Expectation, row: Row) -> bool:
    named = (("op", entry.ops), ("kv_source", entry.kv_sources), ("where", entry.wheres))
    return all(not values or row.get(key) in values for key, values in named)


def _groups(entry: Expectation, rows: Sequence[Row]) -> list[tuple[Place, Sequence[Row]]]:
    """Return the rows of each combination of `by`, and an empty group for each listed op or kv_source without a row."""
    groups: dict[Values, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in entry.by), []).append(row)
    found: list[tuple[Place, Sequence[Row]]] = [
        (dict(zip(entry.by, key, strict=True)), inside) for key, inside in groups.items()
    ]
    listed = {"op": entry.ops, "kv_source": entry.kv_sources, "where": ()}
    seen = [place for place, _ in found]
    found += [
        ({key: value}, ()) for key in entry.by for value in listed[key] if all(place[key] != value for place in seen)
    ]
    return found or [({}, ())]


def _found(name: str, rows: Sequence[Row], record: Cell) -> int | None:
    """Return the sum of a class over rows, None where it was not counted; no rows are 0 where the cell counts it."""
    if rows:
        return add(_count(name, row) for row in rows)
    counted = DEVICE if name == OPERATIONS_CLASS else (name,)
    return None if add(row.get(one) for row in record.counts for one in counted) is None else 0


def _count(name: str, row: Row) -> int | None:
    if name == OPERATIONS_CLASS and name not in row:
        return operations(row.get("op"), {one: row.get(one) for one in CLASSES})
    return row.get(name)
