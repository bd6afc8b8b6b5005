"""The table of repeated calls: both sides, sums left to nobody, the largest cell of each mode, and widths."""

from dataclasses import replace

import pytest

from dsv4bench.dashboards.markdown import markdown
from dsv4bench.dashboards.redundancy_tables import redundancy_tables, repeated_table
from dsv4bench.dashboards.render import csv_text, plain
from dsv4bench.results.compare import pairs
from dsv4bench.results.redundant import InferredRow
from tests.results.synthetic import counts, record


def row(op, kv_source, calls, redundant, read, kept=None):
    kept = redundant if kept is None else kept
    numbers = {"calls": calls, "redundant": redundant, "kept": kept, "bytes_read_again": read}
    return {"op": op, "kv_source": kv_source, "kernel": "a kernel", **numbers}


COMBINE = row("combine", 20, 20, 15, 15_000_000, kept=10)
DEQUANT = row("dequant_compressed", 20, 20, 19, 380_000_000)
TIME = {"rows": [{"op": "dequant_compressed", "kv_source": 20, "where": "eager", "device_ns": 2_000_000}]}


def cells(batch=1, graph=False, off=(COMBINE, DEQUANT), on=(COMBINE,), **changes):
    return [
        record(batch, reuse, graph, redundant=None if rows is None else list(rows), **changes)
        for reuse, rows in (("off", off), ("on", on))
    ]


def tables(records):
    return redundancy_tables(pairs(records, "reuse", "off", "on"))


def test_both_sides_stand_side_by_side_and_what_reuse_saved_is_zero_after():
    (table,) = tables(cells())
    assert table.title.startswith("Launched again with equal inputs, reuse off -> on, attention stack of v41-flash")
    assert [[one.text for one in cells] for cells in table.rows] == [
        ["combine", "20", "", "20", "15", "10", "14.31 MiB", ""],
        ["dequant_compressed", "20", "eager", "20 -> 1", "19 -> 0", "19 -> 0", "362.4 MiB -> 0 B", ""],
    ]
    assert (
        "the earlier result still lay where they wrote theirs: 39 of 49" in table.notes
    )  # 10 + 19 + 10 of 15 + 19 + 15


def test_the_time_is_the_share_of_the_repeated_calls_in_that_of_all():
    (table,) = tables(cells(device_time=TIME))
    times = {cells[0].text: cells[-1] for cells in table.rows}
    assert times["dequant_compressed"].values == (1_900_000, 0)  # 19 of 20 calls of 2 ms; none after
    assert times["dequant_compressed"].text == "1900 -> 0"


@pytest.mark.parametrize("side", [0, 1], ids=["reuse off", "reuse on"])
def test_one_side_alone_is_shown(side):
    (table,) = tables([cells()[side]])
    assert f"equal inputs, reuse {['off', 'on'][side]}, " in table.title
    assert [cells[4].text for cells in table.rows] == [["15", "19"], ["15"]][side]


def test_modes_that_repeat_the_same_share_a_table_of_their_largest_cells():
    (eager, graph) = tables([*cells(1), *cells(4), *cells(1, graph=True)])
    assert eager.notes[0].startswith("eager, batch 4 x 1024; kv v41+fp4")
    places = [cells[2].text for cells in graph.rows]
    assert (graph.notes[0].split(";")[0], places) == ("graph, batch 1 x 1024", ["", "break"])
    alike = [replace(one, counts=counts(one.variant["reuse"], "break")) for one in cells(1)]  # as if breaks were eager
    assert [table.notes[0].split(";")[0] for table in tables([*alike, *cells(1, graph=True)])] == [
        "eager, batch 1 x 1024"
    ]


def test_what_differs_between_modes_is_in_tables_of_their_own():
    found = tables([*cells(1), *cells(1, graph=True, on=())])
    assert [table.rows[0][4].text for table in found] == ["15", "15 -> 0"]


@pytest.mark.parametrize("rows", [None, ()], ids=["not looked at", "nothing repeated"])
def test_without_repeated_calls_there_is_no_table(rows):
    assert tables(cells(off=rows, on=rows)) == []


def test_tables_fit_a_pipe_become_markdown_and_csv_keeps_the_plain_numbers():
    (table,) = tables(cells(device_time=TIME))
    assert max(map(len, plain(table).splitlines())) <= 80
    assert "| dequant\\_compressed | 20 | eager | 20 -> 1 | 19 -> 0 | 362.4 MiB -> 0 B | 1900 -> 0 |" in markdown(table)
    assert "dequant_compressed,20,eager,20,1,19,0,19,0,380000000,0,1900000,0" in csv_text([table])


def test_what_a_trace_repeats_says_that_it_is_inferred_longest_time_first():
    rows = [
        InferredRow("combine", 20, 40, 30, (15, 15), 90_000),
        InferredRow("dequant_compressed", 20, 40, 37, (18, 19), 1_900_000),
    ]
    table = repeated_table(rows)
    assert [[one.text for one in cells] for cells in table.rows] == [
        ["dequant_compressed", "20", "40", "37", "18..19", "1.900"],
        ["combine", "20", "40", "30", "15", "0.0900"],
    ]
    assert "inferred" in table.notes[0]
    assert max(map(len, plain(table).splitlines())) <= 80
