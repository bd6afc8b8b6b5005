"""The byte and FLOP model against the table of specification 6.7 and counts by hand."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.workloads.batch import Batch, Request, equal_requests
from dsv4bench.workloads.geometry import V41_FLASH, V41_FLASH_MINI
from dsv4bench.workloads.model import (
    CPU_CEILINGS,
    H200_CEILINGS,
    break_copies,
    ceilings_of,
    compressed_rows,
    dequant_bytes,
    dequant_rows,
    dequants,
    forward_ns,
    forward_work,
    launches,
    matrices,
    reuse_saving,
    swa_rows,
    visible_keys,
    weight_bytes,
)
from dsv4bench.workloads.variant import KV_PAIRS, Variant
from dsv4bench.workloads.weights import make_model


def uniform(batch: int, extend: int, prefix: int, chunk: int) -> Batch:
    return Batch(equal_requests(batch, extend, prefix, chunk))


FRESH = uniform(1, 8192, 0, 8192)
LAST_8K_OF_64K = uniform(1, 8192, 57_344, 8192)
LAST_8K_OF_128K = uniform(1, 8192, 122_880, 8192)
SIXTEEN = uniform(16, 512, 4096, 8192)

# batch, KV pair, compressed rows before and after, window rows, GB before and after, us before and after at 4.8 TB/s
TABLE = [
    (FRESH, "v41+fp4", (237_568, 20_480), 327_680, (0.820, 0.535), (171, 112)),
    (uniform(4, 2048, 0, 8192), "v41+fp4", (237_568, 20_480), 327_680, (0.820, 0.535), (171, 112)),
    (uniform(32, 256, 0, 8192), "v41+fp4", (237_568, 20_480), 327_680, (0.820, 0.535), (171, 112)),
    (FRESH, "v4", (237_568, 20_480), 327_680, (0.909, 0.560), (189, 117)),
    (LAST_8K_OF_64K, "v41+fp4", (1_900_544, 163_840), 332_760, (3.010, 0.731), (627, 152)),
    (LAST_8K_OF_64K, "v4", (1_900_544, 163_840), 332_760, (3.591, 0.799), (748, 166)),
    (LAST_8K_OF_128K, "v4", (3_801_088, 327_680), 332_760, (6.647, 1.062), (1385, 221)),
    (SIXTEEN, "v4", (2_138_112, 184_320), 408_960, (4.096, 0.954), (853, 199)),
]
IDS = ["1 x 8192", "4 x 2048", "32 x 256", "v4", "64K", "64K v4", "128K v4", "16 x (4096 + 512)"]


@pytest.mark.parametrize(("batch", "kv", "compressed", "window", "gigabytes", "microseconds"), TABLE, ids=IDS)
def test_table_of_the_specification(batch, kv, compressed, window, gigabytes, microseconds):
    pair = KV_PAIRS[kv]
    rows = tuple(dequant_rows(V41_FLASH, batch, Variant(reuse=reuse)) for reuse in ("off", "on"))
    window_rows = swa_rows(batch, V41_FLASH.window) * len(V41_FLASH.layers)
    moved = [dequant_bytes(pair.extra, r) + dequant_bytes(pair.main, window_rows) for r in rows]
    assert (rows, window_rows) == (compressed, window)
    assert tuple(round(one / 1e9, 3) for one in moved) == gigabytes
    assert tuple(round(one / 4.8e12 * 1e6) for one in moved) == microseconds


def test_dequants_fall_from_38_to_4():
    assert len(dequants(V41_FLASH, FRESH, Variant(reuse="off"))) == 38
    assert [kind.layer for kind in dequants(V41_FLASH, FRESH, Variant(reuse="on"))] == [2, 8, 14, 20]


def test_saving_by_hand():
    batch = Batch((Request(0, 0, 9), Request(1, 100, 1)))
    assert [compressed_rows(batch, ratio) for ratio in (0, 1, 2)] == [0, 110, 54]
    saving = reuse_saving(V41_FLASH, batch, Variant())
    rows = 15 * 54 + 19 * 110  # 18 - 3 layers of ratio 2, 20 - 1 of ratio 1
    assert (saving.calls, saving.rows, saving.bytes) == (34, rows, rows * (288 + 1024))
    assert saving.ns(1e12) == pytest.approx(rows * 1312 / 1000)


def test_an_idle_rank_reads_nothing():
    idle = Batch(()).padded(64)
    assert (compressed_rows(idle, 1), swa_rows(idle, 128), visible_keys(idle, 1, 128)) == (0, 0, 0)
    assert forward_ns(V41_FLASH, idle, Variant(), H200_CEILINGS) == 0


@given(st.integers(0, 300), st.integers(1, 100), st.integers(1, 3), st.integers(0, 60))
def test_visible_keys_is_the_sum_over_rows(prefix, extend, ratio, most):
    batch = Batch((Request(0, prefix, extend), Request(1, 0, 7)))
    positions = [*range(prefix, prefix + extend), *range(7)]
    assert visible_keys(batch, ratio, most) == sum(min((p + 1) // ratio, most) for p in positions)


def test_attention_flops_at_full_width():
    work = forward_work(V41_FLASH, LAST_8K_OF_64K, Variant())
    wide, window_only = 640 * 38, 128 * 2  # every row of a long context sees 512 + 128 keys (6.4)
    assert work["attention"].flops == 8192 * 64 * (wide + window_only) * 2 * (512 + 512)


def test_index_flops_per_pair():
    batch = Batch((Request(0, 0, 4),))
    pairs = 3 * (0 + 1 + 1 + 2) + 5 * (1 + 2 + 3 + 4)  # three index sources of ratio 2, five of ratio 1
    assert forward_work(V41_FLASH, batch, Variant())["index"].flops == 8192 * pairs


def test_candidate_consumers_score_the_candidate_blocks_only():
    batch = Batch((Request(0, 999, 1),))
    pairs = 3 * 500 + 1000 + 4 * 64  # mini: 8 blocks of 8 positions
    assert forward_work(V41_FLASH_MINI, batch, Variant())["index"].flops == 2 * 4 * 128 * pairs


def test_gemm_flops_of_one_row():
    plain = 5120 * 1792 + 1280 * 64 * 512 + 64 * 512 * 1024 + 8192 * 5120
    own_kv = 3 * 5120 * 1024 + 5120 * 512 + 4 * 512 * 128
    own_index = 8 * (1280 * 32 * 128 + 5120 * 32)
    assert forward_work(V41_FLASH, uniform(1, 1, 0, 1), Variant())["gemm"].flops == 2 * (
        40 * plain + own_kv + own_index
    )
    assert weight_bytes(V41_FLASH) == 2 * (40 * plain + own_kv + own_index)


def test_matrices_are_those_that_are_made():
    model = make_model(V41_FLASH_MINI, torch.device("cpu"), seed=0)
    for kind, made in zip(V41_FLASH_MINI.layers, model.weights, strict=True):
        tensors = [made.qkv, made.query]
        tensors += [made.source.compress, made.source.index_k] if made.source else []
        tensors += [made.index.query, made.index.heads] if made.index else []
        shapes = [tuple(t.shape) for t in tensors] + [tuple(m.shape) for m in made.output_a] + [made.output_b.shape]
        assert [tuple(shape) for _, *shape in matrices(V41_FLASH_MINI, kind)] == shapes


def test_writers_by_hand():
    work = forward_work(V41_FLASH, uniform(1, 10, 0, 10), Variant())["writers"]
    assert work.bytes_read == 40 * 10 * 1024
    assert work.bytes_written == 40 * 10 * 528 + (3 * 5 + 10) * (288 + 68)


@pytest.mark.parametrize(
    ("variant", "count"),
    [
        # per layer 11; 38 + 1 combines; dequants; 4 x 4 of sources; 8 x 5 + 1 of index sources
        (Variant(reuse="on"), 440 + 39 + 4 + 16 + 41),
        (Variant(reuse="off"), 440 + 39 + 38 + 16 + 41),
        (Variant(compressor="torch"), 440 + 39 + 4 + 4 + 3 * 63 + 41),
        (Variant(KV_PAIRS["v4"], compressor="torch"), 440 + 39 + 4 + 4 + 3 * 64 + 41),
        (Variant(mhc="on"), 440 + 39 + 4 + 16 + 41 + 4 * 40 + 1),
    ],
    ids=["reuse", "no reuse", "torch path FP4", "torch path V4", "residual streams"],
)
def test_launches(variant, count):
    assert launches(V41_FLASH, FRESH, variant) == count


# a row of attention is 64 heads of 512 channels in bf16, 64 KiB (specification 6.6)
COPIED = {
    "sm100": ("sm100", "fused", 40 * 65_536 + 3 * 4096 + 1024 + 8 * (32 * 128 * 2 + 32 * 2), 60),
    "sm100, torch path": ("sm100", "torch", 40 * 65_536 + 3 * 4096 + 1024 + 8 * (32 * 128 * 2 + 32 * 2), 63),
    "hopper": ("hopper", "fused", 40 * 65_536, 40),
}


@pytest.mark.parametrize(("breaks", "compressor", "row_bytes", "copies"), COPIED.values(), ids=COPIED)
def test_copies_of_a_breakable_graph(breaks, compressor, row_bytes, copies):
    variant = Variant(graph=True, breaks=breaks, compressor=compressor)
    static, eager = replace(variant, break_outputs="static"), replace(variant, graph=False)
    batch = uniform(1, 1000, 0, 1000)
    padded = batch.padded(1024)
    cost = break_copies(V41_FLASH, padded, variant)
    assert (cost.flops, cost.bytes_read, cost.bytes_written) == (0, 1000 * row_bytes, 1000 * row_bytes)
    assert forward_work(V41_FLASH, padded, variant)["break_copies"] == cost
    assert launches(V41_FLASH, padded, variant) - launches(V41_FLASH, padded, static) == copies
    # a static output, a forward that the graph refuses, and a step without a graph copy nothing
    for one, of in ((padded, static), (batch, variant), (padded, eager)):
        assert break_copies(V41_FLASH, one, of).bytes_moved == 0
        assert launches(V41_FLASH, one, of) == launches(V41_FLASH, batch, eager)


def test_a_replayed_tail_copies_its_own_rows():
    """Layers 0 to 19 copy all 1 000 rows, 20 to 39 the last 128 of the one request."""
    variant = Variant(graph=True, breaks="hopper", replay="on")
    cost = break_copies(V41_FLASH, uniform(1, 1000, 0, 1000).padded(1024), variant)
    assert cost.bytes_written == (20 * 1000 + 20 * 128) * 65_536


def test_a_modelled_time_is_bound_by_launches_or_by_work():
    small, large = uniform(1, 4, 0, 4), LAST_8K_OF_64K
    assert forward_ns(V41_FLASH_MINI, small, Variant(), H200_CEILINGS) == 540 * H200_CEILINGS.launch_ns
    assert forward_ns(V41_FLASH, large, Variant(), H200_CEILINGS) == pytest.approx(0.3e9, rel=0.2)
    full = Variant(graph=True, graph_mode="full")
    assert forward_ns(V41_FLASH_MINI, small, full, H200_CEILINGS) < 540 * H200_CEILINGS.launch_ns
    before, after = (forward_ns(V41_FLASH, large, Variant(reuse=reuse), H200_CEILINGS) for reuse in ("off", "on"))
    saving = reuse_saving(V41_FLASH, large, Variant())
    assert before - after == pytest.approx(saving.ns(H200_CEILINGS.bytes_per_s))


def test_ceilings_by_device():
    assert (ceilings_of("cuda"), ceilings_of("cpu")) == (H200_CEILINGS, CPU_CEILINGS)


def test_a_head_stays_only_while_layers_of_its_source_follow_each_other():
    """Ratios and sources by hand: what lies between two layers of one source takes the head away."""
    split = replace(V41_FLASH_MINI, ratios=(1, 1, 0, 1), kv_sources=(0,), index_sources=(0,), candidate_source=None)
    assert [kind.layer for kind in dequants(split, FRESH, Variant())] == [0, 3]
    woven = replace(split, ratios=(2, 1, 2, 1), kv_sources=(0, 1), index_sources=(0, 1))
    assert [kind.layer for kind in dequants(woven, FRESH, Variant())] == [0, 1, 2, 3]
    assert [kind.layer for kind in dequants(V41_FLASH_MINI, FRESH, Variant())] == [2, 8, 14, 20]
