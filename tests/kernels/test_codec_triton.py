"""The Triton quantisers against golden vectors and the torch oracle, bit for bit."""

import numpy as np
import pytest
import torch

from dsv4bench.kernels import codec, paged
from dsv4bench.kernels.codec_index_triton import fake_quant_index, pack_index_keys, quantise_index
from dsv4bench.kernels.codec_triton import (
    e2m1_code,
    e2m1_decode,
    e2m1_grid,
    e2m1_quotient,
    e4m3_decode,
    e4m3_encode,
    fake_quant_kv,
    pack_nibbles,
    quantise_fp4,
    quantise_v4,
    quantise_v41,
    sign_bit,
    ue8m0_decode,
    ue8m0_inverse,
    unpack_nibbles,
)
from dsv4bench.kernels.contract import same_bits
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import INDEX_K, LAYOUTS, UNIFORM_FP8, V4, V41, V41_FP4, V41_FP4_NEW, V41_NEW
from dsv4bench.kernels.paged_triton import (
    encoding_of,
    is_interleaved,
    paged_constants,
    slot_offsets,
    store_compressed_rows,
    store_index_rows,
    store_rows,
)
from tests import interpreter
from tests.kernels import golden
from tests.kernels.test_codec import MILLIONS

BLOCK = 4096


