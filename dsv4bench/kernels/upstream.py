"""Providers that call an installed sglang, flash_mla or deep_gemm; the packages are imported when a call is built.

What these adapters know was read in sglang 0.5.23, sgl-flash-mla 1.0.0 and sgl-deep-gemm 0.2.3.
`pytest -m upstream` says whether an installed version still has the functions, with the arguments that are passed.

"""

from __future__ import annotations

from dsv4bench.kernels import (
    upstream_deep_gemm,
    upstream_flash_mla,
    upstream_sglang,
    upstream_sglang_index,
    upstream_sglang_metadata,
    upstream_sglang_window,
)
from dsv4bench.kernels.contract import Provider
from dsv4bench.kernels.upstream_adapter import Adapter

ADAPTERS: tuple[Adapter, ...] = (
    *upstream_sglang.ADAPTERS,
    *upstream_sglang_index.ADAPTERS,
    *upstream_sglang_metadata.ADAPTERS,
    *upstream_sglang_window.ADAPTERS,
    *upstream_flash_mla.ADAPTERS,
    *upstream_deep_gemm.ADAPTERS,
)

# why no package's function stands beside these kernels
ALONE = {
    "compress_pool": "SGLang has these operations in methods of its state pool",
    "extend_offsets": "SGLang fills the tensor with slices and copies in its attention backend",
    "chunk_gather": "SGLang builds the list from its page table with torch operations in its attention backend",
    "remap_holes": "SGLang remaps with one torch operation in its attention backend",
    "window_slots": "SGLang's builder reads one slot a token, knows no padded rows, and makes the lengths elsewhere",
    "compressed_slots": "SGLang's top-k kernels translate what they select themselves",
    **dict.fromkeys(
        ("mhc_pre", "mhc_stats", "mhc_mix", "mhc_post"),
        "a stand-in for the cost of the residual streams, cut into kernels as no package does",
    ),
}


def providers(kernel: str) -> tuple[Provider, ...]:
    """Return the providers that installed packages give the kernel called `kernel`."""
    return tuple(adapter.provider() for adapter in ADAPTERS if adapter.kernel == kernel)
