"""Records of older versions: what they left unsaid is filled in, and nothing that they say is changed."""

import copy
import json
from pathlib import Path

import pytest

from dsv4bench.results.migrations import MIGRATIONS, migrate, unsaid_switches
from dsv4bench.results.record import SCHEMA
from dsv4bench.results.schema import NAMES, decode, encode
from dsv4bench.results.store import read_records
from tests.results.synthetic import record

RESULTS = Path(__file__).parents[2] / "results"
FIRST = {"kv": "v4", "reuse": "on", "compressor": "fused", "graph": False, "graph-mode": "breakable", "chunk": 8192}
LATER = {"replay": "off", "path": "sparse", "breaks": None, "break-outputs": None, "moe": "off", "mhc": "off"}


def lines(run):
    return (RESULTS / run / "records.jsonl").read_text().splitlines()


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (FIRST, FIRST | LATER),
        (FIRST | {"graph": True}, FIRST | LATER | {"graph": True, "breaks": "sm100", "break-outputs": "static"}),
        (FIRST | {"graph": True, "graph-mode": "full"}, FIRST | LATER | {"graph": True, "graph-mode": "full"}),
        (FIRST | {"replay": "on", "path": "recipe"}, FIRST | LATER | {"replay": "on", "path": "recipe"}),
        (FIRST | {"breaks": "hopper"}, FIRST | LATER | {"breaks": "hopper"}),
        (FIRST | {"moe": "experts"}, FIRST | LATER | {"moe": "experts"}),
        (FIRST | {"mhc": "on"}, FIRST | {"mhc": "on"}),
        ({"provider": "triton", "seed": 0}, {"provider": "triton", "seed": 0}),
    ],
    ids=["eager", "graph", "full-graph", "before-breaks", "before-moe", "before-mhc", "all-said", "kernel"],
)
def test_switches_that_came_later_say_what_ran(said, found):
    old = {"key": "k", "variant": said}
    kept = copy.deepcopy(old)
    assert unsaid_switches(old) == {"key": "k", "variant": found}
    assert old == kept


@pytest.mark.parametrize("plain", [{}, {"variant": None}, {"variant": [1]}], ids=["none", "null", "list"])
def test_a_record_without_a_variant_is_left_to_the_reader(plain):
    assert migrate(plain, 1) is plain


def test_every_version_from_its_own_on_is_applied(monkeypatch):
    monkeypatch.setitem(MIGRATIONS, 2, lambda found: {**found, "two": True})
    monkeypatch.setitem(MIGRATIONS, 1, lambda found: {**found, "one": "two" not in found})
    assert migrate({}, 1) == {"one": True, "two": True}
    assert migrate({}, 2) == {"two": True}
    assert migrate({}, 3) == {}


def test_no_version_is_newer_than_what_is_written():
    assert set(MIGRATIONS) <= set(range(1, SCHEMA + 1))


# which switches and fields the committed runs of each version lack
COMMITTED = [
    (
        "h200-prefix-64k",
        {*LATER},
        {"timing", "providers", "kernel", "traces"},
    ),
    ("h200-kv-v4", {*LATER}, {"providers", "kernel", "traces"}),
    (
        "h200-default",
        {"breaks", "break-outputs", "moe", "mhc"},
        {"capture_ledger", "device_time", "redundant", "traces"},
    ),
    ("h200-graph-static", {"moe", "mhc"}, {"ab"}),
]


@pytest.mark.parametrize(("run", "switches", "fields"), COMMITTED, ids=[run for run, *_ in COMMITTED])
def test_a_committed_run_of_an_older_version_is_read_whole(run, switches, fields):
    plain = [json.loads(line) for line in lines(run)]
    assert all(fields <= set(NAMES) - set(one) for one in plain)
    assert all(switches == {*LATER} - set(one["variant"]) for one in plain)
    found = [decode(line, run) for line in lines(run)]
    assert all(set(LATER) <= set(one.variant) for one in found)
    assert [list(one.variant) for one in found] == [list(found[0].variant)] * len(found)
    for old, new in zip(plain, found, strict=True):
        assert {name: new.variant[name] for name in old["variant"]} == old.pop("variant")
        assert {name: getattr(new, name) for name in old} == old


def test_a_graph_of_before_breaks_had_names_is_one_that_copied_nothing():
    """The oracle is what was counted: a break that returns its tensors has a copy of each, one that writes has none."""
    default = {one.key: one for one in read_records(RESULTS / "h200-default").records if one.variant["graph"]}
    static = read_records(RESULTS / "h200-graph-static").records
    copied = {one.variant["break-outputs"]: {row["op"] for row in one.counts} for one in static}
    assert ("break_copy" in copied["copy"], "break_copy" in copied["static"]) == (True, False)
    assert not any(row["op"] == "break_copy" for one in default.values() for row in one.counts)
    assert {(one.variant["breaks"], one.variant["break-outputs"]) for one in default.values()} == {("sm100", "static")}
    assert {one.graph["breaks"] for one in default.values()} == {52}


def test_a_record_of_today_is_not_changed():
    one = record(variant=FIRST | LATER)
    assert decode(encode(one), "f:1") == one
