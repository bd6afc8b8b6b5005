"""Tables of device time: what is summed, which cell is shown, and where the GPU waits."""

from dataclasses import replace

import pytest

from dsv4bench.dashboards.device_tables import device_tables
from dsv4bench.dashboards.markdown import markdown
from dsv4bench.dashboards.render import csv_text, plain
from dsv4bench.results.compare import pairs
from tests.results.synthetic import record

SEGMENT = "layer 2 inverse_rope .. layer 3 norm_rope_store"


def row(op, where, kv_source, device_ns):
    return {"op": op, "kv_source": kv_source, "where": where, "device_ns": device_ns, "operations": 1}


def piece(where, name, gap_ns, launches=1):
    return {
        "where": where,
        "name": name,
        "launches": launches,
        "operations": 6,
        "device_ns": 20_000,
        "gap_ns": gap_ns,
        "idle_ns": 1_000,
    }


def timed(where, dequants, pieces=(), **changes):
    rows = [row("dequant_compressed", where, source, ns) for source, ns in dequants.items()]
    rows += [row("sparse_attention", where, source, ns) for source, ns in {None: 500, 2: 100_000, 8: 123_400}.items()]
    return {
        "method": "launch correlation",
        "rows": rows,
        "unattributed_ns": 0,
        "span_ns": 1_000_000,
        "idle_ns": 250_000,
        "pieces": list(pieces),
        "unmatched": [],
        **changes,
    }


def cells(batch=1, graph=False, **changes):
    where, pieces = ("break", [piece("segment", SEGMENT, 0), *PIECES]) if graph else ("eager", [])
    off = record(batch, "off", graph=graph, device_time=timed(where, {2: 60_000, 8: 60_000}, pieces, **changes))
    on = record(batch, "on", graph=graph, device_time=timed(where, {2: 10_000, 8: 10_000}, pieces, **changes))
    return [off, on]


PIECES = [piece("break", f"layer {layer} combine .. sparse_attention", 2_000 * layer, 4) for layer in range(1, 13)]


def tables(records):
    return device_tables(pairs(records, "reuse", "off", "on"))


def test_times_stand_by_kv_source_and_before_beside_after():
    (table,) = tables(cells())
    assert plain(table).splitlines()[2:6] == [
        "op                  where      2      8    none  off us  on us",
        "sparse_attention    eager  100.0  123.4  0.5000   223.9  223.9",
        "dequant_compressed  eager  10.00  10.00           120.0  20.00",
        "all                        110.0  133.4  0.5000   343.9  243.9",
    ]
    assert "not the time of a step" in " ".join(table.notes)
    assert any(note.startswith("coverage 100.00 %: 200 attributed") for note in table.notes)


def test_csv_has_both_sides_of_every_source():
    text = csv_text(tables(cells()))
    assert (
        "op,where,2_before_ns,2_after_ns,8_before_ns,8_after_ns,none_before_ns,none_after_ns,before_ns,after_ns" in text
    )
    assert "dequant_compressed,eager,60000,10000,60000,10000,,,120000,20000" in text


def test_what_found_no_place_on_one_side_is_a_row_so_that_the_rows_add_up():
    off, on = cells()
    seen = {**on.device_time, "unattributed_ns": 150_000}
    seen["rows"] = [one for one in seen["rows"] if one["kv_source"] != 8]
    (table,) = tables([off, replace(on, coverage=on.coverage | {"unattributed": 3}, device_time=seen)])
    assert plain(table).splitlines()[2:7] == [
        "op                  where      2  8    none  off us  on us",
        "unattributed                                      0  150.0",
        "sparse_attention    eager  100.0     0.5000   223.9  100.5",
        "dequant_compressed  eager  10.00              120.0  10.00",
        "all                        110.0  0  0.5000   343.9  260.5",
    ]
    assert (
        "unattributed: 150.0 us of reuse on found no place: its other rows may be too low by as much (eager, batch 1 x"
        " 1024)" in table.notes
    )
    assert any("200 attributed, 3 unattributed, 0 ambiguous" in note for note in table.notes)


def test_what_found_no_place_has_no_kv_source():
    (table,) = tables(cells(unattributed_ns=1_000))
    (loose,) = [row for row in table.rows if row[0].text == "unattributed"]
    assert [one.values for one in loose] == [("unattributed",), (None,), *[(None, None)] * 3, (1_000,), (1_000,)]
    assert table.rows[-1][-1].values == (244_900,)
    assert [row[0].text for row in tables(cells())[0].rows] == ["sparse_attention", "dequant_compressed", "all"]


def test_copies_and_fills_under_each_others_name_are_told():
    records = [replace(one, coverage=one.coverage | {"misnamed": 17}) for one in cells()]
    (table,) = tables(records)
    assert "copies and fills under each other's name in the trace, told by their place in the graph: 17" in table.notes


def test_what_did_not_match_is_told():
    (table,) = tables(cells(unmatched=["segment 0: kernels _rope ran 1 times, 2 captured"]))
    assert "not matched: segment 0: kernels _rope ran 1 times, 2 captured" in table.notes


@pytest.mark.parametrize("side", [0, 1], ids=["reuse off", "reuse on"])
def test_one_side_alone_is_shown(side):
    (table,) = tables([cells()[side]])
    shown = {cell[0].text: [one.text for one in cell[-2:]] for cell in table.rows}
    expected = [["120.0", ""], ["", "20.00"]][side]
    assert shown["dequant_compressed"] == expected
    assert f"reuse {['off', 'on'][side]}" in " ".join(table.notes)


def test_the_largest_cell_of_each_mode_is_shown():
    found = tables([*cells(1), *cells(4), *cells(1, graph=True)])
    assert [table.notes[0].split(";")[0] for table in found] == [
        "eager, batch 4 x 1024",
        "graph, batch 1 x 1024",
        "graph, batch 1 x 1024",
    ]
    assert "of 1 more the records hold it" in found[0].notes[0]


def test_the_largest_gaps_are_named_and_all_are_added_up():
    table = tables(cells(graph=True))[1]
    assert table.title.startswith("Where the GPU waits in one replay, reuse on")
    lines = plain(table).splitlines()
    assert lines[2:5] == [
        "piece                           where    host  device us  gap us  idle us",
        "12 combine .. sparse_attention  break       4      20.00   24.00    1.000",
        "11 combine .. sparse_attention  break       4      20.00   22.00    1.000",
    ]
    assert [[one.text for one in row] for row in table.rows[-3:]] == [
        ["all 1", "segment", "1", "6", "20.00", "0", "1.000"],
        ["all 12", "break", "48", "72", "240.0", "156.0", "12.00"],
        ["all", "", "49", "78", "260.0", "156.0", "13.00"],
    ]
    assert "first start to last end 1.000 ms, of it nothing ran for 250.0 us (25.00 %)" in table.notes


def test_tables_fit_a_pipe_and_become_markdown():
    found = tables([*cells(1), *cells(1, graph=True)])
    assert max(len(line) for table in found for line in plain(table).splitlines()) <= 80
    assert "| sparse\\_attention | eager | 100.0 | 123.4 | 0.5000 | 223.9 | 223.9 |" in markdown(found[0])


def test_records_without_device_time_have_no_table():
    assert tables([record(1, "off"), record(1, "on")]) == []
