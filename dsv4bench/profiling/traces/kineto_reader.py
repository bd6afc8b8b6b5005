"""Read torch.profiler's Chrome JSON into the columns of a `Trace`.

A device row names no host process, so its process is that of the calls with its correlation id. Whether a file without
device rows recorded the device cannot be told: then kernels, copies and sets are not in `recorded`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from dsv4bench.errors import TraceFormatError
from dsv4bench.profiling.traces.columns import (
    COPY,
    KERNEL,
    MOST_BYTES,
    MOST_NS,
    NO_ID,
    PUSH_POP,
    SET,
    Codes,
    Trace,
    table,
)
from dsv4bench.profiling.traces.kineto_events import Arguments, Category, Decoders, Document, Event, Phase
from dsv4bench.profiling.traces.kineto_numbers import (
    NO_TIME,
    Whole,
    loses_nanoseconds,
    texts_among,
    whole_ids,
    whole_ns,
)
from dsv4bench.profiling.traces.kineto_repair import repaired
from dsv4bench.profiling.traces.kineto_says import devices_of, facts_of, rank_of
from dsv4bench.profiling.traces.trace_text import head_of, text_of

_FIRST_WORDS = (b'"schemaVersion"', b'"traceEvents"', b'"ph"')
_TOO_LARGE = re.compile(rb'"ts"\s*:\s*\d{14,}\.\d')  # a first time whose float has lost its nanosecond
_LOOKED_AT_BYTES = 1_000_000
_KINDS = {
    Category.KERNEL: KERNEL,
    Category.OLD_KERNEL: KERNEL,
    Category.COPY: COPY,
    Category.OLD_COPY: COPY,
    Category.SET: SET,
    Category.OLD_SET: SET,
}
_CALLS = (Category.RUNTIME, Category.DRIVER, Category.OLD_RUNTIME)
_HOST = (Category.USER_ANNOTATION, Category.CPU_OP, Category.OLD_OPERATOR, Category.PYTHON_FUNCTION)
_FLOWS = (Phase.FLOW_START, Phase.FLOW_END)
_NO_ARGUMENTS = Arguments()
_READ = (*_KINDS, *_CALLS, Category.USER_ANNOTATION)
Rows = Mapping[Category, list[Event]]


def sniff(path: Path) -> bool:
    """Return whether the file looks like this format, by the first bytes of its text."""
    head = head_of(path).lstrip()
    return head.startswith((b"{", b"[")) and any(word in head for word in _FIRST_WORDS)


def read(path: Path) -> Trace:
    """Read the trace; what had to be mended is in its `repairs`.

    Raises TraceFormatError, which names the file, the place and what was expected there, for what cannot be mended.
    """
    repairs: list[str] = []
    text = text_of(path, repairs)
    document, rows = _decoded(text, path, repairs)
    return _Columns(rows, repairs).trace(path, document)


def _decoded(text: bytes, path: Path, repairs: list[str]) -> tuple[Document, Rows]:
    """Return the file and its complete events by category; times are floats only where these are exact enough."""
    exact = _TOO_LARGE.search(text, 0, _LOOKED_AT_BYTES) is not None
    found: list[str] = []
    document = _document(text, path, exact, found)
    rows = _by_category(document, found)
    if not exact and loses_nanoseconds([event.ts for category in _READ for event in rows[category]]):
        found = []
        document = _document(text, path, True, found)
        rows = _by_category(document, found)
    repairs += found
    return document, rows


def _document(text: bytes, path: Path, exact: bool, repairs: list[str]) -> Document:
    """Return the decoded file, mended where it does not decode."""
    decoders = Decoders(exact)
    try:
        if text.lstrip()[:1] == b"[":
            return Document(trace_events=decoders.events.decode(text))
        document = decoders.document.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return repaired(text, path, decoders, repairs)
    if not isinstance(document.trace_events, list):
        found = "null" if document.trace_events is None else "no such key"
        raise TraceFormatError(f"{path}: top level: expected the list 'traceEvents', found {found}")
    return document


def _by_category(document: Document, repairs: list[str]) -> Rows:
    """Return the complete events by category, and say how many of those that matter are of another kind."""
    rows: dict[Category, list[Event]] = defaultdict(list)
    others = 0
    complete, other = Phase.COMPLETE, Category.OTHER
    for event in document.trace_events or ():
        if event.ph is complete:
            rows[event.cat or other].append(event)
        elif event.cat in _READ and event.ph not in _FLOWS:
            others += 1
    if others:
        repairs.append(f"operations, calls or ranges that are not complete events, left out: {others}")
    return rows


class _Columns:
    """Makes the tables of a trace of the events of one file."""

    def __init__(self, rows: Rows, repairs: list[str]) -> None:
        self.rows, self.repairs = rows, repairs
        self.strings, self.processes, self.threads = Codes(), Codes(), Codes()

    def trace(self, path: Path, document: Document) -> Trace:
        """Return the whole trace."""
        launches = self._launches()
        annotations = self._annotations()
        operations = self._operations(launches)
        return Trace(
            source=str(path),
            format="kineto",
            strings=self.strings.values,
            operations=operations,
            launches=launches,
            annotations=annotations,
            graph_nodes=table("graph_nodes"),
            graph_runs=table("graph_runs"),
            processes=self.processes.values,
            threads=self.threads.values,
            recorded=self._recorded(),
            devices=devices_of(document),
            facts=facts_of(document, {category: len(events) for category, events in self.rows.items()}),
            repairs=tuple(self.repairs),
            rank=rank_of(document),
        )

    def _recorded(self) -> frozenset[str]:
        """Return what the file shows that it holds."""
        device = any(self.rows[category] for category in _KINDS)
        found = {"kernels", "copies", "sets"} if device else set()
        found |= {"launches"} if any(self.rows[category] for category in _CALLS) else set()
        found |= {"annotations"} if any(self.rows[category] for category in _HOST) else set()
        return frozenset(found)

    def _launches(self) -> pd.DataFrame:
        events = [event for category in _CALLS for event in self.rows[category]]
        arguments = _arguments(events)
        start_ns, end_ns = self._times(events, "calls", 0)
        process, thread = self._places(events)
        columns = {
            "name": _coded([event.name for event in events], self.strings),
            "start_ns": start_ns,
            "end_ns": end_ns,
            "process": process,
            "thread": thread,
            "correlation": self._ids(arguments, "correlation", np.int64),
        }
        return _outer_first(table("launches", columns))

    def _annotations(self) -> pd.DataFrame:
        events = self.rows[Category.USER_ANNOTATION]
        start_ns, end_ns = self._times(events, "ranges", None)
        process, thread = self._places(events)
        columns = {
            "kind": np.full(len(events), PUSH_POP),
            "text": _coded([event.name for event in events], self.strings),
            "start_ns": start_ns,
            "end_ns": end_ns,
            "process": process,
            "thread": thread,
            "end_thread": thread,
        }
        return _outer_first(table("annotations", columns))

    def _operations(self, launches: pd.DataFrame) -> pd.DataFrame:
        events = [event for category in _KINDS for event in self.rows[category]]
        arguments = _arguments(events)
        start_ns, end_ns = self._times(events, "operations", 0)
        lost = (start_ns == 0) & (end_ns == 0)
        self._say(lost.sum(), "operations at time 0 of length 0, counted and without time")
        start_ns[lost] = end_ns[lost] = NO_ID
        endless = end_ns - start_ns > MOST_NS
        self._say(endless.sum(), "operations of more than two hours, read as 0 ns")
        end_ns[endless] = start_ns[endless]
        size = self._ids(arguments, "bytes", np.int64)
        self._say((size > MOST_BYTES).sum(), "operations of more than 8 TiB, their bytes read as missing")
        correlation = self._ids(arguments, "correlation", np.int64)
        node = self._ids(arguments, "graph_node", np.int64)
        columns = {
            "kind": [kind for category, kind in _KINDS.items() for _ in self.rows[category]],
            "name": _coded([event.name for event in events], self.strings),
            "start_ns": start_ns,
            "end_ns": end_ns,
            "process": self._process_of(correlation, launches),
            "device": self._ids(arguments, "device", np.int32),
            "stream": self._ids(arguments, "stream", np.int64),
            "correlation": correlation,
            "graph_node": np.where(node == 0, NO_ID, node),  # 0 is "in no graph"
            "bytes": np.where(size > MOST_BYTES, NO_ID, size),
        }
        return table("operations", columns).sort_values("start_ns", kind="stable", ignore_index=True)

    def _process_of(self, correlation: Whole, launches: pd.DataFrame) -> Whole:
        """Return the process of each correlation id: the only one there is, or the only one whose calls have it."""
        if len(self.processes.values) <= 1:
            return np.full(len(correlation), len(self.processes.values) - 1)
        pairs = launches.loc[launches["correlation"] != NO_ID, ["correlation", "process"]].drop_duplicates()
        only = pairs.drop_duplicates("correlation", keep=False).set_index("correlation")["process"]
        found = pd.Series(correlation).map(only)
        unclear = int((found.isna() & np.isin(correlation, pairs["correlation"].to_numpy())).sum())
        self._say(unclear, "operations whose correlation id several processes used, without process")
        return found.fillna(NO_ID).to_numpy(dtype=np.int64)

    def _places(self, events: Sequence[Event]) -> tuple[Whole, Whole]:
        """Return the codes of the process and the thread of each event."""
        process = _coded([event.pid for event in events], self.processes)
        thread_names = Codes()
        thread = _coded([event.tid for event in events], thread_names)
        count = max(len(thread_names.values), 1)
        of_event, pairs = pd.factorize(process * count + thread)
        named = [(self.processes.values[pair // count], thread_names.values[pair % count]) for pair in pairs]
        return process, np.array([self.threads[pair] for pair in named], dtype=np.int64)[of_event]

    def _ids(self, arguments: Sequence[Arguments], name: str, dtype: type[np.signedinteger[Any]]) -> Whole:
        """Return one of the arguments of each event, and say how many were texts and how many no ids at all."""
        values = list(map(attrgetter(name), arguments))
        ids = whole_ids(values, dtype)
        word = name.replace("_", " ")
        self._say(texts_among(values, ids != NO_ID), f"texts read as numbers in '{word}'")
        lost = [value for value in map(values.__getitem__, np.flatnonzero(ids == NO_ID)) if value is not None]
        wrong = sum(value not in (NO_ID, str(NO_ID)) for value in lost)
        self._say(wrong, f"values of '{word}' that are no whole numbers, read as missing")
        return ids

    def _times(self, events: Sequence[Event], what: str, missing_ns: int | None) -> tuple[Whole, Whole]:
        """Return start and end of each event; without a duration it ends `missing_ns` later, or (None) never."""
        starts_us = [event.ts for event in events]
        start_ns = whole_ns(starts_us)
        length_ns = whole_ns([event.dur for event in events])
        untimed, missing = start_ns == NO_TIME, length_ns == NO_TIME
        negative = ~missing & (length_ns < 0)
        self._say(texts_among(starts_us, ~untimed), f"texts read as numbers in the starts of {what}")
        self._say(untimed.sum(), f"{what} without a start, counted and without time")
        self._say(
            missing.sum(), f"{what} without a duration, read as {'never ended' if missing_ns is None else '0 ns'}"
        )
        self._say(negative.sum(), f"{what} with a negative duration, read as 0 ns")
        length_ns[missing | negative] = 0
        end_ns = start_ns + np.where(untimed, 0, length_ns)
        if missing_ns is None:
            end_ns[missing] = NO_ID
        start_ns[untimed] = end_ns[untimed] = NO_ID
        return start_ns, end_ns

    def _say(self, count: int, what: str) -> None:
        if count:
            self.repairs.append(f"{what}: {count}")


def _arguments(events: Sequence[Event]) -> list[Arguments]:
    return [event.args or _NO_ARGUMENTS for event in events]


def _coded(values: Sequence[Any], codes: Codes) -> Whole:
    """Return the code of the text of each value."""
    plain = values if set(map(type, values)) <= {int, str} else [str(value) for value in values]
    found, different = pd.factorize(np.array(plain, dtype=object))
    return np.array([codes[str(value)] for value in different], dtype=np.int64)[found]


def _outer_first(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows by start, of rows with one start the longest first: a call that contains another precedes it."""
    order = np.lexsort((-rows["end_ns"].to_numpy(), rows["start_ns"].to_numpy()))
    return rows.iloc[order].reset_index(drop=True)
