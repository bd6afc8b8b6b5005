"""Count the device operations of a step under our own ranges, as a ledger has it.

What no graph replayed belongs to the innermost range of ours around its launch (`ranges_of.py`). What graphs replayed
is only counted: the capture ledger knows its ranges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dsv4bench.profiling.ledger import DEVICE_METRICS, Ledger, Where
from dsv4bench.profiling.traces.columns import NO_ID, Trace
from dsv4bench.profiling.traces.ranges_of import BY_LAUNCH, METHODS, RangesOf, classes, graph_launch_rows, ranges_of
from dsv4bench.profiling.traces.records import METRICS
from dsv4bench.ranges import Range, parse_range

METHOD = METHODS[BY_LAUNCH]
ReadRange = Callable[[str], Range | None]


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of what the device did in a step has a range, as a record keeps it.

    `attributed` lies in a range of ours, `unattributed` in none, `replayed` came from a graph. `outside_ops` is the
    part of `attributed` whose range names no operation; `lost` counts kernel launches of which the trace has no kernel.
    """

    attributed: int
    unattributed: int
    replayed: int
    outside_ops: int
    lost: int
    method: str
    ambiguous: int = 0


@dataclass(frozen=True, slots=True)
class Attribution:
    """The counts per range, how complete they are, and the counts per metric of what graphs replayed."""

    ledger: Ledger
    coverage: Coverage
    replayed: Counter[str]


class OurRanges:
    """Our own ranges among the annotations of a trace; `read_range` reads the text of one, None for another's."""

    def __init__(self, trace: Trace, found: RangesOf, read_range: ReadRange = parse_range) -> None:
        texts, text_of = np.unique(trace.annotations["text"].to_numpy(), return_inverse=True)
        read = [read_range(str(trace.strings[code])) for code in texts]
        self._ranges: list[Range | None] = [read[text] for text in text_of]
        self._parents = found.parents.tolist()

    def around(self, row: int) -> Range | None:
        """Return the range of ours that is this annotation, or else the first one around it."""
        while row != NO_ID and self._ranges[row] is None:
            row = self._parents[row]
        return None if row == NO_ID else self._ranges[row]


def attribute(trace: Trace, where: Where = "eager", read_range: ReadRange = parse_range) -> Attribution:
    """Count the trace's operations per range as having run in `where`; `read_range` reads the texts of annotations.

    Sum of attributed, unattributed and replayed is the number of device operations in the trace.
    """
    ledger = Ledger()
    ledger.declare(where, *DEVICE_METRICS, "graph_launches")
    found, kinds = ranges_of(trace), classes(trace)
    ours = OurRanges(trace, found, read_range)
    eager = ~found.in_graph
    for (row, kind), count in _counted(found.around[eager], kinds[eager]).items():
        ledger.add(ours.around(row), where, METRICS[kind], count)
    for row in found.at_launch[graph_launch_rows(trace)].tolist():
        ledger.add(ours.around(row), where, "graph_launches")
    replayed = Counter({METRICS[kind]: count for (kind,), count in _counted(kinds[found.in_graph]).items()})
    return Attribution(ledger, _coverage(ledger, replayed, found.lost), replayed)


def _counted(*columns: npt.NDArray[Any]) -> Counter[tuple[int, ...]]:
    return Counter(zip(*(column.tolist() for column in columns), strict=True))


def _coverage(ledger: Ledger, replayed: Counter[str], lost: int) -> Coverage:
    total, unattributed = ledger.total(*DEVICE_METRICS), ledger.unattributed(*DEVICE_METRICS)
    return Coverage(
        attributed=total - unattributed,
        unattributed=unattributed,
        replayed=replayed.total(),
        outside_ops=ledger.outside_ops(*DEVICE_METRICS),
        lost=lost,
        method=METHOD,
    )
