"""The ratio-2 compressor in prefill: chunks against the row-at-a-time oracle, the ring, padding, what is not read."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.kernels.compress_c2 import KERNEL, Shape, cost
from dsv4bench.kernels.layout import LAYOUTS, V41, V41_FP4
from dsv4bench.kernels.pair_pooling import pool
from tests.kernels.pair_pooling import History, RowAtATime, latent_of, poisoned_cache, stored

PREFIXES = (0, 7, 1)
PLANS = ((5, 4, 1), (3, 6, 2), (1, 1, 1))
WEIGHT = torch.linspace(0.5, 1.5, 512).bfloat16()
ANGLES = 7 * torch.rand(64, 32, generator=torch.Generator().manual_seed(10))
FREQS = torch.stack([ANGLES.cos(), ANGLES.sin()], -1).flatten(1)


@pytest.fixture(params=["torch", "triton"])
def call(request, device):
    """Run a provider on tensors, which move to its device and come back."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device

    def run(tensors):
        there = {name: value.to(where) if torch.is_tensor(value) else value for name, value in tensors.items()}
        KERNEL.provider(request.param).build(there)()
        return {name: there[name].cpu() for name in KERNEL.outputs}

    return run


@dataclass
class Prefill:
    """What a sequence of forwards leaves behind."""

    ring: torch.Tensor
    cache: torch.Tensor
    latents: dict  # (request, position) -> bf16 [512]
    others: list  # latents of rows that pool nothing


def prefill(call, history, forwards, ring_size, layout, ring=None, padding_rows=0):
    """Run forwards, each a list of spans, over one ring and one cache."""
    ring = history.ring(ring_size) if ring is None else ring
    done = Prefill(ring, poisoned_cache(history, layout), {}, [])
    for spans in forwards:
        batch = history.batch(spans, padding_rows)
        got = call(arguments(batch, done.ring, ring_size, done.cache, layout))
        done.ring, done.cache = got["ring"], got["cache"]
        for row, (req, position, loc) in enumerate(zip(*RowAtATime._rows(batch), strict=True)):
            if loc and position % 2:
                done.latents[req, position] = got["latent"][row]
            else:
                done.others.append(got["latent"][row])
    return done


def arguments(batch, ring, ring_size, cache, layout):
    return {
        **batch,
        "ring": ring,
        "weight": WEIGHT,
        "eps": 1e-20,
        "freqs": FREQS,
        "ring_size": ring_size,
        "cache": cache,
        "page_size": 128,
        "layout": layout,
        "latent": torch.full((len(batch["loc"]), 512), float("nan")).bfloat16(),
    }


def oracle(history, forwards, ring_size, padding_rows=0, ring=None):
    found = RowAtATime(history.ring(ring_size) if ring is None else ring, ring_size)
    for spans in forwards:
        found.step(history.batch(spans, padding_rows))
    return found


def chunked(prefix, plan):
    """Return (first position, rows) of each chunk: the prefix, then the plan."""
    firsts = [0, prefix, prefix + plan[0], prefix + plan[0] + plan[1]]
    return list(zip(firsts, (prefix, *plan), strict=True))


def every_plan():
    """Return the forwards of nine requests, each prefix with each plan: the prefixes, then the chunks."""
    chunks = [chunked(prefix, plan) for prefix in PREFIXES for plan in PLANS]
    return [[(req, *chunk[step]) for req, chunk in enumerate(chunks)] for step in range(4)]


def assert_follows(got, want, history, layout):
    """Compare a run with the oracle: latents within tolerance, bytes exact from the run's own latents, ring exact."""
    assert got.latents.keys() == want.pooled.keys()
    for key, latent in got.latents.items():
        expected = latent_of(want.pooled[key], WEIGHT)
        torch.testing.assert_close(latent, expected, rtol=2**-6, atol=2**-20, msg=lambda text, key=key: f"{key} {text}")
    assert all(latent.isnan().all() for latent in got.others)
    assert torch.equal(got.ring, want.ring)
    req, position = torch.tensor(list(got.latents)).unbind(1)
    slots = history.slot(req, position) // 2
    latents = torch.stack(list(got.latents.values()))
    wrote = stored(poisoned_cache(history, layout), slots, latents, FREQS, position - 1, layout)
    assert torch.equal(got.cache, wrote)


