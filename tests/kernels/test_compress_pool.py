"""The torch path of ratio-2 pooling: the row-at-a-time oracle, the sentinel, and shapes that no value decides."""

import pytest
import torch

from dsv4bench.kernels import compress_c2, rms_norm
from dsv4bench.kernels.compress_pool import KERNEL, Shape, cost, reference
from dsv4bench.kernels.layout import V41_FP4
from tests.kernels.pair_pooling import History, RowAtATime, poisoned_cache

FORWARDS = [[(0, 0, 5), (1, 0, 4)], [(0, 5, 4), (1, 4, 1), (2, 0, 1)], [(2, 1, 2), (1, 5, 9)]]


def arguments(batch, ring, ring_size):
    rows = len(batch["loc"])
    return {
        "kv": batch["kv_score"][:, :512].contiguous(),
        "score": batch["kv_score"][:, 512:].contiguous(),
        "ring": ring,
        **{name: batch[name] for name in ("positions", "req", "loc")},
        "ring_size": ring_size,
        "pooled": torch.full((rows, 512), float("nan")).bfloat16(),
        "group_positions": torch.full((rows,), -99),
        "slots": torch.full((rows,), -99),
    }


def run(device, batch, ring, ring_size):
    """Run the reference on the device over `ring`, in place; return the outputs on the CPU."""
    there = {n: t.to(device) if torch.is_tensor(t) else t for n, t in arguments(batch, ring, ring_size).items()}
    reference(**there)
    ring.copy_(there["ring"])
    return {name: there[name].cpu() for name in KERNEL.outputs}


@pytest.mark.parametrize("ring_size", [2, 4, 8])
def test_chunks_with_padding_equal_one_row_at_a_time(device, ring_size):
    history = History.random(3, 16)
    ring, want = history.ring(ring_size), RowAtATime(history.ring(ring_size), ring_size)
    for spans in FORWARDS:
        batch = history.batch(spans, padding_rows=2)
        want.step(batch)
        got = run(device, batch, ring, ring_size)
        for row, key in enumerate(zip(batch["req"].tolist(), batch["positions"].tolist(), strict=True)):
            if batch["loc"][row] and key[1] % 2:
                expected = want.pooled[key].bfloat16()
                torch.testing.assert_close(got["pooled"][row], expected, rtol=2**-7, atol=2**-20)
        assert torch.equal(ring, want.ring)


def test_groups_and_slots_by_hand(device):
    """Positions 4 to 7 of the one request, whose page is 1: full slots 260 to 263; then padding."""
    history = History.random(1, 8)
    got = run(device, history.batch([(0, 4, 4)], padding_rows=1), history.ring(8), 8)
    assert got["group_positions"].tolist() == [4, 4, 6, 6, 0]
    assert got["slots"].tolist() == [0, 130, 0, 131, 0]


def test_the_sum_is_that_of_the_softmax_bit_for_bit(device):
    """Specification 3.5: two products, each rounded, then their sum."""
    history = History.random(1, 2)
    batch = history.batch([(0, 0, 2)])
    kv, score = batch["kv_score"].to(device).view(2, 2, 512).unbind(1)
    want = (kv * score.softmax(0)).sum(0).bfloat16().cpu()
    assert torch.equal(run(device, batch, history.ring(2), 2)["pooled"][1], want)


def test_a_row_without_a_row_before_it_takes_itself(device):
    """Position 0 and padding read the empty sentinel, whatever the ring rows hold that their numbers could mean."""
    history = History.random(1, 4)
    ring = torch.full_like(history.ring(4), float("nan"))
    ring[-1] = history.ring(4)[-1]
    batch = history.batch([(0, 0, 1)], padding_rows=1)
    batch["positions"][1], batch["kv_score"][1] = 3, history.states[0, 3]
    got = run(device, batch, ring, 4)
    assert torch.equal(got["pooled"], batch["kv_score"][:, :512].bfloat16())


def test_padding_reaches_only_the_sentinel_which_is_cleared(device):
    history = History.random(2, 4)
    ring = torch.randn_like(history.ring(4))
    want = ring.clone()
    run(device, history.batch([(0, 0, 0)], padding_rows=3), ring, 4)
    assert torch.equal(ring[:-1], want[:-1])
    assert torch.equal(ring[-1], history.ring(4)[-1])


CASES = {  # what stands before a live row of request 0 at position 5; none of it is its partner
    "padding": (0, 4, 0),
    "another-request": (1, 4, 700),
    "another-position": (0, 2, 700),
}


