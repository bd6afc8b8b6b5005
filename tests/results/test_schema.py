"""Records as lines: what is written comes back, old files stay readable, what cannot be read says where and why."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.errors import RecordError
from dsv4bench.results.record import ENGINES, LABELS, PLACES, STATUSES, Record
from dsv4bench.results.schema import NAMES, decode, encode
from dsv4bench.results.store import read_records
from tests.results.synthetic import record, with_side

OLD_FILE = Path(__file__).parents[1] / "data" / "record-v1.jsonl"

words = st.text(max_size=12)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(words, plain, max_size=3)
whole = st.integers(min_value=0, max_value=2**60)
samples = st.dictionaries(words, st.lists(whole, min_size=1, max_size=5), min_size=1, max_size=3)
count_rows = st.fixed_dictionaries(
    {"op": words, "kv_source": st.none() | whole, "where": st.sampled_from(PLACES), "calls": st.none() | whole}
)
checks = st.fixed_dictionaries({"name": words, "passed": st.just(True), "detail": words})


@st.composite
def records(draw):
    status = draw(st.sampled_from(STATUSES))
    return Record(
        key=draw(words),
        status=status,
        reason=None if status == "ok" else draw(st.text(min_size=1)),
        samples_ns=draw(samples) if status == "ok" else {},
        rank_samples_ns=draw(st.none() | st.lists(samples, max_size=2)),
        label=draw(st.sampled_from(LABELS)),
        engine=draw(st.sampled_from(ENGINES)),
        note=draw(st.lists(words, max_size=2)),
        batch=draw(objects),
        variant=draw(objects),
        counts=draw(st.lists(count_rows, max_size=3)),
        checks=draw(st.lists(checks, max_size=2)),
        timing=draw(st.none() | objects),
        predicted=draw(st.none() | objects),
        environment=draw(objects),
        argv=draw(st.lists(st.text(st.characters(), max_size=5), max_size=2)),
        extra=draw(st.dictionaries(words.filter(lambda word: word not in NAMES), plain, max_size=2)),
    )


@given(records())
def test_a_record_comes_back_as_it_was(one):
    line = encode(one)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert line.isascii()
    assert decode(line, "memory:1") == one


def test_unknown_keys_are_kept():
    line = encode(record()).replace("{", '{"colour":"blue",', 1)
    assert decode(line, "f:1").extra == {"colour": "blue"}
    assert json.loads(encode(decode(line, "f:1")))["colour"] == "blue"


def test_missing_keys_are_defaulted():
    assert decode('{"key":"k","status":"skipped","reason":"none"}', "f:1") == Record(
        key="k", status="skipped", reason="none"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "f:7: not JSON"),
        (b"\xff\xfe", "f:7: not JSON"),
        ("[1]", "f:7: expected an object, found list"),
        ('{"schema": 2, "key": "k"}', "f:7: written with schema 2, this version reads up to schema 1"),
        ('{"status": "skipped", "reason": "r"}', "f:7: not a record: .*'key'"),
        ('{"key": "k", "status": "ok"}', "f:7: not a record: status 'ok' without samples"),
        ('{"key": "k", "status": 5}', "f:7: not a record: status: expected str"),
        ('{"key": "k", "status": "skipped", "reason": "r", "checks": 1}', "f:7: not a record: checks: expected list"),
    ],
    ids=["half", "bytes", "list", "newer", "no-key", "no-samples", "kind", "kind-list"],
)
def test_what_is_no_record_says_where_and_why(line, message):
    with pytest.raises(RecordError, match=message):
        decode(line, "f:7")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"session": None}, "ab.session: expected a name, found None"),
        ({"side": "c"}, "ab.side: expected a or b, found 'c'"),
        ({"side": ["a"]}, "ab.side: expected a or b, found ['a']"),
        ({"sides": {"a": "reuse=off"}}, "ab.sides: expected what a and b are, found {'a': 'reuse=off'}"),
        ({"sides": ["a", "b"]}, "ab.sides: expected what a and b are"),
        ({"pair": "x"}, "ab.pair: expected a whole number or null, found 'x'"),
        ({"block": 0}, "ab.block: expected a whole number from 1 on, found 0"),
        ({"block": True}, "ab.block: expected a whole number from 1 on, found True"),
        ({"aa": "no"}, "ab.aa: expected true or false, found 'no'"),
        ({"min_effect": None}, "ab.min_effect: expected relative or absolute_ns, above 0, found None"),
        ({"min_effect": {}}, "ab.min_effect: expected relative or absolute_ns, above 0, found {}"),
        ({"min_effect": {"relative": 0}}, "ab.min_effect: expected"),
        ({"min_effect": {"share": 0.1}}, "ab.min_effect: expected"),
        ({"min_effect": {"relative": 0.1, "absolute_ns": 3}}, "ab.min_effect: expected"),
        ({"sm_mhz": [1980, None, "x"]}, "ab.sm_mhz: expected clocks or null, found [1980, None, 'x']"),
        ({"sm_mhz": 1980}, "ab.sm_mhz: expected clocks or null, found 1980"),
    ],
    ids=str,
)
def test_a_side_of_a_trial_that_says_too_little_is_no_record(changes, message):
    one = with_side(record(), "a")
    assert decode(encode(one), "here") == one
    with pytest.raises(RecordError, match=re.escape(f"here: not a record: {message}")):
        decode(encode(replace(one, ab={**one.ab, **changes})), "here")


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_lacks_is_not_written(number):
    with pytest.raises(ValueError, match="JSON"):
        encode(record(predicted={"saved_ns": number}))


def test_a_file_of_schema_1_is_read():
    eager, refused = read_records(OLD_FILE).records
    assert (eager.key, eager.status, eager.mode, eager.step_samples_ns) == (
        "a1",
        "ok",
        "eager",
        [20_100_000, 20_000_000],
    )
    assert eager.counts[0] == {
        "op": "dequant_compressed", "kv_source": 2, "where": "eager",
        "calls": 6, "kernels": 6, "copies": 0, "sets": 0, "aten_ops": None,
    }  # fmt: skip
    assert eager.timing is None  # this file was written before the field was
    assert eager.extra == {"from_a_later_minor_version": True}
    assert (refused.status, refused.reason, refused.samples_ns) == ("refused", "context over the limit", {})


def test_the_page_about_records_names_every_field():
    page = (OLD_FILE.parents[2] / "docs" / "records.md").read_text()
    table = page.split("## Fields")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(NAMES)


def test_nesting_without_end_is_no_record():
    with pytest.raises(RecordError, match="file:1: not JSON"):
        decode("[" * 100_000, "file:1")
