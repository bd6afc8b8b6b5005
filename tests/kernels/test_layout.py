"""Bytes of pages and places of slots, against the tables of specification 2.1 and appendix A.12."""

import pytest
import torch

from dsv4bench.kernels import codec
from dsv4bench.kernels.layout import FULL_PAGE, INDEX_K, LAYOUTS, V4, V41, V41_FP4


@pytest.mark.parametrize(
    ("page_size", "layout", "want"),
    [
        (2, V4, 1728),
        (2, V41, 1536),
        (2, V41_FP4, 768),
        (64, V4, 37_440),
        (64, V41, 33_792),
        (64, V41_FP4, 18_432),
        (64, INDEX_K, 64 * 68),
        (128, V4, 74_880),
        (128, V41, 67_584),
        (128, V41_FP4, 36_864),
        (256, V4, 149_760),
        (256, V41, 135_168),
        (256, V41_FP4, 73_728),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_bytes_of_a_page(page_size, layout, want):
    assert layout.page_bytes(page_size) == want


@pytest.mark.parametrize(("layout", "want"), [(V4, 584), (V41, 528), (V41_FP4, 288), (INDEX_K, 68)])
def test_bytes_of_a_row(layout, want):
    assert layout.row_bytes == want


def test_layouts_go_by_the_names_of_the_command_line():
    assert {name: layout.name for name, layout in LAYOUTS.items()} == {"v4": "v4", "v41": "v41", "fp4": "fp4"}
    assert FULL_PAGE == 256


@pytest.mark.parametrize(
    ("layout", "page_size", "slot", "data_byte", "data_at", "scale_byte", "scale_at"),
    [
        # element 37 of an FP4 row: byte 18, scale 2
        (V41_FP4, 128, 2 * 128 + 5, 18, 73_728 + 5 * 256 + 18, 2, 73_728 + 128 * 256 + 5 * 32 + 2),
        # element 100 of a V41 row: byte 100, scale 3
        (V41, 256, 300, 100, 135_168 + 44 * 512 + 100, 3, 135_168 + 131_072 + 44 * 16 + 3),
        # element 100 of a V4 row: byte 100, scale 1
        (V4, 256, 300, 100, 149_760 + 44 * 576 + 100, 1, 149_760 + 147_456 + 44 * 8 + 1),
        # rotated channel 460 of a V4 row: the thirteenth bf16 after 448 bytes
        (V4, 256, 300, 448 + 24, 149_760 + 44 * 576 + 448 + 24, 6, 149_760 + 147_456 + 44 * 8 + 6),
    ],
    ids=["fp4", "v41", "v4", "v4-rotated"],
)
def test_where_a_byte_of_a_slot_lies(layout, page_size, slot, data_byte, data_at, scale_byte, scale_at):
    cache = torch.zeros(3, layout.page_bytes(page_size), dtype=torch.uint8)
    cache.view(-1)[data_at] = 201
    cache.view(-1)[scale_at] = 202
    data, scales = codec.read_rows(cache, torch.tensor([slot]), page_size, layout)
    assert data[0].nonzero().flatten().tolist() == [data_byte]
    assert scales[0].nonzero().flatten().tolist() == [scale_byte]
