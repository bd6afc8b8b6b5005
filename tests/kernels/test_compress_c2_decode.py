"""The ratio-2 compressor in decode and verify: against each other, prefill and the row-at-a-time oracle."""

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.kernels.compress_c2_decode import KERNEL, Shape, cost
from dsv4bench.kernels.layout import LAYOUTS, V41, V41_FP4
from dsv4bench.kernels.pair_pooling import pair_ring_size
from tests.kernels.pair_pooling import History, RowAtATime, latent_of, poisoned_cache, stored
from tests.kernels.test_compress_c2 import FREQS, GATES, WEIGHT, every_plan, prefill
from tests.kernels.test_compress_c2 import KERNEL as PREFILL

NAN = float("nan")


def runner(provider, where, kernel=KERNEL):
    """Return what runs a kernel's provider on tensors, which move to the device and come back."""

    def run(tensors):
        there = {name: value.to(where) if torch.is_tensor(value) else value for name, value in tensors.items()}
        kernel.provider(provider).build(there)()
        return {name: there[name].cpu() for name in kernel.outputs}

    return run


@pytest.fixture(params=["torch", "triton"])
def call(request, device):
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device
    run = runner(request.param, where)
    run.prefill = runner(request.param, where, PREFILL)
    return run


def blocks(history, spans, padding_blocks=0):
    """Pack blocks of one length; padding blocks hold NaN and name request 0, position 0 and on, and slot 0."""
    length = spans[0][2]
    batch = history.batch(spans, padding_blocks * length)
    live = len(spans) * length
    batch["req"][live:] = 0
    batch["positions"][live:] = torch.arange(length).repeat(padding_blocks)
    return {name: batch[name] for name in ("kv_score", "positions", "req", "loc")}


def arguments(batch, ring, ring_size, draft_len, cache, layout):
    return {
        **batch,
        "ring": ring,
        "weight": WEIGHT,
        "eps": 1e-20,
        "freqs": FREQS,
        "ring_size": ring_size,
        "draft_len": draft_len,
        "cache": cache,
        "page_size": 128,
        "layout": layout,
        "latent": torch.full((len(batch["loc"]), 512), NAN).bfloat16(),
    }


@dataclass
class Decoding:
    """A ring and a cache over which blocks run, and what came out."""

    call: object
    history: History
    ring_size: int
    layout: object
    ring: torch.Tensor = None
    cache: torch.Tensor = None
    latents: dict = field(default_factory=dict)  # (request, position) -> bf16 [512]
    others: list = field(default_factory=list)  # latents of rows that pool nothing

    def __post_init__(self):
        self.ring = self.history.ring(self.ring_size) if self.ring is None else self.ring.clone()
        self.cache = poisoned_cache(self.history, self.layout) if self.cache is None else self.cache.clone()

    def step(self, spans, padding_blocks=0):
        """Run one launch over blocks of one length."""
        self.launch(blocks(self.history, spans, padding_blocks), spans[0][2])

    def launch(self, batch, draft_len):
        got = self.call(arguments(batch, self.ring, self.ring_size, draft_len, self.cache, self.layout))
        self.ring, self.cache = got["ring"], got["cache"]
        for row, (req, position, loc) in enumerate(zip(*RowAtATime._rows(batch), strict=True)):
            if loc and position % 2:
                self.latents[req, position] = got["latent"][row]
            else:
                self.others.append(got["latent"][row])

    def sequential(self, spans):
        """Run the blocks as decodes, one position of every request a launch."""
        for step in range(spans[0][2]):
            self.step([(req, first + step, 1) for req, first, _ in spans])


def assert_same(got, want):
    """Compare two runs bit for bit."""
    assert got.latents.keys() == want.latents.keys()
    assert all(torch.equal(got.latents[key], latent) for key, latent in want.latents.items())
    assert all(latent.isnan().all() for latent in got.others + want.others)
    assert torch.equal(got.ring, want.ring)
    assert torch.equal(got.cache, want.cache)


