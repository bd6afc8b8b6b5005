"""How a check of counts is shown: one line where all holds, else what is broken, in which cells, and why it matters."""

import json
from dataclasses import replace

import pytest

from dsv4bench.dashboards.expectation_table import expectation_tables, expectations_plain, verdict
from dsv4bench.dashboards.markdown import markdown
from dsv4bench.dashboards.render import WIDTH, csv_text, plain
from dsv4bench.results.expectation_check import check
from dsv4bench.results.expectations import parse_expectations
from tests.results.synthetic import lost, record

AFTER = """
[[expect]]
op = "dequant_compressed"
by = "kv_source"
calls = { max = 1 }
because = "one dequant a source"
[[expect]]
op = "dequant_swa"
calls = 40
"""
KERNELS = '[[expect]]\nop = "dequant_swa"\nengine = "gpu"\nkernels = 40\n'
ON, OFF = record(1, "on"), record(1, "off")
CPU = record(1, "on", engine="cpu-reference")


def outcome(text, *records):
    return check(parse_expectations(text, "after"), records)


def shown(text, *records, allow=False):
    return "\n".join(map(plain, expectation_tables(outcome(text, *records), allow)))


def test_all_that_holds_is_one_line():
    assert shown(AFTER, ON) == "after: all 2 expectations hold, in 1 cell\n"
    assert shown(AFTER, ON, record(8, "on")) == "after: all 2 expectations hold, in 2 cells\n"
    assert shown(KERNELS, ON) == "after: the expectation holds, in 1 cell\n"


def test_what_is_broken_is_a_table_with_the_cells_and_the_reason():
    assert shown(AFTER, OFF, record(8, "off"), ON) == (
        "after: 1 of 2 expectations broken, in 2 of 3 cells\n"
        "\n"
        "Broken, attention stack of v41-flash: measured, gpu, NVIDIA H200\n"
        "entry  op                  kv_source  class   expected  found\n"
        "    1  dequant_compressed          2  calls  at most 1      6\n"
        "    1  dequant_compressed          8  calls  at most 1      6\n"
        "    1  dequant_compressed         14  calls  at most 1      6\n"
        "    1  dequant_compressed         20  calls  at most 1     20\n"
        "eager, batch 1 x 1024, 8 x 1024; reuse off, kv v41+fp4, compressor fused,\n"
        "  provider triton, chunk 8192, seed 0, prefix 8192\n"
        "entry 1: one dequant a source\n"
    )


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("copies = 1", "1  every op        all  copies         1      0"),
        ('op = "store"\ncalls = 1', "1  store        all  calls         1  0 (no row)"),
        ('ops = ["dequant_swa", "store"]\ncalls = 1', "1  dequant_swa + 1 more        all  calls         1     40"),
        ('op = "dequant_swa"\nkv_source = [2, 8]\ncalls = 1', "1  dequant_swa        2 8  calls         1     12"),
        ('op = "dequant_swa"\nwhere = "eager"\ncalls = 1', "1  dequant_swa        all  eager  calls         1     40"),
        ('by = "where"\ncopies = 1', "1  every op        all  eager  copies         1      0"),
        ('op = "dequant_swa"\naten_ops = 1', "1  dequant_swa        all  aten_ops         1  not counted here"),
    ],
    ids=["every-op", "no-row", "several-ops", "some-sources", "a-place", "each-place", "not-counted"],
)
def test_a_row_says_what_was_summed(text, row):
    assert row in shown(f"[[expect]]\n{text}\n", ON)


def test_layers_without_a_source_are_called_none():
    assert "1  dequant_swa       none  calls         1      2" in shown(
        '[[expect]]\nop = "dequant_swa"\nby = "kv_source"\ncalls = 1\n', ON
    )


def test_what_was_not_checked_is_said():
    refused = lost("refused", "over the limit", batch=64, reuse="on", graph=True)
    text = shown(AFTER + KERNELS, CPU, refused)
    assert text.splitlines()[:2] == [
        "after: all 2 expectations hold, in 1 cell",
        "not checked: entry 3; no cell that they speak of was measured",
    ]
    assert "no counts: graph, batch 64 x 128; reuse on, " in text
    assert text.endswith("[refused] over the limit\n")
    assert shown(AFTER + KERNELS, CPU).splitlines()[1:] == ["not checked: entry 3, about gpu; ran on cpu-reference"]


def test_a_wrong_cell_stands_in_the_verdict():
    wrong = lost("wrong", "outputs differ", batch=1, reuse="on")
    assert verdict(outcome(AFTER, ON, wrong)) == "after: all 2 expectations hold, in 1 cell; 1 cell failed or wrong"
    assert verdict(outcome(AFTER, wrong)) == "after: nothing to check; 1 cell failed or wrong"
    assert shown(AFTER) == "after: nothing to check\nno cell of an attention stack is here\n"


def test_a_class_that_was_not_counted_is_allowed_aloud():
    text = '[[expect]]\nop = "dequant_swa"\nkernels = 40\ncalls = 40\n'
    assert shown(text, CPU).startswith("after: 1 of 1 expectation broken, in 1 of 1 cell\n")
    assert shown(text, CPU, allow=True) == (
        "after: the expectation holds, in 1 cell\nnot counted here and allowed: kernels of entry 1\n"
    )


def test_gaps_in_counts_are_said():
    gap = replace(ON, coverage={**ON.coverage, "unattributed": 2})
    assert "not every device operation found its range: eager, batch 1 x 1024" in shown(AFTER, gap)


def test_every_form_is_narrow_or_exact():
    tables = expectation_tables(outcome(AFTER, OFF))
    assert max(len(line) for line in shown(AFTER, OFF).splitlines()) <= WIDTH
    assert markdown(tables[0]) == "**after: 1 of 2 expectations broken, in 1 of 1 cell**\n"
    assert "| 1 | dequant\\_compressed | 20 | calls | at most 1 | 20 |" in markdown(tables[1])
    assert "1,dequant_compressed,20,,calls,at most 1,20" in csv_text(tables)


def test_json_holds_every_finding():
    found = json.loads(json.dumps(expectations_plain(outcome(AFTER + KERNELS, OFF, CPU))))
    assert found["expectations"] == "after"
    assert found["verdict"] == "after: 1 of 3 expectations broken, in 1 of 2 cells"
    assert (found["broken"], len(found["findings"])) == (4, 11)
    first = found["findings"][0]
    assert first["cell"]["variant"]["reuse"] == "off"
    del first["cell"]
    assert first == {
        "entry": 1, "ops": ["dequant_compressed"], "kv_source": 2, "class": "calls",
        "expected": {"min": None, "max": 1}, "found": 6, "rows": 1, "holds": False, "because": "one dequant a source",
    }  # fmt: skip
    assert found["unchecked"] == found["unmeasured"] == found["incomplete"] == []
