"""Sparse attention over packed caches: a window and the top-k, decoded where they are read (specification 6.1, 6.4).

A query row t attends the rows of two paged caches, its window in the main one and its top-k in the extra one:

    keys = row(main,  main_slots[t, j])  for j < main_lens[t]
         + row(extra, extra_slots[t, j]) for j < extra_lens[t]           each where its slot is not -1

where row() is what `dequant` makes of a slot, then attention with a sink as in `attend`; 0 where no key is valid. It is
what decode does, and prefill where a workspace would cost more than it saves, or in the tail of the late layers.

Shapes: q [T, H, 512] bf16, main and extra u8 [pages, page_bytes], main_slots i32 [T, Wm], extra_slots i32 [T, We] or
None with extra and extra_lens, lens i32 [T], sink f32 [H], output out [T, H, 512] bf16. Pairs: specification 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.kernels import codec, paged
from dsv4bench.kernels.arguments import BF16, F32, I32, expect_cache, expect_range, expect_tensor
from dsv4bench.kernels.attend import attend, queries_at_once
from dsv4bench.kernels.attend_triton import LOG2_E, attend_block, attended
from dsv4bench.kernels.contract import TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, Tolerance, torch_provider
from dsv4bench.kernels.jit import tl, triton
from dsv4bench.kernels.layout import HEAD_DIM, LAYOUTS, KVLayout
from dsv4bench.kernels.paged_triton import load_rows

DIM = tl.constexpr(HEAD_DIM)
BLOCK_KEYS = 32


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows, heads, both layouts ("" for no extra cache), columns and scanned columns of the two tables."""

    rows: int
    heads: int
    main: str
    extra: str
    window: int
    topk: int
    scanned: tuple[int, int]
    pages: int = 3


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make caches through the torch quantisers, unit normal queries, and slots with one hole in nine."""
    device = generator.device
    made: dict[str, Any] = {
        "q": torch.randn(shape.rows, shape.heads, HEAD_DIM, generator=generator, device=device).bfloat16(),
        "sink": torch.randn(shape.heads, generator=generator, device=device),
        "scale": HEAD_DIM**-0.5,
        "out": torch.empty(shape.rows, shape.heads, HEAD_DIM, dtype=torch.bfloat16, device=device),
    }
    columns = {"main": (shape.main, 256, shape.window, 0), "extra": (shape.extra, 128, shape.topk, 1)}
    for part, (name, page_size, width, which) in columns.items():
        layout = LAYOUTS.get(name)
        made |= {f"{part}_page_size": page_size, f"{part}_layout": layout}
        made |= dict.fromkeys((part, f"{part}_slots", f"{part}_lens"))
        if layout is not None:
            made[part] = _cache(shape.pages, page_size, layout, generator)
            made[f"{part}_slots"] = _slots(shape.rows, width, shape.pages * page_size, generator)
            made[f"{part}_lens"] = torch.full((shape.rows,), shape.scanned[which], dtype=torch.int32, device=device)
    return made


def _cache(pages: int, page_size: int, layout: KVLayout, generator: torch.Generator) -> torch.Tensor:
    cache = torch.zeros(pages, layout.page_bytes(page_size), dtype=torch.uint8, device=generator.device)
    rows = torch.randn(pages * page_size, HEAD_DIM, generator=generator, device=cache.device).bfloat16().float()
    slots = torch.arange(len(rows), device=cache.device)
    paged.write_rows(cache, slots, codec.quantise(rows, layout), page_size, layout)
    return cache


def _slots(rows: int, columns: int, slots: int, generator: torch.Generator) -> torch.Tensor:
    found = torch.randint(0, slots, (rows, columns), generator=generator, device=generator.device)
    return found.masked_fill(torch.rand(found.shape, generator=generator, device=found.device) < 1 / 9, -1).int()


def reference(
    q: torch.Tensor,
    main: torch.Tensor,
    main_slots: torch.Tensor,
    main_lens: torch.Tensor,
    main_page_size: int,
    main_layout: KVLayout,
    extra: torch.Tensor | None,
    extra_slots: Any,
    extra_lens: Any,
    extra_page_size: int,
    extra_layout: Any,
    sink: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Decode the keys of a few rows at a time and attend."""
    chunk = queries_at_once(q, main_slots.shape[1] + (0 if extra_slots is None else extra_slots.shape[1]))
    for begin in range(0, len(q), chunk):
        rows = slice(begin, begin + chunk)
        keys, valid = _decoded(main, main_slots[rows], main_lens[rows], main_page_size, main_layout)
        if extra is not None:
            more, also = _decoded(extra, extra_slots[rows], extra_lens[rows], extra_page_size, extra_layout)
            keys, valid = torch.cat([keys, more], 1), torch.cat([valid, also], 1)
        out[rows] = attend(q[rows].float(), keys, valid, sink, scale).masked_fill_(~valid.any(1)[:, None, None], 0)


