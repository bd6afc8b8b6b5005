"""The sliding-window writer: exact rows bit for bit, random rows within one code, skipped rows untouched."""

import pytest
import torch

from dsv4bench.kernels import codec, norm_rope_store, paged
from dsv4bench.kernels.contract import Provider
from dsv4bench.kernels.layout import LAYOUTS, UNIFORM_FP8, V4, V41, V41_FP4, KVLayout
from dsv4bench.kernels.norm_rope_store import KERNEL, Shape, cost, inputs
from tests.kernels import golden

NAMES = list(LAYOUTS)
PAGE = 64


@pytest.fixture(params=["torch", "triton"])
def provider(request) -> Provider:
    if request.param == "triton":
        request.getfixturevalue("triton_device")
    return KERNEL.provider(request.param)


def call(provider: Provider, kv: torch.Tensor, loc: list[int], layout: KVLayout, device: str, **given) -> torch.Tensor:
    """Write rows into two pages of poison; row 1 of the table is a quarter turn; return the cache."""
    cache = torch.full((2, layout.page_bytes(PAGE)), 0xA5, dtype=torch.uint8, device=device)
    quarter = torch.tensor([[1.0, 0.0] * 32, [0.0, 1.0] * 32])
    tensors = {
        "kv": kv.to(device),
        "weight": given.get("weight", torch.ones(512)).bfloat16().to(device),
        "eps": 1e-20,
        "freqs": given.get("freqs", quarter).to(device),
        "positions": torch.tensor(given.get("positions", [0] * len(kv)), dtype=torch.int64, device=device),
        "loc": torch.tensor(loc, dtype=torch.int32, device=device),
        "cache": cache,
        "page_size": PAGE,
        "layout": layout,
    }
    provider.build(tensors)()
    return cache


def rows_of(cache: torch.Tensor, slots: list[int], layout: KVLayout) -> tuple[torch.Tensor, torch.Tensor]:
    return paged.read_rows(cache, torch.tensor(slots, device=cache.device), PAGE, layout)


def exact_row() -> torch.Tensor:
    """192 channels of magnitude 1, 64 of 2 and 256 of a half, shuffled: the mean square is 1."""
    row = torch.cat([torch.ones(192), torch.full((64,), 2.0), torch.full((256,), 0.5)])
    order = torch.randperm(512, generator=torch.Generator().manual_seed(3))
    return row[order] * (1 - 2 * (torch.arange(512) % 3 == 0).float())


@pytest.mark.parametrize("factor", [1.0, 2.0**-10, 2.0**20])
@pytest.mark.parametrize("name", NAMES)
def test_exact_rows_bit_for_bit(name, factor, provider, device):
    """Norm by an exact power of two, weight, quarter turn: each step by hand."""
    layout, row = LAYOUTS[name], exact_row()
    weight = torch.linspace(0.5, 1.5, 512).bfloat16()
    kv = (row * factor).bfloat16().expand(2, 512)
    cache = call(provider, kv, [70, 3], layout, device, weight=weight, positions=[1, 0])
    y = row * weight.float()
    turned = y.clone()
    turned[448::2], turned[449::2] = -y[449::2], y[448::2]
    data, scales = rows_of(cache, [70, 3], layout)
    want, want_scales = codec.quantise(torch.stack([turned, y]), layout)
    assert torch.equal(data.cpu(), want)
    assert torch.equal(scales[:, : want_scales.shape[1]].cpu(), want_scales)


def codes(data: torch.Tensor, layout: KVLayout) -> torch.Tensor:
    """Codes as signed ranks, so that neighbours on the grid differ by one; without the rotated channels of e4m3."""
    if layout.encoding == "fp4":
        nibbles = torch.stack([data & 15, data >> 4], -1).flatten(-2).int()
        return torch.where(nibbles >= 8, 8 - nibbles, nibbles)
    data = data[:, :448].int()
    return torch.where(data >= 128, 128 - data, data)


@pytest.mark.parametrize("name", NAMES)
def test_random_rows_within_one_code(name, triton_device, generator):
    layout = LAYOUTS[name]
    got, want = (inputs(Shape(64, name, page_size=PAGE), generator.manual_seed(11)) for _ in range(2))
    KERNEL.provider("triton").build(got)()
    KERNEL.reference(**want)
    slots = want["loc"].tolist()
    (data, scales), (want_data, want_scales) = (rows_of(t["cache"], slots, layout) for t in (got, want))
    assert (data == want_data).double().mean() > 0.999
    assert (scales != want_scales).sum() <= 0.001 * scales.numel()
    same_scale = (scales == want_scales).all(-1)
    gap = (codes(data, layout) - codes(want_data, layout)).abs()[same_scale]
    assert gap.max() <= 1


def test_v4_turns_the_f32_row_and_rounds_it_once(provider, device):
    """A tail of 1.25 * (1 + 2^-7) times 0.6875 is 221.72 steps of 2^-8; rounded to bf16 before, it would be 221.375.

    The mean square is 1: 64 times 1.25^2, 48 times 0.5^2, 400 times 1.
    """
    kv = torch.cat([torch.full((48,), 0.5), torch.ones(400), torch.full((64,), 1.25)]).bfloat16()
    given = {"weight": torch.full((512,), 1 + 2**-7), "freqs": torch.tensor([[0.6875, 0.0] * 32])}
    cache = call(provider, kv[None], [5], V4, device, **given)
    tail = rows_of(cache, [5], V4)[0][0, 448:].view(torch.bfloat16)
    assert (tail == 222 / 256).all()


