"""The cost of every operation, by hand, against the sums of the model, and against the names that a step has."""

from dataclasses import replace

import pytest

from dsv4bench.kernels.contract import Cost
from dsv4bench.results.counts import OPERATIONS
from dsv4bench.workloads.batch import Batch, Request, equal_requests
from dsv4bench.workloads.geometry import V41_FLASH, V41_FLASH_MINI
from dsv4bench.workloads.model import forward_work, reuse_saving
from dsv4bench.workloads.operation_costs import operation_costs, recorded_costs
from dsv4bench.workloads.variant import KV_PAIRS, Variant

TEN = Batch((Request(0, 0, 10),))  # one request of ten new tokens
GEMMS = ("qkv_proj", "q_proj", "compress_proj", "index_k_proj", "index_q_proj", "index_weights_proj", "o_proj_a")
SUMS = {
    "gemm": (*GEMMS, "o_proj_b"),
    "index": ("index_logits", "index_topk"),
    "attention": ("sparse_attention",),
    "dequant_compressed": ("dequant_compressed",),
    "dequant_swa": ("dequant_swa",),
    "break_copies": ("break_copy",),
    "mixing": ("mhc_enter", "mhc_pre", "mhc_stats", "mhc_mix", "mhc_post"),
    "moe": ("moe_router_proj", "moe_experts", "moe_shared_proj"),
}
GRAPH = Variant(graph=True)
CASES = {
    "eager": (Batch(equal_requests(3, 700, 5000, 8192)), Variant()),
    "without reuse": (Batch(equal_requests(3, 700, 5000, 8192)), Variant(reuse="off")),
    "padded graph": (Batch(equal_requests(3, 300, 40, 8192)).padded(1024), GRAPH),
    "residual streams": (Batch(equal_requests(3, 300, 40, 8192)).padded(1024), replace(GRAPH, mhc="on")),
    "a MoE": (Batch(equal_requests(3, 300, 40, 8192)).padded(1024), replace(GRAPH, mhc="on", moe="experts")),
    "hopper, static": (TEN.padded(64), replace(GRAPH, breaks="hopper", break_outputs="static")),
    "torch path": (TEN, Variant(KV_PAIRS["v4"], compressor="torch")),
    "long context": (Batch((Request(0, 60_000, 9),)), Variant()),
}


def total(costs, ops):
    found = [cost for (op, _), cost in costs.items() if op in ops]
    return Cost(*(sum(getattr(one, part) for one in found) for part in ("flops", "bytes_read", "bytes_written")))


@pytest.mark.parametrize(("batch", "variant"), CASES.values(), ids=CASES)
def test_operations_add_up_to_the_parts_of_the_model(batch, variant):
    costs, work = operation_costs(V41_FLASH, batch, variant), forward_work(V41_FLASH, batch, variant)
    assert {part: total(costs, ops) for part, ops in SUMS.items()} == {part: work[part] for part in SUMS}


@pytest.mark.parametrize(("batch", "variant"), CASES.values(), ids=CASES)
def test_the_names_are_those_of_a_step(batch, variant):
    assert {op for op, _ in operation_costs(V41_FLASH, batch, variant)} <= set(OPERATIONS)


# ten rows of bf16; layers 0 and 1 have no source, source 2 six layers, source 20 the last twenty
BY_HAND = {
    ("load_input", None): Cost(0, 10 * 5120 * 2, 10 * 5120 * 2),
    ("input_norm", None): Cost(0, 2 * 10 * 5120 * 2, 2 * 10 * 5120 * 2),
    ("q_norm", 2): Cost(0, 6 * 10 * 1280 * 2, 6 * 10 * 1280 * 2),
    ("q_rope", 20): Cost(0, 20 * 10 * 64 * 64 * 2, 20 * 10 * 64 * 64 * 2),
    ("norm_rope_store", 20): Cost(0, 20 * 10 * 1024, 20 * 10 * 528),
    ("compress_c1", 20): Cost(0, 10 * 1024, 10 * (1024 + 288)),
    ("compress_c2", 2): Cost(0, 10 * 4096, 5 * (1024 + 288)),
    ("index_key", 2): Cost(0, 5 * 256, 5 * 68),
    ("index_query", 2): Cost(0, 10 * 32 * 129 * 2, 10 * 32 * 129 * 2),
    ("combine", None): Cost(0, 0, 10 * 128 * 4),  # layer 0 alone: layer 1 uses the same indices
    ("combine", 2): Cost(0, 6 * 10 * 512 * 4, 6 * 10 * 640 * 4),
    ("dequant_compressed", 2): Cost(0, 5 * 288, 5 * 1024),  # once a source with reuse
    ("dequant_swa", 2): Cost(0, 6 * 10 * 528, 6 * 10 * 1024),
    ("index_candidates", 20): Cost(0, 55 * 2, 10 * 2048 * 4),  # 1 + 2 + ... + 10 visible positions
    ("q_proj", None): Cost(2 * 2 * 10 * 1280 * 32_768, 2 * 2 * (1280 * 32_768 + 10 * 1280), 2 * 2 * 10 * 32_768),
}


