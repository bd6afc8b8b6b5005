"""Prefill of the compressors of ratio 4 and 128: every event beside plain loops in f64, and the states kept."""

import pytest
import torch

from dsv4bench.kernels.compress_plan import read_compressions
from dsv4bench.kernels.compress_ring import StateRing
from dsv4bench.kernels.compress_window import KERNEL, Shape, cost, inputs
from tests.kernels.state_windows import POISON, History, close

C4, C4_SPECULATIVE, C4_REQUEST = StateRing(4, 8, 16), StateRing(4, 16, 16), StateRing(4, 8, 8, request_ring=True)
C128, C128_SPECULATIVE = StateRing(128, 128, 128), StateRing(128, 256, 256)
BF16 = torch.bfloat16
RINGS = {"c4": C4, "c4-spec": C4_SPECULATIVE, "c4-request": C4_REQUEST, "c128": C128, "c128-spec": C128_SPECULATIVE}


@pytest.fixture(params=["torch", "triton"])
def provider(request) -> str:
    if request.param == "triton":
        request.getfixturevalue("triton_device")
    return request.param


def forwards(history: History, provider: str, batches) -> None:
    """Run prefills one after the other; every event of each must be the oracle's, in the order of the batch."""
    for batch in batches:
        close(history.prefill(provider, batch), history.want(history.events(batch)))


# ---- events


@pytest.mark.parametrize(
    ("ring", "length"),
    [(C4, 3), (C4, 4), (C4, 5), (C4, 8), (C4, 1024), (C128, 127), (C128, 128), (C128, 257), (C128, 1024)],
    ids=lambda value: str(getattr(value, "ratio", value)),
)
def test_a_request_from_its_first_token_on(ring, length, provider, device):
    history = History(ring, device, requests=1, length=length)
    assert len(history.events([(0, 0, length)])) == length // ring.ratio
    forwards(history, provider, [[(0, 0, length)]])


@pytest.mark.parametrize("ring", [C4, C128], ids=["c4", "c128"])
def test_rows_of_512_channels(ring, provider, device):
    length = 3 * ring.ratio
    forwards(History(ring, device, head_dim=512, requests=1, length=length), provider, [[(0, 0, length)]])


@pytest.mark.parametrize("name", ["c4", "c4-spec", "c4-request"])
@pytest.mark.parametrize("prefix", [1, 3, 4, 5, 7, 8, 15])
def test_c4_goes_on_behind_any_prefix(name, prefix, provider, device):
    """Chunks of 1, 2 and 9: a window's older tokens lie in the pool, the others in the batch."""
    history = History(RINGS[name], device, requests=1, length=prefix + 12)
    chunks = [(0, 0, prefix), (0, prefix, 1), (0, prefix + 1, 2), (0, prefix + 3, 9)]
    forwards(history, provider, [[chunk] for chunk in chunks])


@pytest.mark.parametrize("name", ["c128", "c128-spec"])
@pytest.mark.parametrize("prefix", [1, 120, 127, 128, 200])
def test_c128_goes_on_behind_any_prefix(name, prefix, provider, device):
    history = History(RINGS[name], device, requests=1, length=prefix + 257)
    forwards(history, provider, [[(0, 0, prefix)], [(0, prefix, 128)], [(0, prefix + 128, 129)]])


def test_windows_are_pooled_before_the_first_state_is_kept(provider, device):
    """120 tokens, then 128 (4.4): tokens 128 to 247 take the rows of 0 to 119, which the window of 127 reads first."""
    history = History(C128, device, requests=1, length=248)
    history.prefill(provider, [(0, 0, 120)])
    assert torch.equal(history.kept(0, 0), history.states[0, 0])
    close(history.prefill(provider, [(0, 120, 128)]), history.want([(0, 127)]))
    assert torch.equal(history.kept(0, 0), history.states[0, 128])


@pytest.mark.parametrize("ring", [C4, C128], ids=["c4", "c128"])
def test_a_batch_is_compact_in_the_order_of_its_requests(ring, provider, device):
    history = History(ring, device, requests=4, length=5 * ring.ratio)
    window = ring.ratio
    first = [(2, 0, 3), (0, 0, window + 1), (3, 0, 2 * window), (1, 0, window - 1)]
    second = [(1, window - 1, 2), (3, 2 * window, 1), (0, window + 1, 2 * window), (2, 3, window)]
    assert len(history.events(second)) == 4
    forwards(history, provider, [first, second])


