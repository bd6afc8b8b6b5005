"""Decode of the compressors of ratio 4 and 128: events beside plain loops in f64, the state ring, and who is left."""

import pytest
import torch

from dsv4bench.kernels.compress_ring import StateRing
from dsv4bench.kernels.compress_window_decode import KERNEL, Shape, cost, inputs
from tests.kernels.state_windows import POISON, History, close

C4, C4_SPECULATIVE, C4_REQUEST = StateRing(4, 8, 16), StateRing(4, 16, 16), StateRing(4, 8, 8, request_ring=True)
C128, C128_SPECULATIVE = StateRing(128, 128, 128), StateRing(128, 256, 256)
RINGS = {"c4": C4, "c4-spec": C4_SPECULATIVE, "c4-request": C4_REQUEST, "c128": C128, "c128-spec": C128_SPECULATIVE}


@pytest.fixture(params=["torch", "triton"])
def provider(request) -> str:
    if request.param == "triton":
        request.getfixturevalue("triton_device")
    return request.param


def steps(history: History, provider: str, batch: list[tuple[int, int]], count: int) -> int:
    """Decode `count` tokens of each (request, position); check outputs and states; return the number of events."""
    events = 0
    for step in range(count):
        now = [(request, position + step) for request, position in batch]
        got = history.decode(provider, now)
        complete = [i for i, (_, position) in enumerate(now) if (position + 1) % history.ratio == 0]
        others = [i for i in range(len(now)) if i not in complete]
        close(got[complete], history.want([now[i] for i in complete]))
        assert (got[others] == POISON).all()
        for request, position in now:
            assert torch.equal(history.kept(request, position), history.states[request, position])
        events += len(complete)
    return events


@pytest.mark.parametrize("name", ["c4", "c4-spec", "c4-request"])
@pytest.mark.parametrize("prefix", [0, 1, 4, 6, 13])
def test_c4_token_by_token_behind_a_prefill(name, prefix, provider, device):
    history = History(RINGS[name], device, requests=1, length=prefix + 13)
    if prefix:
        history.prefill(provider, [(0, 0, prefix)])
    assert steps(history, provider, [(0, prefix)], 13) >= 3


@pytest.mark.parametrize("name", ["c128", "c128-spec"])
@pytest.mark.parametrize("prefix", [125, 126, 127, 200])
def test_c128_over_a_boundary(name, prefix, provider, device):
    history = History(RINGS[name], device, requests=1, length=260)
    history.prefill(provider, [(0, 0, prefix)])
    history.prefill("torch", [(0, prefix, 255 - prefix)] if prefix == 200 else [(0, prefix, 1)])
    at = 255 if prefix == 200 else prefix + 1
    assert steps(history, provider, [(0, at)], 3) == (prefix != 127)


@pytest.mark.parametrize("ring", [C4, C128], ids=["c4", "c128"])
def test_requests_of_a_batch_stand_at_different_places(ring, provider, device):
    """Request 2 completes a group in the first step, request 0 in the second, request 1 in neither."""
    group = ring.ratio
    history = History(ring, device, requests=3, length=3 * group)
    starts = [2 * group - 2, group, 2 * group - 1]
    history.prefill(provider, [(request, 0, start) for request, start in enumerate(starts)])
    batch = [(2, starts[2]), (0, starts[0]), (1, starts[1])]
    assert steps(history, provider, batch, 2) == 2


@pytest.mark.parametrize("ring", [C4, C128], ids=["c4", "c128"])
def test_rows_of_512_channels(ring, provider, device):
    history = History(ring, device, head_dim=512, requests=1, length=2 * ring.ratio)
    history.prefill("torch", [(0, 0, 2 * ring.ratio - 1)])
    assert steps(history, provider, [(0, 2 * ring.ratio - 1)], 1) == 1


def test_the_first_window_reads_no_page_before_it(provider, device):
    history = History(C4, device, requests=1, length=4)
    history.prefill(provider, [(0, 0, 3)])
    tensors = history.decode_tensors([(0, 3)])
    tensors["plan_d"].view(torch.int32)[0, 2] = history.nobodys_page
    KERNEL.provider(provider).build(tensors)()
    close(tensors["out"].cpu(), history.want([(0, 3)]))


