"""`SparsePrefillKVBuffer`: the one grow-only workspace of sparse prefill (specification 6.3, change R).

The workspace holds all requests' compressed rows first (the head) and their sliding-window rows after them. Layers that
share a kv_source find the head already filled, and dequantise the window only.
"""

from __future__ import annotations

import torch

from dsv4bench.kernels.layout import HEAD_DIM

HeadSource = tuple[int, int, int]  # data pointers of the compressed cache and of the gather ids, compressed rows


class SparsePrefillKVBuffer:
    """A workspace [rows, 1, 512] that only grows and remembers whose rows its head holds."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = device
        self._buffer: torch.Tensor | None = None
        self.head_source: HeadSource | None = None

    @property
    def capacity_rows(self) -> int:
        """Rows that fit without a new allocation."""
        return 0 if self._buffer is None else self._buffer.shape[0]

    @property
    def capacity_bytes(self) -> int:
        """Bytes that the workspace retains."""
        return 0 if self._buffer is None else self._buffer.numel() * self._buffer.element_size()

    def reserve(self, rows: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Return the buffer with room for `rows`; a new allocation is exactly that large and clears the head."""
        if self._buffer is None or rows > self.capacity_rows or self._buffer.dtype != dtype:
            self._buffer = None  # free the old rows before asking for new ones
            self._buffer = torch.empty(rows, 1, HEAD_DIM, dtype=dtype, device=self._device)
            self.head_source = None
        return self._buffer

    def get(self, rows: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Return the first `rows` [rows, 1, 512]; the head is forgotten, since the caller will overwrite it."""
        self.head_source = None
        return self.reserve(rows, dtype)[:rows]

    def get_with_head(self, rows: int, source: HeadSource) -> tuple[torch.Tensor, bool]:
        """Return (the first `rows` in bf16, whether the head already holds the rows of `source`)."""
        buffer = self.reserve(rows)  # may clear the head, so it comes before the comparison
        filled = source == self.head_source
        self.head_source = source
        return buffer[:rows], filled

    def forget_head(self) -> None:
        """Forget whose rows the head holds: a new forward may find recycled addresses and rewritten caches."""
        self.head_source = None

    def release(self) -> None:
        """Give the workspace back, so that another step can be looked at alone."""
        self._buffer = self.head_source = None

    def poison(self) -> None:
        """Fill the workspace with NaN and forget the head, so that a row read before it is written shows."""
        self.forget_head()
        if self._buffer is not None:
            self._buffer.fill_(float("nan"))
