"""Stored rows: bytes of the golden vectors at their slots, and nothing else changed."""

import pytest
import torch

from dsv4bench.kernels import codec
from dsv4bench.kernels.contract import Provider
from dsv4bench.kernels.layout import LAYOUTS, V4, V41, V41_FP4, KVLayout
from dsv4bench.kernels.store import KERNEL, Shape, build_triton, cost, inputs
from tests.kernels import golden

NAMES = list(LAYOUTS)


@pytest.fixture(params=["torch", "triton"])
def provider(request) -> Provider:
    if request.param == "triton":
        request.getfixturevalue("triton_device")
    return KERNEL.provider(request.param)


def stored(provider: Provider, x: torch.Tensor, loc: list[int], layout: KVLayout, device: str, **rotation):
    """Store rows into two pages of 64 slots full of poison; return the cache."""
    cache = torch.full((2, layout.page_bytes(64)), 0xA5, dtype=torch.uint8, device=device)
    tensors = {
        "x": x.bfloat16().to(device),
        "loc": torch.tensor(loc, dtype=torch.int64, device=device),
        "freqs": rotation.get("freqs"),
        "positions": rotation.get("positions"),
        "cache": cache,
        "page_size": 64,
        "layout": layout,
    }
    provider.build(tensors)()
    return cache


def slot_bytes(cache: torch.Tensor, slot: int, layout: KVLayout) -> tuple[list[int], list[int]]:
    data, scales = codec.read_rows(cache, torch.tensor([slot], device=cache.device), 64, layout)
    return data[0].tolist(), scales[0].tolist()


@pytest.mark.parametrize(
    ("layout", "text", "scales"),
    [
        (V4, golden.V4_BYTES, [121] * 7 + [0xA5]),
        (V41, golden.V41_BYTES, [121, 119] * 8),
        (V41_FP4, golden.FP4_BYTES, [0x38, 0x30, 0x28, 0x20] * 8),
    ],
    ids=NAMES,
)
def test_the_golden_row(layout, text, scales, provider, device):
    cache = stored(provider, torch.stack([golden.ROW, golden.ROW]), [0, 100], layout, device)
    want = golden.from_hex(text)
    for slot in (0, 100):
        data, scale = slot_bytes(cache, slot, layout)
        assert data[: len(want)] == want
        assert scale == scales


@pytest.mark.parametrize("name", NAMES)
def test_only_the_addressed_bytes_change(name, provider, device):
    layout = LAYOUTS[name]
    cache = stored(provider, golden.ROW.repeat(3, 1), [63, 64, 127], layout, device)
    data, scales = codec.paged(cache, 64, layout)
    for page, index in ((0, 63), (1, 0), (1, 63)):
        data[page, index] = 0xA5
        scales[page, index, : 7 if layout == V4 else None] = 0xA5
    assert (cache == 0xA5).all()


@pytest.mark.parametrize("name", NAMES)
def test_rows_at_the_edges_of_the_scales(name, provider, device):
    """One golden maximum in each tile of a row: what fits into bf16 of tables A.1 to A.3."""
    layout, width = LAYOUTS[name], golden.TILE_WIDTH[name]
    table = [(m, byte) for m, byte in golden.SCALES[name] if torch.tensor(m).bfloat16().item() == m]
    maxima = torch.tensor([maximum for maximum, _ in table])
    rows = torch.zeros(len(table), 512)
    rows[:, :width] = golden.tiles_with_maximum(maxima, width)
    cache = stored(provider, rows, list(range(len(table))), layout, device)
    assert [slot_bytes(cache, slot, layout)[1][0] for slot in range(len(table))] == [byte for _, byte in table]


@pytest.mark.parametrize("name", ["v41", "fp4"])
def test_rotation_precedes_quantisation(name, provider, device):
    """A quarter turn swaps the pairs of the tail and negates the first; the bytes are those of the turned row."""
    x = torch.where(golden.ROW == 0, 1.0, golden.ROW).repeat(2, 1)  # the sign of a zero would hang on the other terms
    freqs = torch.tensor([[1.0, 0.0] * 32, [0.0, 1.0] * 32], device=device)
    positions = torch.tensor([1, 0], device=device)
    got = stored(provider, x, [9, 10], LAYOUTS[name], device, freqs=freqs, positions=positions)
    turned = x.clone()
    turned[0, 448::2], turned[0, 449::2] = -x[0, 449::2], x[0, 448::2]
    want = stored(KERNEL.provider("torch"), turned, [9, 10], LAYOUTS[name], device)
    assert torch.equal(got, want)


def test_a_turned_pair_is_rounded_to_bf16_before_it_is_quantised(provider, device):
    """Beside 448 the scale is 1; 17.02 rounds to 17 in bf16, a tie of e4m3 that goes to 16 (0x58) and not to 18."""
    x, table = torch.zeros(1, 512), torch.tensor([[1.0, 0.0] * 32])
    x[0, 448], x[0, 450], table[0, 2] = 448.0, 1.0, 17.02
    positions = torch.tensor([0], device=device)
    cache = stored(provider, x, [0], V41, device, freqs=table.to(device), positions=positions)
    data, scales = slot_bytes(cache, 0, V41)
    assert (data[448], data[450], scales[14]) == (0x7E, 0x58, 127)


@pytest.mark.parametrize("name", NAMES)
def test_no_rows_are_no_work(name, provider, device):
    assert (stored(provider, torch.zeros(0, 512), [], LAYOUTS[name], device) == 0xA5).all()


def test_the_least_bytes_of_a_call(generator):
    plain = cost(inputs(Shape(10, "v4"), generator))
    assert (plain.bytes_read, plain.bytes_written, plain.flops) == (10 * 1032, 10 * 583, 10 * 512)
    tensors = inputs(Shape(10, "fp4", rotate=True), generator)
    tensors["positions"][:] = torch.arange(10) // 5
    turned = cost(tensors)
    assert (turned.bytes_read, turned.bytes_written) == (10 * 1040 + 2 * 256, 10 * 288)
    assert turned.flops == 10 * (512 + 64 * 3)


def test_a_table_without_positions_is_refused(generator):
    tensors = inputs(Shape(4, "v41", rotate=True), generator) | {"positions": None}
    with pytest.raises(ValueError, match="come together"):
        build_triton(tensors)


def test_channels_with_gaps_are_refused(generator, device):
    tensors = inputs(Shape(4, "v41"), generator)
    tensors["x"] = torch.zeros(4, 1024, device=device).bfloat16()[:, ::2]
    with pytest.raises(ValueError, match="side by side"):
        build_triton(tensors)
