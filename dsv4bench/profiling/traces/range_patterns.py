r"""What the text of a range says: layer, operation, kv_source. Ours, and those of serving engines by patterns.

A pattern is a regular expression with named groups of `FIELDS`, searched in the text; the first one that fits decides.
The table knows module names as SGLang, vLLM and TensorRT-LLM write them (a plain path, or the 'Module' of a dict that
their layer-wise markers print) and payloads in JSON. A file may add patterns, which come first:

    [[range]]
    text = 'decoder_(?P<layer>\d+)/(?P<op>\w+)'

    [[range]]
    text = 'unpack extra cache'
    op = "dequant_compressed"

    [[kernel]]
    name = 'my_sparse_fwd'
    op = "sparse_attention"

`[[kernel]]` says which operation a kernel is, for layers that are found from the sequence of kernels.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dsv4bench.errors import UsageError, nearest
from dsv4bench.profiling.traces.kernel_ops import OPS, op_of
from dsv4bench.ranges import PREFIX, parse_range

FIELDS = ("layer", "kv_source", "ratio", "op", "rank", "step")
_MOST_DIGITS = 9
_TOO_LONG = re.compile(rf"\d{{{_MOST_DIGITS + 1}}}")
_TABLES = {"range": ("text", *FIELDS), "kernel": ("name", "op")}


@dataclass(frozen=True, slots=True)
class Place:
    """What the text of a range says; None for what it does not."""

    layer: int | None = None
    kv_source: int | None = None
    ratio: int | None = None
    op: str | None = None
    rank: int | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of texts and what all ranges of such a text have in common."""

    text: re.Pattern[str]
    fixed: Place = Place()

    def read(self, text: str) -> Place | None:
        """Return what a text says, or None if the pattern does not fit."""
        found = self.text.search(text)
        if found is None:
            return None
        told: dict[str, Any] = {key: value for key, value in found.groupdict().items() if value}
        for key in told.keys() - {"op"}:
            told[key] = _number(told[key])
        return replace(self.fixed, **told)


def _number(text: str) -> int | None:
    """Return the number of a layer, source or step; None for what is none, or larger than any could be."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


@dataclass(frozen=True, slots=True)
class Patterns:
    """Patterns of ranges and of kernels, the first that fits decides; `source` is the file of those that were added."""

    ranges: tuple[Pattern, ...]
    kernels: tuple[tuple[re.Pattern[str], str], ...] = ()
    source: str | None = field(default=None, compare=False)

    @property
    def added(self) -> tuple[Pattern, ...]:
        """The patterns of ranges that a file added; they come before those that are known."""
        return self.ranges[: len(self.ranges) - len(KNOWN.ranges)]

    def read(self, text: str) -> Place | None:
        """Return what the text of a range says, None for a range that says nothing of our kind."""
        if text.startswith(PREFIX):
            rng = _own(text)
            # the step of our ranges is a constant: their `step` range marks a step
            return rng and Place(rng.layer, rng.kv_source, rng.ratio, rng.op, rng.rank)
        found = (pattern.read(text) for pattern in self.ranges)
        place = next((place for place in found if place is not None), None)
        return None if place == Place() else place

    def op_of(self, name: str) -> str | None:
        """Return the operation of a kernel of this name, None for one that is not known."""
        return next((op for pattern, op in self.kernels if pattern.search(name)), None) or op_of(name)


def _own(text: str) -> Any:
    if _TOO_LONG.search(text):
        return None
    try:
        return parse_range(text)
    except (TypeError, ValueError):  # a text that only begins as ours do
        return None


_MODULE = r"(?:layers?|blocks?|h)[._\[](?P<layer>\d+)\]?(?:\.(?P<op>[A-Za-z_][\w.]*))?"
KNOWN = Patterns(
    (
        # layers of another model than the main one, which has the same numbers
        Pattern(re.compile(r"(?i)\b(?:mtp|nextn|draft|eagle|vision|visual|audio)\w*\.")),
        Pattern(re.compile(rf"['\"]Module['\"]\s*:\s*['\"][^'\"]*?\b{_MODULE}['\"]")),
        Pattern(
            re.compile(
                r"['\"]layer(?:_?(?:idx|id|index))?['\"]\s*:\s*(?P<layer>\d+)(?:.*['\"]op['\"]\s*:\s*['\"](?P<op>[^'\"]+))?"
            )
        ),
        Pattern(re.compile(rf"(?:^|[./ ]){_MODULE}(?:$|[ (:])")),
        Pattern(re.compile(r"\blayer(?:_?(?:idx|id))?\s*[=: #]\s*(?P<layer>\d+)\b(?:.*\bop\s*[=:]\s*(?P<op>\w+))?")),
        Pattern(re.compile(r"\bkv_source\s*[=:]\s*(?P<kv_source>\d+)\b")),
    )
)


def read_map(path: Path) -> Patterns:
    """Return the patterns of a TOML file, before those that are known; UsageError names file, entry and value."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"--map {path}: cannot be read as TOML: {error}") from error
    strange = next((name for name in document if name not in _TABLES), None)
    if strange is not None:
        raise UsageError(
            f"--map {path}: no such table: {strange}{nearest(strange, tuple(_TABLES))}; expected [[range]]"
        )
    ranges = tuple(_pattern(place, entry) for place, entry in _entries(document, "range", path))
    kernels = tuple(_kernel(place, entry) for place, entry in _entries(document, "kernel", path))
    if not ranges and not kernels:
        raise UsageError(f"--map {path}: holds neither [[range]] nor [[kernel]]")
    return Patterns(ranges + KNOWN.ranges, kernels, str(path))


