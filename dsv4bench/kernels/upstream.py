"""Providers that call an installed sglang, flash_mla or deep_gemm; the packages are imported when a call is built.

What these adapters know was read in sglang 0.5.23, sgl-flash-mla 1.0.0 and sgl-deep-gemm 0.2.3.
`pytest -m upstream` says whether an installed version still has the functions, with the arguments that are passed.

Kernels that no package has as one function have no provider here: `compress_pool` is a method of SGLang's pools.
"""

from __future__ import annotations

from dsv4bench.kernels import upstream_flash_mla, upstream_sglang, upstream_sglang_index
from dsv4bench.kernels.contract import Provider
from dsv4bench.kernels.upstream_adapter import Adapter

ADAPTERS: tuple[Adapter, ...] = (
    *upstream_sglang.ADAPTERS,
    *upstream_sglang_index.ADAPTERS,
    *upstream_flash_mla.ADAPTERS,
)


def providers(kernel: str) -> tuple[Provider, ...]:
    """Return the providers that installed packages give the kernel called `kernel`."""
    return tuple(adapter.provider() for adapter in ADAPTERS if adapter.kernel == kernel)
