"""A record as far as a frame asks for it: its line is checked as a whole record is, but most of it is never made.

Ten thousand records are read in a third of the time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Raw

from dsv4bench.results.migrations import migrate
from dsv4bench.results.record import SCHEMA, Derived, Engine, Label, Place, Record, Status
from dsv4bench.results.schema import decode
from dsv4bench.results.trials import check_side

Whole = Annotated[int, msgspec.Meta(ge=0)]
Samples = dict[str, Annotated[list[Whole], msgspec.Meta(min_length=1)]]
Object = dict[str, Raw]  # whose values stay bytes of the line


class Count(msgspec.Struct, gc=False):
    """A row of a record's counts, without what it is of."""

    where: Place
    calls: Whole | None = None
    kernels: Whole | None = None
    copies: Whole | None = None
    sets: Whole | None = None
    aten_ops: Whole | None = None


class Check(msgspec.Struct, gc=False):
    """Whether one check of a record passed."""

    passed: bool = False


class Outline(Derived, msgspec.Struct):
    """The fields of a `Record`, with their checks; what a frame does not hold is left as bytes."""

    key: str
    status: Status
    schema: int = SCHEMA
    group: str = ""
    created: str = ""
    reason: str | None = None
    label: Label = "measured"
    engine: Engine = "cpu-reference"
    note: list[Raw] = []
    geometry: str = ""
    batch: dict[str, Any] = {}
    ranks: int = 1
    variant: dict[str, Any] = {}
    providers: Object = {}
    kernel: dict[str, Any] | None = None
    samples_ns: Samples = {}
    rank_samples_ns: list[Samples] | None = None
    rank_launches: list[Raw] | None = None
    timing: Object | None = None
    predicted: dict[str, Any] | None = None
    counts: Raw = Raw(b"[]")
    launches: int | None = None  # what `counts` come to
    counted_forwards: int | None = None
    coverage: Object | None = None
    graph: Object | None = None
    capture_ledger: Object | None = None
    device_time: Object | None = None
    redundant: list[Raw] | None = None
    ab: dict[str, Any] | None = None
    projection: Object | None = None
    traces: list[Raw] = []
    checks: list[Check] = []
    memory: dict[str, Any] = {}
    clocks: Object | None = None
    flags: list[Any] = []
    environment: dict[str, Any] = {}
    argv: list[Raw] = []

    def __post_init__(self) -> None:
        """Complete the fields of an older version; ValueError for what is to be read whole."""
        ok = self.status == "ok"
        if self.schema > SCHEMA or ok != bool(self.samples_ns) or not (ok or self.reason):
            raise ValueError("not a record of this version")
        if not all(check.passed for check in self.checks):
            raise ValueError("a check failed")
        if self.ab is not None:
            check_side(self.ab)
        self.launches = _launches(bytes(self.counts))
        self.variant = migrate({"variant": self.variant}, self.schema)["variant"]


_LINE = msgspec.json.Decoder(Outline)
_COUNTS = msgspec.json.Decoder(list[Count])


@lru_cache(maxsize=256)
def _launches(counts: bytes) -> int | None:
    """Return the kernels, copies and sets of a forward; None where they were not all counted.

    Counts are most of a record, and those of a cell are often the same, to the byte, as in the run before.
    """
    total = 0
    rows = _COUNTS.decode(counts)
    for row in rows:
        if row.kernels is None or row.copies is None or row.sets is None:
            return None
        total += row.kernels + row.copies + row.sets
    return total if rows else None


def decode_outline(line: bytes, where: str) -> Outline | Record:
    """Read a record's line for a frame, and whole where that finds anything amiss; errors are those of `decode`."""
    if line.isascii():  # bytes that are no text would hide in what stays bytes
        try:
            return _LINE.decode(line)
        except (msgspec.MsgspecError, RecursionError):
            pass
    return decode(line, where)
