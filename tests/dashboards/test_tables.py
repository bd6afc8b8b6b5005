"""Tables: golden text for 80 columns, markdown and CSV, and the figures that must be in them."""

import csv
import io
import json
from dataclasses import replace

import pytest

from dsv4bench.dashboards.render import plain, said_once
from dsv4bench.dashboards.table import Table
from dsv4bench.dashboards.tables import FORMATS, show, tables
from dsv4bench.errors import UsageError
from dsv4bench.results.record import Record
from dsv4bench.results.schema import to_plain
from tests.dashboards.scenes import ENDINGS, SCENES, both_compressors, dealt, drawn, golden_file, wrong
from tests.results.synthetic import SHARE, counts, cpu_sweep, ramp, record, row, sweep, with_variant


def named(records, start):
    return [table for table in tables(records) if table.title.startswith(start)]


def texts(table):
    columns, rows = table.shown()
    return [dict(zip([column.title for column in columns], one, strict=True)) for one in rows]


def bare(key, variant=None, **changes):
    """A record with little in it but a time."""
    times = {"step_period": [1]}
    return Record(key=key, status="ok", samples_ns=times, variant={"reuse": "on", **(variant or {})}, **changes)


@pytest.mark.parametrize("form", ENDINGS)
@pytest.mark.parametrize("name", SCENES)
def test_tables_are_those_that_were_read_and_agreed(name, form):
    assert drawn(name, form) == golden_file(name, form).read_text()


@pytest.mark.parametrize("name", SCENES)
def test_a_terminal_of_80_columns_shows_every_line_whole(name):
    assert max(map(len, drawn(name, "table").splitlines())) <= 80


@pytest.mark.parametrize("name", SCENES)
def test_every_table_says_that_it_is_of_the_attention_stack_and_its_share_of_the_flops_once(name):
    found = tables(SCENES[name]())
    assert found
    for table in found:
        assert "attention stack of v41-flash" in table.title
        assert [note for note in table.notes if note.startswith(SHARE)] == [SHARE]


def test_every_table_of_a_full_graph_says_that_nobody_ships_it():
    best = "full graph: best case, nobody ships it"
    cells = [
        with_variant(
            record(reuse=reuse, graph=graph, note=[SHARE, best] if graph else [SHARE]), **{"graph-mode": "full"}
        )
        for graph in (False, True)
        for reuse in ("off", "on")
    ]
    (dequants, full_dequants), (times,), (memory,) = (named(cells, start) for start in ("KV", "Step", "Host"))
    assert best in full_dequants.notes
    assert not any(best in note for note in dequants.notes)
    for table in (times, memory):
        assert f"{best} (full graph, batch 1 x 1024)" in table.notes


def test_a_prediction_is_called_modelled():
    (table,) = named(sweep(), "Step time")
    assert [note for note in table.notes if note.startswith("pred (modelled): rows not dequantised again")]


def test_a_prediction_says_in_which_cells_it_is_the_hosts_time():
    calls = {"saved_ns": 141_000.0, "saved_calls": 34, "submit_ns_a_call": 30_000.0}
    cells = [
        record(batch, reuse, predicted=calls, flags=["launch-bound"] if batch == 1 else [])
        for batch in (1, 8)
        for reuse in ("off", "on")
    ]
    (table,) = named(cells, "Step time")
    assert [row["pred us"] for row in texts(table)] == ["-1020", "-141.0"]
    said = "pred, launch-bound: not bytes but 34 dequants x 30.0 us to submit one (eager, batch 1 x 1024)"
    assert [note for note in table.notes if "submit" in note] == [said]


def test_the_headline_says_38_to_4_per_forward_and_40_to_40():
    eager, graph = named(sweep(), "KV dequants")
    assert [(line["kv_source"], line["calls"]) for line in texts(eager)] == [
        ("2", "6 -> 1"), ("8", "6 -> 1"), ("14", "6 -> 1"), ("20", "20 -> 1"), ("all", "38 -> 4"), ("all", "40 -> 40"),
    ]  # fmt: skip
    assert {line["where"] for line in texts(graph)} == {"break"}
    assert eager.notes[0] == "no other kernel or copy added: true"
    assert eager.title.endswith("attention stack of v41-flash: measured, gpu, NVIDIA H200")


