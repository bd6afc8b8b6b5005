"""Expectations of counts: a TOML file of `[[expect]]` entries, read into plain values or refused in one clear line.

docs/expectations.md explains every key. A misspelt operation, class or switch would expect nothing of anybody, so it is
an error and never a silent pass. `expectation_check.py` holds what was read against records.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from dsv4bench.errors import UsageError, nearest
from dsv4bench.results.counts import COUNTED, OPERATIONS
from dsv4bench.results.record import ENGINES, PLACES

BY = ("op", "kv_source", "where")
CELLS = (
    *("kv", "reuse", "compressor", "graph", "graph-mode", "breaks", "break-outputs", "replay", "path"),
    *("moe", "mhc"),
)
SWITCHES = (*CELLS, "provider", "fault", "chunk", "dep-simulated", "dep", "seed")
KEYS = ("op", "ops", "by", "kv_source", "where", "engine", "variant", "because", *COUNTED)
FILE_KEYS = ("cells", "expect")
NUMBERS = ("chunk", "dep-simulated", "dep", "seed")  # switches whose values are whole numbers
BOUNDS = ("exactly", "min", "max")

Values = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """How many are expected: at least `least` and at most `most`; None where that end is open."""

    least: int | None
    most: int | None

    def holds(self, found: int) -> bool:
        """Return whether `found` lies within."""
        return (self.least is None or self.least <= found) and (self.most is None or found <= self.most)

    @property
    def names_zero(self) -> bool:
        """Whether the file says in so many words that none is right: 0, a min of 0 or a max of 0."""
        return self.least == 0 or self.most == 0

    def __str__(self) -> str:
        if self.least == self.most:
            return str(self.most)
        if self.most is None:
            return f"at least {self.least}"
        return f"at most {self.most}" if self.least is None else f"{self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class Expectation:
    """One `[[expect]]` entry: `bounds` on the sum of the rows that it names, one sum for each combination of `by`.

    Empty `ops` are all operations, empty `kv_sources`, `wheres` and `engines` any. `variant` are the values of switches
    that a cell must have for the entry to speak of it.
    """

    number: int
    bounds: Mapping[str, Bound]
    ops: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    kv_sources: tuple[int, ...] = ()
    wheres: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    variant: Mapping[str, Values] = field(default_factory=dict)
    because: str = ""


@dataclass(frozen=True, slots=True)
class Expectations:
    """What a file holds: its name, the switches of the cells that it is about, and its entries."""

    name: str
    cells: Mapping[str, Values]
    entries: tuple[Expectation, ...]


def shipped() -> list[str]:
    """Return the names of the expectation files that come with the package."""
    found = (Path(file.name) for file in _folder().iterdir())
    return sorted(path.stem for path in found if path.suffix == ".toml")


def read_expectations(name: str) -> Expectations:
    """Read a TOML file, or a shipped one by its name; UsageError names the file, the entry and the value."""
    path = Path(name)
    if not path.exists() and name in shipped():
        return parse_expectations(_folder().joinpath(f"{name}.toml").read_text(encoding="utf-8"), name)
    if not path.exists():
        known = shipped()
        raise UsageError(
            f"--expect {name}: no such file, and none of that name is shipped{nearest(name, known)};"
            f" shipped: {', '.join(known)}"
        )
    try:
        return parse_expectations(path.read_text(encoding="utf-8-sig"), name)  # some editors put a mark before it
    except OSError as error:
        raise UsageError(f"--expect {name}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--expect {name}: not TOML: not UTF-8 text") from None


def parse_expectations(text: str, name: str) -> Expectations:
    """Read the text of an expectation file called `name`; UsageError as `read_expectations`."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"--expect {name}: not TOML: {error}") from None
    _check_keys(name, found, FILE_KEYS)
    entries = found.get("expect", [])
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"--expect {name}: expected at least one [[expect]] entry")
    cells = _switches(f"{name}: [cells]", found.get("cells", {}), CELLS)
    return Expectations(
        name, cells, tuple(_entry(f"{name}: entry {number}", number, one) for number, one in enumerate(entries, 1))
    )


def _folder() -> Any:
    return files("dsv4bench").joinpath("expectations")


