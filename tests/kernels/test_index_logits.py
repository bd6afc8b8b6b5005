"""Index logits: B.3 in float64 from the pool's bytes, exact sums by hand, addresses, visibility and candidates."""

import math

import pytest
import torch

from dsv4bench.kernels import index_logits
from dsv4bench.kernels.index_logits import KERNEL, Shape, cost, inputs

GRID = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
INF, NAN = math.inf, math.nan


@pytest.fixture(params=["torch", "triton"])
def run(request, device):
    """Call a provider on poisoned logits and return them on the CPU."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device

    def call(tensors):
        there = {name: value.to(where) if torch.is_tensor(value) else value for name, value in tensors.items()}
        there["logits"] = torch.full_like(there["logits"], NAN)
        KERNEL.provider(request.param).build(there)()
        return there["logits"].cpu()

    return call


def made(shape):
    return inputs(shape, torch.Generator().manual_seed(12))


def pool_keys(cache, page_size):
    """Every key of a pool in float64: pages of `page_size` payloads of 64 bytes, then as many of 4 exponents."""
    payload = cache[:, : page_size * 64].reshape(-1, 64).long()
    exponents = cache[:, page_size * 64 :].reshape(-1, 4).double() - 127
    codes = torch.stack([payload & 15, payload >> 4], dim=-1).flatten(1)
    return torch.where(codes < 8, GRID[codes & 7], -GRID[codes & 7]) * (2**exponents).repeat_interleave(32, dim=1)


def slot_of(tensors, row, position):
    page_rows = 256 // tensors["ratio"]
    return int(tensors["page_table"][tensors["req"][row], position // page_rows]) * page_rows + position % page_rows


def sees(tensors, row):
    return (int(tensors["positions"][row]) + 1) // tensors["ratio"]


def definition(tensors):
    """Score position by position (B.3), with Hopper's three roundings to bf16 and exact sums (6.5)."""
    keys = pool_keys(tensors["cache"], tensors["page_size"])
    want = torch.full(tensors["logits"].shape, -INF).bfloat16()
    for row in range(len(want)):
        seen = min(sees(tensors, row), want.shape[1])
        if seen:
            own = keys[[slot_of(tensors, row, position) for position in range(seen)]]
            dots = (tensors["q"][row].double() @ own.T).bfloat16().clamp(min=0)
            want[row, :seen] = (dots * tensors["weights"][row, :, None]).double().sum(dim=0).bfloat16()
    return want


def near(got, want):
    """Nearly all equal, the rest a rounding away, and -inf in the same places."""
    assert torch.equal(got == -INF, want == -INF)
    shown = want != -INF
    torch.testing.assert_close(got[shown], want[shown], rtol=2**-6, atol=2**-8)
    assert (got == want)[shown].double().mean() > 0.97


