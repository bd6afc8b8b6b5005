"""The 8-bit gather: each byte of a V4 row by the definition of the formats, zeros behind, and nothing beside."""

import pytest
import torch

from dsv4bench.kernels import codec, paged
from dsv4bench.kernels import sparse_attention as attention
from dsv4bench.kernels.contract import Provider
from dsv4bench.kernels.gather_requant import KERNEL, Shape, cost, inputs
from dsv4bench.kernels.layout import V4
from tests.kernels.test_codec import e4m3_value
from tests.kernels.test_dequant import telling_row, ue8m0_value

POISON = 0xA5


@pytest.fixture(params=["torch", "triton"])
def provider(request) -> Provider:
    if request.param == "triton":
        request.getfixturevalue("triton_device")
    return KERNEL.provider(request.param)


def nearest_e4m3(values: list[float]) -> torch.Tensor:
    """The bytes of finite values or infinities, by a search of the grid; a tie goes to the even byte; NaN is 0x7f."""
    grid = torch.tensor([e4m3_value(byte) for byte in range(127)], dtype=torch.float64)
    x = torch.tensor(values, dtype=torch.float64)
    gaps = (x.abs().clamp(max=448)[:, None] - grid).abs()
    nearest = gaps == gaps.amin(1, keepdim=True)
    odd = torch.arange(127) % 2
    byte = (nearest.long() * (2 - odd)).argmax(1)  # an even byte weighs 2, an odd one 1
    return torch.where(x.isnan(), 127, byte | (x.signbit().long() << 7))