def test_rows_follow_the_plan_whatever_its_order(provider, device):
    history = History(C4, device, requests=2, length=30)
    batch = [(0, 0, 21), (1, 0, 9)]
    plan_c, plan_w = history.plans(batch)
    order = torch.randperm(len(plan_c), generator=torch.Generator().manual_seed(1))
    got = history.prefill(provider, batch, (plan_c[order], plan_w.flip(0)))
    close(got, history.want(history.events(batch))[order])
    assert torch.equal(history.kept(0, 20), history.states[0, 20])


def test_a_record_that_stands_for_nothing_leaves_its_row(provider, device):
    history = History(C4, device, requests=1, length=10)
    plan_c, plan_w = history.plans([(0, 0, 10)], graph=True)
    got = history.prefill(provider, [(0, 0, 10)], (plan_c.roll(1, 0), plan_w.roll(3, 0)))
    assert torch.equal(got[[0, *range(3, 10)]], torch.full((8, 128), POISON))
    close(got[1:3], history.want([(0, 3), (0, 7)]))
    kept = torch.stack([history.kept(0, p) for p in range(4, 10)])
    assert torch.equal(kept, history.states[0, 4:10])
    assert int((~history.pool.isnan()).any(-1).sum()) == 6


@pytest.mark.parametrize("pool_dtype", [torch.float32, BF16], ids=["pool-f32", "pool-bf16"])
@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("ring", [C4, C128], ids=["c4", "c128"])
def test_dtypes_of_batch_and_pool(ring, dtype, pool_dtype, provider, device):
    """A state in the pool is rounded to both dtypes; the oracle takes f32 ones rounded to bf16 to the tolerance."""
    length = 2 * ring.ratio + 2
    history = History(ring, device, requests=1, length=length, dtype=dtype, pool_dtype=pool_dtype)
    for batch in [[(0, 0, ring.ratio + 2)], [(0, ring.ratio + 2, ring.ratio)]]:
        got, want = history.prefill(provider, batch), history.want(history.events(batch))
        torch.testing.assert_close(got.double(), want, rtol=1e-2, atol=1e-2)


def test_a_state_from_the_pool_is_rounded_to_the_dtype_of_the_batch(provider, device):
    """Only token 5 weighs, which the pool holds as 1 + 2^-10; a batch of bf16 rounds it to 1."""
    history = History(C4, device, requests=1, length=8, dtype=BF16)
    history.states[0, :, 256:] = 0
    history.states[0, 5, 384:] = 1000
    history.prefill(provider, [(0, 0, 6)])
    history.pool[~history.pool.isnan() & (history.pool.abs() < 900)] = 1 + 2.0**-10
    tensors = history.prefill_tensors([(0, 6, 2)])
    tensors["out"] = tensors["out"].float()
    KERNEL.provider(provider).build(tensors)()
    assert (tensors["out"] == 1).all()


def test_scores_of_any_size_do_not_overflow(provider, device):
    history = History(C4, device, requests=1, length=8)
    history.states[..., 256:] *= 1e6
    got = history.prefill(provider, [(0, 0, 8)])
    assert got.isfinite().all()
    close(got, history.want([(0, 3), (0, 7)]))


# ---- what must not be read


@pytest.mark.parametrize("new", [1, 2, 3, 4])
def test_the_first_window_has_no_group_before_it(new, provider, device):
    """seq_len = 4: its four older entries weigh nothing, and page 0 is not read, however many tokens are new."""
    history = History(C4, device, requests=1, length=4)
    if new < 4:
        history.prefill(provider, [(0, 0, 4 - new)])
    batch = [(0, 4 - new, new)]
    plan_c, plan_w = history.plans(batch)
    words = plan_c.view(torch.int32)
    assert int(read_compressions(plan_c).buffer_len) == 8 - new
    words[:, 2] = history.nobodys_page
    if new == 4:
        words[:, 3] = history.nobodys_page
    close(history.prefill(provider, batch, (plan_c, plan_w)), history.want([(0, 3)]))