def assert_follows(got, want, layout):
    """Compare a run with the oracle, which parks odd rows too: latents, even ring rows, bytes from those latents."""
    assert got.latents.keys() == want.pooled.keys()
    for key, latent in got.latents.items():
        expected = latent_of(want.pooled[key], WEIGHT)
        torch.testing.assert_close(latent, expected, rtol=2**-6, atol=2**-20, msg=lambda text, key=key: f"{key} {text}")
    assert all(latent.isnan().all() for latent in got.others)
    assert torch.equal(got.ring[::2], want.ring[::2])
    assert torch.equal(got.ring[1::2], got.history.ring(got.ring_size)[1::2])  # odd rows are never parked
    req, position = torch.tensor(list(got.latents)).unbind(1)
    slots = got.history.slot(req, position) // 2
    latents = torch.stack(list(got.latents.values()))
    assert torch.equal(
        got.cache, stored(poisoned_cache(got.history, layout), slots, latents, FREQS, position - 1, layout)
    )


def after_a_prefix(history, spans, ring_size):
    """Return the oracle once it has seen what lies before the blocks."""
    oracle = RowAtATime(history.ring(ring_size), ring_size)
    for req, first, _ in spans:
        oracle.step(history.batch([(req, 0, first)]))
    oracle.pooled.clear()
    return oracle


def even_rows_only(ring, history, ring_size):
    """Return a ring as decode leaves it: what prefill parked at odd rows is not there."""
    ring = ring.clone()
    ring[1::2] = history.ring(ring_size)[1::2]
    return ring


DRAFTS = [(2, 4, V41), (5, 8, V41_FP4), (6, 8, LAYOUTS["v4"]), (9, 16, V41_FP4)]  # draft_len, ring, layout


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize(("draft_len", "ring_size", "layout"), DRAFTS, ids=[f"draft{d}" for d, _, _ in DRAFTS])
def test_one_verify_equals_as_many_decodes(call, draft_len, ring_size, layout, batch):
    """Bit for bit (specification 9.1): latents, ring, cache; and both follow the oracle. Padding names request 0."""
    history = History.random(batch, 32 + draft_len)
    spans = [(req, 25 + req, draft_len) for req in range(batch)]  # both parities; rings wrap
    oracle = after_a_prefix(history, spans, ring_size)
    start = even_rows_only(oracle.ring, history, ring_size)
    verify, decode = (Decoding(call, history, ring_size, layout, ring=start) for _ in range(2))
    verify.step(spans, padding_blocks=1)
    decode.sequential(spans)
    assert_same(verify, decode)
    oracle.step(blocks(history, spans))
    assert_follows(verify, oracle, layout)


def test_only_the_first_row_of_a_block_reads_the_ring(call):
    """The ring is NaN but for the rows before blocks that begin odd.

    The row above such a block holds the position before, of the request before: it is not the partner.
    """
    history = History.random(3, 24)
    spans = [(0, 6, 5), (1, 11, 5), (2, 16, 5)]
    oracle = after_a_prefix(history, spans, 8)
    ring = torch.full_like(oracle.ring, NAN)
    ring[8 + 10 % 8] = oracle.ring[8 + 10 % 8]
    got = Decoding(call, history, 8, V41_FP4, ring=ring)
    got.step(spans)
    oracle.step(blocks(history, spans))
    assert got.latents.keys() == oracle.pooled.keys()
    for key, latent in got.latents.items():
        torch.testing.assert_close(latent, latent_of(oracle.pooled[key], WEIGHT), rtol=2**-6, atol=2**-20)


def test_a_row_within_a_block_takes_the_row_before_it_not_the_ring(call):
    """The rows before are marked as padding, so that nobody parks them: a ring of NaN shows who reads it.

    On a GPU the rows of a block run at once, and a row that read the ring could read it before it is parked.
    """
    history = History.random(1, 8)
    batch = blocks(history, [(0, 2, 4)])
    batch["loc"][[0, 2]] = 0
    got = Decoding(call, history, 8, V41_FP4, ring=torch.full_like(history.ring(8), NAN))
    got.launch(batch, 4)
    want = RowAtATime(history.ring(8), 8)
    want.step(history.batch([(0, 2, 4)]))
    assert got.latents.keys() == want.pooled.keys()
    for key, latent in got.latents.items():
        torch.testing.assert_close(latent, latent_of(want.pooled[key], WEIGHT), rtol=2**-6, atol=2**-20)


