"""Window slots of packed attention: newest first, floored, across page edges, nothing for padding."""

import pytest
import torch

from dsv4bench.kernels import window_slots
from dsv4bench.kernels.window_slots import KERNEL, Shape


def call(provider, device, requests, floor, window=4, padding=0):
    """Run over pages 1, 2, ... of each request and a map that adds 7 to every slot."""
    tensors = KERNEL.inputs(Shape(requests, padding, window), torch.Generator(device).manual_seed(0))
    pages = tensors["page_table"].shape[1]
    tensors["page_table"].copy_(1 + torch.arange(len(requests) * pages).view(len(requests), pages))
    tensors["full_to_swa"] = torch.arange(tensors["full_to_swa"].numel(), device=device) + 7
    tensors["floor"] = torch.tensor(floor, dtype=torch.int32, device=device)
    KERNEL.provider(provider).build(tensors)()
    return tensors["slots"][:, :window].tolist(), tensors["lens"].tolist(), tensors


@pytest.fixture(params=["torch", "triton"])
def provider(request):
    if request.param == "triton":
        request.getfixturevalue("triton_device")
    return request.param


def test_windows_run_backwards_and_over_a_page_edge(provider, device):
    slots, lens, tensors = call(provider, device, ((255, 3),), [0])
    newest = [256 + 7 + position for position in (255, 256, 257)]  # page 1 begins at slot 256
    assert slots == [[first, first - 1, first - 2, first - 3] for first in newest]
    assert lens == [4, 4, 4]
    assert (tensors["slots"][:, 4:] == -1).all()


@pytest.mark.parametrize(
    ("prefix", "floor", "lengths"),
    [(0, 0, [1, 2, 3]), (2, 0, [3, 4, 4]), (2, 3, [0, 1, 2]), (1, -2, [2, 3, 4])],
    ids=["fresh", "prefix", "floored", "floor-before-the-start"],
)
def test_nothing_before_the_floor_or_the_start(provider, device, prefix, floor, lengths):
    slots, lens, _ = call(provider, device, ((prefix, 3),), [floor])
    assert lens == lengths
    for row, (found, length) in enumerate(zip(slots, lengths, strict=True)):
        assert found == [263 + prefix + row - j if j < length else -1 for j in range(4)]


def test_each_request_has_its_own_floor_and_pages(provider, device):
    slots, lens, _ = call(provider, device, ((3, 1), (3, 1)), [0, 2])
    assert slots == [[266, 265, 264, 263], [522, 521, -1, -1]]
    assert lens == [4, 2]


def test_padding_has_no_window(provider, device):
    slots, lens, _ = call(provider, device, ((3, 1),), [0], padding=2)
    assert (slots[1:], lens) == ([[-1] * 4] * 2, [4, 0, 0])


def test_values_out_of_range_are_named(generator):
    tensors = KERNEL.inputs(Shape(((0, 3),), window=4), generator)
    KERNEL.check_values(tensors)
    tensors["positions"][1] = 256
    with pytest.raises(ValueError, match=r"positions\[1\]: 256, expected 0 to 255"):
        KERNEL.check_values(tensors)


def test_the_cost_counts_what_rows_share_once():
    """Windows of rows 254 to 257 begin at 251, the floor at 252: six slots in two pages; the other request has one."""
    tensors = KERNEL.inputs(Shape(((254, 4), (0, 1)), padding_rows=2, window=4), torch.Generator().manual_seed(0))
    tensors["floor"] = torch.tensor([252, 0], dtype=torch.int32)
    found = window_slots.cost(tensors)
    assert (found.bytes_read, found.bytes_written) == (8 * 7 + 4 * 3 + 3 * 8 * 7 + 4 * 2, 4 * (7 * 64 + 7))


@pytest.mark.parametrize(
    ("rows", "case", "requests", "padding", "floored"),
    [
        (256, "verify 4", ((8192, 4),) * 64, 0, False),
        (1024, "tail 128", ((8192, 128),) * 8, 0, True),
        (64, "tail 128", ((8192, 64),), 0, True),
        (6, "verify 4", ((8192, 4),), 2, False),
    ],
)
def test_a_bench_has_the_rows_that_it_names(rows, case, requests, padding, floored):
    assert KERNEL.bench.shape(rows, case) == Shape(requests, padding, floored=floored)