def _entry(at: str, number: int, found: Mapping[str, Any]) -> Expectation:
    _check_keys(at, found, KEYS)
    if "op" in found and "ops" in found:
        raise UsageError(f"--expect {at}: op and ops; expected one of both")
    bounds = {name: _bound(f"{at}: {name}", found[name]) for name in COUNTED if name in found}
    if not bounds:
        raise UsageError(f"--expect {at}: counts nothing; expected one or more of {', '.join(COUNTED)}")
    because = found.get("because", "")
    if not isinstance(because, str):
        raise UsageError(f"--expect {at}: because = {because!r}: expected a text")
    return Expectation(
        number,
        bounds,
        _words(at, found, "ops" if "ops" in found else "op", OPERATIONS),
        _words(at, found, "by", BY),
        _sources(at, found),
        _words(at, found, "where", PLACES),
        _words(at, found, "engine", ENGINES),
        _switches(f"{at}: variant", found.get("variant", {}), SWITCHES),
        because,
    )


def _bound(at: str, found: Any) -> Bound:
    """Read `4`, or a table of min and max, or of exactly."""
    if not isinstance(found, dict):
        number = _whole(at, found)
        return Bound(number, number)
    _check_keys(at, found, BOUNDS)
    if not found or ("exactly" in found and len(found) > 1):
        raise UsageError(f"--expect {at}: expected exactly, or min, max or both; found {', '.join(found) or 'nothing'}")
    least, most = (_whole(f"{at}.{name}", found[name]) if name in found else None for name in ("min", "max"))
    if "exactly" in found:
        least = most = _whole(f"{at}.exactly", found["exactly"])
    if least is not None and most is not None and least > most:
        raise UsageError(f"--expect {at}: min {least} is over max {most}")
    if (least, most) == (0, None):
        raise UsageError(f"--expect {at}: min 0 alone holds always; expected at least 1, or a max")
    return Bound(least, most)


def _whole(at: str, found: Any) -> int:
    if type(found) is not int or found < 0:
        raise UsageError(f"--expect {at} = {_shown(found)}: expected a whole number of at least 0")
    return found


def _sources(at: str, found: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(_whole(f"{at}: kv_source", value) for value in _listed(f"{at}: kv_source", found.get("kv_source", ())))


def _words(at: str, found: Mapping[str, Any], key: str, known: tuple[str, ...]) -> tuple[str, ...]:
    words = _listed(f"{at}: {key}", found.get(key, ()))
    for word in words:
        if word not in known:
            raise UsageError(
                f"--expect {at}: {key} = {_shown(word)}: not known{nearest(str(word), known)};"
                f" known: {', '.join(known)}"
            )
    return words


def _switches(at: str, found: Any, known: tuple[str, ...]) -> dict[str, Values]:
    """Read switches and the values that each may have: `reuse = "on"`, `kv = ["v4", "v41"]`, `graph = true`."""
    if not isinstance(found, dict):
        raise UsageError(f'--expect {at} = {_shown(found)}: expected a table of switches, e.g. {{ reuse = "on" }}')
    _check_keys(at, found, known)
    graphs = _listed(f"{at}: graph", found.get("graph", ()))
    if not all(isinstance(value, bool) for value in graphs):
        raise UsageError(f"--expect {at}: graph = {_shown(graphs[0])}: expected true or false")
    listed = {name: _listed(f"{at}: {name}", values) for name, values in found.items()}
    for name in NUMBERS:
        for value in listed.get(name, ()):
            _whole(f"{at}: {name}", value)
    return listed


def _listed(at: str, found: Any) -> Values:
    """Return one value or a list of them as a tuple; an empty list would speak of nothing."""
    if found == []:
        raise UsageError(f"--expect {at} = []: expected at least one value")
    values = tuple(found) if isinstance(found, list | tuple) else (found,)
    for value in values:
        if not isinstance(value, str | int):
            raise UsageError(f"--expect {at} = {_shown(value)}: expected a word or a number, or a list of them")
    return values


def _check_keys(at: str, found: Iterable[str], known: tuple[str, ...]) -> None:
    for key in found:
        if key not in known:
            raise UsageError(f"--expect {at}: {key}: no such key{nearest(key, known)}; known: {', '.join(known)}")


def _shown(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value}"
