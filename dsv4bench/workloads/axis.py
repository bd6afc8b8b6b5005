"""The axes of the command line: `8`, `1,2,8`, `1..64`, `1..64:+8`, `1..64:x4`, `64k`, `@file`; and axes of words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from dsv4bench.errors import UsageError, nearest

MOST = 1_048_576  # no length and no count is larger: the positions of the model (specification 1.1)
MOST_VALUES = 4096  # values of one axis; more is a slip of the pen
EXPECTED = "a number, a list 1,2,8, a range 1..64 (doubling), 1..64:+8 or 1..64:x4, or @file"

Value = TypeVar("Value")

NUMBER = re.compile(r"([0-9]+)([km]?)", re.IGNORECASE)
NEGATIVE = re.compile(r"-[0-9]+[km]?", re.IGNORECASE)
RANGE = re.compile(r"([^.:]+)\.\.([^.:]+)(?::([+x])([^.:]+))?")
SUFFIXES = {"": 1, "k": 1024, "m": 1024 * 1024}


def number_axis(option: str, texts: str | Sequence[str], least: int = 1) -> tuple[int, ...]:
    """Return the values of a numeric axis in the order written, without duplicates; a repeated flag adds its values.

    Raises UsageError, in one line naming the option, the value and what is expected, for anything that is not an axis
    of whole numbers from `least` to 1 048 576.
    """
    axis = _Axis(option, least)
    values = _unique(axis.values(_as_list(texts)))
    if len(values) > MOST_VALUES:
        raise axis.wrong(" ".join(_as_list(texts)), f"at most {MOST_VALUES} values, not {len(values)}")
    return values


def ascending_axis(option: str, texts: str | Sequence[str]) -> tuple[int, ...]:
    """Return the values of a numeric axis from 1 on, each larger than the one before; UsageError where one is not."""
    axis = _Axis(option, 1)
    values = tuple(axis.values(_as_list(texts)))
    for before, value in pairwise(values):
        if value <= before:
            raise axis.wrong(
                " ".join(_as_list(texts)), f"an ascending list without doubles, but {value} follows {before}"
            )
    return values


def word_axis(option: str, texts: str | Sequence[str], known: Sequence[str], every: str = "") -> tuple[str, ...]:
    """Return the words of an axis in the order written, without duplicates; the word `every` stands for all `known`.

    Raises UsageError for a word that is not known, naming the nearest.
    """
    words = [word.strip() for text in _as_list(texts) for word in text.split(",")]
    spread = [one for word in words for one in (known if every and word == every else (word,))]
    for word in spread:
        if word not in known:
            all_known = [*known, every] if every else list(known)
            raise UsageError(f"{option} {word}: not known{nearest(word, all_known)}; known: {', '.join(all_known)}")
    return _unique(spread)


@dataclass(frozen=True, slots=True)
class _Axis:
    """One numeric option and its least value."""

    option: str
    least: int

    def values(self, texts: Sequence[str]) -> Iterator[int]:
        return (value for text in texts for part in text.split(",") for value in self.part(part.strip(), text))

    def part(self, text: str, whole: str) -> Iterable[int]:
        """Return the values of one part of `whole`: a file, a range or a number."""
        if not text:
            raise self.wrong(whole or "''", EXPECTED)
        if text.startswith("@"):
            return self.file(text)
        if ".." in text:
            return self.range(text)
        return (self.number(text, text),)

    def file(self, text: str) -> Iterator[int]:
        """Return the values that a file holds, separated by blanks, lines or commas."""
        try:
            parts = Path(text[1:]).read_text(encoding="utf-8").replace(",", " ").split()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not a text file"
            raise UsageError(f"{self.option} {text}: {reason}; expected a file of numbers") from error
        if not parts or any(part.startswith("@") for part in parts):
            raise self.wrong(text, "a file of numbers and ranges")
        return self.values(parts)

    def range(self, text: str) -> Iterator[int]:
        """Return the values of first..last, doubling, or with its :+step or :xfactor."""
        match = RANGE.fullmatch(text)
        if match is None:
            raise self.wrong(text, EXPECTED)
        first, last = self.number(match[1], text), self.number(match[2], text)
        if first > last:
            raise self.wrong(text, "the smaller end first")
        if match[3] == "+":
            return self._adding(text, first, last, _size(match[4]) or 0)
        return self._multiplying(text, first, last, _size(match[4]) or 0 if match[3] else 2)

    def _adding(self, text: str, first: int, last: int, step: int) -> Iterator[int]:
        if step < 1:
            raise self.wrong(text, "a step of at least 1 after :+")
        return iter(range(first, last + 1, step))

    def _multiplying(self, text: str, first: int, last: int, factor: int) -> Iterator[int]:
        if factor < 2:
            raise self.wrong(text, "a factor of at least 2 after :x")
        if first < 1:
            raise self.wrong(text, "a range that multiplies to begin at 1 or more")
        return _powers(first, last, factor)

    def number(self, text: str, whole: str) -> int:
        """Return one number; `whole` is the part of the axis that a complaint quotes."""
        value = _size(text)
        if value is None and not NEGATIVE.fullmatch(text.strip()):
            raise self.wrong(whole, EXPECTED)
        if value is None or value < self.least:
            raise self.wrong(whole, f"at least {self.least}")
        if value > MOST:
            raise self.wrong(whole, f"at most {MOST}")
        return value

    def wrong(self, text: str, expected: str) -> UsageError:
        """Return the complaint about `text`."""
        return UsageError(f"{self.option} {text}: expected {expected}")


def _size(text: str) -> int | None:
    """Return the number that `text` writes, 64k being 65536, or None if it is not one."""
    match = NUMBER.fullmatch(text.strip())
    return int(match[1]) * SUFFIXES[match[2].lower()] if match else None


def _powers(first: int, last: int, factor: int) -> Iterator[int]:
    while first <= last:
        yield first
        first *= factor


def _as_list(texts: str | Sequence[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)


def _unique(values: Iterable[Value]) -> tuple[Value, ...]:
    return tuple(dict.fromkeys(values))
