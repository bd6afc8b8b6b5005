"""Dequantised rows: exact on every byte, whatever the provider, the type of the ids and the stride of the output."""

import math

import pytest
import torch

from dsv4bench.kernels.contract import Provider, same_bits
from dsv4bench.kernels.dequant import KERNEL, Shape, cost, inputs
from dsv4bench.kernels.layout import LAYOUTS, V41, V41_FP4, V41_FP4_NEW, V41_NEW
from tests.kernels.golden import E2M1_GRID, slot_place
from tests.kernels.test_codec import e4m3_value

NAMES = list(LAYOUTS)
PROVIDERS = ["torch", "triton"]


@pytest.fixture(params=PROVIDERS)
def provider(request) -> Provider:
    if request.param == "triton":
        request.getfixturevalue("triton_device")
    return KERNEL.provider(request.param)


def ue8m0_value(byte: int) -> float:
    return math.nan if byte == 255 else 2.0 ** (byte - 127)


def e2m1_value(code: int) -> float:
    return E2M1_GRID[code & 7] * (-1 if code & 8 else 1)


def channel_value(name: str, channel: int, data: list[int], scales: list[int]) -> float:
    """One channel of a row from its bytes, by the definition of the layout; exact in f64."""
    if name == "uniform":
        return e4m3_value(data[channel])
    if LAYOUTS[name].encoding == "fp4":
        nibble = data[channel // 2] >> 4 * (channel % 2) & 15
        return e2m1_value(nibble) * e4m3_value(scales[channel // 16])
    return e4m3_value(data[channel]) * ue8m0_value(scales[channel // LAYOUTS[name].values_per_scale])


def expected(name: str, data: list[int], scales: list[int]) -> torch.Tensor:
    coded = 448 if name == "v4" else 512
    values = torch.tensor([channel_value(name, c, data, scales) for c in range(coded)], dtype=torch.float64)
    tail = torch.tensor(data[coded:], dtype=torch.uint8).view(torch.bfloat16) if name == "v4" else values[:0].bfloat16()
    return torch.cat([values.float().bfloat16(), tail])  # f32 holds each product exactly: one rounding


def telling_row(name: str) -> tuple[list[int], list[int]]:
    """Every code at least once, NaN and -0.0 among them, under scales 0, 1, 127, 254, 255 and others."""
    layout = LAYOUTS[name]
    data = [*range(256)] * 2 if name != "v4" else [*range(256), *range(192)] + [0xFF, 0x7F, 0x80, 0x00] * 32
    scales = [0, 1, 127, 254, 255, 128, 0x80, 0x7F, 0x38, 2, 3, 130, 100, 90, 60, 9] * 2
    return data[: layout.data_bytes], scales[: layout.scale_bytes]


@pytest.mark.parametrize("page_size", [2, 64, 256])
@pytest.mark.parametrize("name", NAMES)
def test_every_code_and_the_corners_of_the_scale(name, page_size, provider, device):
    layout, slot = LAYOUTS[name], 2 * page_size + page_size - 1
    data, scales = telling_row(name)
    cache = torch.full((3, layout.page_bytes(page_size)), 0x55, dtype=torch.uint8)
    at, scale_at = slot_place(name, page_size, page_size - 1)
    cache[2, at : at + len(data)] = torch.tensor(data, dtype=torch.uint8)
    cache[2, scale_at : scale_at + len(scales)] = torch.tensor(scales, dtype=torch.uint8)
    out = torch.full((1, 1, 512), 7.0, dtype=torch.bfloat16, device=device)
    ids = torch.tensor([slot], device=device)
    tensors = {"cache": cache.to(device), "ids": ids, "page_size": page_size, "layout": layout, "out": out}
    provider.build(tensors)()
    assert same_bits(out[0, 0].cpu(), expected(name, data, scales)).all()


@pytest.mark.parametrize("bits", [32, 64], ids=["i32", "i64"])
@pytest.mark.parametrize("name", NAMES)
def test_random_bytes_into_a_part_of_a_workspace(name, bits, provider, generator, device):
    """Ids repeat, rows are not a multiple of a program's, and what lies beside the rows keeps its poison."""
    tensors = inputs(Shape(45, name, page_size=64, id_bits=bits), generator)
    tensors["ids"][7:9] = tensors["ids"][0]
    workspace = torch.full((50, 1, 520), 3.0, dtype=torch.bfloat16, device=device)
    tensors["out"] = workspace[2:47, :, :512]
    provider.build(tensors)()
    wide = tensors | {"out": torch.empty(45, 1, 512, dtype=torch.bfloat16, device=device)}
    KERNEL.reference(**wide)
    assert same_bits(tensors["out"], wide["out"]).all()
    assert torch.isnan(wide["out"]).any()
    assert (workspace[:2] == 3).all()
    assert (workspace[47:] == 3).all()
    assert (workspace[..., 512:] == 3).all()


def test_the_pad_byte_of_v4_is_not_read(provider, generator):
    tensors = inputs(Shape(8, "v4", page_size=64), generator)
    provider.build(tensors)()
    before = tensors["out"].clone()
    scales = tensors["cache"][:, 64 * 576 : 64 * 584].unflatten(1, (64, 8))
    scales[..., 7] ^= 0xFF
    provider.build(tensors)()
    assert same_bits(tensors["out"], before).all()


@pytest.mark.parametrize("name", NAMES)
def test_no_rows_are_no_work(name, provider, generator):
    tensors = inputs(Shape(0, name), generator)
    provider.build(tensors)()
    assert tensors["out"].shape == (0, 1, 512)
    assert cost(tensors).bytes_moved == 0


@pytest.mark.parametrize(
    ("name", "read"),
    [("v4", 583), ("v41", 528), ("fp4", 288), ("v41_new", 528), ("fp4_new", 288), ("uniform", 512)],
)
def test_the_least_bytes_of_a_row(name, read, generator):
    tensors = inputs(Shape(10, name, id_bits=32), generator)
    assert cost(tensors).bytes_read == 10 * (read + 4)
    assert cost(tensors).bytes_written == 10 * 1024
    assert cost(tensors).flops == 10 * 512


@pytest.mark.parametrize(
    ("argument", "make", "said"),
    [
        ("ids", lambda t: t.repeat(2)[::2], "ids: dimension 0 has stride 2, expected 1"),
        ("out", lambda t: t[:3], r"out: bfloat16 \[3, 1, 512\], expected bfloat16 \[4, 1, 512\]"),
        ("out", lambda t: t.repeat(1, 1, 2)[..., ::2], "out: dimension 2 has stride 2, expected 1"),
        ("page_size", lambda size: 96, "page_size: 96, expected a power of two"),
        ("page_size", lambda size: 128, r"v41 cache with pages of 128 is .*\[pages, 67584\].*\[3, 135168\]"),
        ("layout", lambda layout: V41_FP4, r"fp4 cache with pages of 256 is .*\[pages, 73728\].*\[3, 135168\]"),
    ],
    ids=["id-stride", "out-rows", "out-stride", "page", "page-bytes", "layout"],
)
def test_a_wrong_argument_is_named(argument, make, said, generator):
    tensors = inputs(Shape(4, "v41"), generator)
    tensors[argument] = make(tensors[argument])
    with pytest.raises(ValueError, match=said):
        KERNEL.check(tensors)


@pytest.mark.parametrize("wrong", [-1, 3 * 64])
def test_an_id_without_a_slot_is_named(wrong, generator):
    tensors = inputs(Shape(4, "fp4", page_size=64), generator)
    tensors["ids"][2] = 3 * 64 - 1
    KERNEL.check_values(tensors)
    tensors["ids"][2] = wrong
    with pytest.raises(ValueError, match=rf"ids\[2\]: {wrong}, expected 0 to 191"):
        KERNEL.check_values(tensors)


@pytest.mark.parametrize(("new", "old"), [(V41_NEW, V41), (V41_FP4_NEW, V41_FP4)], ids=["v41", "fp4"])
def test_an_interleaved_row_reads_as_the_same_bytes_block_split(new, old, provider, generator, device):
    """The arrangement changes places only: rows whose bytes are copied one by one come out alike."""
    tensors = inputs(Shape(20, new.name, page_size=64), generator)
    cache = torch.zeros(3, old.page_bytes(64), dtype=torch.uint8, device=device)
    for index in range(64):
        (at, scale_at), (old_at, old_scale_at) = slot_place(new.name, 64, index), slot_place(old.name, 64, index)
        cache[:, old_at : old_at + old.data_bytes] = tensors["cache"][:, at : at + old.data_bytes]
        source = tensors["cache"][:, scale_at : scale_at + old.scale_bytes]
        cache[:, old_scale_at : old_scale_at + old.scale_bytes] = source
    split = tensors | {"cache": cache, "layout": old, "out": torch.empty_like(tensors["out"])}
    provider.build(tensors)()
    provider.build(split)()
    assert same_bits(tensors["out"], split["out"]).all()
