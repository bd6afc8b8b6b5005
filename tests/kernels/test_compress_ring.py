"""Rings of states: their sizes, what drafts they serve, where a position lies, and what is refused."""

import pytest
import torch

from dsv4bench.kernels import compress_ring
from dsv4bench.kernels.compress_ring import StateRing, expect_draft_tokens, max_draft_tokens, ring_size, write_pad


@pytest.mark.parametrize(
    ("ratio", "draft_tokens", "rows"), [(4, 0, 8), (4, 1, 16), (4, 10, 16), (128, 0, 128), (128, 1, 256)]
)
def test_a_ring_has_one_window_or_two_with_drafts(ratio, draft_tokens, rows):
    assert ring_size(ratio, draft_tokens) == rows


@pytest.mark.parametrize(
    ("ratio", "ring", "pad"), [(4, 8, 0), (4, 16, 10), (4, 12, 6), (4, 32, 26), (128, 128, 0), (128, 256, 130)]
)
def test_the_pad_and_the_most_drafts(ratio, ring, pad):
    assert write_pad(ratio, ring) == pad
    assert max_draft_tokens(ratio, ring) == pad


@pytest.mark.parametrize(("ratio", "window", "ring"), [(4, 8, 16), (128, 128, 256)])
def test_the_pad_is_the_largest_that_spares_what_a_later_compression_needs(ratio, window, ring):
    prefix = 512
    oldest_needed = prefix + 1 - (window - 1)  # one token is accepted, and the next one completes a group
    newest = prefix + write_pad(ratio, ring) - 1
    assert newest - ring == oldest_needed - 1
    assert (newest + 1) % ring == oldest_needed % ring


@pytest.mark.parametrize(
    "call", [compress_ring.window_tokens, lambda ratio: ring_size(ratio, 0)], ids=["window", "ring"]
)
def test_another_ratio_is_refused(call):
    with pytest.raises(ValueError, match=r"^ratio: 2, expected one of 4, 128$"):
        call(2)


@pytest.mark.parametrize(
    ("draft_tokens", "rings"),
    [(10, {4: 16, 128: 256}), (0, {4: 8, 128: 128}), (130, {128: 256}), (10, {4: 16, 128: 1}), (99, {128: 1}), (5, {})],
    ids=["both", "none", "only-128", "online-128", "online-128-alone", "no-ring"],
)
def test_drafts_that_every_ring_serves(draft_tokens, rings):
    expect_draft_tokens(draft_tokens, rings)


@pytest.mark.parametrize(
    ("draft_tokens", "rings", "said"),
    [
        (11, {4: 16, 128: 256}, "draft_tokens: 11, expected at most 10: the ratio-4 ring has 16 rows"),
        (131, {128: 256}, "draft_tokens: 131, expected at most 130: the ratio-128 ring has 256 rows"),
        (1, {128: 128}, "draft_tokens: 1, expected at most 0: the ratio-128 ring has 128 rows"),
        (11, {128: 1, 4: 16}, "draft_tokens: 11, expected at most 10: the ratio-4 ring has 16 rows"),
    ],
    ids=["ratio-4", "ratio-128", "no-speculation", "beside-online"],
)
def test_more_drafts_than_a_ring_serves_are_refused_at_start_up(draft_tokens, rings, said):
    with pytest.raises(ValueError, match="draft_tokens") as caught:
        expect_draft_tokens(draft_tokens, rings)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((2, 8, 256), "ratio: 2, expected one of 4, 128"),
        ((4, 4, 256), "ring_size: 4, expected a multiple of 4, at least 8"),
        ((4, 10, 250), "ring_size: 10, expected a multiple of 4, at least 8"),
        ((128, 192, 384), "ring_size: 192, expected a multiple of 128, at least 128"),
        ((128, 1, 256), "ring_size: 1, expected a multiple of 128, at least 128"),
        ((4, 16, 24), "swa_page: 24, expected a multiple of the ring's 16 rows"),
        ((128, 256, 128), "swa_page: 128, expected a multiple of the ring's 256 rows"),
        ((4, 8, 0), "swa_page: 0, expected a multiple of the ring's 8 rows"),
        ((128, 128, 256, True), "request_ring: an option of ratio 4 only, got ratio 128"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_numbers_that_do_not_fit(numbers, said):
    with pytest.raises(ValueError, match=said.split(":")[0]) as caught:
        StateRing(*numbers)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("numbers", "window", "overlap", "pad", "by_request"),
    [
        ((4, 8, 8), 8, 4, 0, False),
        ((4, 16, 256), 8, 4, 10, False),
        ((4, 16, 256, True), 8, 4, 10, True),
        ((128, 256, 256), 128, 0, 130, True),
    ],
    ids=["smallest", "pages", "requests", "ratio-128"],
)
def test_what_follows_from_the_numbers(numbers, window, overlap, pad, by_request):
    ring = StateRing(*numbers)
    assert (ring.window, ring.overlap, ring.write_pad, ring.by_request) == (window, overlap, pad, by_request)


