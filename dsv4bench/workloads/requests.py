"""Recorded request lengths: a file of one JSON object a line, in the form of the published Mooncake traces.

Each line has `input_length` (tokens) and `hash_ids`, one id per block of 512 tokens of the prompt. An id that an
earlier line had is a prefix-cache hit, so the longest leading run of known ids is the request's cached prefix.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4bench.errors import UsageError
from dsv4bench.kernels.layout import FULL_PAGE
from dsv4bench.workloads.axis import MOST
from dsv4bench.workloads.batch import Request

HASH_BLOCK = 512  # tokens of one hash id


@dataclass(frozen=True, slots=True)
class Recorded:
    """The lengths of one recorded request, in tokens: cached prefix (whole pages) and whole input."""

    prefix: int
    input: int

    def request(self, index: int, divide: int = 1) -> Request:
        """Return the request with lengths divided by `divide`.

        The prefix stays even, because a cached prefix is whole pages and never splits a pair of the ratio-2 compressor;
        at least one token stays new.
        """
        whole = max(1, self.input // divide)
        prefix = min(self.prefix // divide, whole - 1) // 2 * 2
        return Request(index, prefix, whole - prefix)


def recorded_requests(path: str, count: int, divide: int = 1) -> tuple[Request, ...]:
    """Return the first `count` requests of a file, lengths divided by `divide`.

    Raises UsageError where the file cannot be read (see `read_requests`) or holds fewer requests.
    """
    recorded = read_requests(path)
    if count > len(recorded):
        raise UsageError(f"--batch {count}: {path} holds only {len(recorded)} requests")
    return tuple(one.request(index, divide) for index, one in enumerate(recorded[:count]))


def read_requests(path: str) -> tuple[Recorded, ...]:
    """Return every request of a file in order.

    Raises UsageError, naming file and line, for a file that is missing, empty, not JSON, or has a negative or missing
    length.
    """
    seen: set[int] = set()
    found = []
    for where, fields in _lines(path):
        length = _length(where, fields, "input_length", least=1)
        if "output_length" in fields:
            _length(where, fields, "output_length", least=0)
        ids = _hash_ids(where, fields)
        found.append(Recorded(_cached(ids, seen, length), length))
        seen.update(ids)
    if not found:
        raise UsageError(f"--requests {path}: the file is empty; expected one JSON object a line with input_length")
    return tuple(found)


def _cached(ids: list[int], seen: set[int], length: int) -> int:
    """Return the cached prefix in tokens: the leading run of seen ids, short of the last token, down to a page."""
    run = next((i for i, one in enumerate(ids) if one not in seen), len(ids))
    return min(run * HASH_BLOCK, length - 1) // FULL_PAGE * FULL_PAGE


def _lines(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each line's place ("FILE line 3") and JSON object; blank lines are passed over."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--requests {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--requests {path}: not a text file; expected one JSON object a line") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"--requests {path} line {number}"
            yield where, _object(where, line)


def _object(where: str, line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise UsageError(f"{where}: expected a JSON object")
    return fields


def _length(where: str, fields: dict[str, Any], key: str, least: int) -> int:
    if key not in fields:
        raise UsageError(f"{where}: {key} is missing")
    value = fields[key]
    if type(value) is not int or not least <= value <= MOST:
        raise UsageError(f"{where}: {key} is {value!r}, expected a whole number from {least} to {MOST}")
    return value


def _hash_ids(where: str, fields: dict[str, Any]) -> list[int]:
    """Return the block hashes; a line without any has no cached prefix."""
    ids = fields.get("hash_ids", [])
    if not isinstance(ids, list) or any(type(one) is not int for one in ids):
        raise UsageError(f"{where}: hash_ids is not a list of whole numbers")
    return ids
