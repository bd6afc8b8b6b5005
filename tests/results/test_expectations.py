"""Expectation files: what each key means, what comes with the package, and what a mistake is told."""

import pytest

from dsv4bench.errors import UsageError
from dsv4bench.results.counts import COMPRESSED, SWA
from dsv4bench.results.expectations import (
    SWITCHES,
    Bound,
    Expectation,
    parse_expectations,
    read_expectations,
    shipped,
)
from dsv4bench.workloads.variant import Variant

ONE = '[[expect]]\nop = "dequant_compressed"\n'


def entry(text: str) -> Expectation:
    (only,) = parse_expectations(ONE + text, "a.toml").entries
    return only


# what a file says


@pytest.mark.parametrize(
    ("written", "least", "most", "read"),
    [
        ("4", 4, 4, "4"),
        ("0", 0, 0, "0"),
        ("{ exactly = 38 }", 38, 38, "38"),
        ("{ max = 1 }", None, 1, "at most 1"),
        ("{ min = 2 }", 2, None, "at least 2"),
        ("{ min = 0, max = 0 }", 0, 0, "0"),
        ("{ min = 60, max = 61 }", 60, 61, "60 to 61"),
    ],
)
def test_a_bound_is_a_number_or_a_table(written, least, most, read):
    bound = entry(f"calls = {written}").bounds["calls"]
    assert bound == Bound(least, most)
    assert str(bound) == read


@pytest.mark.parametrize(
    ("bound", "kept", "broken"),
    [
        (Bound(4, 4), [4], [3, 5]),
        (Bound(None, 1), [0, 1], [2]),
        (Bound(2, None), [2, 99], [0, 1]),
        (Bound(60, 61), [60, 61], [59, 62]),
    ],
    ids=str,
)
def test_a_bound_holds_within_its_ends(bound, kept, broken):
    assert [number for number in kept + broken if bound.holds(number)] == kept


@pytest.mark.parametrize(
    ("bound", "says"),
    [(Bound(0, 0), True), (Bound(None, 0), True), (Bound(0, 3), True), (Bound(None, 3), False), (Bound(1, 3), False)],
    ids=str,
)
def test_a_bound_names_zero_or_does_not(bound, says):
    assert bound.names_zero is says


def test_every_key_of_an_entry_is_read():
    text = """
    [cells]
    reuse = "on"
    graph = true
    [[expect]]
    calls = 1
    [[expect]]
    ops = ["compress_c2", "index_key"]
    by = ["op", "kv_source"]
    kv_source = [2, 8]
    where = ["segment", "break"]
    engine = "gpu"
    variant = { kv = ["v4", "v41"], chunk = 8192 }
    kernels = { max = 3 }
    operations = 3
    because = "why"
    """
    found = parse_expectations(text, "a.toml")
    assert found.name == "a.toml"
    assert found.cells == {"reuse": ("on",), "graph": (True,)}
    assert found.entries == (
        Expectation(1, {"calls": Bound(1, 1)}),
        Expectation(
            2,
            {"kernels": Bound(None, 3), "operations": Bound(3, 3)},
            ops=("compress_c2", "index_key"),
            by=("op", "kv_source"),
            kv_sources=(2, 8),
            wheres=("segment", "break"),
            engines=("gpu",),
            variant={"kv": ("v4", "v41"), "chunk": (8192,)},
            because="why",
        ),
    )


# what a mistake is told