def _entries(document: Mapping[str, Any], table: str, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (how a message calls it, entry) of a table's entries, whose keys are those that it may have."""
    found = document.get(table, [])
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise UsageError(f"--map {path}: {table} is not a list of tables; write [[{table}]]")
    for number, entry in enumerate(found, 1):
        place, keys = f"--map {path}: {table} {number}", _TABLES[table]
        for key, value in entry.items():
            if key not in keys:
                raise UsageError(f"{place}: no such key: {key}{nearest(key, keys)}; there are {', '.join(keys)}")
            wanted = str if key in ("text", "name", "op") else int
            able = isinstance(value, wanted) and not isinstance(value, bool) and value != ""
            if not able or (wanted is int and _number(str(value)) is None):
                raise UsageError(f"{place}: {key} = {value!r}: expected {'a text' if wanted is str else 'a number'}")
        if keys[0] not in entry:
            raise UsageError(f"{place}: has no {keys[0]!r}")
        yield place, entry


def _pattern(place: str, entry: Mapping[str, Any]) -> Pattern:
    text = _compiled(place, "text", entry["text"])
    strange = next((name for name in text.groupindex if name not in FIELDS), None)
    if strange is not None:
        raise UsageError(f"{place}: no such group: {strange}{nearest(strange, FIELDS)}; there are {', '.join(FIELDS)}")
    fixed = {key: value for key, value in entry.items() if key != "text"}
    if not fixed and not text.groupindex:
        raise UsageError(
            f"{place}: text = {entry['text']!r} says neither of {', '.join(FIELDS)}: name a group or a key"
        )
    return Pattern(text, Place(**fixed))


def _kernel(place: str, entry: Mapping[str, Any]) -> tuple[re.Pattern[str], str]:
    op = entry.get("op")
    if op not in OPS:
        raise UsageError(f"{place}: op = {op!r}: no such operation{nearest(str(op), OPS)}; there are {', '.join(OPS)}")
    return _compiled(place, "name", entry["name"]), str(op)


def _compiled(place: str, key: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"{place}: {key} = {text!r}: not a regular expression: {error}") from error