@pytest.mark.parametrize("ring", [C4, C128], ids=["c4", "c128"])
def test_pages_of_a_window_that_is_all_new_are_not_read(ring, provider, device):
    history = History(ring, device, requests=1, length=2 * ring.ratio)
    plan_c, plan_w = history.plans([(0, 0, 2 * ring.ratio)])
    last = plan_c[-1:].clone()
    assert int(read_compressions(last).buffer_len) == 0
    last.view(torch.int32)[:, 2:] = history.nobodys_page
    got = history.prefill(provider, [(0, 0, 2 * ring.ratio)], (last, plan_w))
    close(got, history.want([(0, 2 * ring.ratio - 1)]))


# ---- states


def test_the_last_rows_of_every_page_are_kept_as_they_are(provider, device):
    """4.4: pages of 16 tokens, 40 in all; the last four of each page, and from 36 on, bits and all."""
    history = History(C4, device, requests=2, length=40)
    history.states[0, 12, :5] = torch.tensor([-0.0, float("inf"), float("nan"), 1e-40, -float("inf")])
    history.prefill(provider, [(1, 0, 40), (0, 0, 40)])
    tails = [*range(12, 16), *range(28, 32), *range(36, 40)]
    for request in (0, 1):
        kept = torch.stack([history.kept(request, p) for p in tails])
        assert torch.equal(kept.view(torch.int32), history.states[request, tails].view(torch.int32))


def test_a_cached_prefix_goes_on_from_the_rows_of_its_last_page(provider, device):
    """Request 1 begins with request 0's first page of 16 tokens, which went on to 40 tokens."""
    history = History(C4, device, requests=2, length=40)
    history.prefill(provider, [(0, 0, 40)])
    history.states[1, :16] = history.states[0, :16]
    history.table[history.rows[1], :16] = history.table[history.rows[0], :16]
    close(history.prefill(provider, [(1, 16, 9)]), history.want([(1, 19), (1, 23)]))


@pytest.mark.parametrize("name", ["c4-spec", "c128-spec"])
@pytest.mark.parametrize("prefix", [250, 251, 252, 253])
@pytest.mark.parametrize("accepted", [1, 5])
def test_drafts_may_be_rolled_back(name, prefix, accepted, provider, device):
    """A verify forward of 6 tokens, of which `accepted` stay; the next one takes others in their place."""
    history = History(RINGS[name], device, requests=1, length=264)
    history.prefill("torch", [(0, 0, prefix)])
    forwards(history, provider, [[(0, prefix, 6)]])
    start = prefix + accepted
    history.states[0, start:] = torch.randn(history.states[0, start:].shape, generator=torch.Generator().manual_seed(9))
    forwards(history, provider, [[(0, start, 6)]])


def test_a_pool_of_bf16_rounds(provider, device):
    history = History(C4, device, requests=1, length=8, pool_dtype=BF16)
    history.prefill(provider, [(0, 0, 8)])
    assert torch.equal(history.kept(0, 7), history.states[0, 7].bfloat16())


def test_the_last_token_that_a_record_can_number(provider, device):
    """65 536 tokens, of which the last window alone is planned; all other states are 0, and no score tells them."""
    x = torch.zeros(65536, 512, dtype=BF16, device=device)
    x[-1, 128:256], x[-1, 384:] = 3, 100
    plan_c = torch.tensor([[65536, 65535, -1, -1]], dtype=torch.int32).view(torch.uint8)
    plan_w = torch.tensor([[65535, 2]], dtype=torch.int32).view(torch.uint8)
    tensors = {"x": x, "ape": x[:8, :128].contiguous(), "pool": torch.full((1, 4, 512), POISON, device=device)}
    tensors |= {"plan_c": plan_c.to(device), "plan_w": plan_w.to(device), "ratio": 4}
    tensors["out"] = torch.full((1, 128), POISON, device=device)
    KERNEL.check_values(tensors)
    KERNEL.provider(provider).build(tensors)()
    assert (tensors["out"] == 3).all()
    assert torch.equal(tensors["pool"][0, 2], x[-1].float())
    assert (tensors["pool"][0, [0, 1, 3]] == POISON).all()


