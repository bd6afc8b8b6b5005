"""Holes of sparse indices go to the row of zeros, all other indices stay."""

import pytest
import torch

from dsv4bench.kernels.remap_holes import KERNEL, Shape, cost, inputs


@pytest.fixture(params=["torch", "triton"])
def remapped(request, device):
    """Call a provider on rows of indices; return what they became, and what lies behind the output."""
    where = request.getfixturevalue("triton_device") if request.param == "triton" else device

    def call(indices: torch.Tensor, zero_row: int) -> torch.Tensor:
        buffer = torch.full((indices.numel() + 8,), 777, dtype=torch.int32, device=where)
        out = buffer[: indices.numel()].view(indices.shape)
        KERNEL.provider(request.param).build({"indices": indices.to(where), "zero_row": zero_row, "out": out})()
        assert (buffer[indices.numel() :] == 777).all()
        return out.cpu()

    return call


def test_only_holes_change(remapped):
    """Row 0 is a row like others; any negative is a hole."""
    indices = torch.tensor([[0, -1, 5], [-7, 9, -(2**31)]], dtype=torch.int32)
    assert remapped(indices, 9).tolist() == [[0, 9, 5], [9, 9, 9]]


@pytest.mark.parametrize("width", [1, 127, 1024, 1025], ids=lambda width: f"width-{width}")
def test_every_index_of_many_programs(remapped, width):
    indices = torch.arange(3 * width, dtype=torch.int32).view(3, width)
    indices[:, -1] = -1
    want = [[5000 if k == width - 1 else t * width + k for k in range(width)] for t in range(3)]
    assert remapped(indices, 5000).tolist() == want


def test_no_rows_are_no_work(remapped):
    assert remapped(torch.zeros(0, 128, dtype=torch.int32), 3).shape == (0, 128)


@pytest.mark.parametrize("provider", ["torch", "triton"])
def test_indices_may_be_remapped_in_place(provider, request, device):
    where = request.getfixturevalue("triton_device") if provider == "triton" else device
    indices = torch.tensor([[3, -1]], dtype=torch.int32, device=where)
    KERNEL.provider(provider).build({"indices": indices, "zero_row": 4, "out": indices})()
    assert indices.tolist() == [[3, 4]]


def test_the_least_bytes_of_a_call(generator):
    counted = cost(inputs(Shape(3, 128), generator))
    assert (counted.flops, counted.bytes_read, counted.bytes_written) == (0, 3 * 512, 3 * 512)


@pytest.mark.parametrize(
    ("argument", "make", "said"),
    [
        ("indices", lambda t: t.repeat(1, 2)[:, ::2], "indices: dimension 0 has stride 256, expected 128"),
        ("out", lambda t: t[:2], r"out: int32 \[2, 128\], expected int32 \[3, 128\]"),
        ("zero_row", lambda row: -1, "zero_row: -1, expected 0 to 2147483647"),
        ("zero_row", lambda row: 2**31, "zero_row: 2147483648, expected 0 to 2147483647"),
    ],
    ids=["stride", "out", "negative", "too-large"],
)
def test_a_wrong_argument_is_named(argument, make, said, generator):
    tensors = inputs(Shape(3, 128), generator)
    tensors[argument] = make(tensors[argument])
    with pytest.raises(ValueError, match=said):
        KERNEL.check(tensors)


def test_an_index_behind_the_row_of_zeros_is_named(generator):
    tensors = inputs(Shape(3, 128, sources=50), generator)
    tensors["indices"][1, 7] = 49
    KERNEL.check_values(tensors)
    tensors["indices"][1, 7] = 50
    with pytest.raises(ValueError, match=r"indices\[1, 7\]: 50, expected 0 to 49"):
        KERNEL.check_values(tensors)


def test_a_bench_is_as_wide_as_its_case():
    assert KERNEL.bench.shape(1024, "width 640") == Shape(1024, 640, 65537)