def expected(data: list[int], scales: list[int]) -> torch.Tensor:
    nope = [e4m3_value(data[c]) * ue8m0_value(scales[c // 64]) for c in range(448)]
    tail = torch.tensor(data[448:], dtype=torch.uint8).view(torch.bfloat16).double().tolist()
    return nearest_e4m3(nope + tail)


def gathered(provider: Provider, cache: torch.Tensor, ids: list[int], page_size: int, extra: int, device: str):
    """Gather into a part of a workspace of poison; return the bytes of the rows and of what lies around them."""
    workspace = torch.full((len(ids) + extra + 4, 1, 520), POISON, dtype=torch.uint8, device=device)
    out = workspace.view(torch.float8_e4m3fn)[2 : 2 + len(ids) + extra, :, :512]
    tensors = {"cache": cache.to(device), "ids": torch.tensor(ids, dtype=torch.int64, device=device)}
    provider.build(tensors | {"page_size": page_size, "out": out})()
    rows = workspace[2 : 2 + len(ids) + extra, 0, :512].clone()
    workspace[2 : 2 + len(ids) + extra, :, :512] = POISON
    assert (workspace == POISON).all()
    return rows.cpu()


def same_codes(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Equal bytes, except that a NaN may have either sign."""
    nan = want % 128 == 127
    return bool(((got == want) | (nan & (got % 128 == 127))).all())


@pytest.mark.parametrize("page_size", [2, 64, 256])
def test_every_code_under_the_corners_of_the_scale(page_size, provider, device):
    """The last slot of page 1, every e4m3 byte under scales 0, 1, 2^0, 2^127, NaN and 2^1; tails of NaN and -0.0."""
    data, scales = telling_row("v4")
    cache = torch.full((3, V4.page_bytes(page_size)), 0x55, dtype=torch.uint8)
    at, scale_at = (page_size - 1) * 576, page_size * 576 + (page_size - 1) * 8
    cache[1, at : at + 576] = torch.tensor(data, dtype=torch.uint8)
    cache[1, scale_at : scale_at + 7] = torch.tensor(scales[:7], dtype=torch.uint8)
    got = gathered(provider, cache, [2 * page_size - 1], page_size, 0, device)
    assert same_codes(got[0], expected(data, scales))


TAIL = [0.0, -0.0, 1.0, 17.0, -19.0, 449.0, 1e9, -1e30, float("inf"), 2.0**-10, 3 * 2.0**-10, -(2.0**-9), 0.3, 21.0]
TAIL_BYTES = [0x00, 0x80, 0x38, 0x58, 0xDA, 0x7E, 0x7E, 0xFE, 0x7E, 0x00, 0x02, 0x81, 0x2A, 0x5A]


def test_the_tail_is_cast_and_saturates(provider, device):
    """By hand: 17 ties to 16, -19 to -20, 21 to 20, 2^-10 to 0, 3 * 2^-10 to 2^-8; 0.30078 (0.3 in bf16) is 0.3125."""
    cache = torch.zeros(1, V4.page_bytes(4), dtype=torch.uint8)
    tail = torch.tensor(TAIL).bfloat16().view(torch.uint8)
    cache[0, 576 + 448 : 576 + 448 + len(tail)] = tail
    got = gathered(provider, cache, [1], 4, 0, device)
    assert got[0, 448 : 448 + len(TAIL)].tolist() == TAIL_BYTES
    assert got[0, 448 + len(TAIL) :].count_nonzero() == 0


@pytest.mark.parametrize("extra", [0, 1, 9])
def test_rows_of_zeros_follow_the_gathered_ones(extra, provider, generator, device):
    """Random bytes, ids that repeat, more rows than a program has."""
    cache = torch.randint(0, 256, (3, V4.page_bytes(64)), generator=generator, device=device, dtype=torch.uint8).cpu()
    ids = [0, 191, 64, 63, 5, 5, 127, 128, 100, 190]
    got = gathered(provider, cache, ids, 64, extra, device)
    assert got[len(ids) :].count_nonzero() == 0
    for row, slot in enumerate(ids):
        page, index = divmod(slot, 64)
        data = cache[page, index * 576 : index * 576 + 576].tolist()
        scales = cache[page, 64 * 576 + index * 8 : 64 * 576 + index * 8 + 8].tolist()
        assert same_codes(got[row], expected(data, scales))


def test_nothing_to_gather_still_leaves_a_row_of_zeros(provider, device):
    cache = torch.full((1, V4.page_bytes(2)), POISON, dtype=torch.uint8)
    assert gathered(provider, cache, [], 2, 1, device).count_nonzero() == 0
    assert len(gathered(provider, cache, [], 2, 0, device)) == 0


def test_attention_over_8_bit_rows_is_near_that_over_16_bit_rows(provider, generator, device):
    """Rows written to a V4 cache, gathered in 8 bits before a row of zeros that holes name (specification 9)."""
    tensors = attention.inputs(attention.Shape(rows=8, heads=4, keys=300, columns=128, scanned=128), generator)
    cache = torch.zeros(2, V4.page_bytes(256), dtype=torch.uint8)
    ids = torch.randperm(512, generator=generator)[:300]
    rows = codec.quantise(tensors["kv"][:, 0].float(), V4)
    paged.write_rows(cache, ids, rows, 256, V4)
    want = attended(tensors | {"kv": codec.dequantise(*rows, V4)[:, None]})
    workspace = torch.empty(301, 1, 512, dtype=torch.float8_e4m3fn, device=device)
    provider.build({"cache": cache.to(device), "ids": ids.to(device), "page_size": 256, "out": workspace})()
    indices = torch.where(tensors["indices"] < 0, 300, tensors["indices"])
    got = attended(tensors | {"kv": workspace.to("cpu", torch.bfloat16), "indices": indices})
    torch.testing.assert_close(got, want, atol=3e-2, rtol=0.2)
    assert (got - want).abs().mean() < 0.03


def attended(tensors) -> torch.Tensor:
    attention.KERNEL.reference(**tensors)
    return tensors["out"].float()


def test_the_least_bytes_of_a_call(generator):
    tensors = inputs(Shape(10, 2, id_bits=32), generator)
    tensors["ids"] = torch.tensor([4, 9, 9, 1, 0, 2, 3, 5, 6, 9], dtype=torch.int32)  # slot 9 three times
    counted = cost(tensors)
    assert (counted.bytes_read, counted.bytes_written, counted.flops) == (8 * 583 + 10 * 4, 12 * 512, 10 * 512)


def test_a_bench_reads_every_row_of_its_pages_once(generator):
    tensors = inputs(KERNEL.bench.shape(700, ""), generator)
    pages = tensors["ids"][:512].view(2, 256)
    assert (pages == pages[:, :1] + torch.arange(256)).all()
    assert (pages[:, 0] % 256 == 0).all()
    assert cost(tensors).bytes_read == 700 * (583 + 8)


@pytest.mark.parametrize(
    ("argument", "make", "said"),
    [
        ("out", lambda t: t.repeat(1, 1, 2)[..., ::2], "out: dimension 2 has stride 2, expected 1"),
        ("out", lambda t: t[:3], "out: 3 rows, expected at least the 4 of ids"),
        ("page_size", lambda size: 96, "page_size: 96, expected a power of two"),
    ],
    ids=["out-stride", "out-rows", "page-size"],
)
def test_a_wrong_argument_is_named(argument, make, said, generator):
    tensors = inputs(Shape(4, 1), generator)
    tensors[argument] = make(tensors[argument])
    with pytest.raises(ValueError, match=said):
        KERNEL.check(tensors)


@pytest.mark.parametrize("wrong", [-1, 128])
def test_an_id_without_a_slot_is_named(wrong, generator):
    tensors = inputs(Shape(4, 1, page_size=64, pages=2), generator)
    tensors["ids"][3] = 127
    KERNEL.check_values(tensors)
    tensors["ids"][3] = wrong
    with pytest.raises(ValueError, match=rf"ids\[3\]: {wrong}, expected 0 to 127"):
        KERNEL.check_values(tensors)