def test_nothing_to_do(provider, device):
    history = History(C4, device, requests=1, length=3)
    history.pool.fill_(POISON)
    plans = (torch.empty(0, 16, dtype=torch.uint8), torch.empty(0, 8, dtype=torch.uint8))
    assert history.prefill(provider, [(0, 0, 3)], plans).shape == (0, 128)
    assert (history.pool == POISON).all()


# ---- arguments


def changed(name, value):
    return lambda tensors: tensors.update({name: value(tensors[name]) if callable(value) else value})


BAD = {
    "ratio": (changed("ratio", 8), "ratio: 8, expected one of 4, 128"),
    "rows with gaps": (changed("x", lambda x: x.repeat(1, 2)[:, :512]), "x: dimension 0 has stride 1024, expected 512"),
    "too many rows": (
        changed("x", torch.empty(65537, 512, device="meta")),
        "x: rows: 65537, expected at most 65536: ragged_id is",
    ),
    "biases": (changed("ape", lambda ape: ape[:4]), r"ape: float32 \[4, 128\], expected float32 or bfloat16 \[8, head"),
    "channels": (changed("ape", lambda ape: ape[:, :64].contiguous()), "head_dim: 64, expected one of 128, 512"),
    "page of the pool": (
        changed("pool", lambda pool: pool[:, :2].contiguous()),
        r"pool: .*expected .* \[pages, 4, 512",
    ),
    "plan between words": (
        changed("plan_w", lambda plan: torch.zeros(8 * len(plan) + 1, dtype=torch.uint8)[1:].view(-1, 8)),
        "plan_w: begins at byte 1 of a word, expected 0",
    ),
    "rows of out": (changed("out", lambda out: out[1:]), r"out: float32 \[1, 128\], expected .* \[2, 128\]"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_argument_is_named(case):
    change, message = BAD[case]
    tensors = History(C4, "cpu", requests=1, length=9).prefill_tensors([(0, 0, 9)])
    change(tensors)
    with pytest.raises(ValueError, match=message):
        KERNEL.check(tensors)


def word(plan, record, column, value):
    def change(tensors):
        tensors[plan].view(torch.int32)[record, column] = value

    return change


VALUES = {  # one request of 2 tokens in the pool and 9 new ones: windows at rows 1 and 5; pages 0 to 6
    "token behind the batch": (word("plan_c", 1, 1, 9), "window 1, entry 7: row of the batch 9, expected 0 to 8"),
    "window before the batch": (word("plan_c", 1, 1, 5), "window 1, entry 0: row of the batch -2, expected 0 to 8"),
    "page behind the pool": (word("plan_c", 0, 3, 99), "window 0, entry 4: row of the state pool 396, expected 0 to"),
    "page before the pool": (word("plan_c", 1, 2, -1), "window 1, entry 0: row of the state pool -4, expected 0 to"),
    "kept token": (word("plan_w", 0, 0, 9), r"plan_w: ragged_id\[0\]: 9, expected 0 to 8"),
    "kept row": (word("plan_w", 1, 1, -1), r"plan_w: write_row\[1\]: -1, expected 0 to"),
}


@pytest.mark.parametrize("case", VALUES)
def test_a_record_out_of_range_is_named(case):
    change, message = VALUES[case]
    tensors = History(C4, "cpu", requests=1, length=11).prefill_tensors([(0, 2, 9)])
    KERNEL.check_values(tensors)
    change(tensors)
    with pytest.raises(ValueError, match=message):
        KERNEL.check_values(tensors)


def test_cost_by_hand(generator):
    """A prefix of 2 and 6 new tokens: the window of 4 has 4 entries, that of 8 has 8, together 2 of 12 in the pool.

    Positions 4 to 7 are kept, and 2 records of 16 bytes and 4 of 8 are read.
    """
    found = cost(inputs(Shape(((2, 6),), 0, StateRing(4, 8, 16), 128, torch.bfloat16), generator))
    stored = 2 + 2  # positions 0 and 1, for the window of 4 and for that of 8
    read = 2 * 128 * (4 * stored + 2 * (12 - stored)) + 8 * 128 * 2 + 4 * 512 * 2 + 2 * 16 + 4 * 8
    assert (found.flops, found.bytes_read, found.bytes_written) == (6 * 12 * 128, read, 2 * 128 * 2 + 4 * 512 * 4)
