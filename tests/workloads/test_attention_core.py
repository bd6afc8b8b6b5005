"""The attention core: order, values by appendix B.2, reuse of heads, planted faults, growth, padding and poison."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from dsv4bench.kernels import codec, paged
from dsv4bench.kernels.layout import FULL_PAGE
from dsv4bench.workloads.batch import Batch, Request
from dsv4bench.workloads.kv_buffer import SparsePrefillKVBuffer
from dsv4bench.workloads.variant import KV_PAIRS
from tests.workloads.stacks import CPU, SHORT, Slots, batch, bits, cell, follow, hear, run, same, variant, written

# an odd prefix, a fresh request, and one whose window has left its first tokens behind
MIXED = batch((13, 9), (0, 3), (140, 2))
CORE = ("combine", "dequant_compressed", "dequant_swa", "sparse_attention", "zero_padding")
SHARERS = (2, 4, 6, 7)  # layers 1, 3 and 5 are sources


@pytest.fixture(scope="module")
def mixed():
    return cell(SHORT, MIXED)


class Watch:
    """An observer that keeps each layer's input, and what reused heads held and ought to have held."""

    def __init__(self):
        self.inputs = {}
        self.heads = {}

    def layer_input(self, kind, residual):
        self.inputs[kind.layer] = bits(residual)

    def reused_head(self, step, kind, gather, head):
        page_rows, layout = FULL_PAGE // kind.ratio, step.pools.compressed_layout
        fresh = codec.dequantise(
            *paged.read_rows(step.pools.compressed[kind.kv_source], gather.ids, page_rows, layout), layout
        )
        self.heads[kind.layer] = torch.equal(bits(head.squeeze(1)), bits(fresh))


def watched(step, forward):
    """Run one forward under an observer; return it, with the output as the input of one more layer."""
    step.observer = watch = Watch()
    watch.inputs[len(step.geometry.layers)] = bits(run(step, forward))
    return watch


def core(heard, layer):
    return [op for op in heard.ops(layer) if op in CORE]


FILL = ["combine", "dequant_compressed", "dequant_swa", "sparse_attention"]
SKIP = ["combine", "dequant_swa", "sparse_attention"]
BEFORE = [SKIP, *[FILL] * 7]
AFTER = [SKIP if layer in (0, *SHARERS) else FILL for layer in range(8)]


@pytest.mark.parametrize(("reuse", "expected"), [("off", BEFORE), ("on", AFTER)])
def test_order_of_the_operations(mixed, reuse, expected):
    heard = hear(mixed.step(variant(reuse=reuse)), mixed.forwards[0][0])
    assert [core(heard, layer) for layer in range(8)] == expected


def test_window_indices_are_made_once_a_forward():
    stack = replace(SHORT, ratios=(0, 0, 1, 0), kv_sources=(2,), index_sources=(2,), candidate_source=None)
    made = cell(stack, batch((13, 9)), batch((22, 2), (0, 3)))
    step, off = made.step(variant()), made.step(variant(reuse="off"))
    heard = hear(step, made.forwards[0][0])
    assert [layer for layer in range(4) if "combine" in heard.ops(layer)] == [0, 2]
    second = follow(step, made.forwards[0][1])
    run(off, made.forwards[0][0])
    off.poison()  # what the first forward left cannot help the second
    assert torch.equal(second, follow(off, made.forwards[0][1]))


