"""Triton where it is installed; a stand-in that only lets kernel files be imported where it is not.

Triton has Linux wheels only. Without it every torch reference still runs, and each Triton provider says why it cannot.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

try:
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice

    HAVE_TRITON = True
except ImportError:
    HAVE_TRITON = False

    class _Constexpr:
        """Stands for `tl.constexpr` in annotations and module constants."""

        def __init__(self, value: Any) -> None:
            self.value = value

    triton = SimpleNamespace(
        jit=lambda function: function, constexpr_function=lambda function: function, cdiv=lambda a, b: -(-a // b)
    )
    tl = SimpleNamespace(constexpr=_Constexpr)
    libdevice = SimpleNamespace()

__all__ = ["HAVE_TRITON", "libdevice", "tl", "triton"]
