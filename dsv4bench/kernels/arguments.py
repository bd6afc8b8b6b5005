"""What a kernel demands of its arguments: each check raises a ValueError that names the argument and both values.

A kernel's `check` calls those of shapes, dtypes and strides, which read no tensor and launch nothing; it runs before
any provider builds. Checks of values (slots, ids, lengths) read tensors and so wait for the device: they stand in a
kernel's `check_values`, which runs before a result is trusted and in debug mode, never inside a measured call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dsv4bench.kernels.layout import KVLayout

Size = int | str  # a number, or the name of a size that is free

I32, I64, IDS = (torch.int32,), (torch.int64,), (torch.int32, torch.int64)
BF16, F32, U8 = (torch.bfloat16,), (torch.float32,), (torch.uint8,)


def expect_tensor(
    name: str, tensor: torch.Tensor, dtypes: Sequence[torch.dtype], shape: Sequence[Size], free_strides: int = 0
) -> None:
    """Raise unless `tensor` has one of the dtypes and the shape, and is dense but for the first `free_strides` dims."""
    fits = len(shape) == tensor.dim() and all(
        isinstance(want, str) or want == got for want, got in zip(shape, tensor.shape, strict=True)
    )
    if tensor.dtype not in dtypes or not fits:
        kinds = " or ".join(_dtype(dtype) for dtype in dtypes)
        raise ValueError(f"{name}: {_dtype(tensor.dtype)} {_shape(tensor.shape)}, expected {kinds} {_shape(shape)}")
    dense = _dense_strides(tensor.shape)
    for axis in range(free_strides, tensor.dim()):
        if tensor.shape[axis] > 1 and tensor.stride(axis) != dense[axis]:
            raise ValueError(f"{name}: dimension {axis} has stride {tensor.stride(axis)}, expected {dense[axis]}")


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape(shape: Sequence[Size]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _dense_strides(shape: Sequence[int]) -> list[int]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * max(size, 1))
    return strides


def expect_cache(cache: torch.Tensor, layout: KVLayout, page_size: int, name: str = "cache") -> None:
    """Raise unless `cache` is a contiguous u8 [pages, page_bytes] of the layout and a page size that it can have."""
    expect_page_size(page_size)
    width = layout.page_bytes(page_size)
    if cache.dtype != torch.uint8 or cache.dim() != 2 or cache.shape[1] != width or not cache.is_contiguous():
        raise ValueError(
            f"{name}: a {layout.name} cache with pages of {page_size} is contiguous uint8 [pages, {width}], not"
            f" {_dtype(cache.dtype)} {_shape(cache.shape)} with strides {tuple(cache.stride())}"
        )
    expect_whole_words(name, cache)


def expect_whole_words(name: str, tensor: torch.Tensor) -> None:
    """Raise unless the bytes of `tensor` begin where a word of four bytes may: codes are written by words."""
    offset = tensor.data_ptr() % 4
    if offset:
        raise ValueError(f"{name}: begins {offset} bytes behind a multiple of 4, expected a multiple of 4")


def expect_page_size(page_size: int, name: str = "page_size") -> None:
    """Raise unless a page holds a power of two of slots."""
    if page_size < 1 or page_size & (page_size - 1):
        raise ValueError(f"{name}: {page_size}, expected a power of two")


def expect_one_of(name: str, value: object, known: Sequence[object]) -> None:
    """Raise unless the value is one of those that are known."""
    if value not in known:
        raise ValueError(f"{name}: {value}, expected one of {', '.join(map(str, known))}")


def expect_at_most(name: str, value: int, limit: int, because: str) -> None:
    """Raise if a number is over its limit; `because` says what sets the limit."""
    if value > limit:
        raise ValueError(f"{name}: {value}, expected at most {limit}: {because}")


def expect_at_least(name: str, value: int, least: int) -> None:
    """Raise if a number is below the least that means something."""
    if value < least:
        raise ValueError(f"{name}: {value}, expected at least {least}")


def expect_candidates(candidates: torch.Tensor | None, rows: int, block: int) -> None:
    """Raise unless candidates, where there are any, are dense ids i32 [rows, blocks] of blocks of a power of two."""
    if candidates is not None:
        expect_page_size(block, "candidate_block")
        expect_tensor("candidates", candidates, I32, (rows, "blocks"))


def expect_candidate_ids(candidates: torch.Tensor | None, block: int) -> None:
    """Raise unless each candidate is -1 or a block of positions that i32 can hold; waits for the device."""
    if candidates is not None:
        expect_range("candidates", candidates, -1, (2**31 - 1) // block)


def expect_range(name: str, values: torch.Tensor, low: int, end: int) -> None:
    """Raise unless all values of an integer tensor lie in [low, end); reads the tensor, so it waits for the device."""
    wide = values.long()  # an i32 value beside a bound that i32 cannot hold
    wrong = ((wide < low) | (wide >= end)).nonzero()
    if len(wrong):
        first = wrong[0].tolist()
        raise ValueError(f"{name}{first}: {int(values[tuple(first)])}, expected {low} to {end - 1}")
