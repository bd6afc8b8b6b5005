"""Outlines: what a frame is made of is what whole records would give, and no line passes that is no record."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from pandas.testing import assert_frame_equal

from dsv4bench.errors import RecordError
from dsv4bench.results import outline
from dsv4bench.results.frame import columns, typed
from dsv4bench.results.migrations import MIGRATIONS
from dsv4bench.results.outline import Outline, decode_outline
from dsv4bench.results.record import CLASSES, KINDS, Record
from dsv4bench.results.schema import NAMES, decode, encode, to_plain
from tests.results.synthetic import record, with_side
from tests.results.test_schema import records

RESULTS = Path(__file__).parents[2] / "results"
# a value of every kind that a field may wrongly have, and some that it may
VALUES = [None, True, -1, 10**30, 2.5, "word", [], [1], [{}], {}, {"a": 1}, {"a": []}, {"a": [1, 2]}, {"a": [1.5]}]
COUNT = {"op": "store", "kv_source": 2, "where": "segment", "calls": 3, "kernels": 3, "copies": 0, "sets": 1}


def told(line, read):
    """Return the columns that a line comes to, as text, or the words of its error."""
    try:
        return repr(columns([read(line, "f:1")]))
    except RecordError as error:
        return str(error)


def changed(**fields):
    return json.dumps(to_plain(with_side(record(), "a")) | fields).encode()


@given(records())
def test_an_outline_gives_the_columns_of_its_record(one):
    line = encode(one).encode()
    assert told(line, decode_outline) == told(line, decode)


def test_the_committed_runs_are_read_as_outlines():
    lines = [line for file in sorted(RESULTS.rglob("*.jsonl")) for line in file.read_bytes().splitlines()]
    found = [decode_outline(line, "here") for line in lines]
    assert {type(one) for one in found} == {Outline}
    whole = columns(decode(line, "here") for line in lines)
    assert_frame_equal(typed(columns(found)), typed(whole))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_field_of_another_kind_is_refused_in_the_same_words(name, value):
    line = changed(**{name: value})
    assert told(line, decode_outline) == told(line, decode)


@pytest.mark.parametrize("name", [*CLASSES, "where", "op"])
@pytest.mark.parametrize("value", [None, True, -1, 2.5, "word", 10**30], ids=repr)
def test_a_count_of_another_kind_is_refused_in_the_same_words(name, value):
    line = changed(counts=[COUNT, COUNT | {name: value}])
    assert told(line, decode_outline) == told(line, decode)


@pytest.mark.parametrize(
    "line",
    [
        changed()[:-30],
        changed(schema=2),
        changed(status="wrong", samples_ns={}, reason="bytes differ", checks=[{"name": "bytes", "passed": False}]),
        changed(checks=[{"name": "bytes", "passed": False}]),
        changed(checks=[{"name": "bytes", "passed": 1}]),
        changed(status="skipped"),
        changed(status="skipped", samples_ns={}),
        changed(ab={"side": "c"}),
        changed(label="dreamt"),
        changed(launches="many"),
        changed(note=["\ud800"]),
        changed(timing={"a": 0}).replace(b'{"a": 0}', b'{"a": "\xff"}'),
        changed(timing={"a": 0}).replace(b'{"a": 0}', b'{"a": 1e999}'),
        changed(variant={"graph": True, "kv": "v4"}),
        b"[" * 100_000,
        b'{"counts":' + b"[" * 100_000,
    ],
    ids=[
        *("torn", "newer", "wrong", "ok-but-wrong", "odd-truth", "skipped-with-a-time", "no-reason", "side", "label"),
        *("unknown-key", "half-a-pair", "no-text", "infinite", "older-variant", "nested", "counts-nested"),
    ],
)  # fmt: skip
def test_what_is_amiss_is_read_as_a_whole_record_is(line):
    assert told(line, decode_outline) == told(line, decode)


def test_an_outline_has_every_field_that_a_record_checks():
    assert set(NAMES) == set(KINDS) - {"extra"}
    assert set(NAMES) <= set(Outline.__struct_fields__)
    assert outline.Count.__struct_fields__ == ("where", *CLASSES)


class Watched(dict):
    """A record's plain values, with the names of those that were read."""

    def __init__(self, *values):
        super().__init__(*values)
        self.read = set()

    def get(self, name, default=None):
        self.read.add(name)
        return super().get(name, default)

    def __getitem__(self, name):
        self.read.add(name)
        return super().__getitem__(name)


@pytest.mark.parametrize("version", MIGRATIONS)
def test_a_migration_reads_and_changes_the_variant_alone(version):
    """An outline gives migrations nothing else."""
    old = Watched(json.loads((Path(__file__).parents[1] / "data" / "record-v1.jsonl").read_text().splitlines()[0]))
    new = MIGRATIONS[version](old)
    assert old.read == {"variant"}
    assert {name for name in new if new[name] != dict.get(old, name)} == {"variant"}


def test_a_whole_record_is_made_only_where_something_is_amiss():
    assert isinstance(decode_outline(changed(), "here"), Outline)
    assert isinstance(decode_outline(changed(note=["\u00e4"]).replace(b"\\u00e4", "ä".encode()), "here"), Record)
