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
PAGE_BYTES = 512


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
    return export(tmp_path_factory.mktemp("whole") / "export.sqlite", tables, page_bytes=PAGE_BYTES).read_bytes()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged") / "export.sqlite"


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


places = st.integers(0, 2**40)  # taken modulo what there is


@settings(max_examples=40)
@given(st.lists(places, min_size=1, max_size=30))
def test_bits_that_turned_over(path, content, bits):
    flipped = bytearray(content)
    for place in (bit % (8 * len(content)) for bit in bits):
        flipped[place // 8] ^= 1 << place % 8
    path.write_bytes(flipped)
    assert_sound_or_refused(path)


@settings(max_examples=25)
@given(places)
def test_bytes_that_were_cut_off(path, content, keeps):
    path.write_bytes(content[: keeps % len(content)])
    assert_sound_or_refused(path)


@settings(max_examples=25)
@given(places, places)
def test_a_page_that_another_one_took(path, content, taken, by):
    pages = [content[first : first + PAGE_BYTES] for first in range(0, len(content), PAGE_BYTES)]
    pages[taken % len(pages)] = pages[by % len(pages)]
    path.write_bytes(b"".join(pages))
    assert_sound_or_refused(path)
