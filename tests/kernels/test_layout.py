"""Bytes of pages and places of slots, against the tables of specification 2.1 and appendix A.12."""

import pytest
import torch

from dsv4bench.kernels import paged
from dsv4bench.kernels.layout import (
    FULL_PAGE,
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


@pytest.mark.parametrize(
    ("page_size", "layout", "want"),
    [
        (2, V4, 1728),
        (2, V41, 1536),
        (2, V41_FP4, 768),
        (2, V41_NEW, 1056),
        (2, V41_FP4_NEW, 576),
        (2, UNIFORM_FP8, 1024),
        (64, V4, 37_440),
        (64, V41, 33_792),
        (64, V41_FP4, 18_432),
        (64, V41_NEW, 33_792),
        (64, V41_FP4_NEW, 18_432),
        (64, UNIFORM_FP8, 32_768),
        (64, INDEX_K, 64 * 68),
        (64, INDEX_K_FP8, 64 * 132),
        (128, V4, 74_880),
        (128, V41, 67_584),
        (128, V41_FP4, 36_864),
        (128, UNIFORM_FP8, 65_536),
        (256, V4, 149_760),
        (256, V41, 135_168),
        (256, V41_FP4, 73_728),
        (256, V41_NEW, 135_168),
        (256, V41_FP4_NEW, 73_728),
        (256, UNIFORM_FP8, 131_072),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_bytes_of_a_page(page_size, layout, want):
    assert layout.page_bytes(page_size) == want


@pytest.mark.parametrize(
    ("layout", "want", "used"),
    [
        (V4, 584, 583),
        (V41, 528, 528),
        (V41_FP4, 288, 288),
        (V41_NEW, 528, 528),
        (V41_FP4_NEW, 288, 288),
        (UNIFORM_FP8, 512, 512),
        (INDEX_K, 68, 68),
        (INDEX_K_FP8, 132, 132),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_bytes_of_a_row(layout, want, used):
    assert (layout.row_bytes, layout.used_bytes) == (want, used)


@pytest.mark.parametrize(("new", "old"), [(V41_NEW, V41), (V41_FP4_NEW, V41_FP4)], ids=["v41", "fp4"])
def test_an_interleaved_layout_arranges_the_bytes_of_another(new, old):
    rows = [(layout.encoding, layout.data_bytes, layout.scale_bytes, layout.values_per_scale) for layout in (new, old)]
    assert rows[0] == rows[1]
    assert (new.interleaved, old.interleaved) == (True, False)


def test_layouts_go_by_the_names_of_the_command_line():
    assert list(LAYOUTS) == ["v4", "v41", "fp4", "v41_new", "fp4_new", "uniform"]
    assert all(layout.name == name for name, layout in LAYOUTS.items())
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
        # the same elements interleaved: scales behind the row's data, page 2 and page 1
        (V41_FP4_NEW, 128, 2 * 128 + 5, 18, 73_728 + 5 * 288 + 18, 2, 73_728 + 5 * 288 + 256 + 2),
        (V41_NEW, 256, 300, 100, 135_168 + 44 * 528 + 100, 3, 135_168 + 44 * 528 + 512 + 3),
        (V41_NEW, 2, 5, 511, 2 * 1056 + 528 + 511, 15, 2 * 1056 + 528 + 527),
        (INDEX_K_FP8, 64, 64 + 63, 127, 8448 + 63 * 128 + 127, 3, 8448 + 8192 + 63 * 4 + 3),
    ],
    ids=["fp4", "v41", "v4", "v4-rotated", "fp4-new", "v41-new", "v41-new-last-byte", "index-fp8"],
)
def test_where_a_byte_of_a_slot_lies(layout, page_size, slot, data_byte, data_at, scale_byte, scale_at):
    cache = torch.zeros(3, layout.page_bytes(page_size), dtype=torch.uint8)
    cache.view(-1)[data_at] = 201
    cache.view(-1)[scale_at] = 202
    data, scales = paged.read_rows(cache, torch.tensor([slot]), page_size, layout)
    assert data[0].nonzero().flatten().tolist() == [data_byte]
    assert scales[0].nonzero().flatten().tolist() == [scale_byte]


def test_a_uniform_row_is_its_data():
    """Slot 300 of pages of 256: page 1, index 44."""
    cache = torch.zeros(2, 131_072, dtype=torch.uint8)
    cache.view(-1)[131_072 + 44 * 512 + 511] = 201
    data, scales = paged.read_rows(cache, torch.tensor([300]), 256, UNIFORM_FP8)
    assert data[0].nonzero().flatten().tolist() == [511]
    assert scales.shape == (1, 0)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda layout: layout.name)
@pytest.mark.parametrize("page_size", [1, 2, 64, 256])
def test_every_byte_of_a_page_belongs_to_one_slot_or_is_padding(layout, page_size):
    """Numbered bytes are met once each; what is left over is less than the alignment, at the end of the page."""
    size = layout.page_bytes(page_size)
    cache = torch.arange(2 * size).view(2, size)
    met = torch.cat([part.flatten() for part in paged.paged(cache, page_size, layout)]).sort().values
    assert len(met) == 2 * page_size * layout.row_bytes
    used = page_size * layout.row_bytes
    assert torch.equal(met, torch.cat([torch.arange(used), torch.arange(size, size + used)]))
    assert size - used < layout.page_align
