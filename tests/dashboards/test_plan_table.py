"""The tables of a plan: what each column holds, which axes are shown, and that every figure is called modelled."""

import csv
import io

import pytest

from dsv4bench.dashboards.markdown import markdown
from dsv4bench.dashboards.plan_table import plan_tables
from dsv4bench.dashboards.render import csv_text, plain

EAGER = {
    "label": "modelled",
    "status": "planned",
    "geometry": "v41-flash",
    "requests": 64,
    "extend": 128,
    "prefix": 65536,
    "source": "uniform",
    "rows": 8192,
    "forwards": 1,
    "chunk": 8192,
    "ranks": 1,
    "buckets": [],
    "padded_rows": 8192,
    "mode": "eager",
    "breaks": None,
    "break_outputs": None,
    "reuse": "off",
    "kv": "v41+fp4",
    "compressor": "fused",
    "provider": "triton",
    "fault": None,
    "replay": "off",
    "path": "sparse",
    "moe": "off",
    "mhc": "off",
    "step_ns": 251_400_000.0,
    "cell_ns": 9_400_000_000.0,
    "saved_rows": 111_366_144,
    "saved_bytes": 136 * 2**30,
    "saved_ns": 34_458_000.0,
    "saved_share": 0.137,
    "in_step": "attention stack only",
    "stack_share": 0.43,
    "stack_bytes_share": 0.2,
    "memory_bytes": 21 * 2**30,
    "refusals": [],
}
REFUSED = {
    **EAGER,
    "status": "refused",
    "mode": "graph",
    "step_ns": None,
    "cell_ns": None,
    "refusals": ["too long"],
}
SMALL = {**EAGER, "requests": 1, "extend": 1024, "rows": 1024, "saved_rows": 1000, "saved_bytes": 2**20,
         "saved_ns": 500.0, "saved_share": 0.00499, "stack_share": 0.41}  # fmt: skip


def test_a_plan_says_of_what_how_many_cells_how_long_and_that_it_is_modelled():
    cells, savings = plan_tables([EAGER, {**EAGER, "reuse": "on"}], [])
    assert cells.title == "plan: 2 cells of the attention stack, about 19 s of running (modelled)"
    assert savings.title == "Saving of reuse per step, attention stack (modelled)"
    (nothing,) = plan_tables([], [])
    assert nothing.title == "plan: 0 cells of the attention stack, about 0 ns of running (modelled)"


def test_a_plan_is_read_in_80_columns():
    cells, savings = plan_tables([EAGER, REFUSED, SMALL], ["a note"])
    assert plain(cells) == (
        "plan: 3 cells of the attention stack, about 19 s of running (modelled)\n"
        "batch  rows  fwd  extend  mode   reuse     step   cell     memory\n"
        "   64  8192    1     128  eager  off     251 ms  9.4 s  21.00 GiB\n"
        "   64  8192    1     128  graph  off    refused         21.00 GiB\n"
        "    1  1024    1    1024  eager  off     251 ms  9.4 s  21.00 GiB\n"
        "geometry v41-flash, prefix 65536, chunk 8192, ranks 1, kv v41+fp4, compressor\n"
        "  fused, provider triton\n"
        "attention stack only: about 41% to 43% of the FLOPs and 20% of the bytes of\n"
        "  v41-flash's layers (modelled)\n"
        "a note\n"
    )
    assert plain(savings) == (
        "Saving of reuse per step, attention stack (modelled)\n"
        "batch  rows  fwd  extend  rows saved  bytes saved  us saved  of the step\n"
        "   64  8192    1     128   111366144    136.0 GiB     34458      13.70 %\n"
        "    1  1024    1    1024        1000    1.000 MiB    0.5000     0.50 % ?\n"
        "attention stack only: about 41% to 43% of the FLOPs and 20% of the bytes of\n"
        "  v41-flash's layers (modelled)\n"
        "of the step: of the load's first cell above, without reuse\n"
        "? not resolvable here is to be expected: under 0.50 % of the step\n"
    )


@pytest.mark.parametrize("share", [0.005, 0.1])
def test_a_saving_that_may_be_seen_is_not_doubted(share):
    _, savings = plan_tables([{**EAGER, "saved_share": share}], [])
    assert "?" not in plain(savings)


@pytest.mark.parametrize("ranks", [1, 2])
def test_of_several_ranks_it_is_said_whose_savings_they_are(ranks):
    _, savings = plan_tables([{**EAGER, "ranks": ranks}], [])
    said = "rows and bytes saved: of all ranks; us saved: of the rank that saves most"
    assert [note for note in savings.notes if "all ranks" in note] == [said] * (ranks - 1)


