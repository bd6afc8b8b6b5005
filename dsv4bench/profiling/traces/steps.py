"""The steps of a trace: where they begin and end on the host, what belongs to each, and which ones were cut.

An operation belongs to the step in which it was *launched*, never to the one in which it ran: kernels of a graph may
run after the host left the step (measuring.md 8).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from dsv4bench.profiling.traces.columns import MARK, NO_ID, PUSH_POP, Trace
from dsv4bench.profiling.traces.ranges_of import matching

Integers = npt.NDArray[np.int64]

# how programs call their steps; the first family of which a trace has a range wins
FAMILIES = (
    re.compile(r"^dsv4bench:step=\d+(?: rank=\d+)?$"),
    re.compile(r"^ProfilerStep#\d+"),
    re.compile(r"^(?:## ?)?(?:\w+[ _])?(?:step|iter|iteration|replay)[ _:=#-]*\d+\b", re.IGNORECASE),
    re.compile(r"^(?:step\[|execute_(?:context_\d|model\b))"),
)
WHOLE = "whole trace"  # the one step of a trace that marks none
SHORT = 0.5  # of the median of the others: a first or last step below it was cut where no kernels tell


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps in the order of time, and the step of every operation and launch (NO_ID outside of all).

    `frame` has name, start_ns, end_ns, process and thread of each; `marked` is False for a trace that marks no steps,
    which is one step; `unclosed` says whose range was never closed.
    """

    frame: pd.DataFrame
    of_operations: Integers
    of_launches: Integers
    marked: bool
    unclosed: npt.NDArray[np.bool_]


def find_steps(trace: Trace, rows: Integers, start_end: bool = False, labelled: Integers | None = None) -> Steps:
    """Return the steps of a trace; `rows` is what `launch_rows` gave, `start_end` lets such ranges mark steps too.

    `labelled` is the step of each operation by its own label (NO_ID: none), for a trace without a range around steps.
    Ranges mark no steps where launches were not recorded: nothing tells which operations are theirs.
    """
    told = len(trace.launches) > 0 or not (len(trace.operations) or len(trace.graph_runs))
    frame = _marked(trace, start_end) if told else None
    if frame is None:
        several = labelled is not None and len(np.unique(labelled[labelled != NO_ID])) > 1
        return _labelled(trace, rows, labelled) if labelled is not None and several else _whole(trace)
    unclosed = frame["end_ns"].to_numpy() == NO_ID
    frame["end_ns"] = _ends(trace, frame)
    of_launches = _inside(trace.launches, frame)
    of_operations = np.full(len(rows), NO_ID, dtype=np.int64)
    if len(of_launches):
        of_operations = np.where(rows != NO_ID, of_launches[rows], NO_ID)
    return Steps(frame, of_operations, of_launches, True, unclosed)


def cut_steps(steps: Steps, kernels: Sequence[int] | None) -> list[str | None]:
    """Return for each step why it counts as cut, or None; only the first and the last one of several can be.

    `kernels` are the kernels of each step, None where the trace has none recorded; then host times decide.
    """
    reasons: list[str | None] = ["its range was never closed" if one else None for one in steps.unclosed]
    last = len(reasons) - 1
    if last < 2:
        return reasons
    host_ns = (steps.frame["end_ns"] - steps.frame["start_ns"]).to_numpy()
    for place in (0, last):
        others = np.arange(len(reasons)) != place
        # both ends may be cut, so those between decide, if there are two of them
        between = None if kernels is None else np.asarray(kernels)[1:last] if last > 2 else np.asarray(kernels)[others]
        if kernels is not None and between is not None and kernels[place] < between.min():
            reasons[place] = f"{kernels[place]} kernels, the others at least {between.min()}"
        elif kernels is None and host_ns[place] < SHORT * np.median(host_ns[others]):
            reasons[place] = "it lasts less than half as long as the others"
    return reasons


def _marked(trace: Trace, start_end: bool) -> pd.DataFrame | None:
    """Return the outermost ranges of the first family of step names that the trace has, or None."""
    kinds = trace.annotations["kind"].to_numpy()
    able = trace.annotations[(kinds == PUSH_POP) | (start_end & (kinds != MARK))]
    for family in FAMILIES:
        right = matching(trace, able["text"].to_numpy(), family)
        if right.any():
            return _outermost(trace, able[right])
    return None