def test_pages_of_an_incomplete_group_are_not_read(provider, device):
    """Their numbers may be anything: only the row is kept."""
    history = History(C4, device, requests=1, length=6)
    tensors = history.decode_tensors([(0, 5)])
    tensors["plan_d"].view(torch.int32)[0, 2:] = -(2**31)
    KERNEL.check_values(tensors)
    KERNEL.provider(provider).build(tensors)()
    assert (tensors["out"] == POISON).all()
    assert torch.equal(history.kept(0, 5), history.states[0, 5])


def test_the_newest_state_is_pooled_as_the_pool_holds_it(provider, device):
    """Only the newest token weighs. It is 1 + 2^-10, which a pool of bf16 holds as 1."""
    history = History(C4, device, requests=1, length=8, pool_dtype=torch.bfloat16)
    history.prefill(provider, [(0, 0, 7)])
    history.states[0, 7, :256] = 1 + 2.0**-10
    history.states[0, 7, 256:] = 1000
    assert (history.decode(provider, [(0, 7)]) == 1).all()


def test_a_newest_state_in_bf16_is_kept_exactly(provider, device):
    history = History(C4, device, requests=1, length=8, dtype=torch.bfloat16)
    history.prefill(provider, [(0, 0, 7)])
    got, want = history.decode(provider, [(0, 7)]), history.want([(0, 7)])
    torch.testing.assert_close(got.double(), want, rtol=1e-2, atol=1e-2)
    assert torch.equal(history.kept(0, 7), history.states[0, 7].float())


def test_no_request(provider, device):
    history = History(C4, device, requests=1, length=8)
    tensors = history.decode_tensors([(0, 3)])
    tensors |= {name: tensors[name][:0] for name in ("x", "plan_d", "out")}
    KERNEL.provider(provider).build(tensors)()
    assert history.pool.isnan().all()


BAD = {
    "ratio": ("ratio", lambda _: 2, "ratio: 2, expected one of 4, 128"),
    "records": ("plan_d", lambda plan: plan[:1], r"out: float32 \[2, 128\], expected .* \[1, 128\]"),
    "rows": ("x", lambda x: x[:1], "plan_d: 2 records, expected one for each of 1 rows"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_argument_is_named(case):
    name, change, message = BAD[case]
    tensors = History(C4, "cpu", requests=2, length=9).decode_tensors([(0, 3), (1, 8)])
    tensors[name] = change(tensors[name])
    with pytest.raises(ValueError, match=message):
        KERNEL.check(tensors)


VALUES = {
    "no token": (0, 0, 0, r"plan_d: seq_len\[0\]: 0, expected 1 to"),
    "kept row": (1, 1, -1, r"plan_d: write_row\[1\]: -1, expected 0 to"),
    "page": (0, 3, 99, "window 0, entry 4: row of the state pool 396, expected 0 to"),
    "page before": (0, 2, -1, "window 0, entry 0: row of the state pool -4, expected 0 to"),
}


@pytest.mark.parametrize("case", VALUES)
def test_a_record_out_of_range_is_named(case):
    record, column, value, message = VALUES[case]
    tensors = History(C4, "cpu", requests=2, length=9).decode_tensors([(0, 7), (1, 8)])
    KERNEL.check_values(tensors)
    tensors["plan_d"].view(torch.int32)[record, column] = value
    with pytest.raises(ValueError, match=message):
        KERNEL.check_values(tensors)


def test_cost_by_hand(generator):
    """Requests of 8, 9 and 4 tokens: three rows kept, windows of 8 and of 4 entries pooled."""
    found = cost(inputs(Shape((8, 9, 4), C4, 128), generator))
    read = 12 * 2 * 128 * 4 + 8 * 128 * 4 + 3 * 512 * 4 + 3 * 16
    assert (found.flops, found.bytes_read, found.bytes_written) == (6 * 12 * 128, read, 2 * 128 * 4 + 3 * 512 * 4)
