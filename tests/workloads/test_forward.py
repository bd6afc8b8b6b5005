"""The tables of a forward: by hand, by plain loops, padded, idle, empty, loaded in place (specification 5, 6.2)."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.workloads.batch import Batch, Request
from dsv4bench.workloads.forward import make_forward, static_inputs
from dsv4bench.workloads.pools import Extent, PageTables, make_tables
from tests.workloads.stacks import CPU, SHORT, Slots

NARROW = replace(SHORT, window=4)
# request 0 caches 5 tokens and gets 3; request 1 gets 2 from nothing
PAIR = Batch((Request(0, 5, 3), Request(1, 0, 2)))
REQUESTS = st.lists(st.tuples(st.integers(0, 600), st.integers(1, 300)), min_size=1, max_size=4)


@pytest.fixture
def tables():
    """Request 0 in full page 2, request 1 in page 1; positions 2 to 7 of request 0 in window page 1, request 1 in 2."""
    full_to_swa = torch.zeros(3 * 256, dtype=torch.int64)
    full_to_swa[512 + 2 : 512 + 8] = torch.arange(256 + 2, 256 + 8)
    full_to_swa[256 : 256 + 2] = torch.arange(512, 514)
    return PageTables(torch.tensor([[2], [1]], dtype=torch.int32), full_to_swa, 3, 3, (Extent(5, 8), Extent(0, 2)))


def tables_of(requests, window=128):
    return make_tables([Extent(prefix, prefix + extend) for prefix, extend in requests], window, CPU, 3)


def forward_of(requests, pads=0, geometry=SHORT):
    made = Batch(tuple(Request(i, *lengths) for i, lengths in enumerate(requests)))
    padded = made.padded(made.live + pads) if pads else made
    return make_forward(geometry, tables_of(requests), padded, 0), tables_of(requests)


ROWS = {
    "positions": [5, 6, 7, 0, 1],
    "req": [0, 0, 0, 1, 1],
    "loc": [517, 518, 519, 256, 257],
    "pair_loc": [258, -1, 259, -1, 128],
    "swa_loc": [261, 262, 263, 512, 513],
    "starts": [0, 3],
    "lens": [3, 2],
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_by_hand(tables, name):
    inputs = make_forward(NARROW, tables, PAIR, 0).inputs
    assert getattr(inputs, name).tolist() == ROWS[name]


def test_attention_tables_by_hand(tables):
    forward = make_forward(NARROW, tables, PAIR, 0)
    assert forward.query_start.tolist() == [0, 3, 5]
    assert forward.seq_lens.tolist() == [8, 2]
    assert forward.gather_lens.tolist() == [6, 2]  # 3 new rows see 3 before them; 2 rows are all there is
    assert forward.swa_ids.tolist() == [258, 259, 260, 261, 262, 263, 512, 513]
    assert forward.visible == {1: 8, 2: 4}
    assert forward.workspace_rows == 10 + 8


GATHERS = {
    0: (0, [], [0, 0], [0, 6]),
    1: (10, [*range(512, 520), 256, 257], [0, 8], [10, 16]),
    2: (5, [256, 257, 258, 259, 128], [0, 4], [5, 11]),
}


@pytest.mark.parametrize("ratio", GATHERS)
def test_gathers_by_hand(tables, ratio):
    gather = make_forward(NARROW, tables, PAIR, 0).gathers[ratio]
    found = (gather.rows, gather.ids.tolist(), gather.bases.tolist(), gather.swa_bases.tolist())
    assert found == GATHERS[ratio]


def test_dtypes():
    forward, _ = forward_of([(5, 3)])
    long = {"positions", "req", "loc", "pair_loc"}
    assert {name for name in ROWS if getattr(forward.inputs, name).dtype == torch.int64} == long
    short = [forward.inputs.swa_loc, forward.inputs.starts, forward.inputs.lens, forward.query_start, forward.seq_lens]
    short += [forward.gather_lens, forward.swa_ids]
    short += [t for gather in forward.gathers.values() for t in (gather.ids, gather.bases, gather.swa_bases)]
    assert {tensor.dtype for tensor in short} == {torch.int32}
    assert forward.inputs.hidden.dtype == torch.bfloat16


@settings(max_examples=25)
@given(REQUESTS, st.integers(0, 5))
def test_rows_follow_their_definitions(requests, pads):
    forward, tables = forward_of(requests, pads)
    slots, inputs = Slots(tables), forward.inputs
    rows = [(i, p) for i, (prefix, extend) in enumerate(requests) for p in range(prefix, prefix + extend)]
    last = len(requests) - 1
    assert inputs.positions.tolist() == [p for _, p in rows] + [0] * pads
    assert inputs.req.tolist() == [i for i, _ in rows] + [last] * pads
    assert inputs.loc.tolist() == [slots.full(i, p) for i, p in rows] + [0] * pads
    assert inputs.swa_loc.tolist() == [slots.swa(i, p) for i, p in rows] + [-1] * pads
    assert min(inputs.swa_loc[: len(rows)].tolist()) > 0  # new rows all have a window slot
    pairs = [slots.compressed(i, p // 2, 2) if p % 2 else -1 for i, p in rows]
    assert inputs.pair_loc.tolist() == pairs + [-1] * pads


@settings(max_examples=25)
@given(REQUESTS, st.integers(0, 5))
def test_gathers_follow_their_definitions(requests, pads):
    forward, tables = forward_of(requests, pads)
    slots, ends = Slots(tables), [sum(lengths) for lengths in requests]
    window = [(i, p) for i, (prefix, _) in enumerate(requests) for p in range(max(0, prefix - 127), ends[i])]
    assert forward.swa_ids.tolist() == [slots.swa(i, p) for i, p in window]
    assert forward.gather_lens.tolist() == [sum(i == of for of, _ in window) for i in range(len(requests))]
    for ratio in (1, 2):
        gather = forward.gathers[ratio]
        counts = [end // ratio for end in ends]
        assert gather.ids.tolist() == [slots.compressed(i, c, ratio) for i, n in enumerate(counts) for c in range(n)]
        assert gather.bases.tolist() == [sum(counts[:i]) for i in range(len(counts))]
        before = [sum(forward.gather_lens.tolist()[:i]) for i in range(len(counts))]
        assert gather.swa_bases.tolist() == [sum(counts) + rows for rows in before]


@settings(max_examples=25)
@given(REQUESTS, st.integers(0, 5))
def test_requests_follow_their_definitions(requests, pads):
    forward, _ = forward_of(requests, pads)
    extends = [extend for _, extend in requests]
    assert forward.seq_lens.tolist() == [sum(lengths) for lengths in requests]
    assert forward.query_start.tolist() == [sum(extends[:i]) for i in range(len(extends) + 1)]
    assert forward.inputs.starts.tolist() == [sum(extends[:i]) for i in range(len(extends))]
    assert forward.inputs.lens.tolist() == extends
    assert forward.live == sum(extends)


def test_hidden_states_of_a_seed():
    requests = [(5, 3), (0, 2)]
    forward, tables = forward_of(requests, pads=2)
    hidden = forward.inputs.hidden
    assert hidden.shape == (7, SHORT.hidden)
    assert (hidden[5:] == 0).all()
    assert 0.8 < hidden[:5].float().std() < 1.2
    assert torch.equal(hidden, make_forward(SHORT, tables, forward.batch, 0).inputs.hidden)
    assert not torch.equal(hidden, make_forward(SHORT, tables, forward.batch, 1).inputs.hidden)


def test_an_idle_batch_has_rows_of_padding_only():
    idle = Batch(()).padded(4)
    forward = make_forward(SHORT, tables_of([(5, 3), (0, 2)]), idle, 0)
    inputs = forward.inputs
    assert forward.live == 0
    assert [t.tolist() for t in (inputs.positions, inputs.req, inputs.loc)] == [[0] * 4] * 3
    assert [t.tolist() for t in (inputs.pair_loc, inputs.swa_loc)] == [[-1] * 4] * 2
    assert inputs.lens.tolist() == [0, 0]
    assert (inputs.hidden == 0).all()
    assert (forward.swa_rows, forward.workspace_rows, forward.visible) == (0, 0, {1: 0, 2: 0})
    assert forward.query_start.tolist() == [0]


def test_a_batch_without_requests_has_no_rows():
    forward = make_forward(SHORT, tables_of([(5, 3)]), Batch(()), 0)
    assert forward.inputs.hidden.shape == (0, SHORT.hidden)
    assert [t.numel() for t in (forward.inputs.positions, forward.seq_lens, forward.swa_ids)] == [0] * 3
    assert all(gather.rows == gather.ids.numel() == 0 for gather in forward.gathers.values())


def test_a_request_keeps_its_own_row_of_the_page_table():
    """The second forward of a chunked cell holds request 2 alone: its index, not its place, finds its pages."""
    tables = tables_of([(0, 9), (0, 9), (300, 9)])
    forward = make_forward(SHORT, tables, Batch((Request(2, 304, 5),)), 0)
    slots = Slots(tables)
    assert forward.inputs.req.tolist() == [2] * 5
    assert forward.inputs.loc.tolist() == [slots.full(2, p) for p in range(304, 309)]
    assert forward.gathers[2].ids.tolist() == [slots.compressed(2, c, 2) for c in range(154)]


def addresses(inputs):
    return [tensor.data_ptr() for tensor in inputs.tensors()]


def test_loading_keeps_addresses_and_takes_values():
    requests = [(5, 3), (0, 2)]
    forward, tables = forward_of(requests)
    static = static_inputs(SHORT, tables, 8)
    before = addresses(static)
    static.load(forward.inputs)
    assert addresses(static) == before
    for mine, theirs in zip(static.tensors(), forward.inputs.tensors(), strict=True):
        assert torch.equal(mine[: theirs.shape[0]], theirs)


def test_static_inputs_begin_as_zero_rows_of_no_request():
    static = static_inputs(SHORT, tables_of([(5, 3), (0, 2)]), 8)
    assert [tensor.shape[0] for tensor in static.tensors()] == [8] * 6 + [2]
    assert not any(tensor.any() for tensor in static.tensors())


def test_offsets_are_refreshed_in_place_replay_by_replay():
    """int32 [2, slots]: first row and rows of each request, none of padding (specification 5.3; the batches of B.5)."""
    tables = tables_of([(0, 256), (7, 1), (33, 90)])
    static = static_inputs(SHORT, tables, 256)
    address = static.offsets.data_ptr()
    replays = [
        ([(0, 256)], [[0, 0, 0], [256, 0, 0]]),
        ([(0, 100), (7, 1), (33, 90)], [[0, 100, 101], [100, 1, 90]]),
        ([(7, 1)], [[0, 0, 0], [1, 0, 0]]),
        ([], [[0, 0, 0], [0, 0, 0]]),
        ([(0, 256)], [[0, 0, 0], [256, 0, 0]]),
    ]
    for requests, offsets in replays:
        replayed = Batch(tuple(Request(i, *lengths) for i, lengths in enumerate(requests))).padded(256)
        static.load(make_forward(SHORT, tables, replayed, 0).inputs)
        assert static.offsets.tolist() == offsets
        assert [static.starts.tolist(), static.lens.tolist()] == offsets
        assert static.offsets.data_ptr() == address
    assert (static.offsets.dtype, static.starts.data_ptr()) == (torch.int32, address)


SMALLER = {
    "one request of one row": Batch((Request(0, 7, 1),)),
    "no request": Batch(()),
    "an idle batch": Batch(()).padded(1),
}


@pytest.mark.parametrize("smaller", SMALLER.values(), ids=SMALLER.keys())
def test_a_smaller_forward_leaves_no_request_of_the_one_before(smaller):
    """The ring write-back runs over every column: a length left over would park rows that are not there (5.3)."""
    first, tables = forward_of([(5, 3), (0, 2), (1, 2)])
    static = static_inputs(SHORT, tables, first.batch.rows)
    static.load(first.inputs)
    static.load(make_forward(SHORT, tables, smaller, 0).inputs)
    live = 0 if smaller.idle else len(smaller.requests)
    assert static.lens.tolist() == [1] * live + [0] * (3 - live)
