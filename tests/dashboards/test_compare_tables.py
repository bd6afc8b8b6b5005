"""What is shown of two stored runs: rows, words, notes and what may not be compared, from records made by hand."""

from dataclasses import replace

import pytest

from dsv4bench.dashboards.compare_tables import BETWEEN_RUNS, BY, stored_tables
from dsv4bench.dashboards.render import csv_text, plain
from dsv4bench.dashboards.stored_cells import cell_words, which
from dsv4bench.results.stored import compare_stored
from tests.results.synthetic import GPU, counts, lost, ramp, record, row, sweep, with_variant

NEW = {**GPU, "commit": "b" * 40}


def step(middle_us, batch=1, graph=False, **changes):
    metric = "graph_replay" if graph else "step_period"
    return record(batch, graph=graph, samples_ns={metric: ramp(middle_us * 1000)}, **changes)


def kernel(middle_ns, provider="triton", launches=1.0, **changes):
    said = {"name": "dequant", "case": "v4", "rows": 4096, "provider": provider, "launches": launches}
    values = {"counts": [], "batch": {}, "geometry": "", "variant": {"provider": provider, "seed": 0}, "kernel": said}
    return replace(record(samples_ns={"kernel_cold": ramp(middle_ns, 1)}), **{**values, **changes})


def shown(before, after, by="cell"):
    return "\n".join(map(plain, stored_tables(compare_stored(before, after), by)))


def changed(middle_us, **values):
    return step(middle_us, environment=NEW, **values)


def test_a_cell_is_a_row_with_times_change_launches_and_a_word():
    text = shown([step(20_000), step(40_000, 2)], [changed(20_600), changed(40_000, batch=2)])
    assert text.splitlines()[:5] == [
        "Before and after, attention stack of v41-flash: measured, gpu, NVIDIA H200",
        "   batch  mode   before ms  after ms     change %  launches  verdict",
        "1 x 1024  eager      20.00     20.60  +3.00 ±0.02       164  SLOWER",
        "2 x 1024  eager      40.00     40.00  +0.00 ±0.01       164  SAME",
        "reuse on, kv v41+fp4, compressor fused, provider triton, chunk 8192, seed 0,",
    ]
    assert BETWEEN_RUNS in " ".join(text.split()).replace("\n", " ")
    assert "before: commit c0ffeec0ffee" in text
    assert "after: commit bbbbbbbbbbbb" in text


def test_plain_values_are_in_csv():
    (block,) = csv_text(stored_tables(compare_stored([step(20_000)], [changed(20_600, key="after-key")]))).split("\n\n")
    head, values = (line.split(",") for line in block.splitlines()[1:3])
    found = dict(zip(head, values, strict=True))
    assert {name: found[name] for name in ("requests", "mode", "reuse", "kv", "before_ns", "after_ns", "ratio")} == {
        "requests": "1", "mode": "eager", "reuse": "on", "kv": "v41+fp4", "before_ns": "20000000.0",
        "after_ns": "20600000.0", "ratio": "1.03",
    }  # fmt: skip
    assert (found["verdict"], found["before_key"], found["after_key"]) == ("SLOWER", "gpu-1-False-on", "after-key")
    assert (found["launches_before"], found["nothing_added"], found["before_runs"]) == ("164", "true", "1")


def test_without_a_gpu_calls_are_counted():
    before, after = ([one] for one in (record(engine="cpu-reference"), record(engine="cpu-reference")))
    head, values = shown(before, after).splitlines()[2:4]
    assert head == "   batch  mode   before ms  after ms     change %  calls  verdict"
    assert values == "1 x 1024  eager      19.50     19.50  +0.00 ±0.18    124  SAME"


def test_an_open_answer_says_why_and_for_which_cells():
    text = shown([step(20_000), step(40_000, 2)], [changed(20_000), changed(40_800, batch=2)])
    assert "INCONCLUSIVE: the interval reaches across 2.00 % (eager, reuse on, kv" in text