def test_a_uniform_row_turns_in_f32_and_is_rounded_to_bf16_once(provider, device):
    """A tail of 1.25 * (1 + 2^-7) times 0.5693359375 is 0.71723, in bf16 0.71875: a tie of e4m3 that goes to 0.75.

    Not rounded to bf16, or rounded before the turn as well, it would lie below the tie and go to 0.6875.
    """
    kv = torch.cat([torch.full((48,), 0.5), torch.ones(400), torch.full((64,), 1.25)]).bfloat16()
    given = {"weight": torch.full((512,), 1 + 2**-7), "freqs": torch.tensor([[0.5693359375, 0.0] * 32])}
    cache = call(provider, kv[None], [5], UNIFORM_FP8, device, **given)
    data = rows_of(cache, [5], UNIFORM_FP8)[0][0]
    assert (data[448:] == 0x34).all()
    assert (data[48:448] == 0x38).all()  # 1 + 2^-7 goes to 1


@pytest.mark.parametrize("table", [((0, 1), (99, 2)), ((0, 1), (0, 2))], ids=["two", "four"])
@pytest.mark.parametrize("name", NAMES)
def test_programs_of_more_rows_write_what_programs_of_one_write(name, table, triton_device, monkeypatch):
    """Of seven rows, one of them without a slot: the last program is ragged."""
    kv = torch.randn(7, 512, generator=torch.Generator().manual_seed(3)).bfloat16()
    loc, positions, provider = [9, 0, 127, -1, 63, 64, 5], [0, 1, 1, 0, 0, 1, 1], KERNEL.provider("triton")
    want = call(provider, kv, loc, LAYOUTS[name], triton_device, positions=positions)
    monkeypatch.setattr(norm_rope_store, "PROGRAM_ROWS", table)
    assert torch.equal(call(provider, kv, loc, LAYOUTS[name], triton_device, positions=positions), want)


@pytest.mark.parametrize("name", NAMES)
def test_rows_without_a_slot_write_nothing(name, provider, device):
    """Their position lies far outside the table, which must not be read; slot 0 is a slot like others."""
    layout = LAYOUTS[name]
    kv = golden.ROW.bfloat16().expand(6, 512)
    positions = [10**9, 0, 10**9, 10**9, 1, 10**9]
    if provider.name == "torch":
        positions = [0, 0, 0, 0, 1, 0]
    cache = call(provider, kv, [-1, 0, -7, -1, 127, -1], layout, device, positions=positions)
    assert (rows_of(cache, [0, 127], layout)[0] != 0xA5).any(-1).all()
    data, scales = paged.paged(cache, PAGE, layout)
    for page, index in ((0, 0), (1, 63)):
        data[page, index] = 0xA5
        scales[page, index, : 7 if layout == V4 else None] = 0xA5
    assert (cache == 0xA5).all()


def test_rows_may_be_a_slice_of_a_wider_projection(provider, device):
    wide = torch.full((4, 1792), float("nan"), dtype=torch.bfloat16, device=device)
    wide[:, 1280:] = golden.ROW.bfloat16().to(device)
    got = call(provider, wide[:, 1280:], [1, 2, 3, 4], V41_FP4, device)
    want = call(provider, wide[:, 1280:].contiguous(), [1, 2, 3, 4], V41_FP4, device)
    assert torch.equal(got, want)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_of_zeros_is_stored_as_zeros(name, provider, device):
    cache = call(provider, torch.zeros(1, 512).bfloat16(), [9], LAYOUTS[name], device)
    data, scales = rows_of(cache, [9], LAYOUTS[name])
    assert codec.dequantise(data, scales, LAYOUTS[name]).count_nonzero() == 0


@pytest.mark.parametrize("name", NAMES)
def test_no_rows_are_no_work(name, provider, device):
    assert (call(provider, torch.zeros(0, 512).bfloat16(), [], LAYOUTS[name], device) == 0xA5).all()


def test_the_least_bytes_of_a_call(generator):
    tensors = inputs(Shape(10, "v4"), generator)
    tensors["loc"][:4], tensors["positions"][:] = -1, 17
    found = cost(tensors)
    assert found.bytes_read == 6 * (1024 + 8) + 10 * 4 + 256 + 1024
    assert found.bytes_written == 6 * 583
    assert found.flops == 6 * (512 * 5 + 64 * 3)


@pytest.mark.parametrize(
    ("argument", "make", "said"),
    [
        ("kv", lambda kv: kv.repeat(1, 2)[:, ::2], "kv: dimension 1 has stride 2, expected 1"),
        ("loc", lambda loc: loc.repeat(2)[::2], "loc: dimension 0 has stride 2, expected 1"),
        ("page_size", lambda size: 0, "page_size: 0, expected a power of two"),
        ("layout", lambda layout: V41_FP4, r"fp4 cache with pages of 256 is .*\[pages, 73728\].*\[2, 135168\]"),
    ],
    ids=["kv-stride", "loc-stride", "page-size", "layout"],
)
def test_a_wrong_argument_is_named(argument, make, said, generator):
    tensors = inputs(Shape(4, V41.name), generator)
    tensors[argument] = make(tensors[argument])
    with pytest.raises(ValueError, match=said):
        KERNEL.check(tensors)


@pytest.mark.parametrize(
    ("argument", "wrong", "last"), [("loc", 512, 511), ("positions", 4096, 4095), ("positions", -1, 4095)], ids=str
)
def test_a_value_out_of_range_is_named(argument, wrong, last, generator):
    """A row without a slot may say any position."""
    tensors = inputs(Shape(4, "v41"), generator)
    tensors["loc"][0], tensors["positions"][0] = -3, 10**9
    tensors[argument][1] = last
    KERNEL.check_values(tensors)
    tensors[argument][1] = wrong
    with pytest.raises(ValueError, match=rf"{argument}\[1\]: {wrong}, expected 0 to {last}"):
        KERNEL.check_values(tensors)
