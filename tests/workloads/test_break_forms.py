"""Both forms of breaks: how many there are, what runs in them, and that neither form nor a copy changes a byte."""

from collections import Counter

import pytest

from dsv4bench.workloads.batch import Batch
from dsv4bench.workloads.break_forms import EAGER, Form, form_of, layer_parts
from tests.workloads.stacks import DEEP, SHORT, Heard, batch, bits, cell, same, variant, written

SM100, HOPPER = Form("sm100"), Form("hopper")
MIXED = ((13, 9), (0, 3), (40, 2))
LIVE = 14


@pytest.fixture(scope="module")
def deep():
    return cell(DEEP, batch((13, 5), (0, 3), bucket=12), torch_path=True, break_copies=True)


def heard(made, form, **switches):
    """Return the pieces of the padded forward, and what a mark heard of each."""
    step, forward = made.step(variant(**switches)), made.forwards[0][0]
    step.pools.restore_rings()
    step.load(forward)
    found = []
    for piece in step.padded_pieces(forward, form):
        step.ops.mark = mark = Heard()
        piece.run()
        found.append((piece, mark))
    return found


# ---- counts (specification 6.6, Engram's break apart)

SPECIFIED = {
    "sm100": (SM100, {"attention": 40, "source projections": 8, "top-k": 4}),
    "hopper": (HOPPER, {"attention": 40, "source step": 8}),
}


@pytest.mark.parametrize(("form", "want"), SPECIFIED.values(), ids=SPECIFIED)
def test_breaks_of_40_layers(deep, form, want):
    parts = (part for kind in DEEP.layers for part, where in layer_parts(kind, form, variant()) if where == "break")
    assert Counter(parts) == want
    parts = [piece.part for piece in deep.step(variant()).pieces(12, form=form) if piece.kind == "break"]
    assert {part: parts.count(part) for part in parts} == want


@pytest.mark.parametrize(
    ("layer", "hopper"),
    [
        (0, ["input", "project", "attention*", "output"]),
        (3, ["project", "attention*", "output"]),
        (2, ["project", "source step*", "attention*", "output"]),
        (24, ["project", "source step*", "attention*", "output"]),
    ],
    ids=["first", "sharer", "kv_source", "index source"],
)
def test_a_whole_source_step_is_one_break_on_hopper(deep, layer, hopper):
    pieces = deep.step(variant()).layer(DEEP.layers[layer], 12, HOPPER)
    assert [piece.part + ("*" if piece.kind == "break" else "") for piece in pieces] == hopper


CHANGE_G = ("compress_c2", "compress_c1", "index_k_proj", "index_key", "index_query")


@pytest.mark.parametrize(("form", "where"), [(SM100, "segment"), (HOPPER, "break")], ids=["sm100", "hopper"])
def test_the_compressor_lies_in_a_segment_or_in_a_break(deep, form, where):
    kinds = {op: {piece.kind for piece, mark in heard(deep, form) if op in mark.ops()} for op in CHANGE_G}
    assert kinds == {op: {where} for op in CHANGE_G}


def test_both_forms_call_the_same_but_for_padding(deep):
    """What a whole source step leaves is read by breaks alone, so it zeroes nothing: attention's 40 remain."""
    calls = {}
    for form in (SM100, HOPPER):
        ops = [op for _, mark in heard(deep, form) for op in mark.ops()]
        calls[form] = {op: ops.count(op) for op in ops}
    padding = {form: found.pop("zero_padding") for form, found in calls.items()}
    assert calls[SM100] == calls[HOPPER]
    # 3 of each ratio-2 source and of layer 20, 2 of each of the 4 others, and the candidates that 20 publishes
    assert padding == {SM100: 40 + 12 + 8 + 1, HOPPER: 40}


COPIES = {
    "sm100, fused": (
        "sm100",
        "fused",
        40 + 3 * 3 + 3 + 4 * 2,
    ),  # kv | score, queries and head weights; 24 to 36 have two
    "sm100, torch": ("sm100", "torch", 40 + 3 * 4 + 3 + 4 * 2),  # kv and score apart
    "hopper": ("hopper", "fused", 40),  # attention alone returns what a segment reads
}


@pytest.mark.parametrize(("breaks", "compressor", "count"), COPIES.values(), ids=COPIES)
def test_copies_of_a_forward(deep, breaks, compressor, count):
    found = heard(deep, Form(breaks, copies=True), compressor=compressor)
    where = [piece.kind for piece, mark in found for op in mark.ops() if op == "break_copy"]
    assert where == ["break"] * count
    assert not [mark for _, mark in heard(deep, Form(breaks)) if "break_copy" in mark.ops()]