def _outermost(trace: Trace, ranges: pd.DataFrame) -> pd.DataFrame:
    """Return the ranges that lie wholly in no other one of their thread, in the order of time."""
    ordered = ranges.sort_values(["process", "thread", "start_ns"], kind="stable")
    ends = ordered["end_ns"].where(ordered["end_ns"] != NO_ID, np.iinfo(np.int64).max)
    before = ends.groupby([ordered["process"], ordered["thread"]]).cummax()
    same = (ordered[["process", "thread"]] == ordered[["process", "thread"]].shift()).all(axis=1)
    open_ended = (ordered["end_ns"] == NO_ID).shift(fill_value=False)
    around = before.shift(fill_value=0)
    nested = same & ~open_ended & (ordered["start_ns"] < around) & (ends <= around)
    found = ordered[~nested].sort_values("start_ns", kind="stable")
    names = trace.names(found["text"])
    return found[["start_ns", "end_ns", "process", "thread"]].assign(name=names).reset_index(drop=True)


def _ends(trace: Trace, frame: pd.DataFrame) -> Integers:
    """Return the ends; a range that was never closed ends where the next of its thread begins, or with the trace."""
    tables = (trace.launches["end_ns"], trace.annotations["end_ns"], trace.operations["end_ns"], frame["start_ns"])
    last = max(int(column.max()) for column in tables if len(column))
    following = frame.groupby(["process", "thread"])["start_ns"].shift(-1, fill_value=last)
    ends = frame["end_ns"].where(frame["end_ns"] != NO_ID, following)
    return ends.to_numpy()


def _inside(launches: pd.DataFrame, frame: pd.DataFrame) -> Integers:
    """Return the step of each launch: that of its process, or of its thread where a process has steps at one time."""
    found = np.full(len(launches), NO_ID, dtype=np.int64)
    starts, processes = launches["start_ns"].to_numpy(), launches["process"].to_numpy()
    threads = launches["thread"].to_numpy()
    for process, own in frame.groupby("process"):
        overlapping = bool((own["start_ns"].to_numpy()[1:] < own["end_ns"].cummax().to_numpy()[:-1]).any())
        for thread, part in own.groupby("thread") if overlapping else [(NO_ID, own)]:
            mine = (processes == process) & ((threads == thread) | (not overlapping))
            found[mine] = _places(starts[mine], part)
    return found


def _places(times: Integers, part: pd.DataFrame) -> Integers:
    """Return the row of `part`, of ranges that do not overlap, that holds each time, or NO_ID."""
    at = np.searchsorted(part["start_ns"].to_numpy(), times, side="right") - 1
    held = (at >= 0) & (times <= part["end_ns"].to_numpy()[at])
    return np.where(held, part.index.to_numpy()[at], NO_ID)


def _labelled(trace: Trace, rows: Integers, labelled: Integers) -> Steps:
    """Return the steps that the operations' own labels tell: on the host, from their first launch to their last."""
    numbers, of_operations = np.unique(labelled, return_inverse=True)
    of_operations = of_operations.astype(np.int64) - int(numbers[0] == NO_ID)
    numbers = numbers[numbers != NO_ID]
    inside = (rows != NO_ID) & (of_operations != NO_ID)
    of_launches = np.full(len(trace.launches), NO_ID, dtype=np.int64)
    of_launches[rows[inside]] = of_operations[inside]
    told = trace.launches.groupby(of_launches) if len(trace.launches) else trace.operations.groupby(of_operations)
    frame = pd.DataFrame({"start_ns": told["start_ns"].min(), "end_ns": told["end_ns"].max()})
    frame = frame.reindex(range(len(numbers)), fill_value=0)
    frame = frame.assign(process=NO_ID, thread=NO_ID, name=[f"step {number}" for number in numbers])
    return Steps(frame, of_operations, of_launches, True, np.zeros(len(frame), dtype=np.bool_))


def _whole(trace: Trace) -> Steps:
    """Return one step that holds everything; a trace without a row of any kind has none.

    Rows that have lost their time do not stretch it.
    """
    starts, ends = (
        np.concatenate([table[column].to_numpy() for table in (trace.launches, trace.operations)])
        for column in ("start_ns", "end_ns")
    )
    known = starts[starts != NO_ID]
    whole = {
        "name": WHOLE,
        "start_ns": int(known.min()) if len(known) else NO_ID,
        "end_ns": int(ends.max(initial=NO_ID)),
        "process": NO_ID,
        "thread": NO_ID,
    }
    frame = pd.DataFrame([whole] if len(starts) else [], columns=list(whole))
    nothing = np.zeros(len(frame), dtype=np.bool_)
    operations, launches = (np.zeros(len(table), dtype=np.int64) for table in (trace.operations, trace.launches))
    return Steps(frame, operations, launches, False, nothing)
