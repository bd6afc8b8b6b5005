"""Decode plans of ratio 4 and 128: bytes by brute force, and windows that are found token after token."""

import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.kernels import plan_decode
from dsv4bench.kernels.compress_plan import plan_prefill
from dsv4bench.kernels.compress_ring import StateRing
from dsv4bench.kernels.plan_decode import KERNEL, Shape
from tests.kernels.plan_oracle import Request, StatePool, World, batch, decode, records, world

RINGS = {
    "c4": StateRing(4, 8, 64),
    "c4-draft": StateRing(4, 16, 256),
    "c4-request": StateRing(4, 8, 8, request_ring=True),
    "c128": StateRing(128, 128, 256),
    "c128-draft": StateRing(128, 256, 256),
}


def by(provider: str, made: World, requests: list[Request], device: str = "cpu") -> list[bytes]:
    """Plan with a provider into a poisoned plan."""
    tensors = made.tensors(requests, device)
    del tensors["extend_lens"]
    tensors["plan_d"] = torch.full((len(requests), 16), 0xA5, dtype=torch.uint8, device=device)
    KERNEL.check_values(tensors)
    KERNEL.provider(provider).build(tensors)()
    return records(tensors["plan_d"])


@pytest.fixture(params=["torch", "triton"])
def planned(request):
    device = request.getfixturevalue("triton_device" if request.param == "triton" else "device")
    return lambda made, requests: by(request.param, made, requests, device)


@pytest.mark.parametrize(
    ("ring", "length", "place", "pages"),
    [
        (StateRing(4, 8, 8, request_ring=True), 1, 3 * 8 + 0, (6, 6)),
        (StateRing(4, 8, 8, request_ring=True), 4, 3 * 8 + 3, (6, 6)),
        (StateRing(4, 8, 8, request_ring=True), 5, 3 * 8 + 4, (6, 7)),
        (StateRing(4, 8, 8, request_ring=True), 12, 3 * 8 + 3, (7, 6)),
        (StateRing(4, 16, 16, request_ring=True), 18, 3 * 16 + 1, (12 + 3, 12 + 0)),
        (StateRing(128, 128, 128), 128, 3 * 128 + 127, (3, 3)),
        (StateRing(128, 256, 256), 257, 3 * 256 + 0, (6 + 1, 6 + 0)),
        (StateRing(128, 256, 256), 129, 3 * 256 + 128, (6 + 0, 6 + 1)),
    ],
)
def test_a_request_ring_by_hand(ring, length, place, pages, planned):
    found = planned(World(ring, [[0]] * 4, [0]), [Request(3, length - 1, 1)])
    assert found == [struct.pack("<Iiii", length, place, *pages)]


def test_pages_by_hand(planned):
    table = [[], [40 + p for p in range(16)]]
    made = World(StateRing(4, 8, 16), [[0] * 16, table[1]], [100 - s for s in range(100)])
    # position 12 has slot 52 and state 48: row 3 * 8 + 0; position 8 has 48 and 52: row 3 * 8 + 4
    assert planned(made, [Request(1, 12, 1)]) == [struct.pack("<Iiii", 13, 24, 7, 6)]


