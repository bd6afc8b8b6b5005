"""Prefill plans of ratio 4 and 128: every invariant of the specification (4.4), for the host and the device planner."""

import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.kernels import compress_ring, plan_prefill
from dsv4bench.kernels.compress_plan import plan_prefill as plan_on_host
from dsv4bench.kernels.compress_ring import StateRing, max_draft_tokens
from dsv4bench.kernels.plan_prefill import KERNEL, Shape
from tests.kernels.plan_oracle import (
    INVALID_C,
    INVALID_W,
    Request,
    StatePool,
    World,
    batch,
    filled,
    keeps,
    prefill,
    records,
    world,
)

C4, C4_DRAFT = StateRing(4, 8, 256), StateRing(4, 16, 256)
C4_REQUEST, C4_DRAFT_REQUEST = StateRing(4, 8, 8, request_ring=True), StateRing(4, 16, 16, request_ring=True)
C128, C128_DRAFT = StateRing(128, 128, 256), StateRing(128, 256, 256)
RINGS = {
    "c4": C4,
    "c4-draft": C4_DRAFT,
    "c4-page-of-one-ring": StateRing(4, 16, 16),
    "c4-request": C4_REQUEST,
    "c4-draft-request": C4_DRAFT_REQUEST,
    "c128": C128,
    "c128-draft": C128_DRAFT,
}
DRAFTING = {name: RINGS[name] for name in ("c4-draft", "c4-draft-request", "c128-draft")}


def on_host(made: World, requests: list[Request], device: str = "cpu"):
    """Plan on the host: exactly as many records as there are."""
    plans = plan_on_host(**made.tensors(requests), num_q=sum(r.extend for r in requests))
    return tuple(records(plan) for plan in plans)


def by(provider: str, made: World, requests: list[Request], rows: int, device: str = "cpu"):
    """Plan with a provider into poisoned plans of `rows` records; return all of them."""
    tensors = made.tensors(requests, device)
    for name, width in (("plan_c", 16), ("plan_w", 8)):
        tensors[name] = torch.full((rows, width), 0xA5, dtype=torch.uint8, device=device)
    KERNEL.check_values(tensors)
    KERNEL.provider(provider).build(tensors)()
    return records(tensors["plan_c"]), records(tensors["plan_w"])


def without(invalid: bytes, found: list[bytes]) -> list[bytes]:
    """Return the records before those that stand for nothing, which must all be behind."""
    valid = [record for record in found if record != invalid]
    assert found == filled(valid, len(found), invalid)
    return valid


@pytest.fixture(params=["host", "torch", "triton"])
def planned(request):
    """Plan a batch with one of the planners: records of plan_c and plan_w, without padding."""
    if request.param == "host":
        return on_host
    device = request.getfixturevalue("triton_device" if request.param == "triton" else "device")

    def plan(made, requests):
        found = by(request.param, made, requests, sum(r.extend for r in requests), device)
        return without(INVALID_C, found[0]), without(INVALID_W, found[1])

    return plan


def positions(requests: list[Request], writes: list[bytes]) -> list[list[int]]:
    """Return the positions that a plan keeps, for each request."""
    owners = [(i, r.prefix + j) for i, r in enumerate(requests) for j in range(r.extend)]
    found = [owners[struct.unpack("<Ii", record)[0]] for record in writes]
    return [[position for owner, position in found if owner == i] for i in range(len(requests))]


def span(*ranges: tuple[int, int]) -> list[int]:
    return [x for first, last in ranges for x in range(first, last + 1)]


# ---- golden plans (specification A.8), byte by byte where they are short


