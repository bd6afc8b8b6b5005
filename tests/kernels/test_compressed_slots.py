"""Top-k positions to compressed slots: the page table of the row's request, -1 kept, nothing past what a row sees."""

import pytest
import torch

from dsv4bench.kernels import compressed_slots
from dsv4bench.kernels.compressed_slots import KERNEL, Shape


@pytest.fixture(params=["torch", "triton"])
def provider(request):
    if request.param == "triton":
        request.getfixturevalue("triton_device")
    return request.param


def call(provider, device, shape, raw, pages):
    tensors = KERNEL.inputs(shape, torch.Generator(device).manual_seed(0))
    tensors["raw"] = torch.tensor(raw, dtype=torch.int32, device=device)
    tensors["page_table"] = torch.tensor(pages, dtype=torch.int32, device=device)
    KERNEL.provider(provider).build(tensors)()
    return tensors["slots"].tolist(), tensors["lens"].tolist()


@pytest.mark.parametrize(
    ("ratio", "raw", "slots"),
    [
        (1, [[0, 255, 256, -1]], [[9 * 256, 9 * 256 + 255, 4 * 256, -1]]),
        (2, [[0, 127, 128, 200]], [[9 * 128, 9 * 128 + 127, 4 * 128, 4 * 128 + 72]]),
        (128, [[0, 1, 2, 3]], [[9 * 2, 9 * 2 + 1, 4 * 2, 4 * 2 + 1]]),
    ],
)
def test_a_position_lies_in_the_page_of_its_tokens(provider, device, ratio, raw, slots):
    shape = Shape(((511, 1),), ratio, 4)
    assert call(provider, device, shape, raw, [[9, 4]]) == (slots, [4])


def test_columns_that_a_row_cannot_see_are_cut_off(provider, device):
    """Positions 4 and 5 of ratio 2 see 2 and 3 compressed rows; whatever else the top-k holds is not a choice."""
    slots, lens = call(provider, device, Shape(((4, 2),), 2, 4), [[1, 0, 3, 2], [2, -1, 0, 1]], [[1]])
    assert (slots, lens) == ([[129, 128, -1, -1], [130, -1, 128, -1]], [2, 3])


def test_each_row_uses_its_requests_pages_and_padding_sees_nothing(provider, device):
    slots, lens = call(provider, device, Shape(((8, 1), (8, 1)), 1, 2, 1), [[0, 5], [0, 5], [0, 5]], [[3], [7]])
    assert (slots, lens) == ([[768, 773], [1792, 1797], [-1, -1]], [2, 2, 0])


def test_an_unknown_ratio_is_refused(generator):
    tensors = KERNEL.inputs(Shape(((0, 3),), 1, 4), generator)
    with pytest.raises(ValueError, match="ratio: 3, expected one of 1, 2, 4, 128"):
        KERNEL.check(tensors | {"ratio": 3})


def test_values_out_of_range_are_named(generator):
    tensors = KERNEL.inputs(Shape(((0, 3),), 2, 4), generator)
    KERNEL.check_values(tensors)
    tensors["raw"][2, 0] = 128
    with pytest.raises(ValueError, match=r"raw\[2, 0\]: 128, expected -1 to 127"):
        KERNEL.check_values(tensors)


def test_the_cost_counts_visible_columns_and_each_table_entry_once():
    """Ratio 2: positions 1 and 2 see one compressed row, 520 of another request all four columns, padding none."""
    tensors = KERNEL.inputs(Shape(((1, 2), (520, 1)), 2, 4, padding_rows=1), torch.Generator().manual_seed(0))
    tensors["raw"] = torch.tensor([[0, 9, 9, 9], [0, -1, -1, -1], [130, 255, -1, 1], [5, 5, 5, 5]], dtype=torch.int32)
    found = compressed_slots.cost(tensors)
    entries = 1 + 2  # page 0 of the first request; pages 1 (twice) and 0 of the second
    assert (found.bytes_read, found.bytes_written) == (4 * 6 + 3 * 8 * 4 + 4 * entries, 4 * (4 * 4 + 4))


def test_a_bench_has_the_rows_that_it_names():
    assert KERNEL.bench.shape(256, "ratio 2") == Shape(((8192, 4),) * 64, 2, 512)
    assert KERNEL.bench.shape(3, "ratio 1") == Shape(((8192, 3),), 1, 512)
    assert KERNEL.bench.shape(6, "ratio 1") == Shape(((8192, 4),), 1, 512, padding_rows=2)