TABLE = torch.tensor([[70, 71, 2, 3, 900], [66, 67, 68, 69, 100]], dtype=torch.int32)
STATES = torch.arange(128).flip(0)  # slot s has state 127 - s


@pytest.mark.parametrize(
    ("ring", "req", "position", "row"),
    [
        (StateRing(4, 8, 32), 0, 0, 1 * 8 + 57 % 8),  # state 57: page 1 of 32 tokens
        (StateRing(4, 8, 32), 0, 2, 3 * 8 + 125 % 8),  # state 125: page 3
        (StateRing(4, 16, 32), 1, 3, 1 * 16 + 58 % 16),
        (StateRing(4, 16, 16), 1, 4, 1 * 16 + 27 % 16),
        (StateRing(4, 8, 32, request_ring=True), 3, 13, 3 * 8 + 5),
        (StateRing(128, 128, 128), 5, 129, 5 * 128 + 1),
        (StateRing(128, 256, 256), 2, 255, 2 * 256 + 255),
    ],
    ids=["page-1", "page-3", "ring-16", "page-of-one-ring", "request", "c128", "c128-last-row"],
)
def test_where_a_position_lies(ring, req, position, row):
    at = torch.tensor([req]), torch.tensor([position])
    assert ring.rows(*at, TABLE, STATES).tolist() == [row]


def test_a_page_holds_a_group():
    ring = StateRing(4, 16, 256, request_ring=True)
    pages = ring.pages(torch.tensor([0, 0, 2, 2]), torch.tensor([3, 7, 18, 15]), TABLE, STATES)
    assert pages.tolist() == [[0, 0, 8 + 3, 8 + 2], [0, 1, 8 + 0, 8 + 3]]


def test_request_rings_look_nothing_up():
    ring = StateRing(128, 128, 128)
    nothing = torch.empty(0, 0, dtype=torch.int32), torch.empty(0, dtype=torch.int64)
    assert ring.rows(torch.tensor([4]), torch.tensor([7]), *nothing).tolist() == [4 * 128 + 7]


@pytest.mark.parametrize(
    ("req", "position", "said"),
    [
        (2, 0, "req_pool_indices[0]: 2, expected 0 to 1"),
        (-1, 0, "req_pool_indices[0]: -1, expected 0 to 1"),
        (0, 5, "positions[0]: 5, expected 0 to 4"),
        (0, 4, "req_to_token[0]: 900, expected 0 to 127"),
        (1, 4, "full_to_state[0]: -5, expected 0 to 2147483647"),
    ],
    ids=["request-high", "request-low", "position", "full-slot", "state"],
)
def test_positions_that_lead_nowhere(req, position, said):
    states = STATES.clone()
    states[100] = -5
    with pytest.raises(ValueError, match="expected") as caught:
        StateRing(4, 8, 32).expect_positions(torch.tensor([req]), torch.tensor([position]), TABLE, states)
    assert str(caught.value) == said


def test_a_request_ring_asks_for_the_request_only():
    StateRing(128, 128, 128).expect_positions(torch.tensor([1]), torch.tensor([99]), TABLE, STATES)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ((torch.zeros(2, dtype=torch.int32), TABLE, STATES), "req_pool_indices: int32 [2], expected int64 [batch]"),
        (
            (torch.zeros(2).long(), TABLE.long(), STATES),
            "req_to_token: int64 [2, 5], expected int32 [requests, max_len]",
        ),
        ((torch.zeros(2).long(), TABLE.T, STATES), "req_to_token: dimension 1 has stride 5, expected 1"),
        ((torch.zeros(2).long(), TABLE, STATES.int()), "full_to_state: int32 [128], expected int64 [slots]"),
        ((torch.zeros(2).long(), TABLE, STATES[::2]), "full_to_state: dimension 0 has stride 2, expected 1"),
    ],
    ids=["requests", "table", "table-stride", "states", "states-stride"],
)
def test_wrong_tables_are_named(tables, said):
    with pytest.raises(ValueError, match="expected") as caught:
        StateRing(4, 8, 32).expect_tables(*tables)
    assert str(caught.value) == said


@pytest.mark.parametrize(("requests", "fits"), [(1 << 23, True), ((1 << 23) + 1, False)])
def test_rows_of_request_rings_fit_an_i32(requests, fits):
    tables = torch.zeros(1).long(), torch.empty(1, 0, dtype=torch.int32).expand(requests, 0), STATES
    if fits:
        StateRing(128, 256, 256).expect_tables(*tables)
    else:
        with pytest.raises(ValueError, match=r"^req_to_token: 2147483904, expected at most 2147483648"):
            StateRing(128, 256, 256).expect_tables(*tables)


def test_tables_for_inputs_lead_every_token_to_a_state_of_its_own(generator):
    req, table, states = compress_ring.paged_tables(3, 70, 32, generator)
    assert req.tolist() != sorted(req.tolist()) or 0 not in req.tolist()
    assert table.shape[1] >= 70
    assert sorted(table.flatten().tolist()) == list(range(table.numel()))
    assert sorted(states.tolist()) == list(range(table.numel()))
    assert all((states.view(-1, 32) % 32 == torch.arange(32, device=states.device)).flatten().tolist())