def test_an_added_copy_turns_the_line_false_and_is_named():
    red, _ = named(wrong(), "KV dequants")
    assert red.notes[:2] == ("no other kernel or copy added: false", "added: other (kv_source 8, eager): copies 0 -> 5")
    assert "[wrong]" in red.notes[2]


def test_a_dequant_that_was_lost_is_seen_in_the_headline():
    stale = [one for one in counts("on") if (one["op"], one["kv_source"]) != ("dequant_compressed", 8)]
    (table,) = named([record(reuse="off"), record(counts=stale)], "KV dequants")
    assert [line["calls"] for line in texts(table)][:5] == ["6 -> 1", "6 -> 0", "6 -> 1", "20 -> 1", "38 -> 3"]


def test_one_side_alone_is_shown_as_one_side():
    (table,) = named([record(reuse="on")], "KV dequants")
    assert "reuse on," in table.title
    assert [line["calls"] for line in texts(table)] == ["1", "1", "1", "1", "4", "40"]
    assert table.notes[0].startswith("no other kernel or copy added: not compared")


@pytest.mark.parametrize("reuse", ["off", "on"])
def test_of_one_side_no_table_speaks_of_two(reuse):
    for table in tables([record(reuse=reuse), record(2, reuse)]):
        shown = " ".join([table.title, *(line for row in texts(table) for line in [*row, *row.values()])])
        assert f"reuse {reuse}" in table.title
        assert not {"->", "before", "after", "diff", "-"} & set(shown.split()), table.title
    (times,) = named([record(reuse=reuse)], "Step time")
    assert "step ms" in texts(times)[0]
    assert not any("diff:" in note or "pred" in note for note in times.notes)


def form(breaks, outputs="copy", graph=True):
    return with_variant(record(graph=graph), breaks=breaks if graph else None, **{"break-outputs": outputs})


def test_a_mode_of_one_form_says_it_once_behind_the_table():
    (table,) = named([form("sm100", graph=False), form("sm100", "static")], "Step time")
    assert [line["mode"] for line in texts(table)] == ["eager", "graph"]
    assert "graph: breaks sm100, their outputs static" in table.notes


def test_modes_of_several_forms_say_theirs_in_every_row():
    (table,) = named([form("sm100"), form("hopper"), form("sm100", "static")], "Step time")
    assert [line["mode"] for line in texts(table)] == ["graph sm100", "graph hopper", "graph sm100 static"]
    assert not any("breaks sm100, their outputs" in note for note in table.notes)


def test_a_cell_that_never_ran_has_no_memory_and_no_kernels_ran_on_anything():
    two = {"dequant": "sglang", "combine": "triton"}
    never = record(status="failed", reason="no", samples_ns={}, counts=[], checks=[], memory={}, providers=two)
    assert named([never], "Host submit") == []
    assert not any("kernels ran on" in note for table in tables([never]) for note in table.notes)


def test_others_that_kernels_ran_on_are_named_in_the_order_of_the_record():
    """As often as one another: an order that a set gave would change from one process to the next."""
    kernels = ("combine", "compress_c1", "compress_c2", "dequant", "rope", "store")
    alone = {kernel: f"own-{place}" for kernel, place in zip(kernels, (5, 2, 4, 0, 3, 1), strict=True)}
    cell = record(providers={**alone, "index_key": "triton", "rms_norm": "triton"})
    said = "; ".join(f"{kernel} on {name}" for kernel, name in alone.items())
    assert f"kernels ran on triton, but {said}" in named([cell], "KV dequants")[0].notes


def test_counts_that_vary_between_cells_are_shown_as_a_span():
    wide = [row("store", None, "eager", 3, each=2)]
    cells = [
        record(batch, reuse, counts=counts(reuse, extra=wide[:0] if batch == 1 else []))
        for batch in (1, 8)
        for reuse in ("off", "on")
    ]
    for cell, each in zip(cells, (1, 1, 3, 3), strict=True):
        cell.counts.append(row("o_proj_a", None, "eager", 40, each=each))
    (table,) = named(cells, "Device operations")
    assert {line["op"]: line["kernels"] for line in texts(table)}["o_proj_a"] == "40..120"


