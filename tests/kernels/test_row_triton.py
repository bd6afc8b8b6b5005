"""Norm and rotation of rows in Triton: exact where the arithmetic is, near the oracle elsewhere."""

import pytest
import torch

from dsv4bench.kernels import codec
from dsv4bench.kernels.contract import same_bits
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.row_triton import load_rows, rms_norm, rotate_tail, round_bf16


@triton.jit
def norm(x_ptr, weight_ptr, out_ptr, rounded_ptr, n, stride, eps, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = row < n
    channel = tl.arange(0, 512)
    y = rms_norm(load_rows(x_ptr, row, stride, live, 512), tl.load(weight_ptr + channel).to(tl.float32), eps)
    at = row[:, None] * 512 + channel[None, :]
    tl.store(out_ptr + at, y, mask=live[:, None])
    tl.store(rounded_ptr + at, round_bf16(y), mask=live[:, None])


@triton.jit
def rotate(x_ptr, freqs_ptr, positions_ptr, live_ptr, out_ptr, WIDTH: tl.constexpr, INVERSE: tl.constexpr):
    row = tl.arange(0, 4)
    at = row[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    live = tl.load(live_ptr + row) != 0
    tl.store(out_ptr + at, rotate_tail(tl.load(x_ptr + at), freqs_ptr, tl.load(positions_ptr + row), live, INVERSE))


def normed(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out, rounded = torch.full((2, len(x), 512), float("nan"), device=x.device)
    norm[(-(-len(x) // 4),)](x, weight, out, rounded, len(x), x.stride(0), 1e-20, ROWS=4)
    return out, rounded


def test_rows_whose_mean_square_is_a_power_of_four_are_exact(triton_device):
    """256 times 2^k, 64 times 2^(k+1), the rest 0: the root of the mean square is 2^k."""
    row = torch.cat([torch.full((256,), -1.0), torch.full((64,), 2.0), torch.zeros(192)])
    factor = 2.0 ** torch.tensor([[0.0], [-20.0], [5.0]])
    weight = torch.linspace(0.5, 1.5, 512).bfloat16().to(triton_device)
    got, _ = normed((row * factor).bfloat16().to(triton_device), weight)
    assert torch.equal(got, (row.to(triton_device) * weight.float()).expand(3, 512))


def test_a_row_of_zeros_stays_zero(triton_device):
    x, weight = torch.zeros(1, 512, device=triton_device), torch.ones(512, device=triton_device)
    assert normed(x, weight)[0].count_nonzero() == 0


def test_random_rows_differ_from_the_oracle_by_the_order_of_a_sum_only(triton_device):
    drawn = torch.randn(32, 600, generator=torch.Generator().manual_seed(8)).bfloat16().to(triton_device)
    x, weight = drawn[:, 40:552], torch.linspace(0.5, 1.5, 512).bfloat16().to(triton_device)
    got, rounded = normed(x, weight)
    want = codec.rms_norm(x, weight, 1e-20)
    assert torch.allclose(got, want, rtol=2**-21, atol=0)
    assert same_bits(rounded, got.bfloat16().float()).all()


def turned(x: torch.Tensor, freqs: torch.Tensor, positions: torch.Tensor, live: list[int], inverse: bool):
    out = torch.full_like(x, float("nan"))
    flags = torch.tensor(live, device=x.device, dtype=torch.int32)
    rotate[(1,)](x, freqs, positions, flags, out, WIDTH=x.shape[1], INVERSE=inverse)
    return out


@pytest.mark.parametrize("inverse", [False, True], ids=["forward", "inverse"])
@pytest.mark.parametrize("width", [64, 128, 512])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["i32", "i64"])
def test_the_tail_turns_as_the_oracle_turns_it(width, inverse, dtype, triton_device):
    draw = torch.Generator().manual_seed(width)
    x, freqs = torch.randn(4, width, generator=draw), torch.randn(50, 64, generator=draw)
    x[1, :3], freqs[7] = -0.0, torch.tensor([1.0, 0.0]).repeat(32)
    x, freqs = x.to(triton_device), freqs.to(triton_device)
    positions = torch.tensor([0, 7, 49, 7], dtype=dtype, device=triton_device)
    got = turned(x, freqs, positions, [1, 1, 1, 1], inverse)
    assert same_bits(got, codec.rotate_tail(x, freqs, positions, inverse)).all()


def test_rows_that_are_not_live_come_back_and_their_table_row_is_not_read(triton_device):
    x = torch.randn(4, 512, generator=torch.Generator().manual_seed(2)).to(triton_device)
    freqs = torch.full((2, 64), float("nan"), device=triton_device)
    positions = torch.tensor([0, 1, 0, 1], device=triton_device)
    assert torch.equal(turned(x, freqs, positions, [0, 0, 0, 0], False), x)


def test_a_quarter_turn(triton_device):
    x = torch.tensor([3.0, 5.0]).repeat(256).repeat(4, 1).to(triton_device)
    freqs = torch.tensor([[0.0, 1.0] * 32], device=triton_device)
    positions = torch.zeros(4, dtype=torch.int64, device=triton_device)
    got = turned(x, freqs, positions, [1, 0, 1, 1], False)
    assert torch.equal(got[0, 448:].cpu(), torch.tensor([-5.0, 3.0]).repeat(32))
    assert torch.equal(got[0, :448], x[0, :448])
    assert torch.equal(got[1], x[1])