@pytest.mark.parametrize(
    ("ring", "lengths", "compressions", "kept"),
    [
        (C4, (0, 12), [(4, 3, 4), (8, 7, 0), (12, 11, 0)], span((8, 11))),
        (C4_DRAFT, (512, 6), [(516, 3, 4)], span((512, 517))),
        (C4, (512, 6), [(516, 3, 4)], span((512, 517))),
        (C128, (128, 172), [(256, 127, 0)], span((256, 299))),
        (C128, (120, 128), [(128, 7, 120)], span((128, 247))),
        (C4, (5, 1), [], [5]),
        (C4, (6, 1), [], [6]),
        (C4, (7, 1), [(8, 0, 7)], [7]),
        (C128, (126, 1), [], [126]),
        (C128, (127, 1), [(128, 0, 127)], []),
        (C4_REQUEST, (250, 16), [(252, 1, 6), (256, 5, 2), (260, 9, 0), (264, 13, 0)], span((260, 265))),
    ],
    ids=[
        "first-groups",
        "ring-16",
        "ring-8",
        "c128",
        "c128-old-and-new",
        "one-token",
        "before-a-group",
        "completes-a-group",
        "c128-before-a-group",
        "c128-completes-a-group",
        "request-ring-keeps-no-page-tail",
    ],
)
def test_a_plan_by_hand(ring, lengths, compressions, kept, planned):
    requests = batch(lengths)
    plan_c, plan_w = planned(world(ring, requests), requests)
    assert [struct.unpack("<IHHii", record)[:3] for record in plan_c] == compressions
    assert positions(requests, plan_w) == [kept]


def test_a_plan_by_hand_with_its_bytes(planned):
    table = [[0] * 16, [256 + 3 - i for i in range(8)] + [8 + i for i in range(8)]]
    states = [2 * 256 + 255 - slot for slot in range(512)]
    requests = [Request(1, 6, 5)]
    plan_c, plan_w = planned(World(C4, table, states), requests)
    # position 3 has slot 256 and state 511: row 1 * 8 + 7; 7 has 252 and 515: row 2 * 8 + 3
    assert [record.hex() for record in plan_c] == ["08000000010006000300000004000000"]
    # the last group but one begins at 4, so all are kept: states 514, 515, 759, 758, 757
    rows = [2 * 8 + 2, 2 * 8 + 3, 2 * 8 + 7, 2 * 8 + 6, 2 * 8 + 5]
    assert [record.hex() for record in plan_w] == [f"0{i}000000{row:02x}000000" for i, row in enumerate(rows)]


def test_the_first_group_looks_before_it_at_position_0(planned):
    made = World(C4, [[700, 1, 2, 3]], list(range(1000)))
    plan_c, _ = planned(made, [Request(0, 1, 3)])
    page_of_700 = (2 * 8 + 700 % 8) // 4
    assert plan_c == [struct.pack("<IHHii", 4, 2, 5, page_of_700, 0)]


# ---- 1 and 4: with drafts, all new tokens stay in the ring, up to as many as it serves


@pytest.mark.parametrize("drafts", [1, 2, 3, 4, 5, "most-1", "most"])
@pytest.mark.parametrize("ring", DRAFTING.values(), ids=DRAFTING)
def test_every_draft_is_kept(ring, drafts, planned):
    most = max_draft_tokens(ring.ratio, ring.ring_size)
    assert most == {4: 10, 128: 130}[ring.ratio]
    count = {"most-1": most - 1, "most": most}.get(drafts, drafts)
    requests = batch(*((prefix, count) for prefix in (512, 513, 514, 515)))
    _, plan_w = planned(world(ring, requests), requests)
    assert positions(requests, plan_w) == [list(range(r.prefix, r.prefix + count)) for r in requests]
    places = [struct.unpack("<Ii", record)[1] for record in plan_w]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize(
    ("ring", "drafts", "prefix", "lost"),
    [
        (C4_DRAFT, 10 + 4 + 1, 512, span((512, 516))),
        (C4_DRAFT, 10 + 4 + 1, 515, span((515, 519))),
        (C4_DRAFT_REQUEST, 10 + 4 + 1, 513, span((513, 517))),
        (C4_DRAFT, 11, 512, [512]),
        (C128_DRAFT, 130 + 128 + 1, 512, span((512, 640))),
        (C128_DRAFT, 131, 600, [600]),
    ],
    ids=["c4-512", "c4-515", "c4-request", "c4-one-more", "c128", "c128-one-more"],
)
def test_more_drafts_than_the_ring_serves_lose_committed_tokens(ring, drafts, prefix, lost, planned):
    requests = batch((prefix, drafts))
    _, plan_w = planned(world(ring, requests), requests)
    assert sorted(set(range(prefix, prefix + drafts)) - set(positions(requests, plan_w)[0])) == lost


