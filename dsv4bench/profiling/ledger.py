"""What ran, how often and under which range: the counts that every source of counts writes and every table reads.

A source (calls heard at range entry, nodes of a captured graph, rows of a profiler's trace, aten operations) adds to a
`Ledger`. The invariant is: counts under ranges plus unattributed counts are all that the source has seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from dsv4bench.ranges import Range

Where = Literal["eager", "segment", "break"]
Row = dict[str, str | int | None]

WHERES: tuple[Where, ...] = ("eager", "segment", "break")
DEVICE_METRICS = ("kernels", "copies", "sets")
ROW_METRICS = ("calls", *DEVICE_METRICS, "aten_ops")
# "others" are graph nodes that do no work of their own (events, host calls, allocations), "dynamic" are conditional
# nodes, whose body runs as often as the data say: neither is a number of launches, so neither is a column of a row
METRICS = (*ROW_METRICS, "graph_launches", "others", "dynamic")
OUTSIDE_OPS = "other"


class Ledger:
    """Counts keyed by range (its step apart) and by where it ran; a metric that nobody counted is None, never 0."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Range | None, Where], Counter[str]] = {}
        self._counted: dict[Where, set[str]] = {where: set() for where in WHERES}

    def declare(self, where: Where, *metrics: str) -> None:
        """Say that `metrics` are being counted there, so that a range without any has 0 of them."""
        unknown = set(metrics) - set(METRICS)
        if unknown:
            raise ValueError(f"no such metric: {', '.join(sorted(unknown))}; there are {', '.join(METRICS)}")
        self._counted[where].update(metrics)

    def add(self, rng: Range | None, where: Where, metric: str, count: int = 1) -> None:
        """Count `count` more of `metric` under `rng`; None is what belongs to no range."""
        self.declare(where, metric)
        key = (None if rng is None else replace(rng, step=0), where)
        self._counts.setdefault(key, Counter())[metric] += count

    def merge(self, other: Ledger) -> None:
        """Add all counts of `other` to this ledger."""
        for where, metrics in other._counted.items():
            self._counted[where] |= metrics
        for key, counts in other._counts.items():
            self._counts.setdefault(key, Counter()).update(counts)

    def entries(self) -> Iterator[tuple[Range | None, Where, Mapping[str, int]]]:
        """Yield (range, where, counts) in the order in which they were first seen; a None range is unattributed."""
        for (rng, where), counts in self._counts.items():
            yield rng, where, counts

    def total(self, *metrics: str, where: Where | None = None) -> int:
        """Return the sum of `metrics`, unattributed ones included."""
        return sum(counts[m] for _, at, counts in self.entries() if where in (None, at) for m in metrics)

    def unattributed(self, *metrics: str) -> int:
        """Return how many of `metrics` belong to no range."""
        return sum(counts[m] for rng, _, counts in self.entries() if rng is None for m in metrics)

    def outside_ops(self, *metrics: str) -> int:
        """Return how many of `metrics` belong to a range that names no operation (a layer's, say)."""
        return sum(
            counts[m] for rng, _, counts in self.entries() if rng is not None and rng.op is None for m in metrics
        )

    def disagreement(self, totals: Mapping[str, int]) -> str | None:
        """Return None if the totals are `totals`, metric -> count as another source has them, else what differs."""
        have = {metric: self.total(metric) for metric in totals}
        wrong = [f"{metric} {have[metric]}, expected {want}" for metric, want in totals.items() if have[metric] != want]
        return "; ".join(wrong) or None

    def rows(self) -> list[Row]:
        """Return the record's rows: op, kv_source, where and `ROW_METRICS`, sorted; None where nobody counted.

        What lies in a range without an operation is the op "other"; what lies in no range is in no row.
        """
        grouped: dict[tuple[str, int | None, Where], Counter[str]] = {}
        for rng, where, counts in self.entries():
            if rng is not None and any(counts[metric] for metric in ROW_METRICS):
                grouped.setdefault((rng.op or OUTSIDE_OPS, rng.kv_source, where), Counter()).update(counts)
        return [self._row(*key, grouped[key]) for key in sorted(grouped, key=_row_order)]

    def _row(self, op: str, kv_source: int | None, where: Where, counts: Counter[str]) -> Row:
        metrics = {m: counts[m] if m in self._counted[where] else None for m in ROW_METRICS}
        return {"op": op, "kv_source": kv_source, "where": where, **metrics}


def _row_order(key: tuple[str, int | None, Where]) -> tuple[str, int, int]:
    op, kv_source, where = key
    return op, -1 if kv_source is None else kv_source, WHERES.index(where)


class CallLedger:
    """A mark that counts one call per range that names an operation, on any device.

    `where` says what runs at the moment; `hear` sets it and fits `on_piece` of `capture.py`.
    """

    def __init__(self, ledger: Ledger, where: Where = "eager") -> None:
        self.ledger = ledger
        self.where: Where = where

    def hear(self, where: Where) -> None:
        """Hear that what follows runs in `where`."""
        self.where = where
        self.ledger.declare(where, "calls")

    def enter(self, rng: Range) -> None:
        """Count the call if the range names an operation."""
        if rng.op is not None:
            self.ledger.add(rng, self.where, "calls")

    def exit(self, rng: Range) -> None:
        """Nothing is counted at the end of a range."""
