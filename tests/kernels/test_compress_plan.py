"""Records of a plan byte by byte, the host planner's sizes and bounds, and upstream's legacy planner."""

import struct

import pytest
import torch

from dsv4bench.kernels.compress_plan import (
    MAX_REQUESTS,
    MAX_TOKENS,
    expect_records,
    padded,
    plan_prefill,
    plan_prefill_legacy,
    read_compressions,
    read_decodes,
    read_writes,
)
from dsv4bench.kernels.compress_ring import StateRing
from tests.kernels.plan_oracle import INVALID_C, INVALID_W, Request, World, batch, prefill, records, world

RING = StateRing(4, 8, 8, request_ring=True)


def plan(*found: bytes) -> torch.Tensor:
    return torch.tensor([list(record) for record in found], dtype=torch.uint8)


def listed(fields) -> list[list]:
    return [field.tolist() for field in fields]


# ---- records


def test_the_fields_of_a_compression():
    most = struct.pack("<IHHii", 0xFFFFFFFE, 65535, 65535, 2**31 - 1, -1)
    found = read_compressions(plan(struct.pack("<IHHii", 516, 3, 4, 128, 129), most, INVALID_C))
    assert found._asdict().keys() == {"seq_len", "ragged_id", "buffer_len", "read_page_0", "read_page_1", "valid"}
    assert listed(found) == [
        [516, 0xFFFFFFFE, 0xFFFFFFFF],
        [3, 65535, 0],
        [4, 65535, 0],
        [128, 2**31 - 1, -1],
        [129, -1, -1],
        [True, True, False],
    ]


def test_the_fields_of_a_write():
    found = read_writes(plan(struct.pack("<Ii", 65535, 7), INVALID_W, struct.pack("<Ii", 0, 2**31 - 1)))
    assert found._asdict().keys() == {"ragged_id", "write_row", "valid"}
    assert listed(found) == [[65535, 0xFFFFFFFF, 0], [7, -1, 2**31 - 1], [True, False, True]]


def test_the_fields_of_a_decode():
    found = read_decodes(plan(struct.pack("<Iiii", 300, 5, 1, 2)))
    assert found._asdict().keys() == {"seq_len", "write_row", "read_page_0", "read_page_1"}
    assert listed(found) == [[300], [5], [1], [2]]


@pytest.mark.parametrize(("width", "invalid"), [(16, INVALID_C), (8, INVALID_W)], ids=["plan_c", "plan_w"])
def test_a_plan_is_filled_up(width, invalid):
    begun = torch.arange(width, dtype=torch.uint8)[None]
    assert records(padded(begun, 3)) == [bytes(range(width)), invalid, invalid]
    assert records(padded(begun, 1)) == [bytes(range(width))]
    assert records(padded(begun[:0], 1)) == [invalid]


def test_a_plan_begins_on_a_word():
    buffer = torch.zeros(40, dtype=torch.uint8)
    expect_records("plan_w", buffer[4:36].view(4, 8), 4, 8)
    with pytest.raises(ValueError, match=r"^plan_w: begins at byte 3 of a word, expected 0$"):
        expect_records("plan_w", buffer[3:35].view(4, 8), "writes", 8)


# ---- sizes


def test_the_host_returns_what_there_is_or_a_row_for_every_token():
    requests = batch((0, 12), (5, 2))
    made = world(StateRing(4, 8, 256), requests)
    tensors = made.tensors(requests)
    plan_c, plan_w = plan_prefill(**tensors, num_q=14)
    assert (plan_c.shape, plan_w.shape) == ((3, 16), (6, 8))
    assert (records(plan_c), records(plan_w)) == prefill(made, requests)
    full_c, full_w = plan_prefill(**tensors, num_q=14, use_cuda_graph=True)
    assert records(full_c) == records(plan_c) + [INVALID_C] * 11
    assert records(full_w) == records(plan_w) + [INVALID_W] * 8


