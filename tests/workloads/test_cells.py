"""Cells: the product of the axes, groups of switches, and keys that change with content only."""

import json
from dataclasses import replace

import pytest

from dsv4bench.errors import UsageError
from dsv4bench.workloads.batch import Request, equal_requests
from dsv4bench.workloads.buckets import Refusal
from dsv4bench.workloads.cells import Cell, Load, cells
from dsv4bench.workloads.geometry import V41_FLASH, V41_FLASH_MINI
from dsv4bench.workloads.options import PrefillArguments, prefill_options
from dsv4bench.workloads.variant import KV_PAIRS, Variant


def planned(**typed):
    return cells(prefill_options(PrefillArguments(device="cpu", **typed)))


CELL = Cell(V41_FLASH_MINI, Load(equal_requests(4, 8, 120, 8192)), 8192, Variant())


def test_a_group_holds_the_switches_in_order():
    (group,) = planned(batch="2", compressor="both")
    found = [(cell.variant.graph, cell.variant.compressor, cell.variant.reuse) for cell in group]
    assert found == [
        (graph, compressor, reuse)
        for graph in (False, True)
        for compressor in ("torch", "fused")
        for reuse in ("off", "on")
    ]
    assert len({cell.group for cell in group}) == 1
    assert len({cell.key("c") for cell in group}) == 8


def test_an_eager_cell_does_not_vary_by_graph_mode():
    (group,) = planned(reuse="on", graph_mode="breakable,full")
    assert [(cell.variant.graph, cell.variant.graph_mode) for cell in group] == [
        (False, "breakable"),
        (True, "breakable"),
        (True, "full"),
    ]


def test_only_a_breakable_graph_varies_by_its_breaks():
    (group,) = planned(reuse="on", graph_mode="full,breakable", breaks="both", break_outputs="both")
    found = [(cell.variant.graph, cell.variant.switches()["breaks"], cell.variant.switches()["break-outputs"])
             for cell in group]  # fmt: skip
    both = [(True, breaks, outputs) for breaks in ("sm100", "hopper") for outputs in ("copy", "static")]
    assert found == [(False, None, None), (True, None, None), *both]
    assert len({cell.group for cell in group}) == 1
    assert len({cell.key("c") for cell in group}) == 6


def test_the_product_of_the_axes():
    groups = planned(batch="1,2", extend="4,8", prefix="0,120", kv="v4,v41", chunk="64,128", dep_simulated="1,2")
    assert len(groups) == 2**6
    assert len({group[0].group for group in groups}) == 2**6
    first = groups[0][0]
    assert (first.variant.kv.name, first.ranks, first.chunk, first.load.prefix, first.load.extend) == (
        "v4",
        1,
        64,
        0,
        4,
    )


def test_equal_cells_appear_once():
    groups = planned(batch="64", extend="128,256,1k")  # a chunk of 8192 leaves 128 tokens each in all three
    assert [(group[0].load.rows, group[0].load.extend) for group in groups] == [(8192, 128)]


def test_a_load_without_one_length():
    load = Load((Request(0, 0, 5), Request(1, 256, 9)), "file")
    assert (load.extend, load.prefix, load.rows) == (None, None, 14)


@pytest.fixture
def requests_file(tmp_path):
    file = tmp_path / "r.jsonl"
    lines = [{"input_length": 16_400, "hash_ids": [1, 2]}, {"input_length": 6400, "hash_ids": [1, 2, 3]}]
    file.write_text("\n".join(map(json.dumps, lines)))
    return str(file)


def test_recorded_requests(requests_file):
    one, two = planned(requests=requests_file, batch="1,2")
    assert one[0].load == Load((Request(0, 0, 256),), requests_file, 64)
    assert two[0].load.requests == (Request(0, 0, 256), Request(1, 16, 84))
    assert two[0].chunk == 128
    assert [[batch.rows for batch in forwards] for forwards in two[0].plan] == [[128, 128, 84]]


def test_a_key_is_of_the_content():
    same = replace(CELL, load=replace(CELL.load, source="elsewhere", divide=64))
    assert same.key("c") == CELL.key("c")
    assert CELL.key("c") != CELL.key("d")


def test_where_a_config_lay_is_no_part_of_a_key():
    elsewhere = replace(CELL, geometry=replace(CELL.geometry, name="models/config.json"))
    assert (elsewhere.key("c"), elsewhere.group) == (CELL.key("c"), CELL.group)


