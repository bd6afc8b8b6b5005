"""Expectations against records: what is summed, which cells are spoken of, and that nothing passes unseen."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.errors import UsageError
from dsv4bench.results.expectation_check import check, chosen
from dsv4bench.results.expectations import parse_expectations, read_expectations
from dsv4bench.results.store import read_records
from tests.results.synthetic import lost, record, row
from tests.source_tree import ROOT

# two sources and a window-only layer; a product of two kernels and a copy
ROWS = [
    row("dequant_compressed", 2, "break", 6),
    row("dequant_compressed", 8, "break", 1, copies=1),
    row("dequant_swa", None, "break", 2),
    row("dequant_swa", 2, "break", 6),
    row("index_k_proj", 2, "segment", 1, each=2),
    row("store", 2, "segment", 1, sets=1),
]


def cell(rows=ROWS, **changes):
    return record(1, "on", graph=True, counts=rows, **changes)


def found(text, *records):
    """What the entry of `text` finds: places, class, number and whether it holds."""
    outcome = check(parse_expectations("[[expect]]\n" + text, "a.toml"), records or (cell(),))
    return [(one.place, one.counted, one.found, one.holds) for one in outcome.findings]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ('op = "dequant_compressed"\ncalls = 7', [({}, "calls", 7, True)]),
        (
            'op = "dequant_compressed"\nby = "kv_source"\ncalls = { max = 1 }',
            [({"kv_source": 2}, "calls", 6, False), ({"kv_source": 8}, "calls", 1, True)],
        ),
        ('op = "dequant_compressed"\nkv_source = 2\ncalls = 1', [({}, "calls", 6, False)]),
        (
            'op = "dequant_compressed"\nby = "kv_source"\nkv_source = [8, 14]\ncalls = 1',
            [({"kv_source": 8}, "calls", 1, True), ({"kv_source": 14}, "calls", 0, False)],
        ),
        (
            'op = "dequant_swa"\nby = "kv_source"\ncalls = { min = 6 }',
            [({"kv_source": None}, "calls", 2, False), ({"kv_source": 2}, "calls", 6, True)],
        ),
        (
            'ops = ["index_k_proj", "store", "latent_norm"]\nby = "op"\noperations = 2',
            [
                ({"op": "index_k_proj"}, "operations", 1, False),
                ({"op": "store"}, "operations", 2, True),
                ({"op": "latent_norm"}, "operations", 0, False),
            ],
        ),
        ('ops = ["index_k_proj", "store"]\nkernels = 3', [({}, "kernels", 3, True)]),
        (
            'by = "where"\ncopies = { exactly = 0 }',
            [({"where": "break"}, "copies", 1, False), ({"where": "segment"}, "copies", 0, True)],
        ),
        ('where = "segment"\nsets = 1\ncalls = 2', [({}, "calls", 2, True), ({}, "sets", 1, True)]),
        ("calls = 17", [({}, "calls", 17, True)]),
        ('op = "dequant_compressed"\naten_ops = 3', [({}, "aten_ops", None, None)]),
    ],
    ids=[
        "total", "each-source", "one-source", "a-listed-source-that-is-not-there", "layers-without-a-source",
        "each-op", "several-ops", "each-place", "one-place", "every-op", "not-counted-here",
    ],
)  # fmt: skip
def test_an_entry_sums_the_rows_that_it_names(text, want):
    assert found(text) == want


@pytest.mark.parametrize(
    ("bound", "holds"),
    [("0", True), ("{ max = 0 }", True), ("{ min = 0, max = 3 }", True), ("{ max = 1 }", False), ("1", False)],
)
def test_an_operation_that_is_not_there_keeps_only_a_bound_that_names_zero(bound, holds):
    assert found(f'op = "paged_attention"\ncalls = {bound}') == [({}, "calls", 0, holds)]


def test_a_class_that_no_row_counts_is_not_zero_either():
    on_cpu = cell([row("store", 2, "segment", 1, device=False)])
    assert found('op = "paged_attention"\nkernels = 0', on_cpu) == [({}, "kernels", None, None)]


@given(
    numbers=st.lists(st.integers(0, 99), min_size=1, max_size=6),
    least=st.integers(0, 300),
    width=st.integers(0, 300),
)
def test_a_total_is_the_sum_whatever_the_rows(numbers, least, width):
    rows = [row("store", place, "eager", number) for place, number in enumerate(numbers)]
    ((_, _, total, holds),) = found(f"calls = {{ min = {least}, max = {least + width} }}", cell(rows))
    assert total == sum(numbers)
    assert holds == (least <= sum(numbers) <= least + width)


# which cells an entry speaks of

OFF, ON = record(1, "off", graph=True), record(1, "on", graph=True)
EAGER = record(1, "on")
ON_CPU = record(1, "on", engine="cpu-reference")


def outcome(text, *records):
    return check(parse_expectations(text, "a.toml"), records)


def test_every_cell_that_matches_is_checked():
    after = 'variant = { reuse = "on" }\nop = "dequant_compressed"\ncalls = 4'
    done = outcome(f"[[expect]]\n{after}", OFF, ON, EAGER)
    assert [one.record for one in done.findings] == [ON, EAGER]
    assert done.checked == [ON, EAGER]
    assert done.broken() == []


def test_a_place_speaks_of_cells_that_have_it():
    done = outcome('[[expect]]\nwhere = "break"\nop = "dequant_compressed"\ncalls = 4', ON, EAGER)
    assert done.checked == [ON]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('variant = { reuse = "of" }', "entry 1: no cell with reuse of (did you mean 'off'?); here reuse is off, on"),
        ('variant = { kv = ["v4", "v41"] }', "entry 1: no cell with kv v4 or v41"),
        ("variant = { graph = false }", "entry 1: no cell with graph false; here graph is true"),
        ("variant = { chunk = 64 }", "entry 1: no cell with chunk 64; here chunk is 8192"),
        ('variant = { breaks = "hopper" }', "entry 1: no cell with breaks hopper; here breaks is None"),
        ('where = "eager"', "entry 1: no cell with operations in eager; here they ran in break, segment"),
        ("kv_source = [2, 3]\nsets = 0", "entry 1: no cell with kv_source 3; here kv_source is 2, 8, 14, 20"),
    ],
)
def test_an_entry_that_speaks_of_no_cell_is_an_error(text, told):
    with pytest.raises(UsageError) as caught:
        outcome(f"[[expect]]\n{text}\ncalls = 1", OFF, ON)
    assert str(caught.value).startswith("--expect a.toml: " + told)


def test_switches_that_no_cell_has_together_are_an_error():
    cells = [OFF, EAGER]
    with pytest.raises(UsageError, match="entry 1: no cell with reuse off, graph false together"):
        outcome('[[expect]]\nvariant = { reuse = "off", graph = false }\ncalls = 1', *cells)


def test_an_entry_about_another_engine_is_left_unchecked_and_said():
    done = outcome('[[expect]]\nengine = "gpu"\nkernels = 4\n[[expect]]\ncalls = { min = 1 }', ON_CPU)
    assert [one.number for one in done.unchecked] == [1]
    assert done.other_engine == list(done.unchecked)
    assert done.broken() == []


def test_a_cell_without_counts_to_trust_is_not_checked():
    refused = lost("refused", "too long", batch=1, reuse="on", graph=True)
    wrong = replace(ON, status="wrong", reason="outputs differ", samples_ns={})
    done = outcome("[[expect]]\ncalls = 1", refused, wrong)
    assert done.findings == ()
    assert done.unmeasured == [refused, wrong]
    assert done.failed == [wrong]
    assert [one.number for one in done.unchecked] == [1]
    assert done.other_engine == []


def test_what_was_not_counted_is_broken_unless_allowed():
    done = outcome('[[expect]]\nop = "dequant_compressed"\nkernels = 4\ncalls = 4', ON_CPU)
    assert [one.counted for one in done.broken()] == ["kernels"]
    assert done.uncounted == done.broken()
    assert done.broken(allow_uncounted=True) == []


@pytest.mark.parametrize("name", ["unattributed", "ambiguous", "lost", "disagreement"])
def test_a_cell_with_gaps_in_its_counts_is_named(name):
    gap = replace(ON, coverage={**ON.coverage, name: "3 and 4" if name == "disagreement" else 3})
    done = outcome("[[expect]]\ncalls = { min = 1 }", EAGER, gap)
    assert done.incomplete == [gap]


# which records are to be checked


def test_cells_are_chosen_by_their_switches():
    records = [OFF, ON, EAGER]
    assert chosen(records, {"reuse": ("on",)}, "run") == [ON, EAGER]
    assert chosen(records, {"reuse": (), "graph": (True,)}, "run") == [OFF, ON]
    assert chosen(records, {}, "run") == records


def test_the_last_record_of_a_cell_counts_and_kernels_do_not():
    again = replace(ON, counts=ROWS)
    kernel = replace(ON, kernel={"name": "dequant"}, key="k")
    assert chosen([ON, kernel, again], {}, "run") == [again]
    assert chosen([kernel], {"reuse": ("off",)}, "run") == []


def test_cells_that_are_not_there_are_an_error():
    with pytest.raises(UsageError, match="run: no cell with compressor torch; here compressor is fused"):
        chosen([OFF, ON], {"compressor": ("torch",)}, "run")


# the shipped files, on what an H200 counted

LEDGERS = {
    "reuse_before": ("tests/data/ledger.jsonl", "results/h200-default"),
    "reuse_after": ("tests/data/ledger.jsonl", "results/h200-default", "results/h200-compressor"),
    "compressor_before": ("tests/data/ledger.jsonl", "results/h200-compressor"),
    "compressor_after": ("tests/data/ledger.jsonl", "results/h200-default", "results/h200-compressor"),
}


def on_ledger(name, path, **cells):
    expectations = read_expectations(name)
    records = read_records(ROOT / path).records
    return check(expectations, chosen(records, {**expectations.cells, **cells}, path))


@pytest.mark.parametrize(("name", "path"), [(name, path) for name, paths in LEDGERS.items() for path in paths], ids=str)
def test_a_shipped_file_holds_on_a_committed_ledger(name, path):
    done = on_ledger(name, path)
    assert done.findings
    assert done.broken() == []
    assert list(done.unchecked) == done.other_engine


@pytest.mark.parametrize(
    ("name", "cells", "broken"),
    [
        ("reuse_after", {"reuse": ("off",)}, {5, 6}),
        ("reuse_before", {"reuse": ("on",)}, {5, 6, 7}),
        ("compressor_after", {"compressor": ("torch",)}, {4, 5, 6}),
        ("compressor_before", {"compressor": ("fused",)}, {4, 5, 6}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_shipped_file_is_broken_by_the_other_side(name, cells, broken):
    done = on_ledger(name, "tests/data/ledger.jsonl", **cells)
    assert {one.entry.number for one in done.broken()} == broken


def test_a_launch_more_breaks_the_fused_compressor():
    expectations = read_expectations("compressor_after")
    (first, *_) = chosen(read_records(ROOT / "tests/data/ledger.jsonl").records, expectations.cells, "ledger")
    rows = [{**one, "kernels": 2} if (one["op"], one["kv_source"]) == ("index_key", 8) else one for one in first.counts]
    (only,) = check(expectations, [replace(first, counts=rows)]).broken()
    assert (only.entry.number, only.counted, only.found) == (4, "operations", 2)
    assert only.place == {"op": "index_key", "kv_source": 8}


def test_nothing_is_checked_where_nothing_is():
    done = outcome("[[expect]]\ncalls = 1")
    assert (done.findings, done.checked) == ((), [])