@pytest.mark.parametrize("use_cuda_graph", [False, True])
def test_no_request_and_no_token_give_empty_plans(use_cuda_graph):
    tensors = World(RING, [[0]], [0]).tensors([])
    plan_c, plan_w = plan_prefill(**tensors, num_q=0, use_cuda_graph=use_cuda_graph)
    assert (plan_c.shape, plan_c.dtype, plan_w.shape, plan_w.dtype) == ((0, 16), torch.uint8, (0, 8), torch.uint8)


# ---- bounds (specification 4.4, 6)


def planned(requests: list[Request], num_q: int, ring: StateRing = RING):
    return plan_prefill(**World(ring, [[]], []).tensors(requests), num_q=num_q)


@pytest.mark.parametrize("ring", [RING, StateRing(128, 128, 128)], ids=["c4", "c128"])
def test_a_request_of_65536_tokens_ends_with_the_last_u16(ring):
    plan_c, plan_w = planned([Request(0, 0, 65536)], 65536, ring)
    compressions, writes = read_compressions(plan_c), read_writes(plan_w)
    assert [int(field[-1]) for field in compressions] == [65536, 65535, 0, -1, 0, True]
    assert len(plan_c) == 65536 // ring.ratio
    assert bool(compressions.valid.all())
    assert bool(writes.valid.all())
    assert writes.ragged_id.tolist() == ([65532, 65533, 65534, 65535] if ring.ratio == 4 else [])


def test_the_last_of_65536_tokens_is_kept_where_drafts_are():
    _, plan_w = planned([Request(0, 0, 65536)], 65536, StateRing(128, 256, 256))
    assert plan_w[-1].tolist() == list(struct.pack("<Ii", 65535, 255))
    assert len(plan_w) == 130


def test_65537_tokens_are_refused():
    with pytest.raises(ValueError, match=r"^num_q: 65537, expected at most 65536: ragged_id is a u16$"):
        planned([Request(0, 0, 65537)], 65537)


def test_65535_requests_are_planned_and_65536_are_not():
    """The specification's code takes 65 535 requests, whose largest number is 65 534: pinned here as the bound."""
    requests = [Request(0, 3, 1)] * 65534 + [Request(0, 6, 2)]
    plan_c, plan_w = planned(requests, 65536)
    compressions, writes = read_compressions(plan_c), read_writes(plan_w)
    assert [int(field[-1]) for field in compressions] == [8, 65535, 6, 0, 1, True]
    assert bool(writes.valid.all())
    assert writes.ragged_id.tolist() == list(range(65536))
    with pytest.raises(ValueError, match=r"^batch: 65536, expected at most 65535: a packed write must differ"):
        planned([Request(0, 3, 1)] * 65536, 65536)


def test_no_packed_write_is_the_one_that_stands_for_nothing():
    """Upstream's first stage packs ragged_id | request << 16: one request more, and the last would collide."""
    largest_id, largest_request = MAX_TOKENS - 1, MAX_REQUESTS - 1
    assert (largest_id, largest_request) == (65535, 65534)
    assert largest_id | largest_request << 16 == 0xFFFEFFFF
    assert largest_id | (largest_request + 1) << 16 == 0xFFFFFFFF == struct.unpack("<Ii", INVALID_W)[0]


ONE = [Request(0, 3, 1), Request(0, 4, 2)]