SHAPES = {
    "mini": Shape(((40, 5), (0, 3), (250, 9)), heads=4, ratio=1),
    "ratio-2": Shape(((700, 4), (9, 3)), heads=4, ratio=2),
    "32-heads": Shape(((180, 3), (0, 2)), heads=32, ratio=1, page_size=128),
    "three-heads": Shape(((100, 20),), heads=3, ratio=2),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_float64(shape, run):
    tensors = made(shape)
    near(run(tensors), definition(tensors))


def test_rows_that_gather_their_own_keys(monkeypatch, device):
    """The reference's way on a GPU, which reads nothing back to the host."""
    monkeypatch.setattr(index_logits, "SHARING", set())
    tensors = inputs(SHAPES["ratio-2"], torch.Generator(device).manual_seed(12))
    KERNEL.reference(**tensors)
    there = {name: value.cpu() if torch.is_tensor(value) else value for name, value in tensors.items()}
    near(there["logits"], definition(there))


def test_the_top_k_of_the_logits_is_that_of_the_definition(run):
    tensors = made(Shape(((600, 16),), heads=32, ratio=1))
    got, want = (logits.float().topk(64, dim=1).indices for logits in (run(tensors), definition(tensors)))
    shared = [len(set(mine) & set(theirs)) for mine, theirs in zip(got.tolist(), want.tolist(), strict=True)]
    assert sum(shared) / want.numel() >= 0.99


def by_hand(heads, weights, slots):
    """Rows of one request in page 3, ratio 1; `slots` gives the first channels of the keys of positions 0, 1, ..."""
    q = torch.zeros(1, len(heads), 128)
    for head, channels in enumerate(heads):
        q[0, head, : len(channels)] = torch.tensor(channels)
    cache = torch.zeros(16, 64 * 68, dtype=torch.uint8)
    for position, codes in enumerate(slots):
        for byte, value in enumerate(codes):
            cache[12, position * 64 + byte] = value
        cache[12, 64 * 64 + position * 4 : 64 * 64 + position * 4 + 4] = torch.tensor([127, 128, 126, 127])
    return {
        "q": q.bfloat16(),
        "weights": torch.tensor([weights]).bfloat16(),
        "cache": cache,
        "page_size": 64,
        "page_table": torch.tensor([[9, 9], [3, 9]], dtype=torch.int32),
        "req": torch.tensor([1]),
        "positions": torch.tensor([len(slots) - 1]),
        "ratio": 1,
        "candidates": None,
        "candidate_block": 8,
        "logits": torch.empty(1, 8, dtype=torch.bfloat16),
    }


def test_sums_by_hand(run):
    """Low nibble first; a negative dot counts nothing, whatever its weight; a negative weight counts.

    Codes 2, 4, 7 are 1, 2, 6, and a set bit 3 is the sign. Keys: (1, 2, 6, 0), (-6, 1, 0, 0) and (0, 0, 1, 1).
    """
    tensors = by_hand([[1.0, 2.0], [0.0, 0.0, 3.0], [4.0]], [0.5, 2.0, -1.0], [[0x42, 0x07], [0x2F], [0, 0x22]])
    # position 0: 5 * 0.5 + 18 * 2 - 4; position 1: relu(-4) * 0.5 + 0 + relu(-24) * -1; position 2: 3 * 2
    assert run(tensors)[0].tolist() == [34.5, 0.0, 6.0, *[-INF] * 5]


def test_each_tile_of_32_channels_has_its_exponent(run):
    tensors = by_hand([[0.0] * 33, [0.0] * 65], [1.0, 1.0], [[0] * 33])
    tensors["q"][0, 0, 32], tensors["q"][0, 1, 64] = 1.0, 1.0
    tensors["cache"][12, 16] = tensors["cache"][12, 32] = 0x02  # channels 32 and 64 hold code 2, which is 1
    assert run(tensors)[0, 0] == 1 * 2.0 + 1 * 0.5


@pytest.mark.parametrize(
    ("heads", "weights", "want"),
    [
        pytest.param([[256.0, 1.0], [1.0]], [1.0, 1.0], 256.0, id="dot"),  # 257 -> 256; 256 + 1 -> 256, not 258
        pytest.param([[3.0], [3.0]], [1.0078125, -1.0], 0.03125, id="product"),  # 3.0234375 -> 3.03125
        pytest.param([[256.0], [3.0]], [1.0, 1.0], 260.0, id="sum"),  # 259 -> 260
    ],
)
def test_each_rounding_to_bf16(heads, weights, want, run):
    assert run(by_hand(heads, weights, [[0x22]]))[0, 0] == want


def test_rows_of_several_requests_in_any_order(run):
    tensors = made(Shape(((40, 5), (300, 4), (9, 6)), heads=4, ratio=1))
    order = torch.randperm(15, generator=torch.Generator().manual_seed(1))
    for name in ("q", "weights", "req", "positions"):
        tensors[name] = tensors[name][order].contiguous()
    near(run(tensors), definition(tensors))


def test_padded_rows_read_their_own_first_position(run):
    """A padded row has position 0 and the last request (specification 3.11, 5.1)."""
    tensors = made(Shape(((40, 5), (300, 4)), heads=4, ratio=1))
    tensors["positions"][6:] = 0
    near(run(tensors), definition(tensors))


def test_a_row_that_sees_nothing(run):
    tensors = made(Shape(((0, 2), (70, 1)), heads=4, ratio=2))
    got = run(tensors)
    assert (got[0] == -INF).all()
    assert ((got[1] != -INF) == (torch.arange(64) < 1)).all()


def test_what_nobody_sees_is_not_read(run):
    """Slots that no row sees hold exponents of NaN, and pages that no row reaches are not in the pool."""
    tensors = made(Shape(((250, 9), (3, 2)), heads=4, ratio=1))
    plain = run(tensors)
    seen = {slot_of(tensors, row, position) for row in range(11) for position in range(sees(tensors, row))}
    exponents = tensors["cache"][:, 64 * 64 :].unflatten(1, (64, 4))
    for slot in set(range(exponents.shape[0] * 64)) - seen:
        exponents[slot // 64, slot % 64] = 255
    tensors["page_table"][1, 1:] = 2**20
    assert torch.equal(run(tensors), plain)


def test_columns_past_the_capacity_are_cut(run):
    tensors = made(Shape(((100, 5),), heads=4, ratio=1))
    plain = run(tensors)
    tensors["logits"] = tensors["logits"][:, :72].contiguous()
    torch.testing.assert_close(run(tensors), plain[:, :72], rtol=2**-6, atol=2**-8)


def with_candidates(tensors, blocks, columns=None):
    candidates = torch.tensor(blocks, dtype=torch.int32)
    logits = torch.empty(len(blocks), columns or 8 * candidates.shape[1], dtype=torch.bfloat16)
    return {**tensors, "candidates": candidates, "logits": logits}


def test_candidate_columns_hold_the_logits_of_their_positions(run):
    """Blocks, one of them invisible, a -1 between and one at the end, and a column past the candidates."""
    tensors = made(Shape(((61, 3),), heads=4, ratio=1))
    dense = run(tensors)
    blocks = [[0, 5, -1, 7, -1], [2, 3, -1, 40, -1], [6, -1, -1, 7, -1]]
    got = run(with_candidates(tensors, blocks, columns=48))
    for row, own in enumerate(blocks):
        for slot, block in enumerate([*own, -1]):
            want = dense[row, 8 * block : 8 * block + 8] if 0 <= block < 8 else torch.full((8,), -INF).bfloat16()
            torch.testing.assert_close(got[row, 8 * slot : 8 * slot + 8], want, rtol=2**-6, atol=2**-8)


def test_all_blocks_as_candidates_filter_nothing(run):
    tensors = made(Shape(((120, 5),), heads=32, ratio=1))
    dense = run(tensors)
    got = run(with_candidates(tensors, [list(range(16))] * 5))
    torch.testing.assert_close(got, dense[:, :128], rtol=2**-6, atol=2**-8)


@pytest.mark.parametrize("blocks", [0, 6], ids=["dense", "candidates"])
def test_chunks_of_rows_give_what_one_chunk_gives(blocks, monkeypatch, device):
    shape = Shape(((40, 5), (0, 3), (200, 4)), heads=4, ratio=1, blocks=blocks)
    tensors = inputs(shape, torch.Generator(device).manual_seed(12))
    KERNEL.reference(**tensors)
    whole = tensors["logits"].clone()
    monkeypatch.setattr(index_logits, "CHUNK_SCORES", 2 * 4 * tensors["logits"].shape[1])
    monkeypatch.setattr(index_logits, "CHUNK_KEYS", 2 * tensors["logits"].shape[1])
    KERNEL.reference(**tensors)
    torch.testing.assert_close(tensors["logits"], whole, rtol=2**-6, atol=2**-8)


@pytest.mark.parametrize(
    ("argument", "make", "said"),
    [
        pytest.param(
            "q", lambda q: q.repeat(1, 2, 1)[:, :4], r"q: dimension 0 has stride 1024, expected 512", id="q-row-stride"
        ),
        pytest.param("page_size", lambda size: 48, r"page_size: 48, expected a power of two", id="page-size"),
        pytest.param("ratio", lambda ratio: 3, r"ratio: 3, expected a power of two", id="ratio"),
        pytest.param(
            "candidates",
            lambda blocks: blocks[:5],
            r"candidates: int32 \[5, 6\], expected int32 \[6, blocks\]",
            id="candidate-rows",
        ),
        pytest.param(
            "candidates",
            lambda blocks: blocks[:, :3],
            r"candidates: dimension 0 has stride 6, expected 3",
            id="candidate-stride",
        ),
        pytest.param(
            "candidate_block", lambda size: 0, r"candidate_block: 0, expected a power of two", id="candidate-block"
        ),
        pytest.param(
            "logits",
            lambda logits: logits[:, :8],
            r"logits: dimension 0 has stride 48, expected 8",
            id="logits-row-stride",
        ),
    ],
)
def test_a_wrong_argument_is_named(argument, make, said):
    tensors = made(Shape(((40, 5), (300, 1)), heads=4, ratio=1, blocks=6))
    tensors[argument] = make(tensors[argument])
    with pytest.raises(ValueError, match=said):
        KERNEL.check(tensors)


@pytest.mark.parametrize(
    ("argument", "place", "wrong", "last"),
    [
        pytest.param("req", (5,), 2, 1, id="request"),
        pytest.param("positions", (5,), 512, 511, id="position"),
        pytest.param("page_table", (1, 1), 3, 2, id="page-of-a-part-of-a-page-more"),
        pytest.param("page_table", (0, 1), 3, 2, id="page"),
        pytest.param("candidates", (3, 2), 2**28, 2**28 - 2, id="candidate"),
    ],
)
def test_a_value_out_of_range_is_named(argument, place, wrong, last):
    """A cache of 15 index pages of 64 has room for 3 pages of 256."""
    tensors = made(Shape(((40, 5), (300, 1)), heads=4, ratio=1, blocks=6))
    tensors["cache"] = tensors["cache"].repeat(2, 1)[:15]
    tensors["page_table"] %= 3
    tensors[argument][place] = last
    KERNEL.check_values(tensors)
    tensors[argument][place] = wrong
    with pytest.raises(
        ValueError, match=rf"{argument}\[{', '.join(map(str, place))}\]: {wrong}, expected .* to {last}"
    ):
        KERNEL.check_values(tensors)


def test_the_cost_counts_keys_once_a_request():
    tensors = made(Shape(((10, 2), (0, 1)), heads=4, ratio=1))
    found = cost(tensors)
    assert found.flops == 256 * 4 * (11 + 12 + 1)
    assert found.bytes_read == 2 * 3 * 4 * 129 + 68 * (12 + 1) + 16 * 3
    assert found.bytes_written == 2 * 3 * 64


def test_the_cost_counts_visible_candidates_only():
    tensors = with_candidates(made(Shape(((10, 1),), heads=4, ratio=1)), [[1, -1, 9]])
    found = cost(tensors)
    assert found.flops == 256 * 4 * 3  # positions 8, 9 and 10
    assert found.bytes_read == 2 * 4 * 129 + 68 * 3 + 16 + 4 * 3


@pytest.mark.parametrize(
    ("rows", "case", "requests", "ratio", "blocks"),
    [
        (64, "8 K", ((8192, 1),) * 64, 2, 0),
        (256, "two-level", ((65536, 4),) * 64, 1, 2048),
        (3, "64 K", ((65536, 1),) * 3, 2, 0),
        (65, "8 K", ((8192, 2), *((8192, 1),) * 63), 2, 0),
    ],
)
def test_a_bench_has_the_rows_that_it_names(rows, case, requests, ratio, blocks):
    assert KERNEL.bench.shape(rows, case) == Shape(requests, 32, ratio, blocks)