@pytest.mark.parametrize("layout", [V41, V41_FP4], ids=lambda layout: layout.name)
@pytest.mark.parametrize("ring_size", [2, 8])
def test_chunks_with_padding_equal_one_row_at_a_time(call, ring_size, layout):
    """And equal, byte for byte, one forward of the same tokens, here of the requests 3 to 5 (specification 9.1)."""
    history, forwards = History.random(9, 18), every_plan()
    got = prefill(call, history, forwards, ring_size, layout, padding_rows=2)
    assert_follows(got, oracle(history, forwards, ring_size, padding_rows=2), history, layout)
    whole = [[(req, 0, 7 + sum(plan)) for req, plan in zip((3, 4, 5), PLANS, strict=True)]]
    once = prefill(call, history, whole, ring_size, layout)
    assert all(torch.equal(got.latents[key], latent) for key, latent in once.latents.items())
    pages = [history.slot(req, 0) // 256 for req in (3, 4, 5)]
    assert torch.equal(once.cache[pages], got.cache[pages])
    assert torch.equal(once.ring[3 * ring_size : 6 * ring_size], got.ring[3 * ring_size : 6 * ring_size])


@pytest.mark.parametrize("name", ["v4", "v41_new", "fp4_new", "uniform"])
def test_a_cache_of_every_layout_takes_the_compressed_row(call, name):
    history, forwards = History.random(2, 6), [[(1, 0, 3), (0, 0, 2)]]
    layout = LAYOUTS[name]
    assert_follows(prefill(call, history, forwards, 8, layout), oracle(history, forwards, 8), history, layout)


@pytest.mark.parametrize(
    ("forwards", "kept"),
    [
        ([[(0, 0, 11)]], [8, 9, 10, 7]),
        ([[(0, 0, 5)], [(0, 5, 3)]], [4, 5, 6, 7]),
        ([[(0, 0, 2)]], [0, 1, None, None]),
    ],
    ids=["wraps", "wraps-by-chunks", "shorter"],
)
def test_the_ring_holds_the_last_rows(call, forwards, kept):
    """By hand: position p lies at p % 4 of the request's four ring rows; rows never parked stay fresh."""
    history = History.random(2, 12)
    got = prefill(call, history, forwards, 4, V41_FP4)
    fresh = history.ring(4)
    for place, position in enumerate(kept):
        want = fresh[place] if position is None else history.states[0, position]
        assert torch.equal(got.ring[place], want)
    assert torch.equal(got.ring[4:], fresh[4:])  # the other request's rows and the sentinel


def test_a_chunk_that_begins_odd_reads_its_ring_row_before_it_is_overwritten(call):
    """Positions 3 to 6 with a ring of 2: row 3 needs position 2, whose ring row takes position 6."""
    history, forwards = History.random(1, 8), [[(0, 0, 3)], [(0, 3, 4)]]
    got = prefill(call, history, forwards, 2, V41_FP4)
    assert_follows(got, oracle(history, forwards, 2), history, V41_FP4)
    assert torch.equal(got.ring[:2], history.states[0, [6, 5]])


def test_a_fresh_request_that_begins_odd_takes_the_new_row_alone(call):
    """Specification A.7: an old score of -inf weighs nothing."""
    history = History.random(1, 2)
    got = prefill(call, history, [[(0, 1, 1)]], 8, V41_FP4)
    want = latent_of(history.states[0, 1, :512].double(), WEIGHT)
    torch.testing.assert_close(got.latents[0, 1], want, rtol=2**-7, atol=0)


CASES = {  # what stands in the row before a live row of request 0 at position 5, and whether it is the partner
    "partner": ((0, 4, 700), True),
    "padding": ((0, 4, 0), False),
    "another-request": ((1, 4, 700), False),
    "another-position": ((0, 2, 700), False),
}


@pytest.mark.parametrize(("before", "is_partner"), CASES.values(), ids=CASES)
def test_the_partner_is_the_previous_row_or_the_parked_one(call, before, is_partner):
    """Whatever is not the partner holds NaN, in the batch and in the ring."""
    history, ring = History.random(2, 6), torch.full((26, 1024), float("nan"))
    batch = history.batch([(0, 4, 2)])
    batch["req"][0], batch["positions"][0], batch["loc"][0] = torch.tensor(before)
    if not is_partner:
        batch["kv_score"][0] = float("nan")
        ring[4] = history.states[0, 4]
    got = call(arguments(batch, ring, 8, poisoned_cache(history, V41_FP4), V41_FP4))
    want = oracle(history, [[(0, 4, 2)]], 8).pooled[0, 5]
    torch.testing.assert_close(got["latent"][1], latent_of(want, WEIGHT), rtol=2**-6, atol=2**-20)
    assert got["latent"][0].isnan().all()


def test_the_first_row_looks_at_nothing_before_the_batch(call):
    """The tensors are cut from longer ones, in which a perfect partner of poison stands one row earlier."""
    history = History.random(1, 6)
    ring = history.ring(8)
    ring[4] = history.states[0, 4]
    batch = history.batch([(0, 4, 2)])
    batch["kv_score"][0] = float("nan")
    cut = {name: batch[name][1:] for name in ("kv_score", "positions", "req", "loc")}
    cut |= {"starts": torch.tensor([0]).int(), "lens": torch.tensor([1]).int()}
    got = call(arguments(cut, ring, 8, poisoned_cache(history, V41_FP4), V41_FP4))
    want = latent_of(oracle(history, [[(0, 4, 2)]], 8).pooled[0, 5], WEIGHT)
    torch.testing.assert_close(got["latent"][0], want, rtol=2**-6, atol=2**-20)


def test_columns_without_rows_and_padding_park_nothing(call):
    """A length of 0 makes its start meaningless; a padding row inside a column is passed over."""
    history = History.random(3, 4)
    batch = history.batch([(0, 0, 3), (2, 0, 1)], padding_rows=1)
    batch["positions"][4] = 1
    batch["starts"], batch["lens"] = torch.tensor([0, 9999, 3, -7]).int(), torch.tensor([3, 0, 2, 0]).int()
    got = call(arguments(batch, history.ring(2), 2, poisoned_cache(history, V41_FP4), V41_FP4))
    want = history.ring(2)
    want[[0, 1]] = history.states[0, [2, 1]]
    want[4] = history.states[2, 0]
    assert torch.equal(got["ring"], want)


def test_only_padding_does_nothing(call):
    """An idle rank runs a bucket of padding rows, and no column has a length; slot 0 alone marks padding."""
    history = History.random(1, 2)
    batch = history.batch([(0, 0, 0)], padding_rows=3)
    batch["positions"] = torch.tensor([0, 5, 3])
    cache = poisoned_cache(history, V41)
    got = call(arguments(batch, history.ring(8), 8, cache.clone(), V41))
    assert torch.equal(got["cache"], cache)
    assert torch.equal(got["ring"], history.ring(8))
    assert got["latent"].isnan().all()


@settings(max_examples=12)
@given(data=st.data(), ring_size=st.sampled_from([2, 4, 8]))
def test_any_partition_into_chunks_gives_the_same_bytes(data, ring_size):
    """Two requests, cut independently, against one forward; the reference, whose chunks Triton follows above."""
    lengths = [data.draw(st.integers(1, 12)) for _ in range(2)]
    cuts = [sorted(data.draw(st.sets(st.integers(0, n), max_size=3))) for n in lengths]
    edges = [[0, *(cut[i] if i < len(cut) else n for i in range(3)), n] for cut, n in zip(cuts, lengths, strict=True)]
    forwards = [[(r, edge[i], edge[i + 1] - edge[i]) for r, edge in enumerate(edges)] for i in range(4)]
    history = History.random(2, 12)

    def reference(tensors):
        KERNEL.reference(**tensors)
        return tensors

    got = prefill(reference, history, forwards, ring_size, V41_FP4, padding_rows=1)
    want = prefill(reference, history, [[(r, 0, n) for r, n in enumerate(lengths)]], ring_size, V41_FP4)
    assert torch.equal(got.cache, want.cache)
    assert got.latents.keys() == want.latents.keys()
    assert all(torch.equal(latent, want.latents[key]) for key, latent in got.latents.items())


GATES = [  # specification A.7: old kv, old score, new kv, new score, pooled
    (2.0, 0.5, -1.0, 1.5, -0.1931757),
    (2.0, float("-inf"), -1.0, 1.5, -1.0),
    (2.0, 3.0, 4.0, 3.0, 3.0),
]


@pytest.mark.parametrize(("kv_old", "score_old", "kv_new", "score_new", "pooled"), GATES)
def test_two_states_are_pooled_by_hand(kv_old, score_old, kv_new, score_new, pooled):
    def state(kv, score):
        return torch.tensor([kv, score]).repeat_interleave(512)[None]

    got = pool(state(kv_old, score_old), state(kv_new, score_new))
    torch.testing.assert_close(got, torch.full((1, 512), pooled), rtol=1e-6, atol=0)


def test_a_provider_pools_by_hand(call):
    """The three gates side by side in one row: their latents stand in the proportion of the pooled values."""
    columns = torch.tensor(GATES).repeat(171, 1)[:512]
    history = History(torch.cat([columns[:, [0, 2]], columns[:, [1, 3]]]).T[None].contiguous())
    got = prefill(call, history, [[(0, 0, 2)]], 2, V41_FP4)
    want = latent_of(columns[:, 4].double(), WEIGHT)
    torch.testing.assert_close(got.latents[0, 1], want, rtol=2**-6, atol=0)


def test_a_pooled_row_is_bf16_before_its_norm(call):
    """By hand: 1.0037 rounds to 1, so the mean square is 1 and the latent the weight; it would be 1.0056 otherwise."""
    history = History(torch.zeros(1, 2, 1024))
    history.states[0, 1, :512] = torch.where(torch.arange(512) % 4 == 0, 1.0, 1.0037)
    assert torch.equal(prefill(call, history, [[(0, 1, 1)]], 2, V41_FP4).latents[0, 1], WEIGHT)


def test_scores_far_apart_do_not_overflow(call):
    """A gate of exp(200) is not f32: the larger score weighs 1 and the other nothing."""
    history = History.random(1, 4)
    history.states[0, [0, 3], 512:] = 200.0
    got = prefill(call, history, [[(0, 0, 4)]], 2, V41_FP4)
    for position, taken in ((1, 0), (3, 3)):
        want = latent_of(history.states[0, taken, :512].double(), WEIGHT)
        torch.testing.assert_close(got.latents[0, position], want, rtol=2**-7, atol=0)


def test_no_rows_do_nothing(call):
    history = History.random(1, 2)
    got = call(arguments(history.batch([(0, 0, 0)]), history.ring(2), 2, poisoned_cache(history, V41), V41))
    assert torch.equal(got["ring"], history.ring(2))


def two_rows(layout=V41):
    """Request 1 of two, positions 2 and 3: a batch, a ring of 4 and a cache that fit."""
    history = History.random(2, 4)
    return arguments(history.batch([(1, 2, 2)]), history.ring(4), 4, poisoned_cache(history, layout), layout)


@pytest.mark.parametrize(
    ("argument", "make", "said"),
    [
        ("ring", lambda t: t.repeat(1, 2)[:, :1024], "ring: dimension 0 has stride 2048, expected 1024"),
        ("ring_size", lambda size: 3, "ring_size: 3, expected an even number of at least 2"),
        ("page_size", lambda size: 64, r"v41 cache with pages of 64 is .*\[pages, 33792\].*\[3, 67584\]"),
        ("layout", lambda layout: V41_FP4, r"fp4 cache with pages of 128 is .*\[pages, 36864\].*\[3, 67584\]"),
    ],
    ids=["ring-stride", "ring-size", "page-size", "layout"],
)
def test_a_wrong_argument_is_named(argument, make, said):
    tensors = two_rows()
    tensors[argument] = make(tensors[argument])
    with pytest.raises(ValueError, match=said):
        KERNEL.check(tensors)


@pytest.mark.parametrize(
    ("argument", "at", "wrong", "last"),
    [("loc", 1, 3 * 256, 767), ("req", 0, 3, 2), ("positions", 1, 64, 63), ("lens", 0, 3, 2), ("starts", 0, -1, 0)],
    ids=["loc", "req", "positions", "lens", "starts"],
)
def test_a_value_out_of_range_is_named(argument, at, wrong, last):
    """Three pages of 128 pooled rows, a table of 64 positions, a ring for three requests of four."""
    tensors = two_rows()
    tensors[argument][at] = last
    KERNEL.check_values(tensors)
    tensors[argument][at] = wrong
    with pytest.raises(ValueError, match=rf"{argument}\[{at}\]: {wrong}, expected 0 to"):
        KERNEL.check_values(tensors)


def test_rows_of_a_request_lie_in_the_batch():
    tensors = two_rows() | {"starts": torch.tensor([1, 77]).int(), "lens": torch.tensor([2, 0]).int()}
    with pytest.raises(ValueError, match=r"starts \+ lens\[0\]: 3, expected 0 to 2"):
        KERNEL.check_values(tensors)


def test_cost_counts_pooled_and_parked_rows(generator):
    """By hand: positions 1, 3 and 7, 9 pool; 5 and 4 rows are parked, of 13 with the padding."""
    counted = cost(KERNEL.inputs(Shape(((0, 5), (7, 4)), 4, 8, "fp4", 128), generator))
    assert counted.bytes_read == (8 + 9) * 4096 + 4 * 256 + 1024 + 13 * 24
    assert counted.bytes_written == 4 * (1024 + 288) + 9 * 4096
