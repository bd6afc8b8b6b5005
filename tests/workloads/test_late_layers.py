"""The late layers on each request's tail, and attention over packed caches: rows, counts, and what stays equal."""

import pytest
import torch

from dsv4bench.kernels.layout import HEAD_DIM
from dsv4bench.workloads import late_layers
from dsv4bench.workloads.batch import Batch, Request
from dsv4bench.workloads.forward import make_forward
from dsv4bench.workloads.geometry import V41_FLASH
from dsv4bench.workloads.late_layers import early, late, packed_ratios, sparse_layers
from dsv4bench.workloads.model import dequants, reuse_saving
from dsv4bench.workloads.variant import KV_PAIRS, Variant
from tests.workloads.stacks import DEEP, SHORT, Heard, batch, bits, cell, same, variant, written

REPLAY = Variant(replay="on")


def test_the_late_layers_begin_at_the_last_source():
    assert V41_FLASH.late_start == 20
    assert [kind.layer for kind in late(V41_FLASH, REPLAY)] == list(range(20, 40))
    assert early(V41_FLASH, Variant()) == V41_FLASH.layers


@pytest.mark.parametrize(
    ("lengths", "tails"),
    [
        (((0, 300),), [(172, 128)]),
        (((0, 128), (5, 129)), [(0, 128), (6, 128)]),
        (((1000, 1), (0, 3)), [(1000, 1), (0, 3)]),
    ],
)
def test_a_tail_is_the_last_128_new_tokens_at_most(lengths, tails):
    short = batch(*lengths).tail(128, slots=4)
    assert [(request.prefix, request.extend) for request in short.requests] == tails
    assert short.bucket is None


@pytest.mark.parametrize(("bucket", "slots", "rows"), [(256, 4, 256), (512, 2, 256), (512, 9, 512)])
def test_the_tail_of_a_bucket_has_as_many_rows_for_every_batch(bucket, slots, rows):
    assert batch((0, 200), bucket=bucket).tail(128, slots).rows == rows
    assert batch((0, 1), (9, 9), bucket=bucket).tail(128, slots).rows == rows
    idle = Batch((), 0).padded(bucket).tail(128, slots)
    assert (idle.rows, idle.live) == (rows, 0)


def test_the_tails_rows_are_the_last_of_each_request():
    made = cell(SHORT, batch((0, 200), (7, 3), bucket=208), replay="on")
    (forward,) = made.all_forwards()
    assert forward.tail_rows.tolist()[:131] == [*range(72, 200), 200, 201, 202]
    assert forward.tail_rows.tolist()[131:] == [0] * (forward.tail.batch.rows - 131)
    assert forward.tail.inputs.positions[:131].tolist() == [*range(72, 200), 7, 8, 9]
    assert forward.tail.floor.tolist() == [72, 0]


def test_dequants_of_the_recipe():
    """Specification 1.2: 18 compressed dequants before, 3 after, and rows 9 L before, 1.5 L after."""
    length = batch((0, 1024))
    off, on = (Variant(replay="on", reuse=reuse) for reuse in ("off", "on"))
    assert len(dequants(V41_FLASH, length, off)) == 18
    assert [kind.layer for kind in dequants(V41_FLASH, length, on)] == [2, 8, 14]
    assert len(sparse_layers(V41_FLASH, on, length)) == 20
    saving = reuse_saving(V41_FLASH, length, on)
    assert (saving.calls, saving.rows) == (15, (9 * 1024) - (3 * 512))


def results(made, forward, mark=None, **switches):
    """Run one forward of a variant; return its result and the bits of every cache."""
    step = made.step(variant(**switches))
    if mark is not None:
        step.ops.mark = mark
    made.pools.restore_rings()
    step.poison()
    step.load(forward)
    for piece in step.live_pieces(forward):
        piece.run()
    return step.result(forward).clone(), written(made.pools)


def test_a_replayed_step_runs_them():
    made = cell(DEEP, batch((0, 140)), replay="on")
    (forward,) = made.all_forwards()
    heard = Heard()
    results(made, forward, heard, replay="on", reuse="off")
    assert heard.calls("dequant_compressed", "dequant_swa", "paged_attention", "sparse_attention", "window_slots") == {
        "dequant_compressed": 18,
        "dequant_swa": 20,
        "paged_attention": 20,
        "sparse_attention": 20,
        "window_slots": 1,
    }
    assert heard.calls("compress_c1", "compressed_slots", "enter_tail") == {
        "compress_c1": 1,
        "compressed_slots": 5,
        "enter_tail": 1,
    }


