"""KV pairs by name, their refusals, and a variant's switches."""

import pytest

from dsv4bench.errors import UsageError
from dsv4bench.kernels.layout import UNIFORM_FP8, V4, V41, V41_FP4, V41_FP4_NEW, V41_NEW
from dsv4bench.workloads.variant import KV_PAIRS, KVPair, Variant, kv_pair, variant_of

PAIRS = {
    "v4": KVPair(V4, V4),
    "v41": KVPair(V41, V41),
    "v41+fp4": KVPair(V41, V41_FP4),
    "v41_new": KVPair(V41_NEW, V41_NEW),
    "v41_new+fp4_new": KVPair(V41_NEW, V41_FP4_NEW),
    "uniform": KVPair(UNIFORM_FP8, UNIFORM_FP8),
}


def test_the_pairs_that_a_step_may_have():
    assert PAIRS == KV_PAIRS
    assert [kv_pair(name).name for name in KV_PAIRS] == list(PAIRS)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_both_caches_of_a_pair_have_one_arrangement(pair):
    assert pair.main.interleaved == pair.extra.interleaved


@pytest.mark.parametrize("text", ["fp4", "fp4+fp4", "fp4+v41", "fp4_new", "fp4_new+fp4_new"])
def test_fp4_is_never_a_main_cache(text):
    with pytest.raises(UsageError, match=r"FP4 is extra-only .*v41\+fp4") as caught:
        kv_pair(text)
    assert f"--kv {text}" in str(caught.value)


@pytest.mark.parametrize(("text", "near"), [("v42", "v4"), ("v41-fp4", r"v41\+fp4"), ("v41+fp8", r"v41\+fp4")], ids=str)
def test_an_unknown_pair_names_the_nearest(text, near):
    with pytest.raises(UsageError, match=f"did you mean '{near}'"):
        kv_pair(text)


def test_switches_carry_command_line_names():
    variant = Variant(KV_PAIRS["v4"], reuse="off", compressor="torch", graph=True, graph_mode="full", fault="wrong-row")
    assert variant.switches() == {
        "kv": "v4",
        "reuse": "off",
        "compressor": "torch",
        "graph": True,
        "graph-mode": "full",
        "provider": "torch",
        "fault": "wrong-row",
        "replay": "off",
        "path": "sparse",
        "breaks": None,
        "break-outputs": None,
        "moe": "off",
        "mhc": "off",
    }


READ_BACK = {
    "eager": Variant(KV_PAIRS["v4"], reuse="off", compressor="torch"),
    "full graph": Variant(KV_PAIRS["uniform"], graph=True, graph_mode="full", provider="torch"),
    "mhc": Variant(mhc="on"),
    "breakable": Variant(KV_PAIRS["v41+fp4"], graph=True, breaks="hopper", break_outputs="static"),
}


@pytest.mark.parametrize("variant", READ_BACK.values(), ids=READ_BACK)
def test_a_variant_is_read_back_from_its_switches(variant):
    assert variant_of(variant.switches()) == variant


def test_what_an_older_record_lacks_is_default():
    old = {"kv": "v41", "reuse": "off", "compressor": "fused", "graph": True, "graph-mode": "full"}
    assert variant_of(old) == Variant(KV_PAIRS["v41"], reuse="off", graph=True, graph_mode="full")
