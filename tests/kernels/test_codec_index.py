"""V4's two forms of an index row: hand-made values, numpy's f32 arithmetic, and Triton against the oracle."""

import numpy as np
import pytest
import torch

from dsv4bench.kernels import codec_index
from dsv4bench.kernels.codec_index_triton import e2m1_encode_down, pack_index_c4_rows, quantise_index_fp8
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import INDEX_K_FP8
from dsv4bench.kernels.paged_triton import store_index_fp8_rows, store_index_rows
from tests.kernels import golden

# strictly above a threshold begins the next code; the threshold itself belongs to the smaller magnitude
THRESHOLDS = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]


@triton.jit
def encode_down(x_ptr, code_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(code_ptr + at, e2m1_encode_down(tl.load(x_ptr + at)))


@triton.jit
def pack_rows(x_ptr, slots_ptr, c4_ptr, fp8_ptr, PAGE_SIZE: tl.constexpr, ROWS: tl.constexpr):
    """Write rows f32 [R, 128] in both forms to slots [R]; a negative slot writes nothing."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    x = tl.load(x_ptr + row[:, None] * 128 + tl.arange(0, 128)[None, :])
    slots = tl.load(slots_ptr + row)
    payload, scales = pack_index_c4_rows(x)
    store_index_rows(c4_ptr, slots, slots >= 0, payload, scales, PAGE_SIZE)
    codes, scale = quantise_index_fp8(x)
    store_index_fp8_rows(fp8_ptr, slots, slots >= 0, codes, scale, PAGE_SIZE)


def down_by_search(value: float) -> int:
    """The nearest magnitude of the grid, the smaller of two that are as near; the sign unless that is zero."""
    gaps = [abs(min(abs(value), 6.0) - grid) for grid in golden.E2M1_GRID]
    code = gaps.index(min(gaps))
    return code | 8 if code and value < 0 else code


def around_thresholds() -> torch.Tensor:
    edges = torch.tensor(THRESHOLDS)
    up, down = edges.nextafter(torch.tensor(9.0)), edges.nextafter(torch.tensor(0.0))
    positive = torch.cat([down, edges, up, torch.tensor([0.0, 1e-30, 6.0, 7.0, 1e9])])
    return torch.cat([positive, -positive])


@pytest.mark.parametrize("place", range(7), ids=lambda place: f"threshold-{THRESHOLDS[place]}")
def test_a_threshold_itself_belongs_to_the_smaller_magnitude(place):
    edge = torch.tensor(THRESHOLDS[place])
    above = edge.nextafter(torch.tensor(9.0))
    sign = 8 if place else 0
    got = codec_index.e2m1_encode_down(torch.stack([edge, above, -edge, -above])).tolist()
    assert got == [place, place + 1, place | sign, (place + 1) | 8]


def test_a_negative_that_becomes_zero_loses_its_sign():
    assert codec_index.e2m1_encode_down(torch.tensor([-0.0, -1e-30, -0.25, -0.2500001, -7.0])).tolist() == [
        0,
        0,
        0,
        9,
        15,
    ]


def test_every_value_goes_down_as_a_search_of_the_grid_does():
    values = torch.cat([around_thresholds(), torch.randn(2000, generator=torch.Generator().manual_seed(3)) * 3])
    assert codec_index.e2m1_encode_down(values).tolist() == [down_by_search(value) for value in values.tolist()]


def c4_row(maxima: list[float]) -> torch.Tensor:
    """A row whose four tiles have these maxima, negative, in their last channels."""
    row = torch.zeros(1, 128)
    row[0, 31::32] = -torch.tensor(maxima)
    return row


@pytest.mark.parametrize(
    ("maxima", "scales", "codes"),
    [
        ([0.0, 6e-4, 7.32421875e-4, 7.3242198e-4], [114, 114, 114, 115], [0, 14, 15, 13]),
        ([6.0, 6.0000005, 12.0, 3.0], [127, 128, 128, 126], [15, 13, 15, 15]),
        ([2.0**-60, 3e38, 2.0**120, 3 * 2.0**-13], [114, 253, 245, 114], [0, 14, 14, 13]),
    ],
    ids=["floor", "powers-of-two", "extremes"],
)
def test_scales_of_the_c4_row(maxima, scales, codes):
    """The floor of 1e-4 becomes 2^-13 (byte 114), whose largest value is 6 * 2^-13 = 7.324e-4."""
    x = c4_row(maxima)
    payload, got = codec_index.index_pack_c4(x)
    assert got[0].tolist() == scales
    assert (payload[0, 15::16] >> 4).tolist() == codes
    payload[0, 15::16] &= 15
    assert payload.count_nonzero() == 0


def fp8_by_numpy(row: np.ndarray) -> tuple[np.float32, np.ndarray]:
    """The scale, and what the payload rounds: numpy's f32 arithmetic is IEEE's."""
    scale = np.maximum(np.abs(row).max(), np.float32(1e-4)) / np.float32(448)
    return scale, row * (np.float32(1) / scale)


@pytest.mark.parametrize("maximum", [0.0, 1e-4, 1.0, 3.25, 448.0, 1e6], ids=str)
def test_the_fp8_row_keeps_its_scale_unrounded(maximum):
    x = torch.linspace(-1, 1, 128)[None] * maximum
    payload, scales = codec_index.index_pack_fp8(x)
    scale, quotients = fp8_by_numpy(x[0].numpy())
    assert scales.view(torch.float32).item() == scale
    want = torch.from_numpy(quotients).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(payload[0], want)


def test_the_fp8_payload_takes_the_reciprocal():
    """0.3046875 / (3.25 / 448) is 42, a tie that goes to 40 (0x62); times the reciprocal it lies above: 44."""
    x = torch.zeros(1, 128)
    x[0, 5], x[0, 127] = 0.3046875, -3.25
    payload, _ = codec_index.index_pack_fp8(x)
    assert (payload[0, 5], payload[0, 127], payload[0, 0]) == (0x63, 0xFE, 0)


def test_the_fp8_row_comes_back_times_its_scale():
    payload, scales = torch.tensor([[0x38, 0xC0, 0x80] + [0x7F] * 125], dtype=torch.uint8), torch.tensor([[0.375]])
    row = codec_index.index_unpack_fp8(payload, scales.view(torch.uint8))[0]
    assert row[:3].tolist() == [0.375, -0.75, 0.0]
    assert row[2].signbit()
    assert row[3:].isnan().all()


def test_triton_rounds_down_as_the_oracle_does(triton_device):
    edges = around_thresholds()
    x = torch.cat([edges, torch.randn(1024 - len(edges), generator=torch.Generator().manual_seed(4)) * 3])
    got = torch.zeros(1024, dtype=torch.uint8, device=triton_device)
    encode_down[(1,)](x.to(triton_device), got, BLOCK=1024)
    assert torch.equal(got.cpu(), codec_index.e2m1_encode_down(x))


def test_triton_writes_both_rows_as_the_oracle_packs_them(triton_device):
    """Rows of many magnitudes, ties of both formats among them; two have no slot, and pages keep what nobody wrote."""
    x = torch.randn(16, 128, generator=torch.Generator().manual_seed(5)) * 10.0 ** torch.arange(-8.0, 8.0)[:, None]
    x[3, :8] = torch.tensor([0.25, -0.25, 0.75, 1.25, -1.75, 2.5, 3.5, -5.0])
    x[3, 8:], x[4], x[5, ::2], x[5, 1::2] = 6.0, 0.0, 0.3046875, 3.25
    slots = torch.randperm(128, generator=torch.Generator().manual_seed(6))[:16]
    slots[[2, 9]] = -1
    c4 = torch.full((2, 64 * 68), 0xA5, dtype=torch.uint8, device=triton_device)
    fp8 = torch.full((2, INDEX_K_FP8.page_bytes(64)), 0xA5, dtype=torch.uint8, device=triton_device)
    pack_rows[(4,)](x.to(triton_device), slots.to(triton_device), c4, fp8, PAGE_SIZE=64, ROWS=4)
    for cache, pack, width, scale_bytes in (
        (c4.cpu(), codec_index.index_pack_c4, 64, 4),
        (fp8.cpu(), codec_index.index_pack_fp8, 128, 4),
    ):
        payload, scales = pack(x)
        want = torch.full_like(cache, 0xA5)
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                page, index = divmod(slot, 64)
                want[page, index * width : (index + 1) * width] = payload[row]
                at = 64 * width + index * scale_bytes
                want[page, at : at + scale_bytes] = scales[row]
        assert torch.equal(cache, want)


def test_the_fp8_page():
    assert (INDEX_K_FP8.row_bytes, INDEX_K_FP8.page_bytes(64), INDEX_K_FP8.strides(64)) == (132, 8448, (128, 8192, 4))