def keys_of(step, kind, row):
    """Return the keys f64 [n, 512] of one query row by appendix B.2, each dequantised from its own slot."""
    pools, slots = step.pools, Slots(step.pools.tables)
    req, p = int(step.inputs.req[row]), int(step.inputs.positions[row])
    window = torch.tensor([slots.swa(req, x) for x in range(max(0, p - 127), p + 1)])
    keys = [codec.dequantise(*paged.read_rows(pools.swa[kind.layer], window, 256, pools.swa_layout), pools.swa_layout)]
    if kind.ratio:
        raw = step.buffers.raw_1 if kind.ratio == 1 else step.buffers.raw_2
        visible = [c for c in raw[row].tolist() if 0 <= c < (p + 1) // kind.ratio]
        chosen = torch.tensor([slots.compressed(req, c, kind.ratio) for c in visible], dtype=torch.int64)
        layout, page = pools.compressed_layout, 256 // kind.ratio
        rows = paged.read_rows(pools.compressed[kind.kv_source], chosen, page, layout)
        keys.append(codec.dequantise(*rows, layout))
    return torch.cat(keys).double()


def attention_by_definition(step, kind):
    """Return softmax with sink over each live row's keys, f64 [live, heads, 512]."""
    sink, rows = step.weights[kind.layer].sink.double(), []
    for row in range(step.forward.live):
        keys = keys_of(step, kind, row)
        scores = step.buffers.q[row].double() @ keys.T * 512**-0.5
        weights = torch.softmax(torch.cat([scores, sink[:, None]], 1), 1)[:, :-1]
        rows.append(weights @ keys)
    return torch.stack(rows)


def check_every_layer(step, forward):
    step.pools.restore_rings()
    step.load(forward)
    step.poison()
    for kind in step.geometry.layers:
        for piece in step.layer(kind, forward.batch.rows):
            piece.run()
            if piece.name.endswith("attention"):
                expected = attention_by_definition(step, kind)
                torch.testing.assert_close(
                    step.buffers.attention[: forward.live].double(), expected, rtol=2e-2, atol=2e-2
                )


@pytest.mark.parametrize("kv", KV_PAIRS)
def test_attention_by_definition(kv):
    made = cell(SHORT, MIXED, kv=kv)
    check_every_layer(made.step(variant(kv=kv)), made.forwards[0][0])


def test_reuse_changes_no_byte(mixed):
    found = {}
    for reuse in ("off", "on"):
        watch = watched(mixed.step(variant(reuse=reuse)), mixed.forwards[0][0])
        found[reuse] = [*watch.inputs.values(), *written(mixed.pools)]
    assert same(found["on"], found["off"])


def test_reused_heads_are_shown_to_the_observer(mixed):
    on = watched(mixed.step(variant()), mixed.forwards[0][0])
    assert on.heads == dict.fromkeys(SHARERS, True)
    assert list(on.inputs) == list(range(9))
    assert watched(mixed.step(variant(reuse="off")), mixed.forwards[0][0]).heads == {}


# ---- planted faults


def first_difference(first, second):
    return next((layer for layer in range(9) if not torch.equal(first.inputs[layer], second.inputs[layer])), None)


def test_a_stale_head_feeds_a_later_source_with_an_earlier_ones_rows(mixed):
    forward, right, stale = mixed.forwards[0][0], mixed.step(variant()), mixed.step(variant(fault="stale-head"))
    assert hear(stale, forward).per_source("dequant_compressed") == {1: 1, 5: 1}  # source 3 is missing
    wrong = watched(stale, forward)
    assert wrong.heads == {2: True, 3: False, 4: False, 6: True, 7: True}
    assert first_difference(watched(right, forward), wrong) == 4  # the input after layer 3


def test_wrong_rows_keep_the_counts_and_change_the_output(mixed):
    forward, right, wrong = mixed.forwards[0][0], mixed.step(variant()), mixed.step(variant(fault="wrong-row"))
    assert hear(wrong, forward).calls() == hear(right, forward).calls()
    found = watched(wrong, forward)
    assert found.heads == dict.fromkeys(SHARERS, False)
    assert first_difference(watched(right, forward), found) == 2  # the input after layer 1, the first source


def test_an_extra_copy_keeps_the_output_and_changes_the_counts(mixed):
    forward, right, copying = mixed.forwards[0][0], mixed.step(variant()), mixed.step(variant(fault="extra-copy"))
    calls = hear(copying, forward).calls()
    assert calls == hear(right, forward).calls() + Counter({None: 7})  # once in each compressed layer
    assert first_difference(watched(right, forward), watched(copying, forward)) is None


@pytest.mark.parametrize("fault", ["stale-head", "wrong-row", "extra-copy"])
def test_a_fault_leaves_the_side_without_reuse_alone(mixed, fault):
    forward = mixed.forwards[0][0]
    right, planted = (mixed.step(variant(reuse="off", fault=either)) for either in (None, fault))
    assert hear(planted, forward).calls() == hear(right, forward).calls()
    assert first_difference(watched(right, forward), watched(planted, forward)) is None


# ---- forgetting

# one source and no layer of ratio 0: only `forget_head` tells the forwards apart
LONE = replace(SHORT, ratios=(1, 1), kv_sources=(0,), index_sources=(0,), candidate_source=None)


def second_forward(made, step):
    """Run a forward, change its hidden states and run it again: same pointers, same rows, other caches."""
    forward = made.forwards[0][0]
    hidden = forward.inputs.hidden.clone()
    run(step, forward)
    forward.inputs.hidden.copy_(-hidden.roll(1, 0))
    heard = hear(step, forward)
    forward.inputs.hidden.copy_(hidden)
    return step.output(forward.live).clone(), heard.per_source("dequant_compressed")


def test_a_new_forward_forgets_the_head():
    made = cell(LONE, batch((13, 9), (0, 3)))
    after, calls = second_forward(made, made.step(variant()))
    before, _ = second_forward(made, made.step(variant(reuse="off")))
    assert calls == {0: 1}
    assert torch.equal(after, before)


def test_without_forgetting_a_new_forward_would_read_the_old_head():
    made = cell(LONE, batch((13, 9), (0, 3)))
    forgetful = made.step(variant())
    forgetful.kv_buffer.forget_head = lambda: None
    stale, calls = second_forward(made, forgetful)
    right, _ = second_forward(made, made.step(variant()))
    assert calls == {}
    assert not torch.equal(stale, right)


# requests come and go; each forward continues where the ones before left its requests
SEQUENCE = (
    Batch((Request(0, 0, 1), Request(1, 0, 1))),  # no complete pair
    Batch((Request(2, 30, 3),)),  # grows the workspace
    Batch((Request(0, 1, 4), Request(1, 1, 2))),
    Batch((Request(1, 3, 4),)),  # as many rows as the next one
    Batch((Request(0, 5, 2),)),
    Batch((Request(2, 33, 60), Request(0, 7, 1))),  # grows it again, in layer 0 and in both ratios
)


@pytest.mark.parametrize("stack", [SHORT, LONE], ids=["short", "one source, no window layer"])
def test_heads_stay_right_while_requests_come_and_go(stack):
    """Appendix B.4: every reused head equals a fresh dequant in every forward, and the outputs those without reuse."""
    outputs = {}
    for reuse in ("off", "on"):
        made = cell(stack, *SEQUENCE)
        step = made.step(variant(reuse=reuse))
        step.kv_buffer, step.observer = SparsePrefillKVBuffer(CPU), Watch()
        found = outputs.setdefault(reuse, [])
        for requests in SEQUENCE:
            found.append(follow(step, made.forward(requests)))
            assert all(step.observer.heads.values())
    assert same(outputs["on"], outputs["off"])


# ---- the workspace


def test_the_workspace_grows_in_the_middle_of_a_forward(mixed):
    forward, reserved = mixed.forwards[0][0], mixed.step(variant())
    growing = mixed.step(variant())
    growing.kv_buffer = SparsePrefillKVBuffer(CPU)
    growing.pools.restore_rings()
    growing.load(forward)
    rows = []
    for kind in SHORT.layers:
        for piece in growing.layer(kind, forward.live):
            piece.run()
        rows.append(growing.kv_buffer.capacity_rows)
    window, sequences = 22 + 3 + 129, (22, 3, 142)
    half, full = window + sum(seq // 2 for seq in sequences), window + sum(sequences)
    assert rows == [window, *[half] * 4, *[full] * 3]  # layer 0, the first of ratio 2, the first of ratio 1
    assert torch.equal(growing.output(forward.live), run(reserved, forward))


def test_growing_costs_no_further_dequant(mixed):
    growing = mixed.step(variant())
    growing.kv_buffer = SparsePrefillKVBuffer(CPU)
    assert hear(growing, mixed.forwards[0][0]).per_source("dequant_compressed") == {1: 1, 3: 1, 5: 1}


def test_a_reserved_workspace_is_not_allocated_again(mixed):
    step = mixed.step(variant())
    address, rows = step.kv_buffer.reserve(0).data_ptr(), step.kv_buffer.capacity_rows
    run(step, mixed.forwards[0][0])
    assert (step.kv_buffer.reserve(0).data_ptr(), step.kv_buffer.capacity_rows) == (address, rows)


def test_a_forward_without_compressed_rows():
    """Sequences of one token have no complete group of 2: a filled head of no rows is legal (appendix B.4)."""
    made = cell(SHORT, batch((0, 1), (0, 1)))
    forward = made.forwards[0][0]
    assert forward.gathers[2].rows == 0
    step, off = made.step(variant()), made.step(variant(reuse="off"))
    check_every_layer(step, forward)
    assert torch.equal(run(step, forward), run(off, forward))
    assert hear(step, forward).per_source("dequant_compressed") == {1: 1, 3: 1, 5: 1}


def test_poison_does_not_reach_the_output(mixed):
    forward, step = mixed.forwards[0][0], mixed.step(variant())
    expected, caches = run(step, forward), written(mixed.pools)
    step.poison()
    assert torch.equal(run(step, forward), expected)
    assert same(written(mixed.pools), caches)
    assert expected.isfinite().all()


# ---- padding


def test_padded_rows_come_out_zero():
    made = cell(SHORT, batch((13, 9), (0, 3), bucket=16))
    step = made.step(variant())
    step.load(made.forwards[0][0])
    step.poison()
    for kind in SHORT.layers:
        for piece in step.layer(kind, 16):
            piece.run()
            if piece.name.endswith("attention"):
                assert (step.buffers.attention[12:16] == 0).all()
                assert step.buffers.attention[:12].isfinite().all()


def test_an_idle_rank_attends_to_nothing():
    made = cell(SHORT, Batch(()).padded(4), batch((13, 3), bucket=4))
    step = made.step(variant())
    step.poison()
    heard = hear(step, made.forwards[0][0])
    assert {tuple(core(heard, layer)) for layer in (0, 2, 4)} == {("zero_padding",)}
    assert "sparse_attention" not in heard.ops()
    assert (step.buffers.attention[:4] == 0).all()