VALUES = {"geometry": "mini", "extend": 8, "prefix": "mixed", "chunk": 4096, "ranks": 2, "kv": "v4",
          "compressor": "torch", "provider": "torch"}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_an_axis_is_a_column_where_it_varies_and_a_note_where_it_does_not(name):
    cells, savings = plan_tables([EAGER, {**EAGER, name: VALUES[name]}], [])
    title = {"compressor": "compr"}.get(name, name)
    columns, rows = cells.shown()
    place = [column.title for column in columns].index(title)
    assert [row[place] for row in rows] == [str(EAGER[name]), str(VALUES[name])]
    assert f"{name} " not in cells.notes[0]
    # how a step is launched changes nothing about what reuse saves
    assert len(savings.rows) == (1 if name in ("compressor", "provider") else 2)
    (alone, _) = plan_tables([EAGER], [])
    assert title not in [column.title for column in alone.shown()[0]]
    assert f"{name} {EAGER[name]}" in alone.notes[0]


GRAPH = {**EAGER, "mode": "graph", "breaks": "sm100", "break_outputs": "copy", "rows": 200, "padded_rows": 224,
         "buckets": [112, 112], "forwards": 2}  # fmt: skip


def test_a_graph_shows_its_buckets_and_what_padding_adds():
    cells, _ = plan_tables([EAGER, GRAPH, {**GRAPH, "breaks": "hopper", "buckets": [112, 64], "padded_rows": 200}], [])
    columns, texts = cells.shown()
    found = [dict(zip([column.title for column in columns], row, strict=True)) for row in texts]
    assert [(row["bucket"], row["pads"], row["breaks"]) for row in found] == [
        ("", "", ""),
        ("112", "24", "sm100"),
        ("112 64", "", "hopper"),
    ]
    assert "break outputs copy" in cells.notes[0]  # an eager cell has none, and does not make it a column


@pytest.mark.parametrize(
    ("kinds", "stack"),
    [
        (["attention stack only"] * 2, "attention stack"),
        (["attention stack and a MoE"] * 2, "attention stack and a MoE"),
        (["attention stack only", "attention stack and a MoE"], "attention stack"),
    ],
    ids=["nothing more", "more in every cell", "more in one of two"],
)
def test_titles_say_what_every_cell_has_in_its_step(kinds, stack):
    cells, savings = plan_tables([{**EAGER, "in_step": one} for one in kinds], [])
    assert cells.title.startswith(f"plan: 2 cells of the {stack}, about ")
    assert savings.title == f"Saving of reuse per step, {stack} (modelled)"


def test_what_is_in_the_step_tells_cells_and_loads_apart():
    """Else rows of other times would read the same."""
    found = [EAGER, {**EAGER, "moe": "experts", "step_ns": 500_000_000.0, "saved_share": 0.07}]
    cells, savings = (plain(table).splitlines()[1:4] for table in plan_tables(found, []))
    assert [line[17:26].strip() for line in cells] == ["moe", "off", "experts"]
    assert [line.split()[-2] for line in savings] == ["the", "13.70", "7.00"]
    same, _ = plan_tables([{**EAGER, "moe": "experts"}], [])
    assert "kv v41+fp4, moe experts, compressor fused" in same.notes[0]
    assert "mhc" not in same.notes[0]


def test_a_fault_is_named_where_there_is_one():
    faulty, _ = plan_tables([{**EAGER, "fault": "wrong-row"}], [])
    assert "fault wrong-row" in faulty.notes[0]
    healthy, _ = plan_tables([EAGER], [])
    assert "fault" not in healthy.notes[0]


def test_csv_has_plain_numbers_by_the_names_of_the_plan_and_every_axis():
    cells, savings = csv_text(plan_tables([EAGER, REFUSED], ["a note"])).split("\n\n")
    assert cells.splitlines()[-1] == "# a note"
    first, second = read(cells)
    told = {name: str(value) for name, value in EAGER.items() if not name.startswith(("saved", "stack"))}
    assert first == {name: told[name] for name in first} | dict.fromkeys(
        ("fault", "buckets", "breaks", "break_outputs"), ""
    )
    assert set(EAGER) - set(first) == {
        *("source", "refusals", "in_step", "stack_share", "stack_bytes_share"),
        *("saved_rows", "saved_bytes", "saved_ns", "saved_share"),
    }
    assert (second["status"], second["step_ns"], second["cell_ns"]) == ("refused", "", "")
    (only,) = read(savings)
    assert (only["saved_rows"], only["saved_ns"], only["kv"]) == ("111366144", "34458000.0", "v41+fp4")


def read(block):
    return list(csv.DictReader(io.StringIO("".join(f"{line}\n" for line in block.splitlines() if line[0] != "#"))))


def test_markdown_aligns_figures_to_the_right():
    lines = markdown(plan_tables([EAGER], [])[0]).splitlines()
    assert lines[0] == "**plan: 1 cells of the attention stack, about 9.4 s of running (modelled)**"
    assert lines[3] == "| ---: | ---: | ---: | --- | --- | ---: | ---: | ---: |"
    assert lines[4].startswith("| 64 | 8192 | 1 | eager | off |")