def test_an_idle_rank_only_zeroes_in_its_breaks():
    made = cell(SHORT, Batch(()).padded(20), batch((0, 3), bucket=20), break_copies=True)
    for form in (SM100, HOPPER):
        ops = {op for piece, mark in heard(made, form) if piece.kind == "break" for op in mark.ops()}
        assert ops == {"zero_padding"}


# ---- bytes


@pytest.fixture(scope="module")
def padded():
    """Products that round the same at any row count, more positions than candidate blocks hold, and 6 padded rows."""
    return cell(SHORT, batch(*MIXED, bucket=20), torch_path=True, exact=True, break_copies=True)


def outcome(made, form, **switches):
    """Return the live output, caches and rings of a run over poisoned buffers."""
    step, forward = made.step(variant(**switches)), made.forwards[0][0]
    step.pools.restore_rings()
    step.poison()
    step.load(forward)
    for piece in step.padded_pieces(forward, form):
        piece.run()
    return [bits(step.output(LIVE)), *written(made.pools)]


@pytest.mark.parametrize("compressor", ["fused", "torch"])
@pytest.mark.parametrize("form", [HOPPER, Form("sm100", copies=True), Form("hopper", copies=True)], ids=str)
def test_no_form_changes_a_byte(padded, form, compressor):
    assert same(outcome(padded, SM100, compressor=compressor), outcome(padded, form, compressor=compressor))


@pytest.mark.parametrize("path", ["sparse", "recipe"])
def test_a_replayed_tail_is_cut_and_copied_alike(path):
    made = cell(SHORT, batch((200, 30), bucket=32), exact=True, replay="on", path=path, break_copies=True)
    outputs = []
    for form in (SM100, Form("sm100", copies=True), Form("hopper", copies=True)):
        step, forward = made.step(variant(replay="on", path=path)), made.forwards[0][0]
        step.pools.restore_rings()
        step.poison()
        step.load(forward)
        pieces = step.padded_pieces(forward, form)
        for piece in pieces:
            piece.run()
        outputs.append([bits(step.result(forward)), *written(made.pools)])
        parts = [(piece.layer, piece.part) for piece in pieces]
        assert parts.index((5, "source norm")) + 1 == parts.index((5, after_norm(form)))
    assert same(*outputs[:2])
    assert same(outputs[0], outputs[2])


def after_norm(form):
    return "source step" if form.breaks == "hopper" else "source projections"


def test_a_consumer_that_is_not_captured_scores_what_its_forward_sees(padded):
    """A captured one scores two published blocks of 8, since another forward sees 42 positions; this one sees 15."""
    step = padded.step(variant())
    step.load(padded.forward(batch((13, 2), bucket=20)))
    scored = []
    step.ops.audit = lambda rng, kernel, provider, tensors, call: (
        scored.append((tuple(tensors["logits"].shape), tensors["candidates"] is not None))
        if rng.op == "index_logits"
        else call()
    )
    for form in (SM100, HOPPER):
        for piece in step.layer(SHORT.layers[7], 20, form):
            if piece.part in ("top-k", "source step"):
                piece.run()
    assert scored == [((20, 16), True), ((2, 64), False)]


# ---- the tensors that breaks return


def test_a_returned_tensor_has_its_own_memory_in_the_shape_of_the_static_one(deep):
    buffers = deep.buffers
    for out in (buffers.attention[:5], buffers.kv_score[:5], buffers.index_weights_raw[:5]):
        own = buffers.own(out)
        assert (own.shape, own.dtype, own.is_contiguous()) == (out.shape, out.dtype, True)
        assert own.data_ptr() == buffers.break_output.data_ptr()


def test_a_poisoned_return_is_nan_in_either_type(deep):
    step = deep.step(variant())
    step.poison()
    assert step.buffers.own(step.buffers.attention).isnan().all()
    assert step.buffers.own(step.buffers.kv_score).isnan().all()


def test_a_returned_tensor_takes_no_memory_where_nothing_is_copied():
    assert cell(SHORT, batch((0, 3))).buffers.break_output.numel() == 0


@pytest.mark.parametrize(
    ("switches", "form"),
    [
        ({}, EAGER),
        ({"breaks": "hopper"}, EAGER),
        ({"graph": True, "graph_mode": "full", "breaks": "hopper"}, EAGER),
        ({"graph": True}, Form("sm100", copies=True)),
        ({"graph": True, "breaks": "hopper", "break_outputs": "static"}, Form("hopper")),
    ],
    ids=["eager", "eager, hopper", "full", "breakable", "breakable, hopper, static"],
)
def test_only_a_breakable_graph_has_a_form(switches, form):
    assert form_of(variant(**switches)) == form
    assert Form("sm100", copies=False) == EAGER