def test_a_cpu_counts_calls_and_aten_operations_under_their_name():
    (table,) = named(cpu_sweep(), "Aten operations (CPU reference)")
    assert list(texts(table)[0]) == ["op", "where", "calls", "aten operations"]
    assert any("not launches on a GPU" in note for note in table.notes)


AGREE = "eager = segments + breaks over the same rows, op by op"


def graph_cell(disagreement, mode="breakable"):
    """A graph cell whose eager twin, over live rows alone, did less: only the record knows what the same rows took."""
    padding = row("zero_padding", None, "break", 61)
    coverage = {**record().coverage, "disagreement": disagreement}
    cell = record(graph=True, counts=counts("on", "break", extra=[padding]), coverage=coverage)
    return with_variant(cell, **{"graph-mode": mode})


@pytest.mark.parametrize("mode", ["breakable", "full"])
def test_eager_is_set_beside_segments_and_breaks_as_the_record_says(mode):
    eager, graph = named([record(), graph_cell(None, mode)], "Device operations")
    assert f"{AGREE}: true" in graph.notes
    assert not any(AGREE in note for note in eager.notes)


def test_a_graph_that_does_otherwise_than_eager_is_told_in_the_words_of_its_record():
    (table,) = named([graph_cell("store: 3/0/0 eager, nothing in segments and breaks")], "Device operations")
    assert f"{AGREE}: false" in table.notes
    told = "the sources of counts disagree: store: 3/0/0 eager, nothing in segments and breaks"
    assert told in table.notes


def test_a_record_that_was_not_compared_with_eager_claims_nothing():
    cell = record(graph=True, coverage={"attributed": 200, "unattributed": 0, "ambiguous": 0, "method": "ledger"})
    (table,) = named([cell], "Device operations")
    assert not any(AGREE in note for note in table.notes)


def test_a_cell_that_could_not_run_is_a_row_with_its_reason():
    (table,) = named(sweep(), "Step time")
    last = texts(table)[-1]
    assert (last["batch"], last["mode"], last["before ms"], last["after ms"]) == (
        "64 x 128",
        "graph",
        "refused",
        "refused",
    )
    assert "refused: context 20000 is over the graph's limit of 16384 (graph, batch 64 x 128)" in table.notes


def test_a_difference_that_cannot_be_told_is_marked():
    noisy = [
        record(reuse=reuse, samples_ns={"step_period": ramp(10_000_000, step)})
        for reuse, step in (("off", 90_000), ("on", -90_000))
    ]
    (table,) = named([*noisy, record(8, "off"), record(8, "on")], "Step time")
    assert [line["change"] for line in texts(table)] == ["+0.00 % ?", "-2.50 %"]
    assert "? not resolvable here: the interval covers 0 (eager, batch 1 x 1024)" in table.notes


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ([{"variant": {"kv": kv}} for kv in ("v4", "v41")], 2),
        ([{"batch": {"prefix": prefix}} for prefix in (0, 8192, 65536)], 3),
        ([{"environment": {"commit": commit}} for commit in "ab"], 2),
        ([{"label": "measured"}, {"label": "simulated"}], 2),
        ([{"engine": "gpu"}, {"engine": "tape"}], 2),
    ],
    ids=["kv", "prefix", "commit", "label", "engine"],
)
def test_cells_of_other_settings_have_a_table_of_their_own(changes, parts):
    cells = [bare(str(number), **change) for number, change in enumerate(changes)]
    assert len(named(cells, "Step time")) == parts


def test_forwards_and_padding_are_shown_where_there_are_any():
    batch = {
        "requests": 4,
        "extend": None,
        "prefix": None,
        "rows": 8100,
        "padded_rows": 8192,
        "forwards": 3,
        "source": "lengths.jsonl",
    }
    (table,) = named([bare("k", batch=batch)], "Step time")
    line = texts(table)[0]
    assert (line["batch"], line["rows"], line["forwards"]) == ("4", "8100/8192", "3")
    assert "requests from lengths.jsonl" in table.notes[0]