# ---- 3: without drafts, the last groups and the last tokens of every page


@pytest.mark.parametrize(
    ("ring", "length", "kept"),
    [
        (C4, 512, span((252, 255), (508, 511))),
        (C4, 600, span((252, 255), (508, 511), (596, 599))),
        (C4, 777, span((252, 255), (508, 511), (764, 767), (772, 776))),
        (C4_REQUEST, 777, span((772, 776))),
        (C128, 512, []),
        (C128, 600, span((512, 599))),
        (C128, 777, span((768, 776))),
    ],
    ids=["c4-512", "c4-600", "c4-777", "c4-request-777", "c128-512", "c128-600", "c128-777"],
)
def test_what_a_plain_prefill_keeps(ring, length, kept, planned):
    requests = batch((0, length))
    plan_c, plan_w = planned(world(ring, requests), requests)
    assert positions(requests, plan_w) == [kept]
    assert len(plan_c) == length // ring.ratio


# ---- 2: host and device agree with each other and with brute force


lengths = st.tuples(
    st.one_of(st.integers(0, 20), st.integers(100, 140), st.integers(250, 260), st.integers(500, 520)),
    st.one_of(st.integers(1, 20), st.integers(1, 150)),
)


@pytest.mark.parametrize("ring", RINGS.values(), ids=RINGS)
@given(partition=st.lists(lengths, min_size=1, max_size=6), padding=st.sampled_from([0, 1, 40]))
@settings(max_examples=8)
def test_all_planners_plan_what_brute_force_plans(triton_device, ring, partition, padding):
    requests = batch(*partition)
    made = world(ring, requests)
    plan_c, plan_w = prefill(made, requests)
    rows = sum(r.extend for r in requests)
    assert on_host(made, requests) == (plan_c, plan_w)
    graph = plan_on_host(**made.tensors(requests), num_q=rows, use_cuda_graph=True)
    assert records(graph[0]) == filled(plan_c, rows, INVALID_C)
    assert records(graph[1]) == filled(plan_w, rows, INVALID_W)
    rows += padding
    want = filled(plan_c, rows, INVALID_C), filled(plan_w, rows, INVALID_W)
    assert by("torch", made, requests, rows) == want
    assert by("triton", made, requests, rows, triton_device) == want


@pytest.mark.parametrize("drafts", [1, 4, "most"])
@pytest.mark.parametrize("ring", DRAFTING.values(), ids=DRAFTING)
def test_planners_agree_on_drafts(triton_device, ring, drafts):
    count = max_draft_tokens(ring.ratio, ring.ring_size) if drafts == "most" else drafts
    requests = batch((512, count), (513, count), (515, count))
    made, rows = world(ring, requests), 3 * count
    plan_c, plan_w = on_host(made, requests)
    assert len(plan_w) == rows
    want = filled(plan_c, rows, INVALID_C), plan_w
    assert by("triton", made, requests, rows, triton_device) == want


@pytest.mark.parametrize(("count", "extend", "bucket"), [(5, 6, 64), (3, 32, 128), (4, 33, 132), (7, 1, 7)])
def test_a_verify_batch_in_a_bucket_that_it_does_not_fill(triton_device, count, extend, bucket):
    requests = batch(*((500 + 3 * i, extend) for i in range(count)))
    made = world(C4_DRAFT, requests)
    plan_c, plan_w = prefill(made, requests)
    want = filled(plan_c, bucket, INVALID_C), filled(plan_w, bucket, INVALID_W)
    assert by("triton", made, requests, bucket, triton_device) == want


