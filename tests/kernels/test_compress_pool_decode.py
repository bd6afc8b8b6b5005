"""The one-launch pooling of decode: the oracle, the torch path of prefill, the sentinel, what padding may touch."""

import pytest
import torch

from dsv4bench.kernels import compress_pool
from dsv4bench.kernels.compress_pool_decode import KERNEL, Shape, cost
from tests.kernels.pair_pooling import History, RowAtATime
from tests.kernels.test_compress_c2 import GATES
from tests.kernels.test_compress_pool import arguments as prefill_arguments

NAN = float("nan")


@pytest.fixture(params=["torch", "triton"])
def call(request, device):
    """Run a provider on copies of tensors, on its device; return the outputs on the CPU."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device

    def run(tensors):
        there = {name: v.to(where, copy=True) if torch.is_tensor(v) else v for name, v in tensors.items()}
        KERNEL.provider(request.param).build(there)()
        return {name: there[name].cpu() for name in KERNEL.outputs}

    return run


def arguments(batch, ring, ring_size):
    """Return the arguments of a call; a complete pair's slot is loc >> 1, another's -1, padding's 0."""
    rows, loc, odd = len(batch["loc"]), batch["loc"], batch["positions"] % 2 == 1
    return {
        "kv": batch["kv_score"][:, :512].contiguous(),
        "score": batch["kv_score"][:, 512:].contiguous(),
        "ring": ring,
        **{name: batch[name] for name in ("positions", "req", "loc")},
        "pair_loc": torch.where(odd | (loc == 0), loc >> 1, -1),
        "ring_size": ring_size,
        "pooled": torch.full((rows, 512), NAN),
        "group_positions": torch.full((rows,), -99),
        "slots": torch.full((rows,), -99),
    }


def one_row_each(history, positions, padding_rows=0):
    """Return a batch of one row a request, those whose position is None left out; padding names request 0."""
    spans = [(req, position, 1) for req, position in enumerate(positions) if position is not None]
    batch = history.batch(spans, padding_rows)
    batch["req"][len(spans) :] = 0
    return batch


@pytest.mark.parametrize("ring_size", [2, 4, 8])
def test_decoding_equals_one_row_at_a_time(call, ring_size):
    """Three requests from position 0, of lengths 11, 4 and 7; the ring holds odd rows too, and the sentinel stays."""
    history, lengths = History.random(3, 11), (11, 4, 7)
    ring, want = history.ring(ring_size), RowAtATime(history.ring(ring_size), ring_size)
    for position in range(11):
        batch = one_row_each(history, [position if position < length else None for length in lengths], padding_rows=1)
        want.step(batch)
        got = call(arguments(batch, ring, ring_size))
        ring = got["ring"]
        for row, key in enumerate(zip(batch["req"].tolist(), batch["positions"].tolist(), strict=True)):
            if batch["loc"][row] and position % 2:
                torch.testing.assert_close(got["pooled"][row].double(), want.pooled[key], rtol=1e-5, atol=2**-20)
        assert torch.equal(ring, want.ring)


def test_every_bit_is_that_of_the_formula(call, device):
    """Specification 3.5: exponentials of what lies below the maximum, true divisions, each product rounded."""
    history = History.random(4, 8)
    ring = torch.randn(history.ring(4).shape, generator=torch.Generator().manual_seed(3))
    batch = one_row_each(history, [7, 3, 5, 1])
    old = ring[[0 * 4 + 2, 1 * 4 + 2, 2 * 4 + 0, 3 * 4 + 0]]
    states = [state.to(device).view(4, 2, 512) for state in (old, batch["kv_score"])]
    (kv_old, score_old), (kv, score) = (state.unbind(1) for state in states)
    largest = torch.maximum(score_old, score)
    e_old, e_new = (score_old - largest).exp(), (score - largest).exp()
    total = e_old + e_new
    want = kv_old * (e_old / total) + kv * (e_new / total)
    assert torch.equal(call(arguments(batch, ring, 4))["pooled"], want.cpu())