@pytest.mark.parametrize("first", [31, 32])
@pytest.mark.parametrize("accepted", [1, 2, 3, 4])
def test_rejected_drafts_leave_no_trace(call, first, accepted):
    """A block of 5 of which some rows are wrong, then the next block, against a history that never saw those."""
    history, drafted = History.random(2, 48), History.random(2, 48)
    span = [(0, first, 5), (1, first + 1, 5)]
    for req, at, _ in span:
        drafted.states[req, at + accepted :] += 1.0
    ring = even_rows_only(after_a_prefix(history, span, 8).ring, history, 8)
    got = Decoding(call, drafted, 8, V41_FP4, ring=ring)
    got.step(span)
    got.history = history
    clean = Decoding(call, history, 8, V41_FP4, ring=ring)
    clean.sequential([(req, at, accepted) for req, at, _ in span])
    for run in (got, clean):
        run.latents.clear()
        run.others.clear()
        run.step([(req, at + accepted, 5) for req, at, _ in span])
    assert_same(got, clean)


@pytest.mark.parametrize("layout", [V41, V41_FP4], ids=lambda layout: layout.name)
@pytest.mark.parametrize("ring_size", [2, 8])
def test_chunked_prefill_equals_one_row_at_a_time(call, ring_size, layout):
    """Prefixes {0, 7, 1} in chunks {5, 4, 1}, {3, 6, 2}, {1, 1, 1} with padding: bit for bit (specification 9)."""
    history, forwards = History.random(9, 18), every_plan()
    chunked = prefill(call.prefill, history, forwards, ring_size, layout, padding_rows=2)
    got = Decoding(call, history, ring_size, layout)
    lengths = [sum(rows for _, _, rows in spans) for spans in zip(*forwards, strict=True)]
    for position in range(max(lengths)):
        got.step([(req, position, 1) for req, length in enumerate(lengths) if position < length], padding_blocks=1)
    assert got.latents.keys() == chunked.latents.keys()
    assert all(torch.equal(got.latents[key], latent) for key, latent in chunked.latents.items())
    assert torch.equal(got.cache, chunked.cache)
    assert torch.equal(got.ring[::2], chunked.ring[::2])


@settings(max_examples=25)
@given(data=st.data(), draft_len=st.integers(1, 9))
def test_any_blocks_follow_the_oracle(data, draft_len):
    """Requests in any order, first positions of any parity, rings from the smallest; in torch, which Triton follows."""
    ring_size = data.draw(st.sampled_from([size for size in range(2, 20, 2) if size > draft_len]))
    firsts = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(firsts))))
    history = History.random(len(firsts), 50)
    spans = [(req, firsts[req], draft_len) for req in order]
    oracle = after_a_prefix(history, spans, ring_size)
    got = Decoding(
        runner("torch", "cpu"), history, ring_size, V41, ring=even_rows_only(oracle.ring, history, ring_size)
    )
    got.step(spans, padding_blocks=data.draw(st.integers(0, 2)))
    oracle.step(blocks(history, spans))
    if oracle.pooled:
        assert_follows(got, oracle, V41)
    else:
        assert torch.equal(got.ring[::2], oracle.ring[::2])


@pytest.mark.parametrize("at", [0, 1, 2], ids=["first", "middle", "last"])
@pytest.mark.parametrize("position", [32, 33], ids=["even", "odd"])
def test_padding_that_names_a_live_request_does_nothing(call, at, position):
    """One row of padding that shares request and position with a live row, anywhere in the batch."""
    history = History.random(2, 40)
    ring = after_a_prefix(history, [(0, 34, 1), (1, 34, 1)], 2).ring
    spans = [(0, 34, 1), (1, 35, 1)]
    batch, want = blocks(history, spans), Decoding(call, history, 2, V41, ring=ring)
    want.step(spans)
    values = {"kv_score": torch.full((1, 1024), NAN), "positions": position, "req": 0, "loc": 0}
    for name, value in values.items():
        row = value if torch.is_tensor(value) else torch.tensor([value])
        batch[name] = torch.cat([batch[name][:at], row, batch[name][at:]])
    got = Decoding(call, history, 2, V41, ring=ring)
    got.launch(batch, 1)
    assert_same(got, want)


