"""The torch oracle against golden vectors, hand-made cases and searches that know nothing of its formulas."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.kernels import codec, paged
from dsv4bench.kernels.layout import (
    INDEX_K,
    INDEX_K_FP8,
    LAYOUTS,
    UNIFORM_FP8,
    V4,
    V41,
    V41_FP4,
    V41_FP4_NEW,
    V41_NEW,
)
from tests.kernels import golden

SCALE_RULES = {"v4": codec.v4_scale, "v41": codec.v41_scale, "fp4": codec.fp4_scale}


def nearest_e2m1(value: float) -> int:
    """Search the grid; a tie goes to the even code."""
    gaps = [abs(min(abs(value), 6.0) - grid) for grid in golden.E2M1_GRID]
    nearest = [code for code, gap in enumerate(gaps) if gap == min(gaps)]
    return min(nearest, key=lambda code: code % 2) | (8 if math.copysign(1, value) < 0 else 0)


@pytest.mark.parametrize(("tie", "code"), golden.E2M1_TIES)
def test_a_tie_goes_to_the_even_code(tie, code):
    below, above = math.nextafter(tie, 0.0), tie * (1 + 2**-23)
    values = torch.tensor([tie, -tie, below * (1 - 2**-23), above])
    assert codec.e2m1_encode(values).tolist() == [code, code | 8, nearest_e2m1(below), nearest_e2m1(above)]
    assert nearest_e2m1(tie) == code


def test_every_bf16_becomes_the_nearest_e2m1():
    values = golden.all_bf16().float()
    near = values[values.abs() < 8]
    assert codec.e2m1_encode(near[::7]).tolist() == [nearest_e2m1(value) for value in near[::7].tolist()]
    assert set(codec.e2m1_encode(values[values.abs() >= 8]).tolist()) == {7, 15}


def test_every_e2m1_code_comes_back():
    codes = torch.arange(16, dtype=torch.uint8)
    values = codec.e2m1_decode(codes)
    assert values.tolist() == [*golden.E2M1_GRID, *(-value for value in golden.E2M1_GRID)]
    assert values.signbit().tolist() == [False] * 8 + [True] * 8
    assert codec.e2m1_encode(values).tolist() == codes.tolist()


def e4m3_value(byte: int) -> float:
    """The value of a byte by the definition of the format."""
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    if byte & 127 == 127:
        return math.nan
    magnitude = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -magnitude if byte & 128 else magnitude


def test_every_e4m3_byte_is_what_the_format_says():
    values = codec.e4m3_decode(torch.arange(256, dtype=torch.uint8))
    want = torch.tensor([e4m3_value(byte) for byte in range(256)])
    assert torch.equal(values.nan_to_num(nan=1e9), want.nan_to_num(nan=1e9))
    assert values[128].signbit()
    finite = torch.tensor([byte for byte in range(256) if byte & 127 != 127], dtype=torch.uint8)
    assert torch.equal(codec.e4m3_encode(codec.e4m3_decode(finite)), finite)


@pytest.mark.parametrize(
    ("value", "byte"),
    [(448.0, 0x7E), (464.0, 0x7E), (1e9, 0x7E), (-1e9, 0xFE), (2.0**-10, 0x00), (3 * 2.0**-10, 0x02), (-0.0, 0x80)],
)
def test_e4m3_saturates_and_rounds_ties_to_even(value, byte):
    assert codec.e4m3_encode(torch.tensor([value])).item() == byte


def test_ue8m0_is_a_power_of_two_down_to_a_denormal():
    got = codec.ue8m0_decode(torch.tensor([0, 1, 126, 127, 128, 254, 255], dtype=torch.uint8)).tolist()
    assert got[:-1] == [2.0**-127, 2.0**-126, 0.5, 1.0, 2.0, 2.0**127]
    assert math.isnan(got[-1])


@pytest.mark.parametrize(
    ("rule", "maximum", "byte"),
    [(rule, maximum, byte) for rule, table in golden.SCALES.items() for maximum, byte in table],
)
def test_golden_scales(rule, maximum, byte):
    tile = golden.tiles_with_maximum(torch.tensor([maximum]), golden.TILE_WIDTH[rule])
    assert SCALE_RULES[rule](tile).item() == byte


def smallest_exponent(maxima: torch.Tensor, lowest: int) -> list[int]:
    """127 plus the least exponent e >= lowest with maximum <= 448 * 2^e, by trying them all."""
    edges = 448.0 * 2.0 ** torch.arange(lowest, 121, dtype=torch.float64)
    return (127 + lowest + torch.searchsorted(edges, maxima.double())).tolist()


def test_every_bf16_maximum_through_the_ue8m0_rules():
    maxima = golden.all_bf16().float()
    maxima = maxima[~maxima.signbit()]
    assert codec.v41_scale(maxima[:, None]).flatten().tolist() == smallest_exponent(maxima, 114 - 127)
    want = smallest_exponent(maxima.clamp(min=1e-4), 105 - 127)
    assert codec.v4_scale(maxima[:, None]).flatten().tolist() == want


MILLIONS = pytest.mark.parametrize(
    "millions", [1, pytest.param(20, marks=pytest.mark.slow)], ids=lambda count: f"{count}-million"
)


@MILLIONS
def test_random_maxima_through_the_ue8m0_rules(millions):
    """And through the integer rule that specification 2.2 gives for V41."""
    for maxima in golden.hard_maxima(millions):
        edges = 448.0 * 2.0 ** torch.arange(-22, 121, dtype=torch.float64)
        least = 127 - 22 + torch.searchsorted(edges, maxima.double())
        floored = 127 - 22 + torch.searchsorted(edges, maxima.clamp(min=1e-4).double())
        bits = maxima.view(torch.int32)
        by_integers = ((bits >> 23) - 8 + ((bits & 0x7FFFFF) > 0x600000).int()).clamp(min=114)
        got = codec.v41_scale(maxima[:, None]).flatten().long()
        assert torch.equal(got, least.clamp(min=114))
        assert torch.equal(got, by_integers.long())
        assert torch.equal(codec.v4_scale(maxima[:, None]).flatten().long(), floored)


@given(st.lists(st.integers(0, 0x7F7F), min_size=1, max_size=4))
def test_no_smaller_power_of_two_would_hold_the_tile(patterns):
    tile = torch.tensor(patterns, dtype=torch.int16).view(torch.bfloat16).double()
    exponent = codec.v41_scale(tile.float()).item() - 127
    assert tile.max() <= 448 * 2.0**exponent
    assert exponent == -13 or tile.max() > 448 * 2.0 ** (exponent - 1)


def test_the_code_needs_a_true_division():
    """0.03662109375 / 0.029296875 is 1.25, a tie; times the reciprocal it lies above and becomes code 3."""
    x, scale = torch.tensor(0.03662109375), codec.e4m3_decode(torch.tensor([0x0F], dtype=torch.uint8))
    assert codec.e2m1_encode(x / scale).item() == 2
    assert codec.e2m1_encode(x * (1 / scale)).item() == 3


GOLDEN_ROWS = [
    (V41_FP4, golden.FP4_BYTES, [golden.FP4_SCALE, 0x30, 0x28, 0x20]),
    (V41, golden.V41_BYTES, [121, 119]),
    (V4, golden.V4_BYTES, [121] * 7),
    (V41_FP4_NEW, golden.FP4_BYTES, [golden.FP4_SCALE, 0x30, 0x28, 0x20]),
    (V41_NEW, golden.V41_BYTES, [121, 119]),
    (UNIFORM_FP8, golden.UNIFORM_BYTES, []),
]


@pytest.mark.parametrize(("layout", "text", "scales"), GOLDEN_ROWS, ids=[row[0].name for row in GOLDEN_ROWS])
def test_golden_rows(layout, text, scales):
    data, scale = codec.quantise(golden.ROW[None], layout)
    want = golden.from_hex(text)
    assert data.shape == (1, layout.data_bytes)
    assert data[0, : len(want)].tolist() == want
    assert scale[0, : len(scales)].tolist() == scales


def test_v4_keeps_the_rotated_channels_in_bf16():
    row = golden.ROW.clone()
    row[448:] = torch.arange(64) + 1 / 3
    data, scales = codec.quantise(row[None], V4)
    assert scales.shape == (1, 7)
    assert torch.equal(data[0, 448:].view(torch.bfloat16), row[448:].bfloat16())


def test_compressed_rows_are_rounded_twice_for_an_fp8_cache():
    data, _ = codec.quantise(codec.fake_quant_kv(golden.ROW[None]), V41)
    assert data[0, :32].tolist() == golden.from_hex(golden.V41_AFTER_FAKE_QUANT)


def test_fake_quantisation_clears_a_negative_zero_and_keeps_a_small_negative():
    got = codec.fake_quant_kv(golden.TILE[None])[0]
    want = [0.5, -0.5, 0, -0.0, 1, -1, 2, -2, 3, 0.0, 0.0, 0.5, -0.5, 6, -6, 1]
    assert got.tolist() == want
    assert got.signbit().tolist() == [math.copysign(1, value) < 0 for value in want]


@pytest.mark.parametrize("maximum", [maximum for maximum, _ in golden.FP4_SCALES])
def test_the_reciprocal_of_the_first_stage_gives_the_same_scale_for_bf16(maximum):
    tile = golden.tiles_with_maximum(torch.tensor([maximum]).bfloat16().float(), 16)
    scale = codec.e4m3_decode(codec.fp4_scale(tile)).item()
    assert codec.fake_quant_kv(tile).abs().max().item() in [grid * scale for grid in golden.E2M1_GRID]


@pytest.mark.parametrize(("factor", "fake", "packed"), golden.INDEX_SCALES)
def test_the_two_stages_of_the_index(factor, fake, packed):
    row = golden.index_row(factor)[None]
    values = codec.fake_quant_index(row)
    step = 2.0 ** (fake - 127)
    assert set((values / step).abs().flatten().tolist()) <= set(golden.E2M1_GRID)
    assert not set((values / (2 * step)).abs().flatten().tolist()) <= set(golden.E2M1_GRID)
    payload, scales = codec.index_pack(values)
    assert scales.tolist() == [[packed] * 4]
    if factor in golden.INDEX_CODES:
        codes = torch.stack([payload & 15, payload >> 4], -1).flatten()
        assert "".join(f"{code:x}" for code in codes[:32].tolist()) == golden.INDEX_CODES[factor]


@pytest.mark.parametrize("factor", [1.0, 1e-3, 0.2])
def test_packing_a_fake_quantised_index_row_loses_nothing(factor):
    values = codec.fake_quant_index(golden.index_row(factor)[None])
    back = codec.index_unpack(*codec.index_pack(values))
    assert torch.equal(back.float(), values + 0.0)


def test_the_even_channel_lies_in_the_low_nibble():
    assert codec.pack_nibbles(torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8)).tolist() == [[0x21, 0x0F]]


def test_dequantise_decodes_by_hand():
    fp4_data = torch.zeros(1, 256, dtype=torch.uint8)
    fp4_scales = torch.full((1, 32), 0x38, dtype=torch.uint8)
    fp4_data[0, 8], fp4_scales[0, 1] = 0x8F, 0x40  # byte 8 begins the second tile: -6 and -0.0, times 2
    row = codec.dequantise(fp4_data, fp4_scales, V41_FP4)[0].float()
    assert row[16].item() == -12.0
    assert row[17].item() == 0.0
    assert row[17].signbit()
    assert row.count_nonzero() == 1


def test_a_bf16_product_is_rounded_once():
    """Every e4m3 code times every scale, against the product of exact rationals; below the normal range it rounds."""
    codes = torch.arange(256, dtype=torch.uint8)
    for byte in (0, 1, 2, 3, 120, 127, 246, 254):
        scales = torch.full((1, 16), byte, dtype=torch.uint8)
        got = codec.dequantise(codes.repeat(2)[None], scales, V41)[0, :256].float()
        exact = torch.tensor([e4m3_value(code) * 2.0 ** (byte - 127) for code in range(256)], dtype=torch.float64)
        want = exact.float().bfloat16().float()
        assert torch.equal(got.nan_to_num(nan=-7.0), want.nan_to_num(nan=-7.0))
        assert torch.equal(got.signbit()[:255], want.signbit()[:255])


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda layout: layout.name)
def test_written_rows_are_read_back_and_nothing_else_changes(layout):
    cache = torch.full((2, layout.page_bytes(64)), 0xA5, dtype=torch.uint8)
    rows = codec.quantise(golden.ROW.repeat(2, 1) * torch.tensor([[1.0], [0.5]]), layout)
    paged.write_rows(cache, torch.tensor([3, 127]), rows, 64, layout)
    data, scales = paged.read_rows(cache, torch.tensor([3, 127]), 64, layout)
    used = rows[1].shape[1]
    assert torch.equal(data, rows[0])
    assert torch.equal(scales[:, :used], rows[1])
    assert (scales[:, used:] == 0xA5).all()
    assert (cache != 0xA5).sum() <= 2 * (layout.data_bytes + used)


def test_a_row_of_zeros_stays_zero_under_the_norm():
    assert codec.rms_norm(torch.zeros(1, 512), torch.ones(512), 1e-20).count_nonzero() == 0


def test_the_norm_of_a_simple_row():
    """256 times 2, 64 times 4, the rest 0: the mean square is 4."""
    row = torch.cat([torch.full((256,), -2.0), torch.full((64,), 4.0), torch.zeros(192)])
    weight = torch.linspace(0.5, 1.5, 512).bfloat16()
    assert torch.equal(codec.rms_norm(row[None], weight, 1e-20)[0], row / 2 * weight.float())


def quarter_turn() -> torch.Tensor:
    """A table of two rows: no turn, and a quarter turn."""
    return torch.tensor([[1.0, 0.0] * 32, [0.0, 1.0] * 32])


@pytest.mark.parametrize(("inverse", "want"), [(False, (-2.0, 1.0)), (True, (2.0, -1.0))])
def test_a_quarter_turn_of_the_tail(inverse, want):
    x = torch.tensor([1.0, 2.0]).repeat(256).repeat(2, 1)
    got = codec.rotate_tail(x, quarter_turn(), torch.tensor([0, 1]), inverse)
    assert torch.equal(got[0], x[0])
    assert torch.equal(got[1, :448], x[1, :448])
    assert torch.equal(got[1, 448:], torch.tensor(want).repeat(32))


def test_heads_of_a_row_turn_alike():
    x = torch.randn(2, 3, 128, generator=torch.Generator().manual_seed(1))
    got = codec.rotate_tail(x, quarter_turn(), torch.tensor([1, 0]))
    assert torch.equal(got[0, 1], codec.rotate_tail(x[:1, 1], quarter_turn(), torch.tensor([1]))[0])
    assert torch.equal(got[1], x[1])


def test_the_order_of_the_fma_is_pinned():
    """The inner product is rounded to f32 and the outer is not: a * c survives in full beside a rounded b * s."""
    a = b = c = s = torch.tensor(1 + 2**-12, dtype=torch.float32)
    x = torch.cat([torch.zeros(62), a[None], b[None]])[None]
    table = torch.stack([c, s]).repeat(32)[None]
    real, imaginary = codec.rotate_tail(x, table, torch.tensor([0]))[0, -2:].tolist()
    exact, rounded = Fraction(1 + 2**-12) ** 2, Fraction(1 + 2**-11)
    assert Fraction(real) == exact - rounded == Fraction(1, 2**24)
    assert Fraction(imaginary) == Fraction(2 + 2**-10)


# ---- how many codes two caches are apart


def caches(layout, changes):
    """Two caches of two pages with two slots; `changes` are (byte of a page, want, got)."""
    want = torch.full((2, layout.page_bytes(2)), 0x38, dtype=torch.uint8)
    got = want.clone()
    for place, one, other in changes:
        want[1, place], got[1, place] = one, other
    return got, want


@pytest.mark.parametrize(
    ("layout", "changes", "gaps"),
    [
        (V41, [(0, 0x7E, 0x7D)], [1]),
        (V41, [(447, 0x01, 0x82)], [3]),
        (V41, [(0, 0x80, 0x00)], [0]),
        (V41, [(448, 0x01, 0x82), (511, 0x00, 0x70)], []),
        (V41, [(512 + 31, 0x10, 0x12), (2 * 512, 120, 121), (2 * 512 + 16 + 1, 119, 117)], [1, 2, 2]),
        (V41, [(5, 0x10, 0x20), (2 * 512, 120, 121)], [1]),
        (V4, [(447, 0x38, 0x3A), (448, 0x38, 0x7F), (576, 0x38, 0x36)], [2, 2]),
        (V4, [(384, 0x38, 0x7F), (2 * 576 + 6, 0x38, 0x39)], [1]),
        (V41_FP4, [(0, 0x21, 0x31)], [0, 1]),
        (V41_FP4, [(511, 0x21, 0x2A)], [3, 0]),
        (V41_FP4, [(7, 0x21, 0x77), (8, 0x21, 0x23), (512, 0x40, 0x42)], [2, 2, 0]),
        (INDEX_K, [(16, 0x80, 0x10), (2 * 64, 120, 124), (0, 0x00, 0x77)], [4, 0, 1]),
        (V41_NEW, [(528 + 447, 0x01, 0x82), (528 + 448, 0x01, 0x7F), (512, 120, 121), (31, 0x10, 0x12)], [3, 1]),
        (V41_FP4_NEW, [(288 + 255, 0x21, 0x2A), (256, 0x40, 0x42), (7, 0x21, 0x77)], [3, 0, 2]),
        (UNIFORM_FP8, [(512 + 447, 0x01, 0x82), (448, 0x01, 0x7E), (0, 0x80, 0x00)], [3, 0]),
        (INDEX_K_FP8, [(128 + 127, 0x7E, 0x7C), (2 * 128 + 3, 0x3B, 0x3C), (0, 0x01, 0x81)], [2, 2]),
    ],
    ids=[
        "v41 neighbours",
        "v41 across zero",
        "v41 both zeros",
        "v41 rotated channels",
        "v41 second row and two scales",
        "v41 below a scale that moved",
        "v4 rotated channels",
        "v4 below a scale that moved",
        "fp4 high nibble",
        "fp4 low nibble across zero, last byte",
        "fp4 below a scale that moved, and beside it",
        "index key below a scale that moved, and beside it",
        "v41_new second row, rotated channel, below a scale that moved",
        "fp4_new low nibble of the last byte, below a scale that moved",
        "uniform second row, rotated channel, both zeros",
        "fp8 index key under an f32 scale that moved",
    ],
)
def test_gaps_between_codes(layout, changes, gaps):
    found = paged.code_gaps(*caches(layout, changes), 2, layout)
    assert sorted(found.tolist()) == sorted(gaps)


def test_gaps_of_what_a_compressor_wrote():
    changes = [(0, 0x10, 0x20), (2 * 512, 120, 122)]
    assert paged.compressed_code_gaps(*caches(V41, changes), 2, V41).tolist() == [2]
    assert paged.compressed_code_gaps(*caches(V41_FP4, [(0, 0x21, 0x41)]), 2, V41_FP4).tolist() == [0, 2]
    assert paged.compressed_code_gaps(*caches(V41_FP4_NEW, [(288, 0x21, 0x41)]), 2, V41_FP4_NEW).tolist() == [0, 2]
    assert paged.compressed_code_gaps(*caches(UNIFORM_FP8, [(0, 0x21, 0x41)]), 2, UNIFORM_FP8).tolist() == []


@pytest.mark.parametrize(
    ("limit", "layout"),
    [(1, V4), (1, V41), (1, V41_FP4), (1, V41_NEW), (1, V41_FP4_NEW), (1, UNIFORM_FP8), (2, INDEX_K)],
    ids=lambda value: str(getattr(value, "name", value)),
)
def test_a_step_of_bf16_before_the_rotation_moves_a_code_no_further(limit, layout):
    """So much may a provider differ by whose sum of squares goes another way (specification 3.2)."""
    generator = torch.Generator().manual_seed(20)
    x = torch.randn(512, 128 if layout == INDEX_K else 512, generator=generator).bfloat16()
    step = torch.randint(-1, 2, x.shape, generator=generator, dtype=torch.int16)
    written = [rotated_rows(one, layout) for one in (x, (x.view(torch.int16) + step).view(torch.bfloat16))]
    gaps = paged.code_gaps(*written, 64, layout)
    assert len(gaps) > 100
    assert int(gaps.max()) <= limit


def rotated_rows(x, layout):
    """The cache of rows that were rotated by as many radians as their number."""
    angles = torch.arange(64)[:, None].expand(64, 32)
    freqs = torch.stack([angles.cos(), angles.sin()], dim=-1).reshape(64, 64).contiguous()
    rotated = codec.rotate_tail(x.float(), freqs, torch.arange(512) % 64).bfloat16().float()
    rows = codec.index_pack(codec.fake_quant_index(rotated)) if layout == INDEX_K else codec.quantise(rotated, layout)
    cache = torch.zeros(8, layout.page_bytes(64), dtype=torch.uint8)
    paged.write_rows(cache, torch.arange(512), rows, 64, layout)
    return cache