@pytest.mark.parametrize("ring", [C4_DRAFT, C128], ids=["c4", "c128"])
@pytest.mark.parametrize("count", [31, 32, 33, 1024])
def test_a_token_a_request(triton_device, ring, count):
    """A request begins at every token of a program: the most that it can mark."""
    requests = batch(*((ring.ratio * 3 - 1 - i % 3, 1) for i in range(count)))
    made = world(ring, requests)
    plan_c, plan_w = prefill(made, requests)
    want = filled(plan_c, count, INVALID_C), filled(plan_w, count, INVALID_W)
    assert by("triton", made, requests, count, triton_device) == want


@pytest.mark.parametrize("first", [30, 31, 32, 33, 63, 64, 65])
def test_a_request_begins_at_the_border_of_a_program(triton_device, first):
    requests = batch((5, first), (18, 3), (7, 64))
    made, rows = world(C4, requests), first + 67
    plan_c, plan_w = prefill(made, requests)
    want = filled(plan_c, rows, INVALID_C), filled(plan_w, rows, INVALID_W)
    assert by("triton", made, requests, rows, triton_device) == want


BORDERS = [(count, extend) for count in (1, 31, 32, 33, 64, 65, 128, 129) for extend in (1, 2)] + [(257, 1)]


@pytest.mark.parametrize(("count", "extend"), BORDERS, ids=str)
def test_requests_across_the_blocks_of_the_device(triton_device, count, extend):
    """Programs of 32 tokens, with requests that begin and end inside and between; 128 requests a warp."""
    requests = batch(*((i % 9, extend + (i % 3 == 0)) for i in range(count)))
    made, rows = world(C4_DRAFT_REQUEST, requests), sum(r.extend for r in requests) + 1
    plan_c, plan_w = prefill(made, requests)
    want = filled(plan_c, rows, INVALID_C), filled(plan_w, rows, INVALID_W)
    assert by("triton", made, requests, rows, triton_device) == want


@pytest.mark.parametrize("first_64", [127, 128, 129])
def test_a_block_of_requests_that_ends_beside_a_block_of_tokens(triton_device, first_64):
    requests = batch((1, first_64 - 126), *((i % 9, 2) for i in range(63)), (3, 9), (2, 1))
    made, rows = world(C4_DRAFT_REQUEST, requests), first_64 + 10
    plan_c, plan_w = prefill(made, requests)
    want = filled(plan_c, rows, INVALID_C), filled(plan_w, rows, INVALID_W)
    assert by("triton", made, requests, rows, triton_device) == want


@pytest.mark.parametrize("ring", RINGS.values(), ids=RINGS)
def test_no_other_entry_of_the_table_is_read(ring):
    requests = batch((509, 30), (0, 3), (60, 200))
    made = world(ring, requests)
    want, read = prefill(made, requests), recording(made, requests)
    table = [[s if (r, p) in read else 2**31 - 1 for p, s in enumerate(row)] for r, row in enumerate(made.table)]
    poisoned = World(ring, table, made.states)
    assert on_host(poisoned, requests) == want
    if ring.by_request:
        assert read == set()


def recording(made: World, requests: list[Request]) -> set[tuple[int, int]]:
    """Return which entries of the table brute force reads."""
    read = set()

    class Row(list):
        def __getitem__(self, position):
            read.add((self.number, position))
            return super().__getitem__(position)

    table = []
    for number, row in enumerate(made.table):
        table.append(Row(row))
        table[-1].number = number
    prefill(World(made.ring, table, made.states), requests)
    return read


# ---- 6: bounds of the device planner (those of the host: test_compress_plan.py)


def call(ring=C4_REQUEST, batch_size=2, rows=4):
    """Return the tensors of a call whose requests have one token each."""
    requests = [Request(0, 0, 1)] * batch_size
    tensors = World(ring, [[0] * 8], [0]).tensors(requests)
    plans = {"plan_c": torch.zeros(rows, 16, dtype=torch.uint8), "plan_w": torch.zeros(rows, 8, dtype=torch.uint8)}
    return tensors | plans


