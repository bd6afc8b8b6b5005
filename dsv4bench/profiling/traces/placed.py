"""A trace with everything joined that reviews, comparisons and the doctor ask about each operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dsv4bench.profiling.traces.columns import NO_ID, Trace
from dsv4bench.profiling.traces.labels import Labels
from dsv4bench.profiling.traces.ranges_of import RangesOf, classes
from dsv4bench.profiling.traces.step_rows import step_rows
from dsv4bench.profiling.traces.steps import Steps, find_steps
from dsv4bench.results.reviews import Coverage, StepRow

Rows = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Placed:
    """A trace, its steps and one row for each operation.

    `rows` are the operations with these columns more: kind (after the alias rule), launch (row of the launch),
    in_graph, step, layer, kv_source, op (index into `ops`), range (index into the strings); NO_ID: not known.
    """

    trace: Trace
    rows: pd.DataFrame
    steps: Steps
    ops: Sequence[str]
    coverage: Coverage
    notes: tuple[str, ...] = ()
    labels: Labels | None = None

    @cached_property
    def told(self) -> list[StepRow]:
        """The steps with what each launched and took, in the order of time."""
        return step_rows(self.trace, self.rows, self.steps)

    def known(self, axis: str) -> Rows:
        """Return which operations have a place on an axis: "layer", "kv_source" or "op"."""
        return np.zeros(len(self.rows), dtype=np.bool_) if self.labels is None else self.labels.known(axis)


def place(found: RangesOf, labels: Labels | None = None, start_end: bool = False) -> Placed:
    """Join what is known of each operation; `start_end` lets NVTX start/end ranges mark steps too.

    Without labels an operation has its range and no layer, source or operation.
    """
    trace = found.trace
    steps = find_steps(trace, found.launch, start_end, None if labels is None else labels.step)
    nothing = np.full(len(trace.operations), NO_ID, dtype=np.int32)
    rows = trace.operations.assign(
        kind=classes(trace),
        launch=found.launch,
        in_graph=found.in_graph,
        step=steps.of_operations,
        layer=nothing if labels is None else labels.layer,
        kv_source=nothing if labels is None else labels.kv_source,
        op=nothing if labels is None else labels.op,
        range=_texts(found),
    )
    coverage = Coverage(**asdict(found.coverage() if labels is None else labels.coverage))
    notes = found.notes if labels is None else labels.notes
    return Placed(trace, rows, steps, () if labels is None else labels.ops, coverage, notes, labels)


def _texts(found: RangesOf) -> Rows:
    """Return the text of each operation's range as an index into the strings."""
    texts = found.trace.annotations["text"].to_numpy()
    return np.where(found.range != NO_ID, texts[found.range], NO_ID) if len(texts) else found.range