def _decoded(
    cache: torch.Tensor, slots: torch.Tensor, lens: torch.Tensor, page_size: int, layout: KVLayout
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows f32 [n, W, 512] of slots [n, W], zeros where they are not valid, and which are."""
    valid = (slots >= 0) & (torch.arange(slots.shape[1], device=slots.device) < lens[:, None])
    named, place = torch.where(valid, slots, -1).unique(return_inverse=True)  # many queries name one row
    data, scales = paged.read_rows(cache, named.clamp(min=0), page_size, layout)
    rows = codec.dequantise(data, scales, layout).float().masked_fill_((named < 0)[:, None], 0)
    return rows[place], valid


def _present(tensors: Tensors) -> list[str]:
    return [part for part in ("main", "extra") if tensors[part] is not None]


def cost(tensors: Tensors) -> Cost:
    """Count 2 * (512 + 512) FLOPs per head and valid slot; each slot that is named, query, table and output once."""
    q, flops, read = tensors["q"], 0, 2 * tensors["q"].numel() + 4 * tensors["sink"].numel()
    for part in _present(tensors):
        slots, lens = tensors[f"{part}_slots"], tensors[f"{part}_lens"]
        valid = (slots >= 0) & (torch.arange(slots.shape[1], device=slots.device) < lens[:, None])
        flops += 4 * HEAD_DIM * q.shape[1] * int(valid.sum())
        read += slots[valid].unique().numel() * tensors[f"{part}_layout"].used_bytes
        read += 4 * (int(lens.clamp(max=slots.shape[1]).sum()) + lens.numel())
    return Cost(flops, bytes_read=read, bytes_written=2 * tensors["out"].numel())


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape, stride or page size."""
    q = tensors["q"]
    expect_tensor("q", q, BF16, ("rows", "heads", HEAD_DIM), free_strides=2)
    expect_tensor("out", tensors["out"], BF16, tuple(q.shape), free_strides=2)
    expect_tensor("sink", tensors["sink"], F32, (q.shape[1],))
    for part in _present(tensors):
        expect_cache(tensors[part], tensors[f"{part}_layout"], tensors[f"{part}_page_size"], part)
        expect_tensor(f"{part}_slots", tensors[f"{part}_slots"], I32, (q.shape[0], "columns"), free_strides=1)
        expect_tensor(f"{part}_lens", tensors[f"{part}_lens"], I32, (q.shape[0],))


def check_values(tensors: Tensors) -> None:
    """Raise ValueError for a slot outside its cache or a length over its table's columns."""
    for part in _present(tensors):
        expect_range(f"{part}_slots", tensors[f"{part}_slots"], -1, len(tensors[part]) * tensors[f"{part}_page_size"])
        expect_range(f"{part}_lens", tensors[f"{part}_lens"], 0, tensors[f"{part}_slots"].shape[1] + 1)


@triton.jit
def _scan(
    q,
    cache_ptr,
    slots_ptr,
    length,
    scale_log2,
    highest,
    total,
    acc,
    LAYOUT: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    """Attend the first `length` slots of one cache, `BLOCK_KEYS` a step, onto the running maximum, sum and output."""
    key = tl.arange(0, BLOCK_KEYS)
    for begin in range(0, length, BLOCK_KEYS):
        slot = tl.load(slots_ptr + begin + key, mask=begin + key < length, other=-1)
        valid = slot >= 0
        k = load_rows(cache_ptr, tl.where(valid, slot, 0), valid, LAYOUT, PAGE_SIZE, PAGE_BYTES)
        highest, total, acc = attend_block(q, k, valid, scale_log2, highest, total, acc)
    return highest, total, acc


@triton.jit
def _paged_attention(
    q_ptr,
    q_row_stride,
    q_head_stride,
    main_ptr,
    main_slots_ptr,
    main_stride,
    main_lens_ptr,
    main_columns,
    extra_ptr,
    extra_slots_ptr,
    extra_stride,
    extra_lens_ptr,
    extra_columns,
    sink_ptr,
    out_ptr,
    out_row_stride,
    out_head_stride,
    scale_log2,
    HEADS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    MAIN: tl.constexpr,
    MAIN_SIZE: tl.constexpr,
    MAIN_BYTES: tl.constexpr,
    EXTRA: tl.constexpr,
    EXTRA_SIZE: tl.constexpr,
    EXTRA_BYTES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    channel = tl.arange(0, DIM)
    live = head < HEADS
    q_at = q_ptr + row * q_row_stride + head[:, None] * q_head_stride + channel[None, :]
    q = tl.load(q_at, mask=live[:, None], other=0.0)
    highest = tl.full((BLOCK_HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_HEADS,), tl.float32)
    acc = tl.zeros((BLOCK_HEADS, DIM), tl.float32)
    length = tl.minimum(tl.load(main_lens_ptr + row), main_columns)
    slots_ptr = main_slots_ptr + row * main_stride
    highest, total, acc = _scan(
        q, main_ptr, slots_ptr, length, scale_log2, highest, total, acc, MAIN, MAIN_SIZE, MAIN_BYTES, BLOCK_KEYS
    )
    if EXTRA != "":
        length = tl.minimum(tl.load(extra_lens_ptr + row), extra_columns)
        slots_ptr = extra_slots_ptr + row * extra_stride
        highest, total, acc = _scan(
            q, extra_ptr, slots_ptr, length, scale_log2, highest, total, acc, EXTRA, EXTRA_SIZE, EXTRA_BYTES, BLOCK_KEYS
        )
    sink = tl.load(sink_ptr + head, mask=live, other=0.0)
    out_at = out_ptr + row * out_row_stride + head[:, None] * out_head_stride + channel[None, :]
    tl.store(out_at, attended(highest, total, acc, sink), mask=live[:, None])


def _constants(tensors: Tensors, part: str) -> dict[str, str | int]:
    layout, page_size, name = tensors[f"{part}_layout"], tensors[f"{part}_page_size"], part.upper()
    values = ("", 1, 1) if tensors[part] is None else (layout.name, page_size, layout.page_bytes(page_size))
    return dict(zip((name, f"{name}_SIZE", f"{name}_BYTES"), values, strict=True))


def _pointers(tensors: Tensors, part: str) -> tuple[Any, ...]:
    slots = tensors[f"{part}_slots"]
    if slots is None:
        return None, None, 0, None, 0
    return tensors[part], slots, slots.stride(0), tensors[f"{part}_lens"], slots.shape[1]


def build_triton(tensors: Tensors) -> Call:
    """Launch one program per query row and 64 heads, main cache first; fewer than 16 heads are padded to 16."""
    q, out = tensors["q"], tensors["out"]
    rows, heads, _ = q.shape
    block_heads = min(64, max(16, triton.next_power_of_2(heads)))
    constants = _constants(tensors, "main") | _constants(tensors, "extra")

    def call() -> None:
        if rows:
            _paged_attention[(rows, triton.cdiv(heads, block_heads))](
                q,
                *q.stride()[:2],
                *_pointers(tensors, "main"),
                *_pointers(tensors, "extra"),
                tensors["sink"],
                out,
                *out.stride()[:2],
                tensors["scale"] * LOG2_E.value,
                HEADS=heads,
                BLOCK_HEADS=block_heads,
                BLOCK_KEYS=BLOCK_KEYS,
                **constants,
                num_warps=8 if block_heads == 64 else 4,
                num_stages=2,
            )

    return call


def bench_shape(rows: int, pair: str) -> Shape:
    """Return rows of full width, caches of the pair's layouts, and about as many slots as the rows name."""
    return Shape(rows, 64, pair.split("+")[0], pair.split("+")[-1], 128, 512, (128, 512), min(4 * rows, 1024))


KERNEL = Kernel(
    name="paged_attention",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"out": Tolerance(rtol=2e-2, atol=2e-2, because="another order of sums; weights rounded to bf16 (6.4)")},
    examples=(
        Shape(3, 4, "v41", "fp4", window=64, topk=48, scanned=(60, 41)),
        Shape(2, 64, "v4", "v4", window=128, topk=64, scanned=(128, 64)),
        Shape(2, 4, "v41_new", "fp4_new", window=64, topk=32, scanned=(5, 32)),
        Shape(2, 4, "v41", "", window=64, topk=0, scanned=(33, 0)),
        Shape(1, 16, "uniform", "uniform", window=64, topk=32, scanned=(0, 30)),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(bench_shape, rows=(64, 256, 1024), cases=("v4", "v41", "v41+fp4"), cpu_rows=8),
)