def test_checks_and_flags_are_under_the_tables():
    (times,) = named(wrong(), "Step time")
    (memory,) = named(wrong(), "Host submit")
    assert "launch-bound (eager, batch 2 x 1024)" in times.notes
    assert texts(memory)[0]["checks"] == "1 of 3 WRONG"
    assert any(note.startswith("WRONG reused heads: layer 8: row 3 differs") for note in memory.notes)


@pytest.mark.parametrize(
    ("argv", "rows", "said"),
    [(["prefill"], 1, 0), (["prefill", "--quick"], 2, 1)],
    ids=["one command", "two commands"],
)
def test_rows_of_one_cell_by_two_commands_are_told_apart(argv, rows, said):
    first = [record(reuse=reuse) for reuse in ("off", "on")]
    again = [replace(one, argv=["dsv4bench", *argv]) for one in first]
    (table,) = named([*first, *again, record(2)], "Step time")
    assert len([row for row in texts(table) if row["batch"] == "1 x 1024"]) == rows
    note = "rows alike: one cell that several commands measured, in the order of their making"
    assert table.notes.count(note) == said


def test_ranks_are_shown_with_their_maximum_and_skew():
    (table,) = named(dealt(), "Ranks")
    lines = texts(table)
    assert [line["rank"] for line in lines] == ["0", "1", "step"]
    assert "simulated" in table.title
    assert lines[2]["skew %"] == "0.6"
    assert named(sweep(), "Ranks") == []


def test_free_ranks_are_not_said_to_have_waited_for_each_other():
    (table,) = named([with_variant(one, dep=2, align="free") for one in dealt()], "Ranks")
    meaning = {note.split(":")[0]: note for note in table.notes}
    assert meaning["step"].startswith("step: of the n-th samples of all ranks, taken at no common time, the longest")
    assert "longest" in meaning["slowest"]
    assert not [note for note in table.notes if "last one" in note or "in each sample" in note]
    (aligned,) = named([with_variant(one, dep=2) for one in dealt()], "Ranks")
    assert "slowest: the share of samples in which the rank was the last one" in aligned.notes
    assert [row[3:] for row in table.rows] == [row[3:] for row in aligned.rows]


def test_one_rank_has_no_table_of_ranks():
    alone = [replace(one, ranks=1, rank_samples_ns=one.rank_samples_ns[:1]) for one in dealt()]
    assert named(alone, "Ranks") == []


@pytest.mark.parametrize("side", [0, 1], ids=["before", "after"])
def test_ranks_of_one_side_have_no_arrows(side):
    (table,) = named([dealt()[side]], "Ranks")
    shown = [line[name] for line in texts(table) for name in ("slowest %", "skew %") if line[name]]
    assert len(shown) == 3
    assert not any("->" in one for one in shown)


def dealt_rows(rank_rows, padded):
    """The dealt cells with the live rows of each rank and the padded rows of all."""
    extra = {"rank_rows": rank_rows, "padded_rows": padded, "rows": sum(rank_rows or [4096])}
    return [replace(one, batch={**one.batch, **extra}) for one in dealt()]


def test_ranks_are_shown_with_their_live_rows_and_an_idle_one_is_named():
    (table,) = named(dealt_rows([1000, 0], 2000), "Ranks")
    assert [(line["rank"], line["live"]) for line in texts(table)] == [("0", "1000"), ("1", "idle"), ("step", "")]
    assert "live: new tokens of the rank; an idle one has none" in table.notes
    assert texts(table)[2]["skew %"] == "0.0"  # one rank at work falls behind nobody
    (without,) = named(dealt_rows(None, 4096), "Ranks")
    assert "live" not in texts(without)[0]
    assert not any(note.startswith("live") for note in without.notes)


def test_the_step_of_ranks_is_the_record_s_own_and_not_the_slowest_sum():
    # in two forwards the ranks take turns: 5 + 9 and 8 + 4 ms, and the step waits in each: 8 + 9
    ranks = [{"step_period": [14_000_000] * 6}, {"step_period": [12_000_000] * 6}]
    cells = [replace(one, samples_ns={"step_period": [17_000_000] * 6}, rank_samples_ns=ranks) for one in dealt()]
    (table,) = named(cells, "Ranks")
    assert [line["before ms"] for line in texts(table)] == ["14.00 ±0.00", "12.00 ±0.00", "17.00 ±0.00"]


