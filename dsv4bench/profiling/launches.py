"""What each rank launched, and whether all launched the same: ranks of a step replay one graph (specification 8.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsv4bench.profiling.counting import Counts
from dsv4bench.profiling.ledger import DEVICE_METRICS
from dsv4bench.results.counts import is_gemm

Row = Mapping[str, Any]
Place = tuple[str, Any, str]  # operation, kv_source, where
METRICS = ("calls", *DEVICE_METRICS)
OF_PADDING = "zero_padding"  # launched by a rank whose rows do not fill the bucket


@dataclass(frozen=True, slots=True)
class Launched:
    """What one rank launched in the forward that was counted: `rows` by operation, kv_source and where.

    `bucket` is that of the forward (None: not padded), `live` whether it had rows of this rank.
    """

    rows: list[dict[str, Any]]
    bucket: int | None
    live: bool


def launched(counts: Counts | None, bucket: int | None, live: bool) -> Launched:
    """Return the counts of a rank; no rows where it launched nothing."""
    found: dict[Place, dict[str, Any]] = {}
    for row in counts.rows if counts else ():
        place = (str(row["op"]), row["kv_source"], str(row["where"]))
        total = found.setdefault(place, {"op": place[0], "kv_source": place[1], "where": place[2]})
        for name in METRICS:
            if row[name] is not None:
                total[name] = total.get(name, 0) + int(row[name] or 0)
    return Launched(list(found.values()), bucket, live)


def by_source(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the sums of rows by kv_source, None for what belongs to none, as a record keeps them."""
    found: dict[Any, dict[str, Any]] = {}
    for row in rows:
        total = found.setdefault(row["kv_source"], {"kv_source": row["kv_source"]})
        for name in METRICS:
            if name in row:
                total[name] = total.get(name, 0) + row[name]
    return sorted(found.values(), key=lambda total: (total["kv_source"] is None, total["kv_source"]))


def unlike(ranks: Sequence[Launched], breaks: bool = True) -> str | None:
    """Return the first difference in what ranks launched, or None: the rank, the operation and both counts.

    What a graph holds must be equal on all ranks that replay the same bucket. Breaks and eager steps run over a rank's
    own rows, so they are compared by calls, among ranks that have any, and only where `breaks` says that no rank
    chooses its way by its rows.
    """
    for bucket in dict.fromkeys(one.bucket for one in ranks if one.rows):
        replaying = [rank for rank, one in enumerate(ranks) if one.rows and one.bucket == bucket]
        difference = _first(ranks, replaying, lambda row: row["where"] == "segment", METRICS)
        if difference is not None:
            return difference
    at_work = [rank for rank, one in enumerate(ranks) if one.live and breaks]
    return _first(ranks, at_work, lambda row: row["where"] != "segment" and row["op"] != OF_PADDING, ("calls",))


def _first(
    ranks: Sequence[Launched], numbers: Sequence[int], wanted: Callable[[Row], bool], metrics: Sequence[str]
) -> str | None:
    sides = [(rank, {_place(row): row for row in ranks[rank].rows if wanted(row)}) for rank in numbers]
    for rank, rows in sides[1:]:
        first, expected = sides[0]
        for place in {**expected, **rows}:
            for name in ("calls",) if is_gemm(place[0]) else metrics:
                old, new = (side.get(place, {}).get(name, 0) for side in (expected, rows))
                if old != new:
                    return f"{_words(place)}: {new} {name} on rank {rank}, {old} on rank {first}"
    return None


def _place(row: Row) -> Place:
    return row["op"], row["kv_source"], row["where"]


def _words(place: Place) -> str:
    op, source, where = place
    return f"{op} ({where})" if source is None else f"{op} (kv_source {source}, {where})"
