"""KV cache layouts and the paged address arithmetic, once, for every writer and reader (specification 2.1).

A cache is uint8 [pages, page_bytes]. Slot s lies in page s // page_size at index i = s % page_size; its data begins at
i * data_stride and its scales at scale_base + i * scale_stride, both from the start of the page. A layout is an
encoding, what the bytes of a row mean, in an arrangement: block split (all data of a page, then all scales) or
interleaved (each row's scales behind its data).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HEAD_DIM = 512  # channels of a KV row: K and V are the same row
NOPE_DIM = 448  # channels without position
ROPE_DIM = 64  # rotated channels, adjacent pairs (even real, odd imaginary)
INDEX_DIM = 128  # channels of an index key and of one index-query head
FULL_PAGE = 256  # tokens of a page of the full pool; a page of ratio r holds FULL_PAGE // r rows

Encoding = Literal["v4", "v41", "fp4", "uniform", "index_fp4", "index_fp8"]


@dataclass(frozen=True, slots=True)
class KVLayout:
    """One way to store a row: its encoding, bytes of data and scales a slot, values per scale, and its arrangement.

    `page_align` is the page's alignment in bytes; `interleaved` says where the scales lie.
    """

    name: str
    encoding: Encoding
    data_bytes: int
    scale_bytes: int
    values_per_scale: int
    page_align: int
    interleaved: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of one slot, data and scales."""
        return self.data_bytes + self.scale_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of one slot that are written and read: V4's eighth scale byte is padding."""
        return self.row_bytes - (1 if self.encoding == "v4" else 0)

    def page_bytes(self, page_size: int) -> int:
        """Return the bytes of a page of `page_size` slots, padded to the layout's alignment."""
        return -(-page_size * self.row_bytes // self.page_align) * self.page_align

    def strides(self, page_size: int) -> tuple[int, int, int]:
        """Return (data_stride, scale_base, scale_stride) in bytes within a page."""
        if self.interleaved:
            return self.row_bytes, self.data_bytes, self.row_bytes
        return self.data_bytes, page_size * self.data_bytes, self.scale_bytes


V4 = KVLayout("v4", "v4", 576, 8, 64, 576)  # 448 e4m3 + 64 bf16; 7 ue8m0 + 1 pad byte that nobody writes
V41 = KVLayout("v41", "v41", 512, 16, 32, 512)  # 512 e4m3; 16 ue8m0
V41_FP4 = KVLayout("fp4", "fp4", 256, 32, 16, 256)  # 512 e2m1, even channel in the low nibble; 32 e4m3
V41_NEW = KVLayout("v41_new", "v41", 512, 16, 32, 528, interleaved=True)
V41_FP4_NEW = KVLayout("fp4_new", "fp4", 256, 32, 16, 288, interleaved=True)
UNIFORM_FP8 = KVLayout("uniform", "uniform", 512, 0, 512, 512)  # 512 e4m3 that mean themselves: no scale
INDEX_K = KVLayout("index_k", "index_fp4", 64, 4, 32, 4)  # 128 e2m1; 4 ue8m0
INDEX_K_FP8 = KVLayout("index_k_fp8", "index_fp8", 128, 4, 128, 4)  # 128 e4m3; one f32 that is not rounded (V4's c4)

LAYOUTS = {layout.name: layout for layout in (V4, V41, V41_FP4, V41_NEW, V41_FP4_NEW, UNIFORM_FP8)}
