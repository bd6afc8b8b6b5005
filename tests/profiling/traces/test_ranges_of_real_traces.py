"""Ranges of real traces, against figures that independent code has counted (the folder's README says how)."""

import json
from collections import Counter

import numpy as np
import pytest

from dsv4bench.profiling.traces import kineto_reader, nsys_reader
from dsv4bench.profiling.traces.columns import COPY, KERNEL, NO_ID
from dsv4bench.profiling.traces.labels import label
from dsv4bench.profiling.traces.ranges_of import classes, ranges_of
from dsv4bench.workloads.geometry import V41_FLASH
from tests.profiling.traces.made_rows import texts
from tests.profiling.traces.shared_traces import FOLDER, needs_traces

pytestmark = [needs_traces, pytest.mark.corpus]
SOURCES = (2, 8, 14, 20)


def read(path):
    return (nsys_reader if path.suffix == ".sqlite" else kineto_reader).read(path)


def counted():
    """Return [(file, figures of its ranges)] of the traces that parse and have ranges."""
    if not FOLDER.exists():
        return []
    entries = json.loads((FOLDER / "truth.json").read_text(encoding="utf-8"))
    return [
        (entry["dst"], entry["ranges"]) for entry in entries if entry.get("ranges") and "tar.gz" not in entry["dst"]
    ]


@pytest.mark.parametrize(("name", "expected"), counted(), ids=[name.rpartition("/")[2] for name, _ in counted()])
def test_ranges_hold_the_kernels_that_independent_code_counted(name, expected):
    trace = read(FOLDER / "real" / name)
    found = ranges_of(trace)
    operations, ranges = found.chain(found.around)
    kernels = trace.operations["kind"].to_numpy()[operations] == KERNEL
    held = np.bincount(ranges[kernels], minlength=len(trace.annotations))
    by_text = {}
    for row, text in enumerate(texts(trace, range(len(trace.annotations)))):
        by_text.setdefault(text, []).append(int(held[row]))
    wrong = [
        (one["range"], one["occurrence"], one["kernels_same_thread"], by_text.get(one["range"]))
        for one in expected
        if by_text.get(one["range"], [])[one["occurrence"] - 1 : one["occurrence"]] != [one["kernels_same_thread"]]
    ]
    assert wrong == []


def test_replayed_operations_of_nsys_belong_to_the_source_that_captured_them():
    trace = read(FOLDER / "h200" / "probe_graph_node.sqlite")
    found = ranges_of(trace)
    kinds = classes(trace).tolist()
    rows = zip(texts(trace, found.around), texts(trace, found.range), kinds, found.in_graph.tolist(), strict=True)
    replayed = Counter(row[:3] for row in rows if row[3])
    assert replayed == {
        (f"step{step}", f"kv_source={source}", kind): count
        for step in range(3)
        for source in SOURCES
        for kind, count in ((KERNEL, 5), (COPY, 1))
    }
    assert found.coverage().in_graphs == 0
    labels = label(trace, found, geometry=V41_FLASH)
    sources = Counter(labels.kv_source[found.in_graph].tolist())
    assert sources == dict.fromkeys(SOURCES, 3 * 6)


def test_a_kineto_replay_is_in_graphs_and_four_of_its_kernels_are_copies():
    trace = read(FOLDER / "h200" / "probe_kineto.json.gz")
    found = ranges_of(trace)
    rows = zip(texts(trace, found.around), classes(trace).tolist(), found.in_graph.tolist(), strict=True)
    expected = {(f"REPLAY{number}", kind, True): count for number in range(2) for kind, count in ((0, 20), (COPY, 4))}
    expected |= {(f"kv_source={source}", kind, False): n for source in SOURCES for kind, n in ((0, 5), (COPY, 1))}
    assert Counter(rows) == expected
    assert (trace.operations["kind"].to_numpy()[found.in_graph] == KERNEL).all()
    coverage = found.coverage()
    assert (coverage.attributed, coverage.unattributed, coverage.in_graphs) == (24, 0, 48)
    assert (found.range[found.in_graph] == NO_ID).all()