def test_launches_that_changed_have_a_table_for_cells_that_changed_alike():
    more = counts("on", extra=[row("sparse_attention", 2, "eager", 0, copies=3)])
    cells = [(20_000, 1), (40_000, 2), (80_000, 4)]
    text = shown([step(*cell) for cell in cells], [changed(us, batch=n, counts=more) for us, n in cells[:2]])
    after = text.split("Launches that changed, per forward")[1]
    assert "sparse_attention          2  eager  0 -> 3" in after
    assert "no other kernel or copy added: false" in after
    assert "added: sparse_attention (kv_source 2, eager): copies 0 -> 3" in after
    assert "eager, batch 1 x 1024, 2 x 1024; reuse on" in after
    assert text.count("Launches that changed") == 1
    assert "164 -> 167" in text


def test_two_machines_stand_side_by_side_without_a_word():
    text = shown([step(20_000)], [step(10_000, environment=B300)])
    assert text.startswith("two machines: no verdict. Side by side")
    assert "1 x 1024  eager      20.00     10.00" in text
    assert "machine: NVIDIA H200 before, NVIDIA B300 after" in text
    assert "driver: 580 before, 590 after" in text
    assert "SLOWER" not in text
    assert "FASTER" not in text


@pytest.mark.parametrize("chips", [({}, {}), ({"gpu_chip": "1111"}, {})], ids=["neither", "one side"])
def test_times_of_perhaps_two_chips_say_so(chips):
    text = shown(*([step(20_000, environment={**GPU, **chip})] for chip in chips))
    assert "not both sides say their GPU chip: they may be of two GPUs of one model" in text
    assert "only one side says" not in text


def test_times_of_one_chip_say_nothing_of_it():
    assert "GPU chip" not in shown(*([step(20_000, environment={**GPU, "gpu_chip": "1111"})] for _ in range(2)))


def test_two_chips_stand_side_by_side_by_name():
    chips = ({"gpu_chip": "1111"}, {"gpu_chip": "3333"})
    text = shown(*([step(20_000, environment={**GPU, **chip})] for chip in chips))
    assert text.startswith("two machines: no verdict. Side by side")
    assert "GPU chip: 1111 before, 3333 after" in text


B300 = {**GPU, "gpu": "NVIDIA B300", "driver": "590.1"}


def test_a_refused_cell_names_the_field_and_both_values():
    text = shown([step(20_000)], [step(10_000, environment={**NEW, "driver": "590.1"})])
    assert text.splitlines()[:4] == [
        "Refused: measured in ways that must not be compared",
        "what differs  before  after  cells",
        "driver        580     590        1",
        "eager, reuse on, kv v41+fp4, batch 1",
    ]
    assert "10.00" not in text


def test_what_is_on_one_side_or_has_no_time_is_listed():
    text = shown([*sweep()], [one for one in sweep() if one.batch["requests"] != 8])
    assert text.split("Without a comparison: 6 cells\n")[1].splitlines() == [
        "not run after: eager, reuse off, kv v41+fp4, batch 8; eager, reuse on, kv",
        "  v41+fp4, batch 8; graph, reuse off, kv v41+fp4, batch 8; graph, reuse on, kv",
        "  v41+fp4, batch 8",
        "before and after: refused: context 20000 is over the graph's limit of 16384:",
        "  graph, reuse off, kv v41+fp4, batch 64; graph, reuse on, kv v41+fp4, batch 64",
    ]


@pytest.mark.parametrize(
    ("geometries", "names"),
    [(("v41-flash", "mini"), ("v41-flash eager", "mini eager")), (("mini", "mini"), ("eager", "eager"))],
    ids=["several", "one"],
)
def test_what_is_on_one_side_is_named_by_its_geometry_where_there_are_several(geometries, names):
    before, after = (step(9, batch, geometry=name) for batch, name in enumerate(geometries, start=1))
    (table,) = stored_tables(compare_stored([before], [after]))
    assert table.notes[:2] == (
        f"not run after: {names[0]}, reuse on, kv v41+fp4, batch 1",
        f"not run before: {names[1]}, reuse on, kv v41+fp4, batch 2",
    )
    assert [row[0].text for row in table.rows] == [
        f"{names[0]}, reuse on, kv v41+fp4, batch 1 x 1024",
        f"{names[1]}, reuse on, kv v41+fp4, batch 2 x 1024",
    ]


