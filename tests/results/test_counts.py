"""Counts: what is summed, what counts as added, and a compressor's launches."""

import pytest

from dsv4bench.results.counts import (
    add,
    added,
    compressor_sources,
    is_gemm,
    operations,
    side_by_side,
    sums,
)
from tests.results.synthetic import counts, row

FAKE = {"calls": 1, "kernels": 2, "copies": 1, "sets": 1, "aten_ops": None}


@pytest.mark.parametrize(("values", "total"), [([1, 2], 3), ([], 0), ([1, None], None)])
def test_a_sum_with_a_gap_is_no_sum(values, total):
    assert add(values) == total


def test_rows_are_summed_by_any_keys():
    found = sums(counts("off"), "op")
    assert found[("dequant_compressed",)] == {"calls": 38, "kernels": 38, "copies": 0, "sets": 0, "aten_ops": None}
    assert found[("dequant_swa",)]["calls"] == 40
    assert sums(counts("on"), "op", "kv_source")[("dequant_compressed", 20)]["calls"] == 1


def test_sides_are_set_against_each_other():
    before, after = [row("a", None, "eager", 2)], [row("b", None, "eager", 3)]
    found = side_by_side(before, after, "op")
    assert found[("a",)]["calls"] == (2, 0)
    assert found[("b",)]["kernels"] == (0, 3)
    assert found[("a",)]["aten_ops"] == (None, None)
    assert side_by_side([], after, "op")[("b",)]["calls"] == (None, 3)


@pytest.mark.parametrize("op", ["qkv_proj", "index_k_proj", "o_proj_a"])
def test_a_matrix_product_is_one_operation(op):
    assert is_gemm(op)
    assert operations(op, FAKE) == 1


def test_any_other_op_is_all_that_the_device_does():
    assert not is_gemm(None)
    assert operations("store", FAKE) == 4
    assert operations("store", {**FAKE, "sets": None}) is None


@pytest.mark.parametrize("device", [True, False], ids=["h200", "two-cores"])
@pytest.mark.parametrize(
    ("extra", "want"),
    [
        ([], []),
        ([("other", 2, "eager", 0, {"copies": 5})], ["other (kv_source 2, eager): {copies} 0 -> 5"]),
        ([("combine", None, "eager", 1, {})], ["combine (eager): {calls} 0 -> {one}"]),
    ],
    ids=["nothing", "a-copy-outside-ops", "a-new-op"],
)
def test_what_reuse_adds_is_named(device, extra, want):
    new = [row(op, source, where, calls, device=device, **kinds) for op, source, where, calls, kinds in extra]
    found = added(counts("off", device=device), counts("on", device=device, extra=new))
    words = (
        {"copies": "copies", "calls": "kernels", "one": 1}
        if device
        else {"copies": "aten_ops", "calls": "calls", "one": 1}
    )
    assert found[: len(want)] == [text.format(**words) for text in want]
    assert bool(found) == bool(want)


@pytest.mark.parametrize(
    ("after", "want"),
    [
        (row("dequant_compressed", 2, "eager", 1), []),
        (row("dequant_compressed", 2, "eager", 0), []),
        (row("dequant_compressed", 2, "eager", 7), ["dequant_compressed (kv_source 2, eager): kernels 6 -> 7"]),
        (
            row("dequant_compressed", 2, "eager", 1, copies=1),
            ["dequant_compressed (kv_source 2, eager): copies 0 -> 1"],
        ),
        (row("dequant_compressed", 2, "eager", 1, each=2), ["dequant_compressed (kv_source 2, eager): kernels 6 -> 2"]),
        (row("dequant_compressed", 2, "break", 1), ["dequant_compressed (kv_source 2, break): kernels 0 -> 1"]),
    ],
    ids=["fewer", "none", "more", "a-copy", "more-a-call", "elsewhere"],
)
def test_fewer_dequants_do_not_hide_what_each_of_them_adds(after, want):
    assert added([row("dequant_compressed", 2, "eager", 6)], [after]) == want


def test_a_copy_hidden_in_fewer_aten_operations_is_seen():
    before, after = (row("dequant_compressed", 2, "eager", calls, device=False) for calls in (6, 1))
    after["aten_ops"] += 1
    assert added([before], [after]) == ["dequant_compressed (kv_source 2, eager): aten_ops 18 -> 4"]


def test_calls_alone_are_compared_where_nothing_else_was_counted():
    bare = [{"op": "combine", "kv_source": None, "where": "eager", "calls": 38}]
    assert added(bare, bare) == []
    assert added(bare, [{**bare[0], "calls": 39}]) == ["combine (eager): calls 38 -> 39"]


@pytest.mark.parametrize(("before", "after"), [([], []), ([], counts()), (counts(), [])])
def test_a_side_without_counts_is_not_compared(before, after):
    assert added(before, after) is None


TORCH = [("compress_pool", 51, 3), ("latent_norm", 1, 0), ("index_k_proj", 2, 0), ("index_k_norm", 1, 0),
         ("fake_quant", 1, 0), ("index_pack", 2, 0), ("store", 1, 0)]  # fmt: skip
FUSED = [("compress_c2", 2, 0), ("index_k_proj", 2, 0), ("index_key", 1, 0)]


@pytest.mark.parametrize(("ops", "launches"), [(TORCH, 61), (FUSED, 4)], ids=["torch", "fused"])
def test_a_ratio_2_compressor_is_counted_per_source(ops, launches):
    rows = [
        row(op, source, "segment", 1, each=kernels, copies=copies) for source in (2, 8) for op, kernels, copies in ops
    ]
    others = [
        row("compress_proj", 2, "break", 2),
        row("compress_c1", 20, "segment", 1),
        row("index_key", 20, "segment", 1),
    ]
    found = compressor_sources([*rows, *others, *counts()])
    assert {source: counted["operations"] for source, counted in found.items()} == {2: launches, 8: launches}
