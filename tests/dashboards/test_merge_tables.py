"""Tables of joined runs: where records came from, what was left out, what is missing."""

from pathlib import Path

from dsv4bench.dashboards.markdown import markdown
from dsv4bench.dashboards.merge_tables import merge_tables
from dsv4bench.dashboards.render import csv_text, plain
from dsv4bench.results.merged import Merged, MissingGroup, PlanLeft, Session
from tests.results.synthetic import GPU, record

COMMAND = ("dsv4bench", "prefill", "--geometry", "a b.json")


def merged(*sessions, copies=0):
    """Return sessions x/1.jsonl, x/2.jsonl, ... of these records, and the names of their files in `all`."""
    found = [Session(Path(f"x/{n}.jsonl"), [b"{}"] * len(own), list(own)) for n, own in enumerate(sessions, start=1)]
    return Merged(found, copies), [Path("all") / one.file.name for one in found]


def text(*sessions, copies=0, plans=()):
    joined, files = merged(*sessions, copies=copies)
    return "\n".join(map(plain, merge_tables(joined, files, plans)))


def test_every_session_has_a_row():
    found = text([record(key="a"), record(key="b")], [record(key="c")])
    assert found.splitlines() == [
        "Joined in all: 3 records of 2 sessions",
        "file     records  from",
        "1.jsonl        2  x",
        "2.jsonl        1  x",
    ]


def test_what_was_left_out_and_what_is_there_twice_is_said():
    twice = [record(key="a"), record(key="b")]
    words = " ".join(text(twice, twice, [record(key="c", traces=["t.gz"])], copies=1).split())
    assert "left out: 1 line that an earlier file holds bit for bit" in words
    assert "2 cells of several sessions: each keeps its records in its own file, none is averaged" in words
    assert "tables show the newest of each machine and command" in words
    assert "records alone are joined: 1 trace left where the run is" in words


def test_several_machines_and_states_of_the_code_are_named():
    tree = {"name": "sglang", "commit": "beef"}
    changed = record(environment=GPU | {"commit": "deadbeef" * 5, "dirty": True, "diff": "1234", "src": tree})
    words = " ".join(text([record(), record()], [changed], [record(engine="cpu-reference")]).split())
    assert "2 machines: NVIDIA H200 (3), two cores (1)" in words
    assert "3 states of the code: c0ffeec (2), deadbee+1234, src sglang beef (1), c0ffeec+ (1)" in words


def test_one_machine_and_one_state_are_no_news():
    assert "machine" not in text([record()], [record(batch=2)])
    assert "code" not in text([record()], [record(batch=2)])


MISSING = (
    MissingGroup("batch 8", ("off", "on"), 2, "3/4"),
    MissingGroup("batch 64", ("mode eager, reuse on",), 2, "1/4"),
)


def test_missing_cells_are_rows_with_their_shard():
    joined, files = merged([record()])
    tables = merge_tables(joined, files, [PlanLeft(COMMAND, 14, MISSING)])
    assert plain(tables[1]).splitlines() == [
        "Plan of dsv4bench prefill --geometry 'a b.json': 14 cells, 3 without a record",
        "of the plan  without a record              shard",
        "batch 8      all 2                           3/4",
        "batch 64     1 of 2: mode eager, reuse on    1/4",
    ]
    assert csv_text(tables[1:]).splitlines()[1:] == [
        "group,cells,planned,shard",
        "batch 8,off; on,2,3/4",
        'batch 64,"mode eager, reuse on",2,1/4',
    ]


def test_a_run_that_was_not_sharded_has_no_such_column():
    found = text([record()], plans=[PlanLeft(COMMAND, 2, (MissingGroup("batch 8", ("off", "on"), 2),))])
    assert "shard" not in found


def test_a_whole_plan_and_one_that_is_not_known_are_told_apart():
    plans = [PlanLeft(COMMAND, 1), PlanLeft((), reason="no command is known")]
    joined, files = merged([record()])
    whole, unknown = merge_tables(joined, files, plans)[1:]
    assert plain(whole) == "Plan of dsv4bench prefill --geometry 'a b.json': 1 cell, each with a record\n"
    assert plain(unknown) == "Plan of no command: not known, so that cells may be missing\nno command is known\n"
    assert markdown(unknown).startswith("**Plan of no command: not known")
