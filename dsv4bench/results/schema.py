"""Records as lines of JSON: one object a line, with the number of the schema that it follows.

A reader keeps the keys that it does not know, defaults those that are missing, completes records of older versions
(`results/migrations.py`) and refuses a newer schema.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import msgspec

from dsv4bench.errors import RecordError
from dsv4bench.results.migrations import migrate
from dsv4bench.results.record import SCHEMA, Record
from dsv4bench.results.trials import check_side

NAMES = tuple(f.name for f in fields(Record) if f.name != "extra")


def to_plain(record: Record) -> dict[str, Any]:
    """Return the record as a JSON object, its unknown keys among the others."""
    return {**record.extra, **{name: getattr(record, name) for name in NAMES}}


def encode(record: Record) -> str:
    """Return the record as one line of ASCII JSON with its newline; ValueError for a NaN or an infinity."""
    return json.dumps(to_plain(record), allow_nan=False, separators=(",", ":")) + "\n"


def decode(line: str | bytes, where: str) -> Record:
    """Read a record back from its line; RecordError names `where` ("file:line") and what is wrong there."""
    try:
        found = _parsed(line)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{where}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise RecordError(f"{where}: expected an object, found {type(found).__name__}")
    schema = found.get("schema", SCHEMA)
    if isinstance(schema, int):
        if schema > SCHEMA:
            raise RecordError(f"{where}: written with schema {schema}, this version reads up to schema {SCHEMA}")
        found = migrate(found, schema)
    known = {name: found.pop(name) for name in NAMES if name in found}
    try:
        record = Record(**known, extra=found)
        if record.ab is not None:
            check_side(record.ab)
    except (TypeError, ValueError) as error:
        raise RecordError(f"{where}: not a record: {error}") from None
    return record


def _parsed(line: str | bytes) -> Any:
    """Return what a line of JSON holds; ValueError or RecursionError where it holds none."""
    try:
        return msgspec.json.decode(line)  # twice as fast
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return json.loads(line)  # half a surrogate pair (a file's name in argv), whole numbers of any size
