"""Stored rows: bytes of the golden vectors at their slots, and nothing else changed."""

import pytest
import torch

from dsv4bench.kernels import dequant, paged, store
from dsv4bench.kernels.contract import Provider
from dsv4bench.kernels.layout import LAYOUTS, UNIFORM_FP8, V4, V41, V41_FP4, V41_FP4_NEW, V41_NEW, KVLayout
from dsv4bench.kernels.store import KERNEL, Shape, cost, inputs
from tests.kernels import golden

NAMES = list(LAYOUTS)


@pytest.fixture(params=["torch", "triton"])
def provider(request) -> Provider:
    if request.param == "triton":
        request.getfixturevalue("triton_device")
    return KERNEL.provider(request.param)


def stored(provider: Provider, x: torch.Tensor, loc: list[int], layout: KVLayout, device: str, **given):
    """Store rows into pages full of poison, two of 64 slots unless said; return the cache."""
    page_size = given.get("page_size", 64)
    cache = torch.full((given.get("pages", 2), layout.page_bytes(page_size)), 0xA5, dtype=torch.uint8, device=device)
    tensors = {
        "x": x.bfloat16().to(device),
        "loc": torch.tensor(loc, dtype=given.get("dtype", torch.int64), device=device),
        "freqs": given.get("freqs"),
        "positions": given.get("positions"),
        "cache": cache,
        "page_size": page_size,
        "layout": layout,
    }
    provider.build(tensors)()
    return cache


def slot_bytes(cache: torch.Tensor, slot: int, layout: KVLayout) -> tuple[list[int], list[int]]:
    data, scales = paged.read_rows(cache, torch.tensor([slot], device=cache.device), 64, layout)
    return data[0].tolist(), scales[0].tolist()