def test_the_first_group_looks_before_it_at_position_0(planned):
    made = World(StateRing(4, 8, 16), [[90, 1, 2, 3]], list(range(100)))
    assert planned(made, [Request(0, 2, 1)]) == [struct.pack("<Iiii", 3, 2, (5 * 8 + 90 % 8) // 4, 0)]


@pytest.mark.parametrize("ring", RINGS.values(), ids=RINGS)
@given(lengths=st.lists(st.integers(1, 700), min_size=1, max_size=8))
@settings(max_examples=15)
def test_all_planners_plan_what_brute_force_plans(triton_device, ring, lengths):
    requests = batch(*((length - 1, 1) for length in lengths))
    made = world(ring, requests)
    want = decode(made, requests)
    assert by("torch", made, requests) == want
    assert by("triton", made, requests, triton_device) == want


@pytest.mark.parametrize("count", [127, 128, 129])
def test_requests_across_the_blocks_of_the_device(triton_device, count):
    requests = batch(*((i % 40, 1) for i in range(count)))
    made = world(RINGS["c4-request"], requests)
    assert by("triton", made, requests, triton_device) == decode(made, requests)


@pytest.mark.parametrize("ring", RINGS.values(), ids=RINGS)
@pytest.mark.parametrize("prompt", [1, 6, 250])
def test_every_window_is_found_after_a_prompt(ring, prompt):
    """Decode keeps its token first; then a window is complete, wherever it begins (specification 3.8)."""
    row, last = 1, prompt + (140 if ring.ratio == 128 else 20)
    made = world(ring, [Request(row, 0, last)])
    pool, first = StatePool(made), [Request(row, 0, prompt)]
    plans = plan_prefill(**made.tensors(first), num_q=prompt)
    assert pool.forward(first, tuple(records(plan) for plan in plans)) == []
    for position in range(prompt, last):
        requests = [Request(row, position, 1)]
        pool.compute(requests[0])
        (record,) = by("torch", made, requests)
        length, place, *pages = struct.unpack("<Iiii", record)
        pool.write(requests, [struct.pack("<Ii", 0, place)])
        if length % ring.ratio == 0:
            whole_window = struct.pack("<IHHii", length, 0, ring.window, *pages)
            assert pool.windows(requests, [whole_window]) == []


def call():
    tensors = World(RINGS["c4"], [[0] * 8], [0]).tensors([Request(0, 0, 1)] * 2)
    del tensors["extend_lens"]
    return tensors | {"plan_d": torch.zeros(2, 16, dtype=torch.uint8)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"plan_d": torch.zeros(3, 16, dtype=torch.uint8)}, "plan_d: uint8 [3, 16], expected uint8 [2, 16]"),
        ({"plan_d": torch.zeros(33, dtype=torch.uint8)[1:].view(2, 16)}, "plan_d: begins at byte 1 of a word"),
    ],
    ids=["plan-rows", "plan-start"],
)
def test_a_wrong_argument_is_named(change, said):
    with pytest.raises(ValueError, match="expected") as caught:
        KERNEL.check(call() | change)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seq_lens": torch.tensor([1, 0])}, "seq_lens[1]: 0, expected 1 to 2147483647"),
        ({"seq_lens": torch.tensor([9, 1])}, "positions[0]: 8, expected 0 to 7"),
        ({"req_pool_indices": torch.tensor([0, 1])}, "req_pool_indices[1]: 1, expected 0 to 0"),
        ({"full_to_state": torch.tensor([-1])}, "full_to_state[0]: -1, expected 0 to 2147483647"),
    ],
    ids=["length", "position", "request", "state"],
)
def test_values_that_lead_nowhere_are_found(change, said):
    KERNEL.check_values(call())
    with pytest.raises(ValueError, match="expected") as caught:
        KERNEL.check_values(call() | change)
    assert str(caught.value) == said


def test_the_group_before_is_looked_up_too():
    table = [[9] + [0] * 7]
    tensors = World(RINGS["c4"], table, [0]).tensors([Request(0, 4, 1)])
    del tensors["extend_lens"]
    with pytest.raises(ValueError, match=r"^req_to_token\[0\]: 9, expected 0 to 0$"):
        KERNEL.check_values(tensors)


def test_a_batch_without_requests_plans_nothing(triton_device):
    for provider in ("torch", "triton"):
        assert by(provider, World(RINGS["c4"], [[0]], [0]), [], triton_device) == []


def test_cost_counts_what_is_looked_up(generator):
    pages = plan_decode.cost(plan_decode.inputs(Shape((5, 9, 1), RINGS["c4"]), generator))
    requests = plan_decode.cost(plan_decode.inputs(Shape((5, 9, 1), RINGS["c128"]), generator))
    assert (pages.flops, pages.bytes_read, pages.bytes_written) == (0, 3 * (16 + 24), 48)
    assert (requests.flops, requests.bytes_read, requests.bytes_written) == (0, 48, 48)


def test_a_bench_has_the_requests_that_it_names():
    shape = KERNEL.bench.shape(130, "c128")
    assert (len(shape.seq_lens), shape.seq_lens[127:], shape.ring.ratio) == (130, (1127, 1000, 1001), 128)