@pytest.mark.parametrize("before", CASES.values(), ids=CASES)
def test_a_partner_elsewhere_comes_from_the_ring(device, before):
    history, ring = History.random(2, 6), History.random(2, 6).ring(8)
    batch = history.batch([(0, 4, 2)])
    batch["req"][0], batch["positions"][0], batch["loc"][0] = torch.tensor(before)
    batch["kv_score"][0] = float("nan")
    ring[4] = history.states[0, 4]
    want = RowAtATime(ring.clone(), 8)
    want.step(history.batch([(0, 5, 1)]))
    got = run(device, batch, ring, 8)
    torch.testing.assert_close(got["pooled"][1], want.pooled[0, 5].bfloat16(), rtol=2**-7, atol=2**-20)


def test_the_first_row_does_not_join_the_last(device):
    """A roll brings the last row before the first; here it is the position before, of the same request."""
    history, ring = History.random(1, 6), History.random(1, 6).ring(8)
    batch = history.batch([(0, 4, 2)])
    batch |= {name: batch[name].flip(0) for name in ("kv_score", "positions", "req", "loc")}
    ring[4] = history.states[0, 3]  # the parked row differs from the last row of the batch
    want = RowAtATime(ring.clone(), 8)
    want.step(history.batch([(0, 5, 1)]))
    got = run(device, batch, ring, 8)
    torch.testing.assert_close(got["pooled"][0], want.pooled[0, 5].bfloat16(), rtol=2**-7, atol=2**-20)


def test_latents_and_ring_are_those_of_the_fused_kernel(device):
    """Specification 9.1: latents within 2^-6 and 2^-20, rings equal."""
    history, weight = History.random(3, 16), torch.linspace(0.5, 1.5, 512).bfloat16()
    ring, fused_ring = history.ring(8), history.ring(8)
    for spans in FORWARDS:
        batch = history.batch(spans, padding_rows=1)
        got, rows = run(device, batch, ring, 8), len(batch["loc"])
        latent, fused = torch.zeros(rows, 512).bfloat16(), torch.zeros(rows, 512).bfloat16()
        rms_norm.reference(x=got["pooled"], weight=weight, eps=1e-20, out=latent)
        common = {"eps": 1e-20, "freqs": torch.zeros(16, 64), "ring_size": 8, "page_size": 128, "layout": V41_FP4}
        cache = poisoned_cache(history, V41_FP4)
        compress_c2.reference(**batch, **common, ring=fused_ring, weight=weight, cache=cache, latent=fused)
        odd = (batch["loc"] != 0) & (batch["positions"] % 2 == 1)
        torch.testing.assert_close(latent[odd], fused[odd], rtol=2**-6, atol=2**-20)
        assert torch.equal(ring[:-1], fused_ring[:-1])


def test_nothing_depends_on_values():
    """A meta tensor has none: a shape taken from data, or a wait for it, would raise."""
    batch = History.random(2, 9).batch([(0, 0, 9), (1, 2, 3)], padding_rows=2)
    tensors = arguments(batch, torch.zeros(26, 1024), 8)
    reference(**{name: t.to("meta") if torch.is_tensor(t) else t for name, t in tensors.items()})


def test_no_rows_do_nothing(device):
    history = History.random(1, 2)
    ring = history.ring(2)
    run(device, history.batch([(0, 0, 0)]), ring, 2)
    assert torch.equal(ring, history.ring(2))


def test_cost_counts_two_states_a_row(generator):
    counted = cost(KERNEL.inputs(Shape(((0, 5), (7, 12)), 3, 8), generator))
    assert counted.bytes_read == 20 * (2 * 4096 + 24)
    assert counted.bytes_written == 20 * (1024 + 16)


@pytest.mark.parametrize(
    ("name", "row", "value", "said"),
    [
        ("req", 2, 2, r"req\[2\]: 2, expected 0 to 1"),
        ("req", 5, -1, r"req\[5\]: -1, expected 0 to 1"),
        ("positions", 1, -1, r"positions\[1\]: -1, expected 0 to 2147483647"),
        ("loc", 0, -2, r"loc\[0\]: -2, expected 0 to 2147483647"),
        ("loc", 0, 2**31, r"loc\[0\]: 2147483648, expected 0 to 2147483647"),
    ],
    ids=["request", "request-of-padding", "position", "slot", "slot-over-i32"],
)
def test_a_value_out_of_range_is_named(name, row, value, said):
    """Two requests of rings of 4 and the sentinel; a row of padding."""
    history = History.random(2, 8)
    tensors = arguments(history.batch([(0, 0, 3), (1, 2, 2)], padding_rows=1), history.ring(4)[:9], 4)
    KERNEL.check_values(tensors)
    tensors[name][row] = value
    with pytest.raises(ValueError, match=said):
        KERNEL.check_values(tensors)
