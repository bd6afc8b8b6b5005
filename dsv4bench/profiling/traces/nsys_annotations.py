"""Ranges and marks of NVTX in an nsys export: inline and registered texts, domains, ranges that were never closed."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dsv4bench.profiling.traces.columns import MARK, NO_ID, PUSH_POP, START_END, table
from dsv4bench.profiling.traces.nsys_names import Code, Ids, Names
from dsv4bench.profiling.traces.nsys_tables import Integers, Rows, Tables, beyond, counted, said

_PREFIX, _REQUIRED = "NVTX_EVENTS", ("start", "eventType")
_OPTIONAL = ("end", "globalTid", "endGlobalTid", "textId", "domainId")
_KINDS = {59: PUSH_POP, 70: PUSH_POP, 60: START_END, 71: START_END, 34: MARK, 65: MARK}  # 65 to 71: imported as text
_DOMAIN = 75
_UNNAMED = "(no text)"


def read_annotations(tables: Tables, names: Names, ids: Ids) -> tuple[pd.DataFrame, bool]:
    """Return the annotations, and whether the file holds any rows of NVTX."""
    name = tables.find(_PREFIX, _REQUIRED)
    if name is None:
        return table("annotations"), False
    rows = tables.integers(name, _REQUIRED, _OPTIONAL)
    texts, processes = _texts(tables, rows, names), ids.processes(rows["globalTid"])
    kinds = _kinds(rows["eventType"])
    threads, start_ns, end_ns = ids.threads(rows["globalTid"]), rows["start"], rows["end"]
    wild = (kinds != NO_ID) & (beyond(start_ns) | beyond(end_ns))
    if wild.any():
        tables.repairs.append(
            f"{said(name)}: {counted(int(wild.sum()), 'range')} left out, of no time that could be one"
        )
    kept = (kinds != NO_ID) & ~wild
    end_ns = np.where((kinds == MARK) & (end_ns == NO_ID), start_ns, end_ns)
    end_ns = _mended(tables, name, start_ns, end_ns, kept)
    ended_elsewhere = (kinds == START_END) & (rows["endGlobalTid"] != NO_ID)
    end_threads = np.where(ended_elsewhere, ids.threads(rows["endGlobalTid"]), threads)
    found: dict[str, npt.NDArray[Any]] = {
        "kind": kinds,
        "text": texts,
        "domain": _domains(rows, texts, processes, names),
        "start_ns": start_ns,
        "end_ns": end_ns,
        "process": processes,
        "thread": threads,
        "end_thread": np.where(end_ns == NO_ID, NO_ID, end_threads),
    }
    frame = table("annotations", {column: values[kept] for column, values in found.items()})
    return frame.sort_values("start_ns", kind="stable", ignore_index=True), len(rows) > 0


def _kinds(event_types: Integers) -> Integers:
    kinds = np.full(len(event_types), NO_ID, dtype=np.int64)
    for event_type, kind in _KINDS.items():
        kinds[event_types == event_type] = kind
    return kinds


def _texts(tables: Tables, rows: Rows, names: Names) -> Code:
    """Return the code of each row's text: the inline one, else the registered one."""
    codes = np.full(len(rows), NO_ID, dtype=np.int32)
    if "text" in tables.columns(rows.table):
        keys, inline = array("q"), array("q")
        for key, text in tables.texts(rows.table, "rowid", "text"):
            keys.append(key)
            inline.append(names.of(text))
        places = np.searchsorted(rows.keys, np.frombuffer(keys, dtype=np.int64))
        places = np.minimum(places, max(len(rows) - 1, 0))
        same = rows.keys[places] == np.frombuffer(keys, dtype=np.int64) if len(rows) else np.zeros(len(keys), bool)
        codes[places[same]] = np.frombuffer(inline, dtype=np.int64)[same]
    without = codes == NO_ID
    codes[without] = names.registered(rows["textId"][without], rows.table, _UNNAMED)
    return codes


def _mended(tables: Tables, name: str, start_ns: Integers, end_ns: Integers, kept: npt.NDArray[np.bool_]) -> Integers:
    """Return the ends, none before its start; what is open or backwards is counted among the repairs."""
    open_ended, backwards = end_ns == NO_ID, (end_ns < start_ns) & (end_ns != NO_ID)
    for wrong, what in ((open_ended & kept, "never closed"), (backwards & kept, "ended before it began")):
        count = int(wrong.sum())
        if count:
            tables.repairs.append(f"{said(name)}: {counted(count, 'range')} {what}")
    return np.where(backwards, start_ns, end_ns)


def _domains(rows: Rows, texts: Code, processes: Code, names: Names) -> Code:
    """Return the code of the name of each row's domain; NO_ID is the default domain, which has none."""
    domains = rows["domainId"]
    codes = np.full(len(rows), NO_ID, dtype=np.int32)
    special = np.flatnonzero((domains != 0) & (domains != NO_ID))
    if not len(special):
        return codes
    created = special[rows["eventType"][special] == _DOMAIN]
    named = {(int(processes[row]), int(domains[row])): int(texts[row]) for row in created}
    pairs = pd.Series(list(zip(processes[special].tolist(), domains[special].tolist(), strict=True)), dtype=object)
    inverse, distinct = pd.factorize(pairs)
    found = [named[pair] if pair in named else names.of(f"domain {pair[1]}") for pair in distinct]
    codes[special] = np.array(found, dtype=np.int32)[inverse]
    return codes