@pytest.mark.gpu
def test_a_gpu_gives_the_bits_of_the_softmax_and_of_prefill():
    """Specification 3.5: bitwise (kv * softmax(score)).sum, and so what the torch path pools in prefill."""
    history = History.random(64, 2)
    ring = history.ring(2)
    ring[:128:2] = history.states[:, 0]
    tensors = {
        name: value.cuda() if torch.is_tensor(value) else value
        for name, value in arguments(one_row_each(history, [1] * 64), ring, 2).items()
    }
    KERNEL.provider("triton").build(tensors)()
    states = history.states.cuda().view(64, 2, 2, 512)
    kv, score = states[:, :, 0], states[:, :, 1]
    assert torch.equal(tensors["pooled"], (kv * score.softmax(1)).sum(1))
    batch = history.batch([(req, 0, 2) for req in range(64)])
    prefill = prefill_arguments(batch, history.ring(2), 2)
    prefill = {name: value.cuda() if torch.is_tensor(value) else value for name, value in prefill.items()}
    compress_pool.reference(**prefill)
    assert torch.equal(tensors["pooled"].bfloat16(), prefill["pooled"][1::2])


def test_the_torch_path_of_prefill_pools_the_same(call):
    """In bf16, where its softmax may differ by a step on a CPU; ring, positions and slots are equal."""
    history = History.random(3, 6)
    ring = history.ring(4)
    for position in range(6):
        got = call(arguments(one_row_each(history, [position] * 3), ring, 4))
        ring = got["ring"]
        batch = history.batch([(req, 0, position + 1) for req in range(3)])
        want = prefill_arguments(batch, history.ring(4), 4)
        compress_pool.reference(**want)
        newest = batch["positions"] == position
        torch.testing.assert_close(got["pooled"].bfloat16(), want["pooled"][newest], rtol=2**-6, atol=2**-20)
        assert torch.equal(ring[:-1], want["ring"][:-1])
        assert torch.equal(got["group_positions"], want["group_positions"][newest])
        assert torch.equal(got["slots"], want["slots"][newest])


@pytest.mark.parametrize("gate", GATES, ids=["both", "old-is-empty", "equal"])
def test_two_states_are_pooled_by_hand(call, gate):
    """Specification A.7."""
    kv_old, score_old, kv, score, pooled = gate
    history = History(torch.tensor([[[kv_old, score_old], [kv, score]]]).repeat_interleave(512, 2).view(1, 2, 1024))
    ring = history.ring(2)
    ring[0] = history.states[0, 0]
    got = call(arguments(one_row_each(history, [1]), ring, 2))["pooled"]
    torch.testing.assert_close(got, torch.full((1, 512), pooled), rtol=1e-6, atol=0)


def test_scores_far_apart_do_not_overflow(call):
    history = History.random(1, 2)
    history.states[0, 0, 512:], history.states[0, 1, 512:] = 300.0, 100.0
    ring = history.ring(2)
    ring[0] = history.states[0, 0]
    assert torch.equal(call(arguments(one_row_each(history, [1]), ring, 2))["pooled"][0], history.states[0, 0, :512])


def test_position_0_and_padding_read_the_sentinel_and_nothing_else(call):
    """Both take their own kv then; every other row of the ring is NaN, and padding names position 3 of request 0."""
    history = History.random(2, 4)
    ring = torch.full_like(history.ring(4), NAN)
    ring[-1] = history.ring(4)[-1]
    batch = one_row_each(history, [None, 0], padding_rows=1)
    batch["positions"][1], batch["kv_score"][1] = 3, history.states[0, 3]
    got = call(arguments(batch, ring.clone(), 4))
    assert torch.equal(got["pooled"], batch["kv_score"][:, :512])
    assert torch.equal(got["ring"][4], history.states[1, 0])
    assert got["ring"][[row for row in range(13) if row != 4]].isnan().all()  # padding parks nothing
    assert torch.equal(got["ring"][-1], ring[-1])


def test_a_row_reads_one_row_of_the_ring_and_writes_one(call):
    """By hand: request 1 at position 9, ring 4: reads 1 * 4 + 0, writes 1 * 4 + 1; position 12 reads 3, writes 0."""
    history = History.random(2, 14)
    for position, read, written in ((9, 4, 5), (12, 7, 4)):
        ring = torch.full_like(history.ring(4), NAN)
        ring[read] = history.states[1, position - 1]
        got = call(arguments(one_row_each(history, [None, position]), ring.clone(), 4))
        assert got["pooled"].isfinite().all()
        want = ring.clone()
        want[written] = history.states[1, position]
        torch.testing.assert_close(got["ring"], want, rtol=0, atol=0, equal_nan=True)


