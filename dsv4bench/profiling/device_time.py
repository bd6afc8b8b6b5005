"""Device time of one profiled step or replay: per operation, and piece by piece with the gaps in which the GPU idled.

A time is the sum of the durations of device records while a profiler watched: kernel time, never the time of a step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from dsv4bench.profiling.ledger import OUTSIDE_OPS, Where
from dsv4bench.profiling.replay_match import Replayed
from dsv4bench.profiling.traces.attribute import METHOD, OurRanges
from dsv4bench.profiling.traces.columns import NO_ID, Trace
from dsv4bench.profiling.traces.ranges_of import graph_launch_rows, ranges_of
from dsv4bench.profiling.traces.records import Record, records_of

Row = dict[str, Any]
SHOWN_REASONS = 3


@dataclass(frozen=True, slots=True)
class Place:
    """Where a device operation belongs: layer, kv_source and operation."""

    layer: int | None
    kv_source: int | None
    op: str

    @property
    def text(self) -> str:
        """What a reader calls it."""
        return self.op if self.layer is None else f"layer {self.layer} {self.op}"


@dataclass(frozen=True, slots=True)
class Placed:
    """A device operation, where it ran and belongs, and which piece of the step it is of; None: not known."""

    operation: Record
    where: Where
    place: Place | None
    piece: int | None


def device_time(trace: Trace, replayed: Replayed, where: Where = "eager") -> dict[str, Any]:
    """Return the record's `device_time`: sums per operation, and pieces where graphs were launched.

    `where` is how what no graph launched ran: "eager", or "break" between the segments of a replay.
    """
    placed = sorted((*_launched(trace, where), *_replayed(replayed)), key=lambda one: one.operation.start_ns)
    gaps = list(_gaps([one.operation for one in placed]))
    method = f"{replayed.method} (segments), {METHOD} (breaks)" if replayed.launches else METHOD
    return {
        "method": method,
        "rows": _rows(placed),
        "unattributed_ns": sum(one.operation.duration_ns for one in placed if one.place is None),
        "span_ns": _span(placed),
        "idle_ns": sum(gaps),
        "pieces": _pieces(placed, gaps) if replayed.launches else [],
        "unmatched": replayed.why[:SHOWN_REASONS],
    }


def _launched(trace: Trace, where: Where) -> Iterator[Placed]:
    """Yield what the host launched one by one; the pieces are the stretches between graph launches."""
    found = ranges_of(trace)
    ours = OurRanges(trace, found)
    calls_ns, graphs = trace.launches["start_ns"].to_numpy(), graph_launch_rows(trace)
    starts = calls_ns[graphs].tolist()
    for operation in records_of(trace):
        if found.in_graph[operation.row]:
            continue
        rng = ours.around(int(found.around[operation.row]))
        place = Place(rng.layer, rng.kv_source, rng.op or OUTSIDE_OPS) if rng else None
        launched = operation.launch != NO_ID
        piece = 2 * bisect_left(starts, calls_ns[operation.launch]) if launched else None
        yield Placed(operation, where, place, piece)


def _replayed(replayed: Replayed) -> Iterator[Placed]:
    """Yield what graphs ran; the piece of the i-th launch lies between two stretches of the host."""
    for number, launch in enumerate(replayed.launches):
        for one in launch.matched:
            node = one.node if one.attributed else None
            place = Place(node.layer, node.kv_source, node.op or OUTSIDE_OPS) if node else None
            yield Placed(one.operation, "segment", place, 2 * number + 1)


def _rows(placed: Iterable[Placed]) -> list[Row]:
    """Return the sums per op, kv_source and place; what belongs nowhere is in no row."""
    sums: dict[tuple[str, int | None, Where], list[int]] = {}
    for one in placed:
        if one.place is not None:
            total = sums.setdefault((one.place.op, one.place.kv_source, one.where), [0, 0])
            total[0] += one.operation.duration_ns
            total[1] += 1
    return [
        {"op": op, "kv_source": source, "where": where, "device_ns": spent, "operations": count}
        for (op, source, where), (spent, count) in sorted(sums.items(), key=lambda item: _row_order(*item[0]))
    ]


def _row_order(op: str, kv_source: int | None, where: Where) -> tuple[str, int, Where]:
    return op, -1 if kv_source is None else kv_source, where


def _gaps(operations: Iterable[Record]) -> Iterator[int]:
    """Yield for how long nothing ran before each operation, taken by start; the first one has no gap."""
    latest: int | None = None
    for operation in operations:
        yield 0 if latest is None else max(operation.start_ns - latest, 0)
        latest = max(_end(operation), latest or 0)


def _span(placed: Sequence[Placed]) -> int:
    operations = [one.operation for one in placed]
    return max(map(_end, operations)) - operations[0].start_ns if operations else 0


def _end(operation: Record) -> int:
    return operation.start_ns + operation.duration_ns


def _pieces(placed: Sequence[Placed], gaps: Sequence[int]) -> list[Row]:
    """Return the segments and the stretches of breaks between them in order, each with the gap before it.

    A stretch is all that the host launched between two graph launches: one break or several.
    """
    found: dict[int, list[tuple[Placed, int]]] = {}
    for one, gap in zip(placed, gaps, strict=True):
        if one.piece is not None:
            found.setdefault(one.piece, []).append((one, gap))
    return [_piece([one for one, _ in both], [gap for _, gap in both]) for _, both in sorted(found.items())]


def _piece(placed: Sequence[Placed], gaps: Sequence[int]) -> Row:
    first = placed[0]
    return {
        "where": first.where,
        "name": _name([one.place for one in placed if one.place]),
        "launches": len({one.operation.launch for one in placed}),
        "operations": len(placed),
        "device_ns": sum(map(attrgetter("operation.duration_ns"), placed)),
        "gap_ns": gaps[0],
        "idle_ns": sum(gaps[1:]),
    }


def _name(places: Sequence[Place]) -> str:
    """Return the first and the last operation of a piece."""
    if not places:
        return "of no range"
    first, last = places[0], places[-1]
    if first == last:
        return first.text
    return f"{first.text} .. {last.op if first.layer == last.layer else last.text}"