BAD_ENTRIES = {
    "cals = 1": "entry 1: cals: no such key (did you mean 'calls'?); known: op, ops, by, kv_source",
    "": "entry 1: counts nothing; expected one or more of calls, kernels, copies, sets, aten_ops, operations",
    "calls = -1": "entry 1: calls = -1: expected a whole number of at least 0",
    "calls = 1.5": "entry 1: calls = 1.5: expected a whole number of at least 0",
    "calls = true": "entry 1: calls = true: expected a whole number of at least 0",
    'calls = "4"': 'entry 1: calls = "4": expected a whole number of at least 0',
    "calls = []": "entry 1: calls = []: expected a whole number of at least 0",
    "calls = {}": "entry 1: calls: expected exactly, or min, max or both; found nothing",
    "calls = { most = 1 }": "entry 1: calls: most: no such key; known: exactly, min, max",
    "calls = { exactly = 1, max = 2 }": "entry 1: calls: expected exactly, or min, max or both; found exactly, max",
    "calls = { min = 3, max = 2 }": "entry 1: calls: min 3 is over max 2",
    "calls = { min = 0 }": "entry 1: calls: min 0 alone holds always; expected at least 1, or a max",
    "calls = { max = -2 }": "entry 1: calls.max = -2: expected a whole number of at least 0",
    'ops = ["store"]\ncalls = 1': "entry 1: op and ops; expected one of both",
    'by = "layer"\ncalls = 1': 'entry 1: by = "layer": not known; known: op, kv_source, where',
    "by = []\ncalls = 1": "entry 1: by = []: expected at least one value",
    "by = { a = 1 }\ncalls = 1": "entry 1: by = {'a': 1}: expected a word or a number, or a list of them",
    'where = "segments"\ncalls = 1': "entry 1: where = \"segments\": not known (did you mean 'segment'?)",
    'engine = "cuda"\ncalls = 1': 'entry 1: engine = "cuda": not known; known: gpu, tape, cpu-reference',
    'kv_source = "2"\ncalls = 1': 'entry 1: kv_source = "2": expected a whole number of at least 0',
    'variant = "on"\ncalls = 1': 'entry 1: variant = "on": expected a table of switches, e.g. { reuse = "on" }',
    'variant = { reus = "on" }\ncalls = 1': "entry 1: variant: reus: no such key (did you mean 'reuse'?)",
    "variant = { reuse = [] }\ncalls = 1": "entry 1: variant: reuse = []: expected at least one value",
    'variant = { graph = "on" }\ncalls = 1': 'entry 1: variant: graph = "on": expected true or false',
    'variant = { seed = "0" }\ncalls = 1': 'entry 1: variant: seed = "0": expected a whole number of at least 0',
    "variant = { chunk = [64, true] }\ncalls = 1": "entry 1: variant: chunk = true: expected a whole number",
    "because = 1\ncalls = 1": "entry 1: because = 1: expected a text",
}
BAD_FILES = {
    "": "expected at least one [[expect]] entry",
    "expect = 1": "expected at least one [[expect]] entry",
    "[expect]\ncalls = 1": "expected at least one [[expect]] entry",
    "[[expects]]\ncalls = 1": "expects: no such key (did you mean 'expect'?); known: cells, expect",
    "[[expect]": "not TOML: ",
    '[[expect]]\nop = "dequant"\ncalls = 1': 'entry 1: op = "dequant": not known (did you mean \'dequant_',
    "[[expect]]\ncalls = 1\n[[expect]]\nop = 3\ncalls = 1": "entry 2: op = 3: not known; known: input_norm",
    'cells = "on"\n[[expect]]\ncalls = 1': '[cells] = "on": expected a table of switches',
    '[cells]\nfault = "x"\n[[expect]]\ncalls = 1': "[cells]: fault: no such key; known: kv, reuse, compressor",
}


@pytest.mark.parametrize("text", BAD_ENTRIES, ids=lambda text: text.replace("\n", " ") or "nothing")
def test_a_wrong_entry_is_one_line_with_file_entry_and_value(text):
    with pytest.raises(UsageError) as caught:
        entry(text)
    assert str(caught.value).startswith("--expect a.toml: " + BAD_ENTRIES[text])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", BAD_FILES, ids=lambda text: text.replace("\n", " ") or "empty")
def test_a_wrong_file_is_one_line(text):
    with pytest.raises(UsageError) as caught:
        parse_expectations(text, "a.toml")
    assert str(caught.value).startswith("--expect a.toml: " + BAD_FILES[text])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("reuse_aftr", "no such file, and none of that name is shipped (did you mean 'reuse_after'?); shipped: comp"),
        ("folder", "cannot be read: Is a directory"),
        ("bytes.toml", "not TOML: not UTF-8 text"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, monkeypatch, name, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError) as caught:
        read_expectations(name)
    assert str(caught.value).startswith(f"--expect {name}: {told}")


# what is shipped, and what it can speak of


def test_both_sides_of_both_changes_are_shipped():
    assert shipped() == ["compressor_after", "compressor_before", "reuse_after", "reuse_before"]


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_file_says_why_of_every_entry(name):
    found = read_expectations(name)
    assert found.name == name
    assert found.cells
    assert all(one.because for one in found.entries)


def test_a_file_of_ones_own_comes_before_a_shipped_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reuse_after").write_text(ONE + "calls = 7")
    (only,) = read_expectations("reuse_after").entries
    assert only.bounds == {"calls": Bound(7, 7)}


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    (tmp_path / "marked.toml").write_text(ONE + "calls = 7", encoding="utf-8-sig")
    assert len(read_expectations(str(tmp_path / "marked.toml")).entries) == 1


@pytest.mark.parametrize(("engine", "counted"), [("cpu-reference", "calls"), ("tape", "calls"), ("gpu", "kernels")])
def test_reuse_is_38_before_and_4_after(engine, counted):
    def totals(name):
        entries = read_expectations(name).entries
        return {
            one.ops: one.bounds[counted].most
            for one in entries
            if engine in one.engines and not one.by and not one.kv_sources and counted in one.bounds
        }

    assert totals("reuse_before") == {(COMPRESSED,): 38, (SWA,): 40}
    assert totals("reuse_after") == {(COMPRESSED,): 4, (SWA,): 40}


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_file_asks_nothing_of_a_gpu_that_a_trace_does_not_hold(name):
    on_gpu = [one for one in read_expectations(name).entries if "gpu" in one.engines]
    assert on_gpu
    assert all(one.engines for one in read_expectations(name).entries)
    assert not {"calls", "aten_ops"} & {counted for one in on_gpu for counted in one.bounds}


def test_every_switch_of_a_record_can_be_named():
    assert set(SWITCHES) == {*Variant().switches(), "chunk", "dep-simulated", "dep", "seed"}
