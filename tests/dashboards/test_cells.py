"""What is said of the cells of a table: once, and with its cells where it is not said of all that ran."""

from dataclasses import replace

import pytest

from dsv4bench.dashboards.cells import PADDED, heading, in_step, rows_notes, said_of
from dsv4bench.dashboards.render import plain
from dsv4bench.dashboards.tables import tables
from dsv4bench.workloads.step_scope import in_words
from tests.results.synthetic import NOTHING, record, with_variant
from tests.workloads.stacks import variant


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["ok x", "ok x"], ["x"]),
        (["ok x", "ok"], ["x (eager, batch 1 x 1024)"]),
        (["ok x", "skipped"], ["x"]),
        (["ok x", "ok", "skipped"], ["x (eager, batch 1 x 1024)"]),
        (["ok x", "wrong"], ["x (eager, batch 1 x 1024)"]),
        (["ok", "skipped x"], ["x (eager, batch 2 x 1024)"]),
        (["ok", "ok"], []),
    ],
    ids=["all", "one", "all that ran", "one that ran", "the one that is right", "the one that did not run", "none"],
)
def test_what_is_said_of_all_that_ran_names_no_cells(cells, said):
    records = [
        replace(record(batch), **({} if status == "ok" else NOTHING | {"reason": "why"}), status=status, note=said_here)
        for batch, (status, *said_here) in enumerate(map(str.split, cells), start=1)
    ]
    assert said_of(records, lambda one: one.note) == said


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["ok x", "ok x", "ok", "ok"], ["x (a)"]),
        (["ok x", "ok x", "ok y", "ok y"], ["x (a)", "y (b)"]),
        (["ok x", "ok x", "ok x", "ok x"], ["x"]),
        (["ok x", "ok", "ok", "ok"], ["x (eager, batch 1 x 1024)"]),
        (["ok x", "ok x", "ok x", "ok"], ["x (eager, batch 1 x 1024, 2 x 1024, 3 x 1024)"]),
        (["ok x", "skipped", "ok", "ok"], ["x (a)"]),
        (["ok", "ok", "ok x", "failed x"], ["x (b)"]),
        (["ok", "ok", "failed x", "failed x"], ["x (b)"]),
        (["ok", "ok", "failed x", "failed"], ["x (eager, batch 3 x 1024)"]),
    ],
    ids=[
        "one part",
        "each its own",
        "both",
        "one of a part",
        "more than a part",
        "all that ran of a part",
        "what failed of a part too",
        "a part that failed",
        "one of a part that failed",
    ],
)
def test_what_is_said_of_a_whole_part_names_the_part(cells, said):
    records = [
        replace(record(batch), **({} if status == "ok" else NOTHING | {"reason": "why"}), status=status, note=said_here)
        for batch, (status, *said_here) in enumerate(map(str.split, cells), start=1)
    ]
    assert said_of(records, lambda one: one.note, {"a": records[:2], "b": records[2:]}) == said


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["4% of it", "12% of it", "9% of it"], ["4% to 12% of it"]),
        (["41% and 4%", "41% and 6%"], ["41% and 4% to 6%"]),
        (["1 rank, 4%", "2 ranks, 4%"], ["1 rank, 4% (eager, batch 1 x 1024)", "2 ranks, 4% (eager, batch 2 x 1024)"]),
        (
            ["other load on the CPU: 1.8 of 2 cores", "other load on the CPU: 10.2 of 2 cores"],
            ["other load on the CPU: 1.8 to 10.2 of 2 cores"],
        ),
        (["coverage: 623 attributed", "coverage: 589 attributed"], ["coverage: 589 to 623 attributed"]),
    ],
    ids=["one share", "one of two shares", "other words", "loads", "counts"],
)
def test_sentences_that_differ_in_shares_or_counts_are_one(texts, said):
    records = [replace(record(batch), note=[text]) for batch, text in enumerate(texts, start=1)]
    assert said_of(records, lambda one: one.note) == said


def test_tables_that_show_padded_rows_say_what_the_two_numbers_are():
    cells = [record(batch, reuse, graph=True) for batch in (1, 8) for reuse in ("off", "on")]
    padded = [replace(one, batch={**one.batch, "rows": 1000, "padded_rows": 1024}) for one in cells]
    found = tables(padded)
    shows = ["1000/1024" in plain(table) for table in found]
    assert shows.count(True) == 2  # of times and of memory
    assert [PADDED in table.notes for table in found] == shows


def test_rows_without_padding_need_no_note():
    assert rows_notes([record(1), record(8)]) == []


@pytest.mark.parametrize("mhc", ["off", "on"])
@pytest.mark.parametrize("moe", ["off", "collectives", "experts"])
def test_titles_say_what_is_in_the_step_in_the_words_of_the_notes(moe, mhc):
    switches = {"moe": moe, "mhc": mhc}
    assert in_step(switches) == in_words(variant(**switches)).removesuffix(" only")


@pytest.mark.parametrize(
    ("switches", "switched", "said"),
    [
        ({}, (), "Times, attention stack of v41-flash: measured, gpu, NVIDIA H200"),
        ({"moe": None, "mhc": None}, (), "Times, attention stack of v41-flash: measured, gpu, NVIDIA H200"),
        ({"moe": "experts"}, (), "Times, attention stack and a MoE of v41-flash: measured, gpu, NVIDIA H200"),
        ({"moe": "experts"}, ("moe",), "Times, attention stack of v41-flash: measured, gpu, NVIDIA H200"),
    ],
    ids=["said to be off", "an older record", "more than attention", "on one side alone"],
)
def test_a_title_says_what_both_sides_have_in_the_step(switches, switched, said):
    assert heading("Times", with_variant(record(), **switches), *switched) == said