def test_an_even_row_is_parked_and_does_nothing_else(call):
    """By hand: request 1 at position 6, ring 4: row 1 * 4 + 2; the cache keeps its poison and the latent too."""
    history = History.random(2, 8)
    got = Decoding(call, history, 4, V41)
    got.step([(1, 6, 1)])
    want = history.ring(4)
    want[6] = history.states[1, 6]
    assert torch.equal(got.ring, want)
    assert torch.equal(got.cache, poisoned_cache(history, V41))
    assert got.others[0].isnan().all()


def test_a_provider_pools_by_hand(call):
    """Specification A.7: three gates side by side in one row, whose latents stand in the proportion of the pooled."""
    columns = torch.tensor(GATES).repeat(171, 1)[:512]
    history = History(torch.cat([columns[:, [0, 2]], columns[:, [1, 3]]]).T[None].contiguous())
    ring = history.ring(2)
    ring[0] = history.states[0, 0]
    got = Decoding(call, history, 2, V41_FP4, ring=ring)
    got.step([(0, 1, 1)])
    want = latent_of(columns[:, 4].double(), WEIGHT)
    torch.testing.assert_close(got.latents[0, 1], want, rtol=2**-6, atol=0)


def test_a_pooled_row_is_bf16_before_its_norm(call):
    """By hand: 1.0037 rounds to 1, so the mean square is 1 and the latent the weight; it would be 1.0056 otherwise."""
    history = History(torch.zeros(1, 2, 1024))
    history.states[0, 1, :512] = torch.where(torch.arange(512) % 4 == 0, 1.0, 1.0037)
    got = Decoding(call, history, 2, V41_FP4)
    got.step([(0, 1, 1)])
    assert torch.equal(got.latents[0, 1], WEIGHT)


def test_rows_may_lie_apart_and_ids_may_be_32_bits_wide(call):
    """The projection's output may be a slice of a wider one."""
    history = History.random(3, 12)
    batch = blocks(history, [(req, 4 + req, 5) for req in range(3)])
    wide = torch.full((15, 2048), NAN)
    wide[:, 512:1536] = batch["kv_score"]
    narrow = {"kv_score": wide[:, 512:1536], "positions": batch["positions"].int(), "loc": batch["loc"].int()}
    got, want = (Decoding(call, history, 8, V41) for _ in range(2))
    want.launch(batch, 5)
    got.launch(batch | narrow, 5)
    assert_same(got, want)


def test_no_rows_do_nothing(call):
    history = History.random(1, 2)
    got = Decoding(call, history, 2, V41)
    got.launch(blocks(history, [(0, 0, 0)]), 1)
    assert torch.equal(got.ring, history.ring(2))


@pytest.mark.parametrize(
    ("drafts", "rows"), [(0, 2), (1, 4), (2, 4), (3, 8), (6, 8), (7, 16), (14, 16), (15, 32)], ids=str
)
def test_a_ring_holds_a_block_and_the_row_before_it(drafts, rows):
    """Specification 3.5, the numbers by hand."""
    assert pair_ring_size(drafts) == rows
    assert pair_ring_size(drafts) > drafts + 1


def test_fewer_than_no_drafts_are_refused():
    with pytest.raises(ValueError, match="drafts: -1, expected at least 0"):
        pair_ring_size(-1)


# ---- wrong arguments