@pytest.mark.parametrize(
    ("rows", "prefix", "kv", "ratios"),
    [
        (1024, 196_608, "v41+fp4", {1}),
        (1024, 2 * 196_608, "v41+fp4", {1, 2}),
        (1024, 196_608 - 1025, "v41+fp4", set()),
        (1025, 2 * 196_800, "v41+fp4", set()),
        (8, 32_760, "v41+fp4", {1}),
        (8, 32_759, "v41+fp4", set()),
        (8, 65_528, "v41+fp4", {1, 2}),
        (8, 65_528, "v41", set()),
    ],
)
def test_few_rows_on_a_long_context_go_packed(rows, prefix, kv, ratios):
    """Specification 6.1: at most 1 024 rows, FP4 extra, sum(seq) / ratio >= max(32 768, 192 * rows)."""
    recipe = Variant(kv=KV_PAIRS[kv], path="recipe")
    assert packed_ratios(recipe, batch((prefix, rows))) == ratios
    assert packed_ratios(Variant(kv=KV_PAIRS[kv]), batch((prefix, rows))) == set()


def test_a_replay_of_whole_fresh_requests_agrees_with_every_row():
    """With no cached prefix and at most 128 new tokens the tail is all rows and no window is floored."""
    requests = batch((0, 9), (0, 128))
    replayed, plain = (cell(SHORT, requests, replay=replay, exact=True) for replay in ("on", "off"))
    got, caches = results(replayed, *replayed.all_forwards(), replay="on")
    want, expected = results(plain, *plain.all_forwards())
    assert got.shape == want.shape
    torch.testing.assert_close(got.float(), want.float(), rtol=3e-2, atol=3e-2)
    assert same(caches[:5], expected[:5])  # the windows of layers 0 to 4


def test_the_last_source_compresses_every_row_before_the_tail():
    requests = batch((3, 300))
    replayed, plain = (cell(SHORT, requests, replay=replay) for replay in ("on", "off"))
    results(replayed, *replayed.all_forwards(), replay="on")
    results(plain, *plain.all_forwards())
    for pool in ("compressed", "index_k"):
        got, want = getattr(replayed.pools, pool), getattr(plain.pools, pool)
        assert same([bits(got[source][1:]) for source in got], [bits(want[source][1:]) for source in want])


def test_windows_of_late_layers_hold_the_tail_only():
    made = cell(SHORT, batch((0, 300)), replay="on")
    (forward,) = made.all_forwards()
    for cache in made.pools.swa:
        cache.fill_(0xEE)
    results(made, forward, replay="on")
    rows = made.pools.swa[6][:, : 256 * HEAD_DIM].unflatten(1, (256, HEAD_DIM)).flatten(0, 1)
    touched = (rows[forward.inputs.swa_loc.long()] != 0xEE).any(dim=1)
    assert touched.tolist() == [False] * 172 + [True] * 128


@pytest.mark.parametrize("reuse", ["on", "off"])
def test_packed_layers_agree_with_gathered_ones(monkeypatch, reuse):
    monkeypatch.setattr(late_layers, "PACKED_CONTEXT", 100)
    monkeypatch.setattr(late_layers, "PACKED_CONTEXT_PER_ROW", 1)
    made = cell(SHORT, batch((130, 7), (2, 5)), path="recipe", exact=True)
    (forward,) = made.all_forwards()
    assert packed_ratios(variant(path="recipe"), forward.batch) == {1}
    got, caches = results(made, forward, path="recipe", reuse=reuse)
    want, expected = results(made, forward, path="sparse", reuse=reuse)
    torch.testing.assert_close(got.float(), want.float(), rtol=3e-2, atol=3e-2)
    assert same(caches[:6], expected[:6])  # windows of layers 0 to 5, the last of which is written before its attention


def test_a_tail_needs_no_hidden_states_of_its_own():
    made = cell(SHORT, batch((0, 4)), replay="on")
    forward = make_forward(SHORT, made.pools.tables, Batch((Request(0, 0, 4),)), 3, replay=True)
    assert forward.tail.inputs.hidden.shape == (0, SHORT.hidden)
