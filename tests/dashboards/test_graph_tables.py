"""The table of a graph's form: a row for each bucket, what runs in breaks, and what the copies move."""

import csv
import io
from dataclasses import replace

from dsv4bench.dashboards.cells import mode_text
from dsv4bench.dashboards.graph_tables import graph_tables
from dsv4bench.dashboards.render import csv_text, plain
from dsv4bench.results.compare import pairs
from tests.results.synthetic import counts, record, row, with_variant

COPIES = [row("break_copy", 2, "break", 60)]


def graph(bucket, capture_ns, copied=0):
    return {"bucket": bucket, "segments": 49, "breaks": 52, "graph_launches": 49, "capture_ns": capture_ns,
            "memory_bytes": 2**20, "copied_bytes": copied}  # fmt: skip


def cells(breaks="sm100", outputs="copy", device=True, each=(), extra=COPIES):
    """A graph cell with reuse off and one with reuse on."""
    found = []
    for reuse in ("off", "on"):
        one = record(graph=True, reuse=reuse, counts=counts(reuse, "break", device=device, extra=extra))
        one = replace(one, graph={**one.graph, "each": list(each) or [graph(1024, 10**9, 3 * 2**30)]})
        found.append(with_variant(one, **{"breaks": breaks, "break-outputs": outputs}))
    return found


def table_of(records):
    (found,) = graph_tables(pairs(records, "reuse", "off", "on"))
    return found


def shown(records):
    columns, texts = table_of(records).shown()
    return [dict(zip([column.title for column in columns], one, strict=True)) for one in texts]


def test_a_row_by_hand():
    """Breaks hold 38 or 4 dequants, 40 of windows, 40 attentions and 60 copies; the products lie in segments."""
    assert shown(cells()) == [
        {
            "batch": "1 x 1024",
            "mode": "graph",
            "bucket": "1024",
            "graphs": "49",
            "breaks": "52",
            "in breaks": "178 -> 144",
            "copied": "3.000 GiB",
            "capture": "1.00 s",
            "memory": "1.000 MiB",
        }
    ]


def test_every_bucket_has_a_row_and_the_first_one_was_counted():
    rows = shown(cells(each=[graph(512, 10**9), graph(64, 2 * 10**8)]))
    assert [(one["bucket"], one["in breaks"], one["capture"]) for one in rows] == [
        ("512", "178 -> 144", "1.00 s"),
        ("64", "", "200 ms"),
    ]


def test_a_side_that_was_not_run_is_no_number():
    assert [one["in breaks"] for side in cells() for one in shown([side])] == ["178", "144"]


def test_only_a_table_of_both_sides_says_whose_capture_it_shows():
    said = ["with reuse on" in " ".join(table_of(records).notes) for records in (cells(), cells()[:1], cells()[1:])]
    assert said == [True, False, False]


def test_calls_stand_for_launches_where_there_is_no_gpu():
    assert [
        one["in breaks"] for one in shown(cells(device=False, extra=[row("break_copy", 2, "break", 60, device=False)]))
    ] == ["178 -> 144"]


def test_forms_share_a_table_and_the_notes_tell_them_apart():
    found = table_of([*cells(), *cells("hopper", "static", extra=())])
    assert [texts[1] for texts in found.shown()[1]] == ["graph sm100", "graph hopper static"]
    assert [note for note in found.notes if note.startswith("breaks ")] == [
        "breaks sm100: attention cores, source projections and full top-k layers, 60 copies"
        " (graph sm100, batch 1 x 1024)",
        "breaks hopper: attention cores and whole source steps, 0 copies (graph hopper static, batch 1 x 1024)",
    ]


def test_an_older_record_shows_the_sum_of_its_graphs():
    (one,) = shown([record(graph=True, reuse=reuse) for reuse in ("off", "on")])
    assert (one["mode"], one["graphs"], one["breaks"], one["in breaks"]) == ("graph", "49", "48", "118 -> 84")
    assert "bucket" not in one


def test_nothing_captured_is_no_table():
    assert graph_tables(pairs([record(), record(reuse="off")], "reuse", "off", "on")) == []


def test_csv_has_plain_numbers_of_both_sides():
    (first,) = csv.DictReader(line for line in io.StringIO(csv_text([table_of(cells())])) if not line.startswith("#"))
    assert (first["bucket"], first["break_launches_before"], first["break_launches_after"]) == ("1024", "178", "144")
    assert (first["break_calls_after"], first["break_copies_after"]) == ("144", "60")
    assert (first["copied_bytes"], first["capture_ns_after"]) == (str(3 * 2**30), "1000000000")


def test_the_table_is_read_in_80_columns():
    """Also with 64 requests, the largest bucket and the 21.5 GiB that it copies."""
    large = [
        replace(one, batch={**one.batch, "requests": 64, "extend": 128})
        for one in cells(each=[graph(8192, 10**9, 43 * 2**29)])
    ]
    assert max(map(len, plain(table_of(large)).splitlines())) <= 80


def test_a_mode_names_the_form_of_its_breaks():
    eager = with_variant(record(), **{"breaks": None, "break-outputs": None})
    full = with_variant(record(graph=True), **{"graph-mode": "full", "breaks": None, "break-outputs": None})
    graphs = [cells(breaks, outputs)[0] for breaks in ("sm100", "hopper") for outputs in ("copy", "static")]
    assert [mode_text(one) for one in (eager, full, record(graph=True), *graphs)] == [
        *("eager", "full graph", "graph"),
        *("graph sm100", "graph sm100 static", "graph hopper", "graph hopper static"),
    ]