def example(generator, shape=None):
    return KERNEL.inputs(shape or Shape((5, 8), 2, 1, 4, "fp4", 128), generator)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"draft_len": 4}, "draft_len: 4, expected a divisor of the 6 rows of kv_score"),
        ({"draft_len": 0}, "draft_len: 0, expected a divisor"),
        ({"draft_len": 6}, "ring_size: 4, expected more than the draft_len of 6"),
        ({"ring_size": 2}, "ring_size: 2, expected more than the draft_len of 2"),
        ({"ring_size": 3}, "ring_size: 3, expected an even number of at least 2"),
        ({"ring_size": 0}, "ring_size: 0, expected an even number of at least 2"),
        ({"page_size": 96}, "page_size: 96, expected a power of two"),
        ({"layout": V41}, "cache: a v41 cache with pages of 128 is"),
        ({"kv_score": torch.zeros(6, 2048)[:, ::2]}, "kv_score: dimension 1 has stride 2, expected 1"),
        ({"ring": torch.zeros(14, 2048)[:, :1024]}, "ring: dimension 0 has stride 2048, expected 1024"),
        ({"latent": torch.zeros(5, 512).bfloat16()}, r"latent: bfloat16 \[5, 512\], expected bfloat16 \[6, 512\]"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_wrong_argument_is_named(changes, said, device, generator):
    if device == "cuda":
        changes = {name: value.to(device) if torch.is_tensor(value) else value for name, value in changes.items()}
    with pytest.raises(ValueError, match=said):
        KERNEL.check(example(generator) | changes)


@pytest.mark.parametrize(
    ("name", "row", "value", "said"),
    [
        ("positions", 5, -1, r"positions\[5\]: -1, expected 0 to"),
        ("positions", 2, 12, r"positions\[2\]: 12, expected 0 to 11"),
        ("req", 5, 3, r"req\[5\]: 3, expected 0 to 2"),
        ("loc", 0, 256, r"loc\[0\]: 256, expected 0 to 255"),
        ("positions", 1, 7, r"positions: row 1 is \(0, 7\) \(request, position\) after \(0, 5\)"),
        ("req", 3, 0, r"positions: row 3 is \(0, 9\) \(request, position\) after \(1, 8\)"),
    ],
    ids=["negative-position", "position", "req-of-padding", "slot", "position-in-a-block", "request-in-a-block"],
)
def test_a_value_out_of_range_is_named(name, row, value, said, generator):
    """Requests 0 and 1 at positions 5, 6 and 8, 9; a table of 12 positions, 3 requests a ring, 128 slots."""
    tensors = example(generator)
    KERNEL.check_values(tensors)
    tensors[name][row] = value
    with pytest.raises(ValueError, match=said):
        KERNEL.check_values(tensors)


def test_cost_counts_states_read_pooled_and_parked(generator):
    """By hand: rows 5, 6 and 8, 9 live; 5 and 9 pool, 5 with a parked state; 6 and 8 are parked."""
    counted = cost(example(generator))
    assert counted.bytes_read == 5 * 4096 + 2 * 256 + 1024 + 6 * 24
    assert counted.bytes_written == 2 * (1024 + 288) + 2 * 4096
    assert counted.flops == 28 * 2 * 512


@pytest.mark.gpu
def test_a_graph_replays_what_a_launch_does():
    """One capture of 4 blocks; replays with other positions and parities, with padding, and with padding alone."""
    history = History.random(4, 48)
    ring = history.ring(8)
    captured = arguments(
        blocks(history, [(req, 20, 5) for req in range(4)]), ring, 8, 5, poisoned_cache(history, V41_FP4), V41_FP4
    )
    captured = {name: value.cuda() if torch.is_tensor(value) else value for name, value in captured.items()}
    launch = KERNEL.provider("triton").build(captured)
    launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for firsts, padding in (((31, 32, 7, 0), 0), ((3,), 3), ((9, 30), 2), ((), 4)):
        spans = [(req, first, 5) for req, first in enumerate(firsts)]
        batch = blocks(history, spans or [(0, 0, 5)], padding if spans else 3)
        if not spans:
            batch["loc"].zero_()
        fresh = arguments(batch, ring, 8, 5, poisoned_cache(history, V41_FP4), V41_FP4)
        for name, value in fresh.items():
            if torch.is_tensor(value):
                captured[name].copy_(value)
        graph.replay()
        want = runner("triton", "cuda")(fresh)
        for name in KERNEL.outputs:
            torch.testing.assert_close(captured[name].cpu(), want[name], rtol=0, atol=0, equal_nan=True)