def test_as_many_requests_as_the_device_takes():
    KERNEL.provider("triton").build(call(batch_size=1024, rows=1024))
    KERNEL.provider("triton").build(call(batch_size=1024, rows=65536))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (call(batch_size=3, rows=2), "batch: 3, expected at most 2: every request has a token"),
        (call(rows=65537), "num_q: 65537, expected at most 65536: ragged_id is a u16"),
        ({"extend_lens": torch.ones(4).long()[::2]}, "extend_lens: dimension 0 has stride 2, expected 1"),
        ({"plan_w": torch.zeros(5, 8, dtype=torch.uint8)}, "plan_w: uint8 [5, 8], expected uint8 [4, 8]"),
        (
            {"plan_c": torch.zeros(66, dtype=torch.uint8)[2:].view(4, 16)},
            "plan_c: begins at byte 2 of a word, expected 0",
        ),
    ],
    ids=lambda value: value.split(", expected")[0] if isinstance(value, str) else "",
)
def test_a_wrong_argument_is_named(change, said):
    with pytest.raises(ValueError, match="expected") as caught:
        KERNEL.check(call() | change)
    assert str(caught.value).startswith(said)


def test_the_device_takes_fewer_requests_than_the_reference():
    KERNEL.provider("torch").build(call(batch_size=1025, rows=1025))
    with pytest.raises(ValueError, match=r"^batch: 1025, expected at most 1024: the planner on"):
        KERNEL.provider("triton").build(call(batch_size=1025, rows=1025))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"extend_lens": torch.tensor([1, 0])}, "extend_lens[1]: 0, expected 1 to the request's length of 1"),
        ({"extend_lens": torch.tensor([2, 1])}, "extend_lens[0]: 2, expected 1 to the request's length of 1"),
        ({"seq_lens": torch.tensor([1, 2**31])}, "seq_lens[1]: 2147483648, expected at most 2147483647"),
        ({"req_pool_indices": torch.tensor([0, 1])}, "req_pool_indices[1]: 1, expected 0 to 0"),
        (call(rows=2) | {"seq_lens": torch.tensor([2, 2]), "extend_lens": torch.tensor([2, 1])}, "extend_lens: 3"),
        ({"ring": C4, "seq_lens": torch.tensor([1, 9])}, "positions[1]: 8, expected 0 to 7"),
        ({"ring": C4, "full_to_state": torch.tensor([-1])}, "full_to_state[0]: -1, expected 0 to 2147483647"),
        ({"ring": C4, "full_to_state": torch.tensor([]).long()}, "req_to_token[0]: 0, expected 0 to -1"),
    ],
    ids=["no-token", "too-many-tokens", "length", "request", "more-tokens-than-rows", "position", "state", "slot"],
)
def test_values_that_lead_nowhere_are_found(change, said):
    KERNEL.check_values(call())
    with pytest.raises(ValueError, match="expected") as caught:
        KERNEL.check_values(call() | change)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("position", "is_read"),
    [(3, True), (7, True), (11, True), (15, False), (16, True), (19, True), (4, False), (14, False)],
)
def test_values_are_asked_of_what_is_looked_up(position, is_read):
    """Of 15 tokens on 5, those at 7 and 11 complete windows with old tokens, and 16 to 19 are kept."""
    row = [0] * 20
    row[position] = 9
    tensors = World(C4, [row], [0]).tensors([Request(0, 5, 15)])
    tensors |= {"plan_c": torch.zeros(15, 16, dtype=torch.uint8), "plan_w": torch.zeros(15, 8, dtype=torch.uint8)}
    if not is_read:
        KERNEL.check_values(tensors)
        return
    with pytest.raises(ValueError, match=r"^req_to_token\[\d\]: 9, expected 0 to 0$"):
        KERNEL.check_values(tensors)


def test_a_batch_without_requests_plans_nothing(triton_device):
    made = World(C4, [[0]], [0])
    for provider in ("torch", "triton"):
        assert by(provider, made, [], 0, triton_device) == ([], [])
        assert by(provider, made, [], 3, triton_device) == ([INVALID_C] * 3, [INVALID_W] * 3)


