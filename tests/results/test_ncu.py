"""Nsight Compute's raw CSV: names, then units, then one line a launch."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.errors import TraceFormatError
from dsv4bench.results.ncu import METRICS, read_ncu

TIME, READ, WRITTEN = "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum"
DRAM, REGISTERS = "dram__throughput.avg.pct_of_peak_sustained_elapsed", "launch__registers_per_thread"
HEADER = f'"ID","Process ID","Kernel Name","Block Size","{TIME}","{READ}","{WRITTEN}","{DRAM}","{REGISTERS}"'
UNITS = '"","","","","usecond","Mbyte","Gbyte","%","register/thread"'
FIRST = '"0","77","_dequant","(128, 1, 1)","1,215.5","288.5","0.512","91.25","40"'
SECOND = '"1","77","void f<int, 4>(int*)","(256, 1, 1)","3.25","1","n/a","",""'


def text(*lines):
    return "\n".join(lines) + "\n"


def test_every_launch_is_a_row_in_our_units():
    found = read_ncu(text("==PROF== Connected to process 77", HEADER, UNITS, FIRST, SECOND), "r.csv")
    assert found["kernel"].tolist() == ["_dequant", "void f<int, 4>(int*)"]
    first = found.iloc[0]
    assert (first["time_ns"], first["dram_read_bytes"], first["dram_written_bytes"]) == (1_215_500, 288.5e6, 0.512e9)
    assert (first["dram_share"], first["registers"]) == (pytest.approx(0.9125), 40)


def test_what_a_report_lacks_is_nan():
    found = read_ncu(text(HEADER, UNITS, SECOND), "r.csv").iloc[0]
    missing = {metric.name for metric in METRICS if math.isnan(found[metric.name])}
    assert missing == {"dram_written_bytes", "dram_share", "registers", "l2_share", "sm_share", "occupancy"}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["==PROF== no kernels were profiled"], "r.csv: no line names the column 'Kernel Name'"),
        ([], "r.csv: no line names the column"),
        ([HEADER], "r.csv: a header without a line of units"),
        (['"ID","My Kernel Name"', '"",""'], "r.csv: no column is called 'Kernel Name'"),
        (["a line, with Kernel Name", "1,2,3", "1,2,3,4,5"], "r.csv: (not a CSV table|no column)"),
        ([HEADER, UNITS.replace("usecond", "fortnight"), FIRST], "gpu__time_duration.sum has the unit 'fortnight'"),
    ],
    ids=["messages only", "nothing", "header only", "another column", "ragged", "unit"],
)
def test_what_is_no_report_is_refused(lines, message):
    with pytest.raises(TraceFormatError, match=message):
        read_ncu(text(*lines), "r.csv")


@given(
    st.lists(
        st.sampled_from([HEADER, UNITS, FIRST, "Kernel Name, x", '"', "a,b,c,d", "", "\x00", ",,,,,,,,,,,,"]),
        max_size=5,
    )
)
def test_any_text_is_read_or_refused(lines):
    with contextlib.suppress(TraceFormatError):
        read_ncu(text(*lines), "r.csv")


def test_a_report_without_launches_is_empty():
    assert read_ncu(text(HEADER, UNITS), "r.csv").empty