@pytest.mark.parametrize(
    ("requests", "num_q", "said"),
    [
        (ONE, 4, "extend_lens: 3 tokens in all, expected num_q = 4"),
        (ONE, 2, "extend_lens: 3 tokens in all, expected num_q = 2"),
        (ONE, 1, "batch: 2, expected at most 1: every request has a token"),
        ([Request(0, 3, 1), Request(0, 4, 0)], 2, "extend_lens[1]: 0, expected 1 to the request's length of 4"),
        ([Request(0, 5, -1), Request(0, 0, 3)], 2, "extend_lens[0]: -1, expected 1 to the request's length of 4"),
        ([Request(0, -1, 2)], 2, "extend_lens[0]: 2, expected 1 to the request's length of 1"),
        ([], 1, "extend_lens: 0 tokens in all, expected num_q = 1"),
        ([Request(0, 2**31 - 1, 1)], 1, "seq_lens[0]: 2147483648, expected at most 2147483647: a position is an i32"),
    ],
    ids=["too-few", "too-many", "fewer-than-requests", "none", "negative", "before-0", "no-request", "length"],
)
def test_lengths_that_do_not_fit(requests, num_q, said):
    with pytest.raises(ValueError, match="expected") as caught:
        planned(requests, num_q)
    assert str(caught.value) == said


def test_a_whole_request_may_be_new():
    assert len(planned([Request(0, 0, 4)], 4)[0]) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seq_lens": torch.ones(2).int()}, "seq_lens: int32 [2], expected int64 [2]"),
        ({"extend_lens": torch.ones(2).int()}, "extend_lens: int32 [2], expected int64 [2]"),
        ({"extend_lens": torch.ones(3).long()}, "extend_lens: int64 [3], expected int64 [2]"),
        ({"req_pool_indices": torch.ones(3).long()}, "seq_lens: int64 [2], expected int64 [3]"),
        ({"req_to_token": torch.zeros(2, 2)}, "req_to_token: float32 [2, 2], expected int32 [requests, max_len]"),
    ],
    ids=["lengths", "new", "new-count", "requests", "table"],
)
def test_the_host_refuses(change, said):
    with pytest.raises(ValueError, match="expected") as caught:
        plan_prefill(**World(RING, [[]], []).tensors(ONE) | change, num_q=3)
    assert str(caught.value) == said


# ---- the legacy planner (specification 4.3)


def legacy(ratio: int, row: int, position: int) -> tuple[int, int]:
    """Return page and row of the state pool by the formulas of the specification."""
    page = row * 2 + (position // 4) % 2 if ratio == 4 else row
    return page, page * ratio + position % ratio


@pytest.mark.parametrize("ratio", [4, 128])
def test_the_legacy_planner_knows_no_pages_and_fills_all_in(ratio):
    requests = batch((0, 300), (253, 9), (3, 2), (700, 77))
    tensors = World(RING, [[]], []).tensors(requests)
    plan_c, plan_w = plan_prefill_legacy(ratio, *(tensors[k] for k in ("req_pool_indices", "seq_lens", "extend_lens")))
    compressions, writes, ragged_id = [], [], 0
    for request in requests:
        length = request.prefix + request.extend
        for p in range(request.prefix, length):
            if (p + 1) % ratio == 0:
                buffer_len = max((8 if ratio == 4 else 128) - (p - request.prefix + 1), 0)
                pages = legacy(ratio, request.row, max(p - ratio, 0))[0], legacy(ratio, request.row, p)[0]
                compressions.append(struct.pack("<IHHii", p + 1, ragged_id, buffer_len, *pages))
            if p >= length // ratio * ratio - (4 if ratio == 4 else 0):
                writes.append(struct.pack("<Ii", ragged_id, legacy(ratio, request.row, p)[1]))
            ragged_id += 1
    assert records(plan_c) == compressions
    assert records(plan_w) == writes


def test_the_legacy_planner_has_the_same_bounds():
    zero = torch.zeros(1).long()
    with pytest.raises(ValueError, match=r"^num_q: 65537"):
        plan_prefill_legacy(4, zero, zero + 65537, zero + 65537)
    with pytest.raises(ValueError, match=r"^extend_lens\[0\]: 3, expected 1 to the request's length of 2"):
        plan_prefill_legacy(4, zero, zero + 2, zero + 3)
    with pytest.raises(ValueError, match=r"^ratio: 8"):
        plan_prefill_legacy(8, zero, zero + 1, zero + 1)
