"""The table of a plan: what each column holds, and that every figure is called modelled."""

from dsv4bench.dashboards.markdown import markdown
from dsv4bench.dashboards.plan_table import COLUMNS, plan_table
from dsv4bench.dashboards.render import csv_text, plain

EAGER = {
    "requests": 64,
    "rows": 8192,
    "forwards": 1,
    "prefix": 65536,
    "mode": "breakable",
    "reuse": "off",
    "kv": "v41+fp4",
    "compressor": "fused",
    "step_ns": 251_400_000.0,
    "cell_ns": 9_400_000_000.0,
    "memory_bytes": 21 * 2**30,
}
MIXED = {**EAGER, "requests": 4, "rows": 71, "forwards": 12, "prefix": "mixed", "mode": "eager", "reuse": "on"}


def test_a_plan_says_how_many_cells_how_long_and_that_it_is_modelled():
    assert plan_table([EAGER, MIXED], []).title == "plan: 2 cells, about 19 s of running (modelled)"
    assert plan_table([], []).title == "plan: 0 cells, about 0 ns of running (modelled)"


def test_a_plan_is_read_in_80_columns():
    assert plain(plan_table([EAGER, MIXED], ["a note"])) == (
        "plan: 2 cells, about 19 s of running (modelled)\n"
        "batch rows fwd prefix mode      reuse kv      compr   step  cell    memory\n"
        "   64 8192   1  65536 breakable off   v41+fp4 fused 251 ms 9.4 s 21.00 GiB\n"
        "    4   71  12  mixed eager     on    v41+fp4 fused 251 ms 9.4 s 21.00 GiB\n"
        "a note\n"
    )


def test_csv_has_plain_numbers_by_the_names_of_the_plan():
    head, names, first, second, note = csv_text([plan_table([EAGER, MIXED], ["a note"])]).splitlines()
    assert (head, note) == ("# plan: 2 cells, about 19 s of running (modelled)", "# a note")
    assert names.split(",") == list(EAGER) == [name for column in COLUMNS for name in column.names]
    assert first.split(",") == [str(value) for value in EAGER.values()]
    assert second.split(",")[:6] == ["4", "71", "12", "mixed", "eager", "on"]


def test_markdown_aligns_figures_to_the_right():
    lines = markdown(plan_table([EAGER], [])).splitlines()
    assert lines[0] == "**plan: 1 cells, about 9.4 s of running (modelled)**"
    assert lines[3] == "| ---: | ---: | ---: | ---: | --- | --- | --- | --- | ---: | ---: | ---: |"
    assert lines[4].startswith("| 64 | 8192 | 1 | 65536 | breakable | off |")