def test_a_table_with_a_row_stride(triton_device):
    requests = batch((509, 9), (3, 20))
    made = world(C4, requests)
    tensors = made.tensors(requests, triton_device)
    wide = torch.full((len(made.table), 1000), 7, dtype=torch.int32, device=triton_device)
    wide[:, : len(made.table[0])] = tensors["req_to_token"]
    tensors["req_to_token"] = wide[:, : len(made.table[0])]
    plans = [torch.zeros(29, width, dtype=torch.uint8, device=triton_device) for width in (16, 8)]
    KERNEL.provider("triton").build(tensors | {"plan_c": plans[0], "plan_w": plans[1]})()
    want = prefill(made, requests)
    assert [records(plan) for plan in plans] == [filled(want[0], 29, INVALID_C), filled(want[1], 29, INVALID_W)]


# ---- 7: the last tokens of every page are in the pool, for whoever shares that page


@given(cuts=st.lists(st.integers(1, 200), min_size=1, max_size=6))
@settings(max_examples=30)
def test_the_last_group_of_every_page_stays(cuts):
    last = sum(cuts)
    made = world(StateRing(4, 8, 64), batch((0, last)))
    pool, row, prefix = StatePool(made), batch((0, last))[0].row, 0
    for cut in cuts:
        requests = [Request(row, prefix, cut)]
        assert pool.forward(requests, on_host(made, requests)) == []
        prefix += cut
    for end in range(64, last + 1, 64):
        assert [pool.held[made.place(row, p)] for p in range(end - 4, end)] == pool.text[row][end - 4 : end]


@pytest.mark.parametrize("ring", [StateRing(4, 8, 64), StateRing(4, 16, 64)], ids=["plain", "draft"])
def test_a_request_that_shares_cached_pages_finds_its_windows(ring):
    first, second = Request(0, 0, 333), Request(1, 256, 9)
    made = world(ring, [first, Request(1, 0, 333)])
    made.table[1][:256] = made.table[0][:256]
    pool = StatePool(made)
    assert pool.forward([first], on_host(made, [first])) == []
    pool.text[1] = pool.text[0][:256]
    assert pool.forward([second], on_host(made, [second])) == []


# ---- 8: compress before write, on rings that chunks, drafts and rollbacks go through


@pytest.mark.parametrize("ring", [C128, C128_DRAFT], ids=["plain", "draft"])
def test_a_window_of_old_and_new_tokens_reads_the_ring_before_it_is_written(ring, planned):
    old, new = Request(1, 0, 120), Request(1, 120, 128)
    made = world(ring, [old, new])
    pool = StatePool(made)
    assert pool.forward([old], planned(made, [old])) == []
    plan_c, plan_w = planned(made, [new])
    assert struct.unpack("<IHHii", plan_c[0])[:3] == (128, 7, 120)
    pool.compute(new)
    assert pool.windows([new], plan_c) == []
    pool.write([new], plan_w)
    stale = pool.windows([new], plan_c)
    assert bool(stale) == (ring is C128)  # a ring of one window no longer has what the compression needed


@st.composite
def speculation(draw):
    """A prompt's chunks, then batches of drafts with how many of them are accepted, at least one each time."""
    chunks = draw(st.lists(st.integers(1, 300), min_size=1, max_size=3))
    drafts = draw(st.integers(1, 10))
    accepted = draw(st.lists(st.integers(1, drafts), min_size=1, max_size=12))
    return chunks, drafts, accepted


def lost_windows(ring: StateRing, chunks: list[int], drafts: int, accepted: list[int]) -> list[str]:
    """Run a prompt and its drafts on a ring; return the windows that did not find their tokens."""
    made = world(ring, [Request(2, 0, sum(chunks) + sum(accepted) + drafts)])
    pool, prefix, wrong = StatePool(made), 0, []
    for new, commits in [(chunk, chunk) for chunk in chunks] + [(drafts, commits) for commits in accepted]:
        requests = [Request(2, prefix, new)]
        wrong += pool.forward(requests, on_host(made, requests))
        prefix += commits
    return wrong


@pytest.mark.parametrize("ring", DRAFTING.values(), ids=DRAFTING)
@given(history=speculation())
@settings(max_examples=25)
def test_no_window_is_lost_whatever_is_accepted(ring, history):
    assert lost_windows(ring, *history) == []


