"""Damaged exports of Nsight Systems: no crash, no hang, no silent zero, whatever turns over or is cut off."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.errors import TraceFormatError
from dsv4bench.profiling.traces.columns import NO_ID, TABLES
from dsv4bench.profiling.traces.nsys_reader import read
from tests.profiling.traces import nsys_exports as made
from tests.profiling.traces.nsys_exports import call, export, kernel, node

ROWS = 60


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """The bytes of an export with every table, of pages so small that it has many."""
    several = range(1, ROWS + 1)
    tables = {
        made.KERNEL: [kernel(100 * one, 100 * one + 50, one) for one in several],
        made.MEMCPY: [made.memcpy(9000 + one, 9001 + one, one) for one in several],
        made.RUNTIME: [call(90 * one, 90 * one + 9, one) for one in several],
        "NVTX_EVENTS": [made.pushed(one, 900 + one, f"step {one}") for one in several],
        "CUDA_GRAPH_NODE_EVENTS": [node(one, one, one + 1) for one in several],
        "META_DATA_EXPORT": [{"name": "EXPORT_PRODUCT_VERSION", "value": "2025.5.2.1"}],
        "TARGET_INFO_GPU": [{"id": 0, "name": "NVIDIA H200", "smCount": 132}],
    }
    return export(tmp_path_factory.mktemp("whole") / "export.sqlite", tables, page_bytes=512).read_bytes()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged") / "export.sqlite"


def damaged(path, content):
    path.write_bytes(content)
    return path


def assert_sound_or_refused(path):
    """Read a file: one line of refusal, or a trace whose codes and times hold together and whose gaps are said."""
    message = ""
    try:
        trace = read(path)
    except TraceFormatError as error:
        message = str(error)
    assert "\n" not in message
    if message:
        return
    for name in TABLES:
        frame = getattr(trace, name)
        for column, values in {"name": trace.strings, "text": trace.strings, "process": trace.processes}.items():
            if column in frame and len(frame):
                assert frame[column].between(NO_ID if column == "process" else 0, len(values) - 1).all()
        if "end_ns" in frame:
            assert ((frame["end_ns"] >= frame["start_ns"]) | (frame["end_ns"] == NO_ID)).all()
        first = "time_ns" if name == "graph_nodes" else "start_ns"
        assert frame[first].is_monotonic_increasing
    kinds = np.bincount(trace.operations["kind"], minlength=3)
    for name, rows in {"kernels": kinds[0], "copies": kinds[1], "launches": len(trace.launches)}.items():
        assert rows > 0 or name not in trace.recorded or trace.repairs, f"{name}: a silent zero"


@settings(max_examples=60)
@given(data=st.data())
def test_bits_that_turned_over(path, content, data):
    flipped = bytearray(content)
    for place in data.draw(st.lists(st.integers(0, 8 * len(content) - 1), min_size=1, max_size=30), label="bits"):
        flipped[place // 8] ^= 1 << place % 8
    assert_sound_or_refused(damaged(path, bytes(flipped)))


@settings(max_examples=25)
@given(data=st.data())
def test_bytes_that_were_cut_off(path, content, data):
    keeps = data.draw(st.integers(0, len(content)), label="keeps")
    assert_sound_or_refused(damaged(path, content[:keeps]))


@settings(max_examples=25)
@given(data=st.data())
def test_a_page_that_another_one_took(path, content, data):
    pages = len(content) // 512
    taken, by = (data.draw(st.integers(0, pages - 1), label=label) for label in ("page", "by"))
    mixed = content[: 512 * taken] + content[512 * by : 512 * (by + 1)] + content[512 * (taken + 1) :]
    assert_sound_or_refused(damaged(path, mixed))