@pytest.mark.parametrize(
    ("rank_rows", "padded", "shown"),
    [
        ([2048, 2048], 4096, "4096"),
        ([2000, 1000], 4096, "3000/4096"),
        ([1000, 0], 2048, "1000/2048"),
        (None, 2048, "4096"),
    ],
    ids=["even", "padded", "an idle rank is padded", "an older record holds the padded rows of one rank"],
)
def test_padding_of_dealt_cells_is_that_of_all_ranks(rank_rows, padded, shown):
    (table,) = named(dealt_rows(rank_rows, padded), "Step time")
    assert texts(table)[0]["rows"] == shown


def test_a_compressor_is_counted_beside_the_specification():
    (table,) = named(both_compressors(), "Launches")
    assert [tuple(line.values()) for line in texts(table)] == [
        (source, "61", "61", "4", "4") for source in ("2", "8", "14")
    ]
    (times,) = named(both_compressors(), "Step time, torch")
    assert [line["diff us"] for line in texts(times)] == ["-600.0 ±0.0", "-600.0 ±0.0"]
    assert named(sweep(), "Launches") == []


def test_other_formats_expect_62_launches():
    cells = [with_variant(one, kv="v4", compressor=one.variant["compressor"]) for one in both_compressors()]
    (table,) = named(cells, "Launches")
    assert [row[2].text for row in table.rows] == ["62", "62", "62"]


def test_samples_of_the_compressor_alone_have_a_table_of_their_own():
    cells = [
        with_variant(record(samples_ns={"step_period": [9], "compressor": [time]}), compressor=name)
        for name, time in (("torch", 5_000_000), ("fused", 500_000))
    ]
    (table,) = named(cells, "Ratio-2 compressor of one source alone")
    assert (table.rows[0][4].values[0], table.rows[0][5].values[0]) == (5_000_000, 500_000)


def test_csv_holds_plain_values():
    block = next(part for part in drawn("h200", "csv").split("\n\n") if part.startswith("# Step time"))
    rows = list(csv.DictReader(line for line in io.StringIO(block) if not line.startswith("#")))
    assert (rows[0]["requests"], float(rows[0]["before_ns"]), float(rows[0]["difference_low_ns"])) == (
        "1",
        20e6,
        -576e3,
    )
    assert (rows[5]["before_status"], rows[5]["before_ns"]) == ("refused", "")


def test_json_is_the_records_themselves():
    records = json.loads(shown("json"))
    assert [one["key"] for one in records] == [one.key for one in sweep()]
    assert records[0]["variant"]["reuse"] == "off"
    assert [json.loads(line) for line in shown("jsonl").splitlines()] == list(map(to_plain, sweep()))


def shown(form):
    stream = io.StringIO()
    show(sweep(), form, stream)
    return stream.getvalue()


def test_no_records_give_no_tables():
    assert tables([]) == []


def test_an_unknown_format_is_one_clear_line():
    with pytest.raises(UsageError, match=r"--format mark: expected one of table, md, csv, json, jsonl"):
        show([], "mark", io.StringIO())
    assert len(FORMATS) == 5


def test_a_cpus_launches_of_a_compressor_fit_80_columns():
    ops = {"torch": "compress_pool", "fused": "compress_c2"}
    cells = [
        with_variant(
            replace(one, counts=[{**row(ops[name], 2, "segment", 3), "aten_ops": 249}]), compressor=name, reuse="on"
        )
        for one in cpu_sweep()
        for name in ops
    ]
    (table,) = named(cells, "Launches")
    assert texts(table)[0]["torch aten"] == "249"
    assert max(map(len, plain(table).splitlines())) <= 80


def test_what_all_tables_say_is_said_once_behind_them():
    said = [Table(title, (), (), ("of all", title)) for title in ("first", "second")]
    assert [(table.title, table.notes) for table in said_once(said)] == [
        ("first", ("first",)),
        ("second", ("second",)),
        ("Of all these tables:", ("of all",)),
    ]


@pytest.mark.parametrize("notes", [[("one",)], [("one",), ("other",)], []], ids=["one", "nothing in common", "none"])
def test_tables_with_nothing_in_common_stay_as_they_are(notes):
    said = [Table("title", (), (), own) for own in notes]
    assert said_once(said) == said
