"""Rows of a paged cache in plain torch: where they lie, and by how many codes two caches differ (specification 2.1).

Slots must be valid. Addresses come from `KVLayout.strides`.
"""

from __future__ import annotations

import torch

from dsv4bench.kernels.layout import NOPE_DIM, KVLayout


def paged(cache: torch.Tensor, page_size: int, layout: KVLayout) -> tuple[torch.Tensor, torch.Tensor]:
    """View a cache u8 [pages, page_bytes] as data [pages, page_size, data_bytes] and scales [.., .., scale_bytes]."""
    data_stride, scale_base, scale_stride = layout.strides(page_size)
    pages, start = cache.shape[0], cache.storage_offset()
    page_stride = cache.stride(0)
    data = cache.as_strided((pages, page_size, layout.data_bytes), (page_stride, data_stride, 1), start)
    scales = cache.as_strided(
        (pages, page_size, layout.scale_bytes), (page_stride, scale_stride, 1), start + scale_base
    )
    return data, scales


def shuffled_pages(pages: int, page_size: int, generator: torch.Generator) -> torch.Tensor:
    """Return every slot i64 of a cache, page after page in shuffled order: what page tables of real requests name."""
    order = torch.randperm(pages, generator=generator, device=generator.device)
    return (order[:, None] * page_size + torch.arange(page_size, device=generator.device)).flatten()


def table_slots(page_table: torch.Tensor, req: torch.Tensor, positions: torch.Tensor, page_rows: int) -> torch.Tensor:
    """Return the slots of positions [n, k] of requests [n] whose pages [R, pages] hold `page_rows` positions each."""
    return page_table[req[:, None], positions // page_rows] * page_rows + positions % page_rows


def read_rows(
    cache: torch.Tensor, slots: torch.Tensor, page_size: int, layout: KVLayout
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return data u8 [n, data_bytes] and scales u8 [n, scale_bytes] of valid slots i32|i64 [n]."""
    data, scales = paged(cache, page_size, layout)
    page, index = slots.long() // page_size, slots.long() % page_size
    return data[page, index], scales[page, index]


def write_rows(
    cache: torch.Tensor, slots: torch.Tensor, rows: tuple[torch.Tensor, torch.Tensor], page_size: int, layout: KVLayout
) -> None:
    """Write `rows` (data [n, data_bytes] and scales [n, k], the first k of a slot's scale bytes) to valid slots [n]."""
    data, scales = paged(cache, page_size, layout)
    page, index = slots.long() // page_size, slots.long() % page_size
    data[page, index] = rows[0]
    scales[..., : rows[1].shape[-1]][page, index] = rows[1]


def code_gaps(
    got: torch.Tensor, want: torch.Tensor, page_size: int, layout: KVLayout, only_fp4: bool = False
) -> torch.Tensor:
    """Return by how many codes the bytes that differ between two caches are apart, the two zeros being one code.

    Codes under a scale that differs are not comparable, so there the scales count; an f32 scale is no code and left
    out, the codes under it are not. Rotated channels of e4m3 rows are left out, because a rotation can cancel to near
    zero. `only_fp4` leaves out all e4m3 data.
    """
    (data, scales), (want_data, want_scales) = paged(got, page_size, layout), paged(want, page_size, layout)
    four_bits = layout.encoding in ("fp4", "index_fp4")
    width = NOPE_DIM if layout.encoding in ("v4", "v41", "uniform") else layout.data_bytes
    differ = data[..., :width] != want_data[..., :width]
    gaps = [data.new_empty(0, dtype=torch.int32)]
    if layout.encoding not in ("uniform", "index_fp8"):
        moved = scales != want_scales
        gaps.append((scales[moved].int() - want_scales[moved].int()).abs())
        tile = layout.values_per_scale // (2 if four_bits else 1)
        differ &= ~moved[..., : width // tile].repeat_interleave(tile, dim=-1)
    if four_bits or not only_fp4:
        pair = torch.stack([data[..., :width][differ], want_data[..., :width][differ]]).int()
        for codes, sign in ((pair & 15, 8), (pair >> 4, 8)) if four_bits else ((pair, 128),):
            ordered = torch.where(codes < sign, codes, sign - codes)
            gaps.append((ordered[0] - ordered[1]).abs())
    return torch.cat(gaps)


def compressed_code_gaps(got: torch.Tensor, want: torch.Tensor, page_size: int, layout: KVLayout) -> torch.Tensor:
    """Return the gaps of what a compressor wrote: e4m3 data went through e2m1, one code of which is many here (3.4)."""
    return code_gaps(got, want, page_size, layout, only_fp4=True)
