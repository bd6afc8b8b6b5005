"""The tables of kernels, read as text and by their values."""

import io

import pytest

from dsv4bench.dashboards.kernel_tables import kernel_tables
from dsv4bench.dashboards.render import csv_text, plain
from dsv4bench.dashboards.tables import show
from dsv4bench.kernels import CATALOGUE, kernel
from tests.results.kernel_records import kernel_record, unable
from tests.results.synthetic import sweep


def lines(records):
    (table,) = kernel_tables(records)
    return plain(table).splitlines()


def row(records, provider):
    return next(line.split() for line in lines(records) if provider in line.split())


def test_providers_stand_side_by_side():
    records = [kernel_record("triton", cold=2_000, hot=1_000), kernel_record("sglang", cold=5_000, hot=4_000)]
    found = lines(records)
    assert found[0] == "dequant: measured, gpu, NVIDIA H200"
    assert found[1].split() == ["case", "rows", "provider", "cold", "us", "hot", "us", "rate", "share", "faster"]
    first, second = (" ".join(row(records, name)) for name in ("triton", "sglang"))
    assert first == "fp4 4096 triton 2.000 ±0.000 1.000 ±0.000 2.00 TB/s 0.500 2.50x"
    assert second == "fp4 4096 sglang 5.000 ±0.000 4.000 ±0.000 800 GB/s 0.200"
    assert "faster: times faster than sglang, cold, by neighbouring samples" in found
    assert any("4.20 TB/s elementwise over large buffers, 800 TFLOP/s" in line for line in found)


def test_every_line_fits_80_columns():
    records = [
        kernel_record(name, case="width 640", rows=524288, cold=[1_436_000] * 6, flops=10**12, name="sparse_attention")
        for name in ("triton", "flash_mla")
    ]
    assert max(map(len, lines(records))) <= 80


def launched(provider, launches, rows=4096):
    record = kernel_record(provider, rows=rows)
    return kernel_record(provider, rows=rows, kernel=record.kernel | {"launches": launches})


def test_the_launches_of_each_provider_are_said_and_kept():
    records = [launched("triton", 1.0), launched("sglang", 2.0), launched("torch", None), launched("sglang", 5.0, 8192)]
    assert "launches of a call (kernels, copies, sets): triton 1, sglang 2 to 5" in lines(records)
    (table,) = kernel_tables(records)
    assert table.columns[-1].names == ("launches",)
    assert [row[-1].values for row in table.rows] == [(1.0,), (2.0,), (None,), (5.0,)]
    assert not any("launches" in line for line in lines([launched("torch", None), kernel_record()]))


@pytest.mark.parametrize("name", CATALOGUE)
def test_no_case_or_provider_of_the_catalogue_is_too_long_for_80_columns(name):
    found = kernel(name)
    providers = [provider.name for provider in found.providers]
    records = [
        kernel_record(provider, case=case, rows=max(found.bench.rows), cold=[123_456] * 6, hot=[99_999] * 6, name=name)
        for case in found.bench.cases
        for provider in providers
    ]
    assert max(map(len, lines(records))) <= 80


@pytest.mark.parametrize(
    ("record", "shown", "note"),
    [
        (unable(), "skipped", "skipped: the package 'sglang' is not installed (sglang)"),
        (unable(status="wrong", reason="out: off"), "WRONG", "WRONG: out: off (sglang)"),
        (unable(status="failed", reason="boom"), "failed", "failed: boom (sglang)"),
    ],
    ids=["skipped", "wrong", "failed"],
)
def test_a_provider_without_a_time_is_a_row_with_its_reason(record, shown, note):
    records = [kernel_record("triton"), record]
    assert row(records, "sglang") == ["fp4", "4096", "sglang", shown]
    assert note in lines(records)


def test_a_reason_names_the_rows_it_is_of_unless_it_is_of_all_of_a_provider():
    records = [
        kernel_record("triton"),
        kernel_record("triton", rows=8),
        unable(),
        unable(rows=8, reason="too few rows"),
    ]
    found = lines(records)
    assert "skipped: too few rows (sglang fp4 8)" in found
    assert "skipped: the package 'sglang' is not installed (sglang fp4 4096)" in found


def test_flags_name_their_rows_too():
    records = [kernel_record("triton", flags=["too few samples"]), kernel_record("torch", flags=["too few samples"])]
    assert "too few samples" in lines(records)
    records = [kernel_record("triton", flags=["not in a graph"]), kernel_record("torch")]
    assert "not in a graph (triton)" in lines(records)


def test_a_share_that_cannot_be_true_has_a_mark_and_a_line():
    records = [kernel_record("triton", cold=200), kernel_record("sglang", cold=900)]  # 20 and 4.4 TB/s of 4.8
    assert row(records, "triton")[-3:] == ["5.00", "!", "4.50x"]
    assert "!" not in row(records, "sglang")
    assert "! implausible: 417 % of the peak HBM rate (4.8 TB/s) (triton)" in lines(records)
    (table,) = kernel_tables(records)
    assert [one[6].values[0] for one in table.rows] == [5.0, pytest.approx(1.111, abs=0.001)]


def test_csv_holds_plain_values():
    head, values = csv_text(kernel_tables([kernel_record("triton"), kernel_record("sglang", cold=5_000)])).splitlines()[
        1:3
    ]
    found = dict(zip(head.split(","), values.split(","), strict=True))
    assert (found["cold_ns"], found["bound"], found["share"], found["ratio"]) == ("2000.0", "memory", "0.5", "2.5")
    assert (found["bytes_read"], found["sets"], found["samples"]) == ("1000000", "45", "6")


def test_the_last_record_of_a_cell_is_shown_and_each_kernel_has_a_table():
    again = [kernel_record("triton", cold=9_000), kernel_record("triton", cold=2_000)]
    assert row(again, "triton")[3] == "2.000"
    assert len(kernel_tables([kernel_record(), kernel_record(name="store")])) == 2


def test_kernels_and_steps_are_shown_side_by_side():
    stream = io.StringIO()
    show([*sweep(), kernel_record()], "table", stream)
    assert "dequant: measured" in stream.getvalue()
    assert "Step time" in stream.getvalue()