@pytest.mark.parametrize("prefix", [512, 513, 514, 515])
@pytest.mark.parametrize("drafts", [129, 130])
def test_no_window_of_ratio_128_is_lost_at_its_most_drafts(prefix, drafts):
    assert lost_windows(C128_DRAFT, [prefix], drafts, [1, 1, 127, 1, drafts, 126, 2, 1]) == []


WRONG_PADS = {"capped-at-4": lambda pad: min(pad, 4), "one-less": lambda pad: pad - 1, "one-more": lambda pad: pad + 1}


@pytest.mark.parametrize(("ring", "most"), [(C4_DRAFT, 10), (C4_DRAFT_REQUEST, 10), (C128_DRAFT, 130)], ids=DRAFTING)
@pytest.mark.parametrize("wrong", WRONG_PADS)
def test_a_wrong_pad_loses_windows(ring, most, wrong, monkeypatch):
    """A pad capped at 4, as it once was, drops accepted tokens; one more than the rule overwrites what is needed."""
    change = WRONG_PADS[wrong]
    drafts = most + 1 if wrong == "one-more" else most
    histories = [([512 + i], drafts, [accepted] * 6) for i in range(4) for accepted in (1, 2)]
    histories += [([512 - 2 * i], drafts, [1] * (2 * i + 4)) for i in range(3)]
    right = compress_ring.write_pad
    if drafts == most:
        assert [found for history in histories for found in lost_windows(ring, *history)] == []
    monkeypatch.setattr(compress_ring, "write_pad", lambda ratio, rows: change(right(ratio, rows)))
    assert [found for history in histories for found in lost_windows(ring, *history)] != []


@pytest.mark.parametrize(("ring", "drafts", "first"), [(C4_DRAFT, 10, 516), (C128_DRAFT, 130, 638)], ids=["c4", "c128"])
def test_a_pad_capped_at_4_drops_drafts(ring, drafts, first, monkeypatch):
    monkeypatch.setattr(compress_ring, "write_pad", lambda ratio, rows: 4)
    requests = batch((512, drafts))
    _, plan_w = on_host(world(ring, requests), requests)
    assert positions(requests, plan_w) == [list(range(first, 512 + drafts))]


# ---- cost


def test_cost_counts_what_is_looked_up(generator):
    # ratio 4, 9 new tokens on 6: compressions at 7 and 11, buffer_len 6 and 2; kept from 8 on: 7 rows
    tensors = plan_prefill.inputs(Shape(((6, 9),), 3, C4), generator)
    cost = plan_prefill.cost(tensors)
    assert (cost.flops, cost.bytes_read, cost.bytes_written) == (0, 24 + 12 * (7 + 2 * 2), 12 * (16 + 8))
    by_request = plan_prefill.cost(plan_prefill.inputs(Shape(((6, 9),), 3, C4_REQUEST), generator))
    assert (by_request.bytes_read, by_request.bytes_written) == (24, 12 * 24)


def test_the_oracle_keeps_what_the_specification_says():
    assert [p for p in range(12) if keeps(C4, Request(0, 0, 12), p)] == span((8, 11))
    assert [p for p in range(512, 522) if keeps(C4_DRAFT, Request(0, 512, 10), p)] == span((512, 521))


@pytest.mark.parametrize(
    ("rows", "case", "ring", "requests", "new", "padding"),
    [
        (1, "c4 64 K", C4_DRAFT, 1, 65536, 0),
        (1024, "c128 64 K", C128_DRAFT, 1024, 64, 0),
        (3, "c4 64 K", C4_DRAFT, 3, 21845, 1),
        (64, "c128 verify", C128_DRAFT, 64, 4, 0),
    ],
)
def test_a_bench_has_the_requests_and_tokens_that_it_names(rows, case, ring, requests, new, padding):
    shape = KERNEL.bench.shape(rows, case)
    assert shape == Shape(tuple((1000 + i % 128, new) for i in range(requests)), padding, ring)