@pytest.mark.parametrize("typed", [{"quick": True}, {"samples": 50}], ids=["quick", "50 samples"])
def test_a_cell_knows_how_it_is_sampled(typed):
    ((cell, *_),) = planned(**{"samples": 20, **typed})
    assert (cell.samples, cell.quick) == (typed.get("samples", 20), typed.get("quick", False))


CHANGES = {
    "geometry": replace(CELL, geometry=V41_FLASH),
    "requests": replace(CELL, load=Load(equal_requests(5, 8, 120, 8192))),
    "chunk": replace(CELL, chunk=4096),
    "ranks": replace(CELL, ranks=2),
    "device": replace(CELL, device="cuda"),
    "seed": replace(CELL, seed=1),
    "samples": replace(CELL, samples=50),
    "quick": replace(CELL, quick=True),
    "buckets": replace(CELL, buckets=(8, 64)),
    "kv": replace(CELL, variant=Variant(KV_PAIRS["v4"])),
    "provider": replace(CELL, variant=Variant(provider="triton")),
    "fault": replace(CELL, variant=Variant(fault="wrong-row")),
    "residual streams": replace(CELL, variant=Variant(mhc="on")),
}
SWITCHES = {
    "reuse": replace(CELL, variant=Variant(reuse="off")),
    "compressor": replace(CELL, variant=Variant(compressor="torch")),
    "graph": replace(CELL, variant=Variant(graph=True)),
    "graph mode": replace(CELL, variant=Variant(graph=True, graph_mode="full")),
    "breaks": replace(CELL, variant=Variant(graph=True, breaks="hopper")),
    "break outputs": replace(CELL, variant=Variant(graph=True, break_outputs="static")),
}


@pytest.mark.parametrize("other", CHANGES.values(), ids=CHANGES)
def test_what_makes_another_group(other):
    assert other.group != CELL.group
    assert other.key("c") != CELL.key("c")


@pytest.mark.parametrize("other", SWITCHES.values(), ids=SWITCHES)
def test_a_switch_keeps_the_group(other):
    assert other.group == CELL.group
    assert other.key("c") != CELL.key("c")


def test_a_list_of_buckets_takes_the_place_of_the_recipe_s():
    cell = planned(batch="3", extend="11", buckets="8,40,9k", reuse="on", graph=True)[0][0]
    assert cell.buckets == (8, 40, 9216)
    assert [batch.rows for batch in cell.graph_forwards[0]] == [40]
    small = replace(cell, buckets=(8, 16))
    assert small.graph_forwards == (Refusal("33 tokens are over the largest bucket, 16"),)
    assert [batch.rows for batch in small.run_forwards[0]] == [33]


def test_graph_forwards_are_padded_or_refused():
    long = Load((Request(0, 0, 100), Request(1, 16_300, 100)))
    cell = replace(CELL, load=long, chunk=100, variant=Variant(graph=True))
    padded, refused = replace(cell, chunk=112).graph_forwards
    assert [batch.rows for batch in padded] == [112]
    assert refused == Refusal("context 16400 is over the graph's limit of 16384")
    assert cell.graph_forwards[0] == Refusal("100 tokens are over the largest bucket, 96")
    assert [batch.rows for (batch,) in replace(cell, chunk=112).run_forwards] == [112, 88]


@pytest.mark.parametrize(
    "variant", [Variant(), Variant(graph=True, graph_mode="full")], ids=["no graph", "one set of lengths"]
)
def test_forwards_that_need_no_bucket(variant):
    cell = replace(CELL, load=Load((Request(0, 16_384, 1),)), variant=variant)
    assert cell.graph_forwards == cell.forwards


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"prefix": "1m"}, "--prefix 1048576: 1048576 cached + 8 new tokens; expected at most 1048576, the positions"),
        ({"batch": "200", "chunk": "128"}, "--chunk 128: no token for each of 200 requests, at least 200 expected"),
        ({"requests": "none.jsonl"}, "--requests none.jsonl: No such file"),
    ],
    ids=["positions", "chunk", "file"],
)
def test_impossible_lengths(typed, message):
    with pytest.raises(UsageError) as caught:
        planned(**typed)
    assert message in str(caught.value)


@pytest.mark.parametrize(("align", "said"), [("barrier", {}), ("free", {"align": "free"})])
def test_a_record_says_that_ranks_align_nothing(align, said):
    ((cell, *_),) = planned(dep="2", align=align)
    assert {name: value for name, value in cell.switches().items() if name == "align"} == said