def test_groups_and_slots_by_hand(call):
    """Requests 0 to 3, whose pages are 4 to 1, at positions 4 to 7; then padding: full slot 0, pair slot 0."""
    history = History.random(4, 8)
    got = call(arguments(one_row_each(history, [4, 5, 6, 7], padding_rows=1), history.ring(8), 8))
    assert got["group_positions"].tolist() == [4, 4, 6, 6, 0]
    assert got["slots"].tolist() == [0, (3 * 256 + 5) // 2, 0, (256 + 7) // 2, 0]


def test_ids_may_be_32_bits_wide(call):
    history = History.random(3, 8)
    tensors = arguments(one_row_each(history, [7, 4, 0]), history.ring(4), 4)
    want = call(tensors)
    got = call(tensors | {name: tensors[name].int() for name in ("positions", "loc", "pair_loc")})
    assert all(torch.equal(got[name], want[name]) for name in KERNEL.outputs)


def test_no_rows_do_nothing(call):
    history = History.random(1, 2)
    got = call(arguments(history.batch([(0, 0, 0)]), history.ring(2), 2))
    assert torch.equal(got["ring"], history.ring(2))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kv": torch.zeros(3, 1024)[:, :512]}, "kv: dimension 0 has stride 1024, expected 512"),
        ({"score": torch.zeros(2, 512)}, r"score: float32 \[2, 512\], expected float32 \[3, 512\]"),
        ({"ring_size": 5}, "ring_size: 5, expected an even number of at least 2"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_wrong_argument_is_named(changes, said, device, generator):
    there = {name: value.to(device) if torch.is_tensor(value) else value for name, value in changes.items()}
    with pytest.raises(ValueError, match=said):
        KERNEL.check(KERNEL.inputs(Shape((5, 4), 1, 2), generator) | there)


@pytest.mark.parametrize(
    ("name", "row", "value", "said"),
    [
        ("req", 2, 3, r"req\[2\]: 3, expected 0 to 2"),
        ("positions", 0, -1, r"positions\[0\]: -1, expected 0 to"),
        ("loc", 1, -5, r"loc\[1\]: -5, expected 0 to"),
        ("pair_loc", 1, -2, r"pair_loc\[1\]: -2, expected -1 to"),
    ],
    ids=["req-of-padding", "position", "slot", "pair-slot"],
)
def test_a_value_out_of_range_is_named(name, row, value, said, generator):
    """Two requests and a spare one of two ring rows each, then a spare row and the sentinel."""
    tensors = KERNEL.inputs(Shape((5, 4), 1, 2), generator)
    KERNEL.check_values(tensors)
    tensors[name][row] = value
    with pytest.raises(ValueError, match=said):
        KERNEL.check_values(tensors)


def test_cost_counts_two_states_a_row(generator):
    """By hand: three rows, two of them live."""
    counted = cost(KERNEL.inputs(Shape((5, 4), 1, 2), generator))
    assert counted.bytes_read == 3 * (2 * 4096 + 4 * 8)
    assert counted.bytes_written == 3 * (2048 + 16) + 2 * 4096


@pytest.mark.gpu
def test_a_graph_replays_what_a_launch_does():
    """One capture of 4 rows; replays at other positions, with padding, and with padding alone."""
    history = History.random(4, 40)
    ring = torch.randn(history.ring(8).shape)
    captured = arguments(one_row_each(history, [20] * 4), ring, 8)
    captured = {name: value.cuda() if torch.is_tensor(value) else value for name, value in captured.items()}
    launch = KERNEL.provider("triton").build(captured)
    launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for positions, padding in (((31, 0, 32, 7), 0), ((3,), 3), ((0,), 3)):
        batch = one_row_each(history, positions, padding)
        if positions == (0,):
            batch["loc"].zero_()
        fresh = {name: v.cuda() if torch.is_tensor(v) else v for name, v in arguments(batch, ring, 8).items()}
        for name, value in fresh.items():
            if torch.is_tensor(value):
                captured[name].copy_(value)
        graph.replay()
        KERNEL.reference(**fresh)
        for name in KERNEL.outputs:
            torch.testing.assert_close(captured[name], fresh[name], rtol=0, atol=0, equal_nan=True)