@pytest.mark.parametrize(
    ("layout", "text", "scales"),
    [
        (V4, golden.V4_BYTES, [121] * 7 + [0xA5]),
        (V41, golden.V41_BYTES, [121, 119] * 8),
        (V41_FP4, golden.FP4_BYTES, [0x38, 0x30, 0x28, 0x20] * 8),
        (V41_NEW, golden.V41_BYTES, [121, 119] * 8),
        (V41_FP4_NEW, golden.FP4_BYTES, [0x38, 0x30, 0x28, 0x20] * 8),
        (UNIFORM_FP8, golden.UNIFORM_BYTES, []),
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
    data, scales = paged.paged(cache, 64, layout)
    for page, index in ((0, 63), (1, 0), (1, 63)):
        data[page, index] = 0xA5
        scales[page, index, : 7 if layout == V4 else None] = 0xA5
    assert (cache == 0xA5).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["i32", "i64"])
@pytest.mark.parametrize("page_size", [2, 64, 256])
@pytest.mark.parametrize("name", NAMES)
def test_the_golden_row_lies_where_the_layout_says(name, page_size, dtype, provider, device):
    """The last slot of page 1 and the first of page 2, by the addresses of specification 2.1; nothing else changes."""
    layout, begin = LAYOUTS[name], {"v4": golden.V4_BYTES, "v41": golden.V41_BYTES, "fp4": golden.FP4_BYTES}
    want = golden.from_hex(begin.get(layout.encoding, golden.UNIFORM_BYTES))
    slots = [2 * page_size - 1, 2 * page_size]
    given = {"page_size": page_size, "pages": 3, "dtype": dtype}
    cache = stored(provider, golden.ROW.repeat(2, 1), slots, layout, device, **given)
    written = layout.scale_bytes - (layout == V4)
    for page, index in ((1, page_size - 1), (2, 0)):
        at, scale_at = golden.slot_place(name, page_size, index)
        assert cache[page, at : at + len(want)].tolist() == want
        assert (cache[page, scale_at : scale_at + written] != 0xA5).all()
        cache[page, at : at + layout.data_bytes] = 0xA5
        cache[page, scale_at : scale_at + written] = 0xA5
    assert (cache == 0xA5).all()


def rows_on_the_grid(layout: KVLayout, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the data and scales of rows of random finite codes; the largest code in each tile gives its scale back."""
    generator = torch.Generator().manual_seed(13)
    data = torch.randint(0, 256, (rows, layout.data_bytes), generator=generator, dtype=torch.uint8)
    if layout.encoding == "fp4":
        data[:, ::8] |= 0x07  # the first channel of each tile is 6 or -6
        return data, torch.randint(1, 127, (rows, 32), generator=generator, dtype=torch.uint8)
    coded = data[:, :448] if layout == V4 else data
    coded[coded % 128 == 127] = 0x80  # no NaN, but a -0.0
    if layout == V4:
        data[:, 449::2] &= 0xBF  # a bf16 with an exponent under 128: finite
    if layout == UNIFORM_FP8:
        return data, data[:, :0]
    coded[:, :: layout.values_per_scale] = 0xFE
    scales = torch.randint(114, 140, (rows, coded.shape[1] // layout.values_per_scale), generator=generator)
    return data, scales.to(torch.uint8)


@pytest.mark.parametrize("name", NAMES)
def test_rows_on_the_grid_come_back_byte_by_byte(name, provider, device):
    """Dequantised and stored again, whatever kernel does it; a second round changes no value either."""
    layout, slots = LAYOUTS[name], torch.tensor([5, 0, 63, 64, 127, 100], device=device)
    cache = torch.full((2, layout.page_bytes(64)), 0xA5, dtype=torch.uint8, device=device)
    data, scales = rows_on_the_grid(layout, 6)
    paged.write_rows(cache, slots, (data.to(device), scales.to(device)), 64, layout)
    again = torch.full_like(cache, 0xA5)
    values = torch.empty(6, 1, 512, dtype=torch.bfloat16, device=device)
    place = {"page_size": 64, "layout": layout}
    dequant.KERNEL.provider(provider.name).build({"cache": cache, "ids": slots, "out": values, **place})()
    rows = {"x": values[:, 0], "loc": slots, "freqs": None, "positions": None}
    provider.build({**rows, "cache": again, **place})()
    assert torch.equal(again, cache)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "uniform"])
def test_rows_at_the_edges_of_the_scales(name, provider, device):
    """One golden maximum in each tile of a row: what fits into bf16 of tables A.1 to A.3."""
    layout, rule = LAYOUTS[name], LAYOUTS[name].encoding
    width = golden.TILE_WIDTH[rule]
    table = [(m, byte) for m, byte in golden.SCALES[rule] if torch.tensor(m).bfloat16().item() == m]
    maxima = torch.tensor([maximum for maximum, _ in table])
    rows = torch.zeros(len(table), 512)
    rows[:, :width] = golden.tiles_with_maximum(maxima, width)
    cache = stored(provider, rows, list(range(len(table))), layout, device)
    assert [slot_bytes(cache, slot, layout)[1][0] for slot in range(len(table))] == [byte for _, byte in table]


@pytest.mark.parametrize("name", ["v41", "fp4", "v41_new", "fp4_new", "uniform"])
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


def test_a_uniform_row_saturates(provider, device):
    """17 is a tie that goes to 16, 464 and a million become 448; a turned pair is rounded to bf16 before the cast."""
    x, table = torch.zeros(1, 512), torch.tensor([[1.0, 0.0] * 32])
    x[0, :4], x[0, 448], table[0, 0] = torch.tensor([17.0, 464.0, -1e6, -0.0]), 1.0, 17.02
    given = {"freqs": table.to(device), "positions": torch.tensor([0], device=device)}
    data, _ = slot_bytes(stored(provider, x, [3], UNIFORM_FP8, device, **given), 3, UNIFORM_FP8)
    assert data[:4] == [0x58, 0x7E, 0xFE, 0x80]
    assert data[448] == 0x58  # 17.02 alone would go to 18


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("name", NAMES)
def test_programs_of_two_rows_write_what_programs_of_one_write(name, rows, triton_device, monkeypatch):
    x = torch.randn(rows, 512, generator=torch.Generator().manual_seed(3))
    loc, provider = [9, 0, 127, 64, 63][:rows], KERNEL.provider("triton")
    want = stored(provider, x, loc, LAYOUTS[name], triton_device)
    monkeypatch.setattr(store, "FEW_ROWS", 0)
    assert torch.equal(stored(provider, x, loc, LAYOUTS[name], triton_device), want)


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


@pytest.mark.parametrize(
    ("argument", "make", "said"),
    [
        ("x", lambda x: x.repeat(1, 2)[:, ::2], "x: dimension 1 has stride 2, expected 1"),
        ("positions", lambda positions: None, "freqs: a tensor beside None for positions, expected both or neither"),
        ("freqs", lambda freqs: None, "freqs: None beside a tensor for positions, expected both or neither"),
        ("freqs", lambda freqs: freqs.double(), r"freqs: float64 \[4096, 64\], expected float32 \[m, 64\]"),
        ("freqs", lambda freqs: freqs[:, :32], r"freqs: float32 \[4096, 32\], expected float32 \[m, 64\]"),
        ("positions", lambda positions: positions[1:], r"positions: int64 \[3\], expected int32 or int64 \[4\]"),
        ("page_size", lambda size: 192, "page_size: 192, expected a power of two"),
        ("layout", lambda layout: V4, r"v4 cache with pages of 256 is .*\[pages, 149760\].*\[2, 135168\]"),
    ],
    ids=["x-stride", "no-positions", "no-freqs", "freqs-dtype", "freqs-width", "position-rows", "page-size", "layout"],
)
def test_a_wrong_argument_is_named(argument, make, said, generator):
    tensors = inputs(Shape(4, "v41", rotate=True), generator)
    tensors[argument] = make(tensors[argument])
    with pytest.raises(ValueError, match=said):
        KERNEL.check(tensors)


def test_v4_rows_come_rotated(generator):
    with pytest.raises(ValueError, match="freqs: a tensor, expected None for the layout v4"):
        KERNEL.check(inputs(Shape(4, "v4", rotate=True), generator))


@pytest.mark.parametrize(
    ("argument", "wrong", "last"), [("loc", -1, 511), ("loc", 512, 511), ("positions", 4096, 4095)], ids=str
)
def test_a_value_out_of_range_is_named(argument, wrong, last, generator):
    tensors = inputs(Shape(4, "v41", rotate=True), generator)
    tensors[argument][1] = last
    KERNEL.check_values(tensors)
    tensors[argument][1] = wrong
    with pytest.raises(ValueError, match=rf"{argument}\[1\]: {wrong}, expected 0 to {last}"):
        KERNEL.check_values(tensors)