@triton.jit
def encode_values(x_ptr, e4m3_ptr, e2m1_ptr, grid_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    tl.store(e4m3_ptr + at, e4m3_encode(x))
    magnitude = tl.minimum(tl.abs(x), 6.0)
    tl.store(e2m1_ptr + at, e2m1_code(magnitude) | sign_bit(x))
    tl.store(grid_ptr + at, e2m1_grid(magnitude))


@triton.jit
def divide(magnitude_ptr, scale_ptr, code_ptr, count, SCALES: tl.constexpr, VALUES: tl.constexpr):
    row = tl.program_id(0) * SCALES + tl.arange(0, SCALES)
    column = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    magnitude = tl.load(magnitude_ptr + column)[None, :] + tl.zeros((SCALES, 1), tl.float32)
    code = e2m1_code(e2m1_quotient(magnitude, tl.load(scale_ptr + row)))
    tl.store(code_ptr + row[:, None] * count + column[None, :], code)


@triton.jit
def decode_bytes(byte_ptr, e4m3_ptr, ue8m0_ptr, inverse_ptr, e2m1_ptr):
    at = tl.arange(0, 256)
    byte = tl.load(byte_ptr + at)
    tl.store(e4m3_ptr + at, e4m3_decode(byte))
    tl.store(ue8m0_ptr + at, ue8m0_decode(byte))
    tl.store(inverse_ptr + at, ue8m0_inverse(byte))
    tl.store(e2m1_ptr + at, e2m1_decode(byte & 15))


@triton.jit
def turn_nibbles(byte_ptr, codes_ptr, back_ptr):
    row = tl.arange(0, 2)[:, None] * 128
    packed = tl.load(byte_ptr + row + tl.arange(0, 128)[None, :])
    codes = unpack_nibbles(packed)
    tl.store(codes_ptr + 2 * row + tl.arange(0, 256)[None, :], codes)
    tl.store(back_ptr + row // 4 + tl.arange(0, 32)[None, :], pack_nibbles(codes.to(tl.int32)))


@triton.jit
def quantise_tiles(x_ptr, codes_ptr, scales_ptr, RULE: tl.constexpr, TILES: tl.constexpr, WIDTH: tl.constexpr):
    tile = tl.program_id(0) * TILES + tl.arange(0, TILES)
    at = tile[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    x = tl.load(x_ptr + at)
    if RULE == "v4":
        codes, scales = quantise_v4(x)
    elif RULE == "v41":
        codes, scales = quantise_v41(x)
    elif RULE == "fp4":
        codes, scales = quantise_fp4(x)
    else:
        codes, scales = quantise_index(x)
    tl.store(codes_ptr + at, codes)
    tl.store(scales_ptr + tile, scales)


@triton.jit
def fake_quantise(x_ptr, out_ptr, INDEX: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * 128 + tl.arange(0, 128)[None, :]
    x = tl.load(x_ptr + at)
    y = fake_quant_index(x) if INDEX else fake_quant_kv(x)
    tl.store(out_ptr + at, y)


@triton.jit
def write_rows(
    x_ptr,
    slots_ptr,
    cache_ptr,
    n,
    LAYOUT: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    slots = tl.load(slots_ptr + row, mask=row < n, other=-1)
    live = slots >= 0
    x = tl.load(x_ptr + row[:, None] * 512 + tl.arange(0, 512)[None, :], mask=live[:, None], other=0.0)
    store_rows(cache_ptr, slots, live, x, LAYOUT, PAGE_SIZE, PAGE_BYTES)


@triton.jit
def write_compressed(x_ptr, cache_ptr, LAYOUT: tl.constexpr, PAGE_SIZE: tl.constexpr, PAGE_BYTES: tl.constexpr):
    row = tl.program_id(0) * 32 + tl.arange(0, 32)
    x = tl.load(x_ptr + row[:, None] * 512 + tl.arange(0, 512)[None, :])
    store_compressed_rows(cache_ptr, row, row >= 0, x, LAYOUT, PAGE_SIZE, PAGE_BYTES)


@triton.jit
def pack_keys(x_ptr, payload_ptr, scales_ptr):
    row = tl.program_id(0) * 128 + tl.arange(0, 128)
    payload, scales = pack_index_keys(tl.load(x_ptr + row[:, None] * 128 + tl.arange(0, 128)[None, :]))
    tl.store(payload_ptr + row[:, None] * 16 + tl.arange(0, 16)[None, :], payload)
    tl.store(scales_ptr + row[:, None] * 4 + tl.arange(0, 4)[None, :], scales)


@triton.jit
def write_index_rows(payload_ptr, scales_ptr, slots_ptr, cache_ptr, PAGE_SIZE: tl.constexpr):
    row = tl.arange(0, 4)
    slots = tl.load(slots_ptr + row)
    payload = tl.load(payload_ptr + row[:, None] * 16 + tl.arange(0, 16)[None, :])
    scales = tl.load(scales_ptr + row[:, None] * 4 + tl.arange(0, 4)[None, :])
    store_index_rows(cache_ptr, slots, slots >= 0, payload, scales, PAGE_SIZE)


@triton.jit
def place_slots(
    slots_ptr, data_ptr, scale_ptr, PAGE_SIZE: tl.constexpr, PAGE_BYTES: tl.constexpr, INTERLEAVED: tl.constexpr
):
    at = tl.arange(0, 4)
    data, scale = slot_offsets(tl.load(slots_ptr + at), PAGE_SIZE, PAGE_BYTES, 512, 16, INTERLEAVED)
    tl.store(data_ptr + at, data)
    tl.store(scale_ptr + at, scale)


def u8(*shape: int, device: str) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8, device=device)


def padded(values: torch.Tensor) -> torch.Tensor:
    """Fill up with zeros to whole blocks."""
    return torch.nn.functional.pad(values, (0, -len(values) % BLOCK))


def quantised(rule: str, tiles: torch.Tensor, tiles_a_program: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    short = -len(tiles) % tiles_a_program
    x = torch.nn.functional.pad(tiles, (0, 0, 0, short)).contiguous()
    codes, scales = u8(*x.shape, device=x.device), u8(len(x), device=x.device)
    grid = (len(x) // tiles_a_program,)
    quantise_tiles[grid](x, codes, scales, RULE=rule, TILES=tiles_a_program, WIDTH=x.shape[1])
    return codes[: len(tiles)], scales[: len(tiles)]


def test_every_bf16_and_every_tie_is_encoded_as_the_oracle_does(triton_device):
    edges = torch.tensor([*(tie for tie, _ in golden.E2M1_TIES), *golden.E2M1_GRID[1:]])
    near = (edges.view(torch.int32)[:, None] + torch.arange(-1024, 1025, dtype=torch.int32)).view(torch.float32)
    near = near.flatten()
    drawn = torch.randn(20_000, generator=torch.Generator().manual_seed(4)) * 4
    x = padded(torch.cat([golden.all_bf16().float(), near, -near, drawn])).to(triton_device)
    e4m3, e2m1, grid = u8(len(x), device=x.device), u8(len(x), device=x.device), torch.full_like(x, float("nan"))
    encode_values[(len(x) // BLOCK,)](x, e4m3, e2m1, grid, BLOCK=BLOCK)
    assert torch.equal(e4m3, codec.e4m3_encode(x))
    assert torch.equal(e2m1, codec.e2m1_encode(x))
    assert torch.equal(grid, codec.e2m1_decode(e2m1 & 7))


def every_magnitude() -> torch.Tensor:
    """Every finite bf16 that is not negative, as f32: 32 640 of them."""
    return torch.arange(0x7F80, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()


def every_scale() -> torch.Tensor:
    """The 126 values of e4m3 that an FP4 tile may have as its scale."""
    return codec.e4m3_decode(torch.arange(1, 127, dtype=torch.uint8))


def test_every_bf16_divided_by_every_scale_takes_the_code_of_the_true_quotient(triton_device):
    """Four million quotients; the scales are filled up to 128."""
    magnitudes = torch.cat([every_magnitude(), torch.zeros(128)])
    scales = torch.cat([every_scale(), torch.ones(2)])
    got = u8(128, len(magnitudes), device=triton_device)
    grid = (128 // 8, len(magnitudes) // 2048)
    divide[grid](magnitudes.to(triton_device), scales.to(triton_device), got, len(magnitudes), SCALES=8, VALUES=2048)
    for scale, codes in zip(scales, got.cpu(), strict=True):
        assert torch.equal(codes, codec.e2m1_encode(magnitudes / scale)), f"scale {scale}"


@pytest.mark.parametrize("off", [-8, 8])
def test_the_quotient_forgives_a_reciprocal_that_is_eight_last_places_off(off):
    """The quotient grows with the reciprocal, so that the ends speak for what lies between them."""
    magnitudes, scales = every_magnitude(), every_scale()[:, None]
    near = [(magnitudes >= scale / 8) & (magnitudes <= scale * 8) for scale in scales]  # elsewhere codes are 0 and 7
    for scale, chosen in zip(scales, near, strict=True):
        x = magnitudes[chosen]
        inverse = ((1 / scale).view(torch.int32) + off).view(torch.float32).expand_as(x)
        summed = interpreter.fma(x.numpy(), inverse.numpy(), np.float32(12288))
        got = torch.from_numpy(summed - np.float32(12288))
        assert torch.equal(codec.e2m1_encode(got), codec.e2m1_encode(x / scale)), f"scale {scale.item()}"


def under_each_maximum(width: int, seed: int) -> torch.Tensor:
    """Tiles of bf16, one for each magnitude as the largest: near it, far below, some zeros, and either sign."""
    draw = torch.Generator().manual_seed(seed)
    largest = every_magnitude()[:, None]
    reach = torch.tensor([0x0180_0000, 0x0800_0000], dtype=torch.int32)[torch.arange(len(largest)) % 2][:, None]
    below = (largest.view(torch.int32) - (torch.rand(len(largest), width, generator=draw) * reach).int()).clamp(min=0)
    tiles = below.view(torch.float32).bfloat16().float().minimum(largest)
    tiles[torch.rand(tiles.shape, generator=draw) < 0.05] = 0.0
    tiles[:, seed % width] = largest[:, 0]
    return tiles * torch.where(torch.rand(tiles.shape, generator=draw) < 0.5, 1.0, -1.0)


@pytest.mark.parametrize("layout", [V4, V41, V41_FP4, UNIFORM_FP8], ids=lambda layout: layout.name)
def test_compressed_rows_of_every_maximum_are_those_of_the_oracle(layout, triton_device):
    """The maximum of a fake-quantised tile is not looked for again: it is the maximum, rounded."""
    tiles = under_each_maximum(16, seed=7)
    shuffled = tiles[torch.randperm(len(tiles), generator=torch.Generator().manual_seed(8))]
    x = torch.cat([tiles, shuffled, tiles[: -2 * len(tiles) % (32 * 32)]]).view(-1, 512).to(triton_device)
    pages = -(-len(x) // 64)
    got = torch.full((pages, layout.page_bytes(64)), 0xA5, dtype=torch.uint8, device=triton_device)
    want = got.clone()
    write_compressed[(len(x) // 32,)](x, got, **paged_constants(layout, 64))
    codec.write_compressed(want, torch.arange(len(x), device=triton_device), x.bfloat16(), 64, layout)
    assert torch.equal(got, want)


def test_index_keys_of_every_maximum_take_the_codes_of_both_stages(triton_device):
    """From 3.5 * 2^126 on the first stage gives infinity, which no code stands for."""
    tiles = under_each_maximum(32, seed=9)
    tiles = tiles[: int((every_magnitude() < 3.5 * 2.0**126).sum())]
    assert codec.fake_quant_index(torch.full((1, 32), 3.5 * 2.0**126)).isinf().all()
    x = torch.cat([tiles, tiles[: -len(tiles) % (4 * 128)]]).view(-1, 128).to(triton_device)
    payload, scales = u8(len(x), 64, device=x.device), u8(len(x), 4, device=x.device)
    pack_keys[(len(x) // 128,)](x, payload.view(torch.int32), scales)
    want = codec.index_pack(codec.fake_quant_index(x))
    assert torch.equal(scales, want[1])
    assert torch.equal(payload, want[0])


def test_every_byte_is_decoded_as_the_oracle_does(triton_device):
    byte = torch.arange(256, dtype=torch.uint8, device=triton_device)
    e4m3, ue8m0, inverse, e2m1 = torch.zeros(4, 256, device=triton_device)
    decode_bytes[(1,)](byte, e4m3, ue8m0, inverse, e2m1)
    assert same_bits(e4m3, codec.e4m3_decode(byte)).all()
    assert same_bits(ue8m0, codec.ue8m0_decode(byte)).all()
    assert same_bits(e2m1, codec.e2m1_decode(byte & 15)).all()
    assert torch.equal(inverse[1:254], 1 / codec.ue8m0_decode(byte)[1:254])


def test_nibbles_come_apart_and_together(triton_device):
    byte = torch.arange(256, dtype=torch.uint8, device=triton_device)
    codes, back = u8(512, device=triton_device), u8(256, device=triton_device)
    turn_nibbles[(1,)](byte, codes, back.view(torch.int32))
    assert torch.equal(codes[0::2], byte & 15)
    assert torch.equal(codes[1::2], byte >> 4)
    assert torch.equal(back, byte)


@pytest.mark.parametrize("rule", ["v4", "v41", "fp4"])
def test_golden_scales(rule, triton_device):
    maxima, want = zip(*golden.SCALES[rule], strict=True)
    tiles = golden.tiles_with_maximum(torch.tensor(maxima), golden.TILE_WIDTH[rule]).to(triton_device)
    assert quantised(rule, tiles)[1].tolist() == list(want)


@pytest.mark.parametrize(
    ("rule", "oracle"), [("v4", codec.v4_scale), ("v41", codec.v41_scale), ("fp4", codec.fp4_scale)]
)
def test_every_bf16_maximum_gives_the_scale_of_the_oracle(rule, oracle, triton_device):
    """The rules do not ask how wide a tile is; narrow ones keep the interpreter quick."""
    maxima = golden.all_bf16().float()
    tiles = golden.tiles_with_maximum(maxima[~maxima.signbit()], 4).to(triton_device)
    assert torch.equal(quantised(rule, tiles, 2048)[1], oracle(tiles).flatten())


@MILLIONS
@pytest.mark.parametrize(
    ("rule", "oracle"), [("v4", codec.v4_scale), ("v41", codec.v41_scale), ("fp4", codec.fp4_scale)]
)
def test_random_maxima_give_the_scale_of_the_oracle(rule, oracle, millions, triton_device):
    for maxima in golden.hard_maxima(millions):
        tiles = golden.tiles_with_maximum(maxima, 2).to(triton_device)
        assert torch.equal(quantised(rule, tiles, 2**17)[1], oracle(tiles).flatten())


@pytest.mark.parametrize("rule", ["v4", "v41", "fp4"])
def test_codes_at_the_edges_of_every_scale(rule, triton_device):
    """Each e4m3 or e2m1 tie, times powers of two around the golden maxima, in tiles of their own."""
    width = golden.TILE_WIDTH[rule]
    unit = torch.tensor([tie for tie, _ in golden.E2M1_TIES] + [6.0]) if rule == "fp4" else torch.arange(1, 33) * 14.5
    tiles = torch.zeros(2 * 40, width)
    tiles[:40, : len(unit)] = unit * 2.0 ** torch.arange(-20.0, 20.0)[:, None]
    tiles[40:] = -tiles[:40]
    tiles = tiles.to(triton_device)
    codes, scales = quantised(rule, tiles)
    scale = (codec.e4m3_decode if rule == "fp4" else codec.ue8m0_decode)(scales)[:, None]
    encode = codec.e2m1_encode if rule == "fp4" else codec.e4m3_encode
    assert torch.equal(codes, encode(tiles / scale))


@pytest.mark.parametrize("index", [False, True], ids=["kv", "index"])
def test_fake_quantisation_is_that_of_the_oracle(index, triton_device):
    drawn = torch.randn(60, 128, generator=torch.Generator().manual_seed(5))
    drawn *= 2.0 ** torch.arange(-40.0, 20.0)[:, None]
    edges = torch.stack([golden.ROW[:128], *(golden.index_row(factor) for factor, *_ in golden.INDEX_SCALES[1:])])
    x = torch.cat([edges, drawn]).bfloat16().float().to(triton_device)
    got = torch.full_like(x, float("nan"))
    fake_quantise[(len(x) // 4,)](x, got, INDEX=index, ROWS=4)
    want = (codec.fake_quant_index if index else codec.fake_quant_kv)(x)
    assert same_bits(got, want).all()
    assert same_bits(got, got.bfloat16().float()).all()


@pytest.mark.parametrize(("factor", "fake", "packed"), golden.INDEX_SCALES)
def test_the_pack_stage_of_the_index(factor, fake, packed, triton_device):
    tiles = codec.fake_quant_index(golden.index_row(factor)).view(4, 32).to(triton_device)
    codes, scales = quantised("index", tiles)
    assert scales.tolist() == [packed] * 4
    payload, _ = codec.index_pack(tiles.view(1, 128))
    assert torch.equal(codec.pack_nibbles(codes).flatten(), payload.flatten())
    if factor in golden.INDEX_CODES:
        assert "".join(f"{code:x}" for code in codes[0].tolist()) == golden.INDEX_CODES[factor]


GOLDEN_ROWS = [
    (V41_FP4, golden.FP4_BYTES, [golden.FP4_SCALE, 0x30]),
    (V41, golden.V41_BYTES, [121, 119]),
    (V4, golden.V4_BYTES, [121, 121]),
    (V41_NEW, golden.V41_BYTES, [121, 119]),
    (V41_FP4_NEW, golden.FP4_BYTES, [golden.FP4_SCALE, 0x30]),
    (UNIFORM_FP8, golden.UNIFORM_BYTES, []),
]


@pytest.mark.parametrize("slot", [0, 5, 300], ids=lambda slot: f"slot-{slot}")
@pytest.mark.parametrize(("layout", "text", "scales"), GOLDEN_ROWS, ids=[row[0].name for row in GOLDEN_ROWS])
def test_a_golden_row_lies_at_its_slot_and_nowhere_else(layout, text, scales, slot, triton_device):
    page_bytes = layout.page_bytes(256)
    cache = torch.full((2, page_bytes), 0xA5, dtype=torch.uint8, device=triton_device)
    slots = torch.tensor([-1, slot, -1], device=triton_device)
    x = torch.stack([golden.ROW * 3, golden.ROW, golden.ROW * 5]).to(triton_device)
    write_rows[(1,)](x, slots, cache, 3, **paged_constants(layout, 256), ROWS=4)
    flat, want = cache.view(-1), golden.from_hex(text)
    data, scale = (slot // 256 * page_bytes + place for place in golden.slot_place(layout.name, 256, slot % 256))
    assert flat[data : data + len(want)].tolist() == want
    assert flat[scale : scale + len(scales)].tolist() == scales
    flat[data : data + layout.data_bytes] = 0xA5
    flat[scale : scale + (7 if layout == V4 else layout.scale_bytes)] = 0xA5
    assert (cache == 0xA5).all()


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda layout: layout.name)
def test_random_rows_become_the_bytes_of_the_oracle(layout, triton_device):
    x = torch.randn(14, 512, generator=torch.Generator().manual_seed(6)) * 2.0 ** torch.arange(-9.0, 5.0)[:, None]
    x = x.bfloat16().float().to(triton_device)
    slots = torch.arange(14, device=triton_device, dtype=torch.int32) * 9
    got = torch.full((2, layout.page_bytes(64)), 0xA5, dtype=torch.uint8, device=triton_device)
    want = got.clone()
    write_rows[(4,)](x, slots, got, 14, **paged_constants(layout, 64), ROWS=4)
    paged.write_rows(want, slots, codec.quantise(x, layout), 64, layout)
    assert torch.equal(got, want)


def test_v4_rounds_the_rotated_channels_of_an_f32_row_once(triton_device):
    x = torch.full((1, 512), 1.0 + 2**-8 + 2**-20, device=triton_device)  # above a tie of bf16
    cache = u8(1, V4.page_bytes(2), device=triton_device)
    write_rows[(1,)](x, torch.tensor([1], device=triton_device), cache, 1, **paged_constants(V4, 2), ROWS=1)
    tail = cache[0, 576 + 448 : 576 + 576].view(torch.bfloat16)
    assert (tail == 1 + 2**-7).all()


def test_index_rows_lie_at_their_slots(triton_device):
    payload = torch.arange(256, dtype=torch.uint8, device=triton_device).view(4, 64)
    scales = torch.arange(100, 116, dtype=torch.uint8, device=triton_device).view(4, 4)
    slots = torch.tensor([7, -1, 64 + 63, 0], device=triton_device)
    cache = torch.full((2, 64 * INDEX_K.row_bytes), 0xEE, dtype=torch.uint8, device=triton_device)
    want = cache.clone()
    write_index_rows[(1,)](payload.view(torch.int32), scales, slots, cache, PAGE_SIZE=64)
    for row, (page, index) in {0: (0, 7), 2: (1, 63), 3: (0, 0)}.items():
        want[page, index * 64 : index * 64 + 64] = payload[row]
        want[page, 64 * 64 + index * 4 : 64 * 64 + index * 4 + 4] = scales[row]
    assert torch.equal(cache, want)


@pytest.mark.parametrize("interleaved", [False, True], ids=["block-split", "interleaved"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["i32", "i64"])
def test_addresses_do_not_wrap_at_two_gib(dtype, interleaved, triton_device):
    """Slot 8 000 044 of a V41 pool lies beyond 2^31 bytes, whatever the type of its id."""
    slots = torch.tensor([0, 300, 8_000_044, 2**30], dtype=dtype, device=triton_device)
    data, scale = torch.zeros(2, 4, dtype=torch.int64, device=triton_device)
    place_slots[(1,)](slots, data, scale, PAGE_SIZE=256, PAGE_BYTES=135_168, INTERLEAVED=interleaved)
    page, index = slots.long() // 256 * 135_168, slots.long() % 256
    want = page + index * (528 if interleaved else 512)
    assert data.tolist() == want.tolist()
    assert scale.tolist() == (want + 512 if interleaved else page + 131_072 + index * 16).tolist()
    assert data[2] > 2**31


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda layout: layout.name)
def test_a_kernel_knows_a_layout_by_its_name(layout, triton_device):
    assert encoding_of(layout.name) == layout.encoding
    assert is_interleaved(layout.name) == layout.interleaved


def test_a_uniform_row_saturates_and_rounds_to_even(triton_device):
    """No scale: 17 is a tie that goes to 16 (0x58), 464 and 1e9 become 448 (0x7e), 2^-10 is a tie that goes to 0."""
    x = torch.zeros(1, 512, device=triton_device)
    x[0, :7] = torch.tensor([17.0, -17.0, 464.0, -1e9, 2.0**-10, -(2.0**-10), 3 * 2.0**-10])
    cache = u8(1, UNIFORM_FP8.page_bytes(2), device=triton_device)
    slots = torch.tensor([1], device=triton_device)
    write_rows[(1,)](x, slots, cache, 1, **paged_constants(UNIFORM_FP8, 2), ROWS=1)
    assert cache[0, 512:519].tolist() == [0x58, 0xD8, 0x7E, 0xFE, 0x00, 0x80, 0x02]
    assert cache.count_nonzero() == 6
    assert torch.equal(codec.quantise(x, UNIFORM_FP8)[0][0], cache[0, 512:])