def test_what_has_no_comparison_is_a_row_in_csv():
    text = csv_text(stored_tables(compare_stored([step(20_000)], [])))
    assert '"eager, reuse on, kv v41+fp4, batch 1 x 1024",not run after' in text.splitlines()


def test_where_no_cell_meets_another_the_nearest_difference_is_said():
    text = shown([step(20_000)], [with_variant(step(20_000), kv="v4")])
    assert "the most alike of them differ in kv v41+fp4 before, v4 after" in text


def test_a_switch_that_one_side_lacks_is_none_there():
    ranks = with_variant(step(20_000), dep=2)
    assert "the most alike of them differ in dep none before, 2 after" in shown([step(20_000)], [ranks])
    assert "the most alike of them differ in dep 2 before, none after" in shown([ranks], [step(20_000)])


def test_kernels_have_a_table_each():
    text = shown(
        [kernel(4_000), kernel(5_000, "sglang")], [kernel(4_400, environment=NEW), kernel(5_000, "sglang", 2.0)]
    )
    assert text.splitlines()[:4] == [
        "Before and after, dequant alone: measured, gpu, NVIDIA H200",
        "case  rows  provider  before us  after us      change %  launches  verdict",
        "v4    4096  triton        4.000     4.400  +10.00 ±0.11         1  SLOWER",
        "v4    4096  sglang        5.000     5.000   +0.00 ±0.08    1 -> 2  SAME",
    ]


@pytest.mark.parametrize(
    ("by", "first"),
    [
        ("mode", "eager      2     +1.50  +0.00  +3.00       1     1      0"),
        ("batch", "1 x 1024      2     +1.00  -1.00  +3.00       1     1      0"),
        ("kv", "v41+fp4      3     +0.00  -1.00  +3.00       1     2      0"),
    ],
    ids=["mode", "batch", "kv"],
)
def test_rows_may_be_summed_up(by, first):
    before = [step(20_000), step(20_000, graph=True), step(40_000, 2)]
    after = [changed(20_600), changed(19_800, graph=True), changed(40_000, batch=2)]
    assert shown(before, after, by).splitlines()[2] == first


@pytest.mark.parametrize("by", BY)
def test_every_table_fits_80_columns(by):
    slower = [replace(one, environment=NEW) for one in sweep()]
    assert max(map(len, shown(sweep(), slower, by).splitlines())) <= 80


def test_cells_are_called_by_what_makes_them():
    assert cell_words(step(20_000, 8, graph=True)) == "graph, reuse on, kv v41+fp4, batch 8 x 1024"
    assert cell_words(kernel(4000)) == "dequant by triton, v4 4096"
    many = [step(20_000, batch) for batch in range(1, 12)]
    assert which(compare_stored(many, [])) == "eager, reuse on, kv v41+fp4, batch 1, 2, 3, 4, 5, 6, 7, 8 and 3 more"


def test_cells_of_unusual_switches_are_called_by_them_too():
    usual = {"compressor": "fused", "replay": "off", "path": "sparse", "moe": "off", "mhc": "off"}
    plain_one = with_variant(step(20_000), **usual)
    assert cell_words(plain_one) == "eager, reuse on, kv v41+fp4, batch 1 x 1024"
    other = replace(with_variant(plain_one, moe="experts", replay="on", align="free"), ranks=2)
    said = "eager, reuse on, kv v41+fp4, replay on, moe experts, align free, 2 ranks, batch 1"
    assert which(compare_stored([other, plain_one], [])).split("; ") == [said, "eager, reuse on, kv v41+fp4, batch 1"]


def test_a_lost_cell_says_why():
    wrong = replace(lost("wrong", "a byte differs"), environment=NEW)
    assert "after: wrong: a byte differs" in shown([step(20_000)], [wrong])