@pytest.mark.parametrize(("place", "cost"), BY_HAND.items(), ids=lambda value: value[0] if type(value) is tuple else "")
def test_by_hand(place, cost):
    assert operation_costs(V41_FLASH, TEN, Variant())[place] == cost


def test_the_torch_path_costs_what_it_moves():
    costs = operation_costs(V41_FLASH, TEN, Variant(KV_PAIRS["v4"], compressor="torch"))
    assert costs["compress_pool", 8] == Cost(0, 10 * 8192, 10 * 1024)
    assert costs["fake_quant", 8] == Cost(0, 10 * (1024 + 256), 10 * (1024 + 256))  # latents and index keys
    assert ("compress_c2", 8) not in costs
    assert ("compress_c1", 20) in costs  # ratio 1 has no torch path
    assert operation_costs(V41_FLASH, TEN, Variant(compressor="torch"))["fake_quant", 8].bytes_read == 10 * 256


def test_reuse_saves_what_the_model_says():
    batch = Batch(equal_requests(8, 128, 8192, 8192))
    sides = [
        total(operation_costs(V41_FLASH, batch, Variant(reuse=reuse)), SUMS["dequant_compressed"])
        for reuse in ("off", "on")
    ]
    assert sides[0].bytes_moved - sides[1].bytes_moved == reuse_saving(V41_FLASH, batch, Variant()).bytes


def test_padding_is_zeroed_and_segments_run_over_it():
    costs = operation_costs(V41_FLASH, TEN.padded(64), GRAPH)
    assert costs["zero_padding", None] == Cost(0, 0, 2 * 54 * 64 * 512 * 2)
    assert costs["q_norm", None].bytes_read == 2 * 64 * 1280 * 2
    assert costs["dequant_swa", None].bytes_read == 2 * 10 * 528  # a break: over the live rows


BATCH = {"requests": 2, "extend": 5, "prefix": 3, "source": "uniform", "forwards": 1, "padded_rows": 64}
SWITCHES = Variant().switches()


def test_a_record_is_costed_as_its_cell():
    forward = Batch((Request(0, 3, 5), Request(1, 3, 5)))
    expected = operation_costs(V41_FLASH_MINI, forward, Variant())
    found = recorded_costs("v41-flash-mini", BATCH, SWITCHES, ranks=1)
    assert found == {place: (cost.flops, cost.bytes_moved) for place, cost in expected.items()}
    padded = recorded_costs("v41-flash-mini", BATCH, GRAPH.switches(), ranks=1)
    assert padded["break_copy", None] == (0, 2 * 2 * 10 * 4 * 512 * 2)  # 2 layers, each way, 10 rows of 4 heads
    assert padded["q_norm", None][1] == 2 * 2 * 64 * 64 * 2


def test_a_record_without_later_switches_is_costed_with_their_defaults():
    older = {
        name: value for name, value in SWITCHES.items() if name not in ("replay", "path", "breaks", "break-outputs")
    }
    assert recorded_costs("v41-flash", BATCH, older, 1) == recorded_costs("v41-flash", BATCH, SWITCHES, 1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "my-model"}, "the widths of geometry my-model are not in the record"),
        ({"batch": {**BATCH, "source": "lengths.jsonl"}}, "the lengths of recorded requests"),
        ({"ranks": 4}, "more than one rank or forward"),
        ({"batch": {**BATCH, "forwards": 2}}, "more than one rank or forward"),
        ({"switches": {**SWITCHES, "replay": "on"}}, "the late layers are replayed"),
        (
            {"switches": {**SWITCHES, "path": "recipe"}, "batch": {**BATCH, "prefix": 40_000}},
            "layers attend packed caches",
        ),
    ],
    ids=["geometry", "lengths", "ranks", "forwards", "replay", "packed"],
)
def test_what_a_record_cannot_tell_is_one_sentence(changes, reason):
    asked = {"name": "v41-flash", "batch": BATCH, "switches": SWITCHES, "ranks": 1} | changes
    with pytest.raises(ValueError, match=reason):
        recorded_costs(**asked)
