"""Which records stand for the sides of a comparison: those of the newest code and of one machine, with a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsv4bench.results.comparability import differences, of_one_chip
from dsv4bench.results.record import Record

CODE = ("commit", "diff", "src", "own_files", "dsv4bench", "torch", "triton", "python")

Runs = tuple[Record, ...]


def standing(before: Sequence[Record], after: Sequence[Record]) -> tuple[Runs, Runs]:
    """Return the records of a cell that stand for either side, the one that stands for all of them last.

    They are of a side's newest code. A wrong result stands alone, and else those with a time where there are any, of a
    chip that both sides know where there is one, measured in the same way.
    """
    old, new = of_one_chip(_newest(before), _newest(after))
    return _alike(old), _alike(new)


def timed(record: Record) -> bool:
    """Return whether a record has a time; a step of 0 ns is none."""
    return record.status == "ok" and 0 not in record.step_samples_ns


def _newest(records: Sequence[Record]) -> Sequence[Record]:
    if not records:
        return ()
    own = [record for record in records if not (record.ab or {}).get("aa")]
    own = own or [record for record in records if (record.ab or {}).get("side") == "a"] or list(records)
    same = [record for record in own if _code(record) == _code(own[-1])]
    wrong = [record for record in same if record.status == "wrong"]
    return wrong[-1:] or [record for record in same if timed(record)] or same[-1:]


def _alike(records: Sequence[Record]) -> Runs:
    """Return the records that are like the last one, and that one last: a model is not even like itself."""
    return (*(record for record in records[:-1] if not differences(record, records[-1])), *records[-1:])


def _code(record: Record) -> list[Any]:
    return [record.environment.get(name) for name in CODE]
