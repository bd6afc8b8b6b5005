"""Which part of which row each SM scores first: the schedule of paged index logits (specification 5.2).

A row of `lens[q]` compressed positions is ceil(lens[q] / 256) units of work. With S units in all, avg = S / num_sm and
rem = S % num_sm, SM i begins at unit

    target_i = i * avg + max(i - (num_sm - rem), 0)         the last `rem` SMs have one unit more

    schedule[i] = (q, target_i - units before row q)        q the first row that ends past target_i
                  (B, 0)                                    where there is none; entry num_sm is the end

Rows of length 0 own nothing. These are the bytes of DeepGEMM, which has pages of 64 or 128; the page changes nothing.

Shapes: lens i32 [B] or [B, 1]; output schedule i32 [num_sm + 1, 2], num_sm from 1 to 1024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from dsv4bench.kernels.arguments import I32, expect_one_of, expect_range, expect_tensor
from dsv4bench.kernels.contract import EXACT, TRITON, Bench, Call, Cost, Kernel, Provider, Tensors, torch_provider
from dsv4bench.kernels.jit import tl, triton

SPLIT = 256  # positions of a unit of work
UNIT = tl.constexpr(SPLIT)
MOST_SMS = 1024
GROUPS = 64
MOST_AT_ONCE = 128  # rows of each group that are read at a time
FEW_ROWS = 512  # as many take one warp, whose reductions need no barrier


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows, the longest one's positions, SMs, page size, and whether `lens` is a column."""

    rows: int
    longest: int
    num_sm: int
    page_size: int = 64
    column: bool = False


def inputs(shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Make rows of random lengths, every fifth one on average 0."""
    device = generator.device
    lens = torch.randint(1, shape.longest + 1, (shape.rows,), generator=generator, device=device, dtype=torch.int32)
    lens[torch.rand(shape.rows, generator=generator, device=device) < 0.2] = 0
    return {
        "lens": lens[:, None].contiguous() if shape.column else lens,
        "page_size": shape.page_size,
        "num_sm": shape.num_sm,
        "schedule": torch.empty(shape.num_sm + 1, 2, dtype=torch.int32, device=device),
    }


def reference(lens: torch.Tensor, page_size: int, num_sm: int, schedule: torch.Tensor) -> None:
    """Find each SM's first unit among the running sums of the rows' units."""
    ends = ((lens.flatten().long() + SPLIT - 1) // SPLIT).cumsum(0)
    starts = pad(ends, (1, 0))  # and after the last row, where all the work ends
    total = starts[-1]
    sm = torch.arange(num_sm + 1, device=lens.device)
    target = sm * (total // num_sm) + (sm - (num_sm - total % num_sm)).clamp(min=0)
    row = torch.searchsorted(ends, target, right=True)
    schedule[:, 0] = row
    schedule[:, 1] = target - starts[row]


def cost(tensors: Tensors) -> Cost:
    """Count each length read once and added once, each entry of the schedule written once."""
    rows, schedule = tensors["lens"].numel(), tensors["schedule"]
    return Cost(flops=rows, bytes_read=4 * rows, bytes_written=4 * schedule.numel())


def check(tensors: Tensors) -> None:
    """Raise a ValueError for an argument of a wrong dtype, shape, stride or page size, or too few or many SMs."""
    lens, num_sm = tensors["lens"], tensors["num_sm"]
    if not 1 <= num_sm <= MOST_SMS:
        raise ValueError(f"num_sm: {num_sm}, expected 1 to {MOST_SMS}")
    expect_one_of("page_size", tensors["page_size"], (64, 128))
    expect_tensor("lens", lens, I32, ("rows", 1) if lens.dim() == 2 else ("rows",))
    expect_tensor("schedule", tensors["schedule"], I32, (num_sm + 1, 2))


def check_values(tensors: Tensors) -> None:
    """Raise a ValueError for a negative length, or one that is no 32-bit count of whole units."""
    expect_range("lens", tensors["lens"].long(), 0, 2**31 - SPLIT + 1)


@triton.jit
def _units(lens_ptr, row, batch):
    """Return the units of work of rows [n], 0 past the last row."""
    return (tl.load(lens_ptr + row, mask=row < batch, other=0) + (UNIT - 1)) // UNIT


@triton.jit
def _mqa_schedule(lens_ptr, batch, schedule_ptr, num_sm, GROUPS: tl.constexpr, EACH: tl.constexpr, CHUNK: tl.constexpr):
    """Add up groups of EACH rows, scan the groups, then the rows of the one group where the target lies."""
    rows = tl.arange(0, GROUPS)[:, None] * EACH + tl.arange(0, CHUNK)[None, :]
    units = _units(lens_ptr, rows, batch)
    for more in range(CHUNK, EACH, CHUNK):
        units += _units(lens_ptr, rows + more, batch)
    ends = tl.cumsum(tl.sum(units, axis=1), 0)
    total = tl.max(ends, 0)
    sm = tl.program_id(0)
    target = sm * (total // num_sm) + tl.maximum(sm - (num_sm - total % num_sm), 0)
    before = ends <= target
    first = tl.sum(before.to(tl.int32)) * EACH  # groups without a row end before every target that the last row does
    start = tl.max(tl.where(before, ends, 0))  # units of the groups before
    row = first + tl.arange(0, EACH)
    ends = start + tl.cumsum(_units(lens_ptr, row, batch), 0)
    before = (row < batch) & (ends <= target)
    passed = tl.minimum(first, batch) + tl.sum(before.to(tl.int32))  # rows that end at the target or before it
    start = tl.maximum(start, tl.max(tl.where(before, ends, 0)))
    tl.store(schedule_ptr + 2 * sm, passed)
    tl.store(schedule_ptr + 2 * sm + 1, target - start)


def build_triton(tensors: Tensors) -> Call:
    """Launch one program per SM of the schedule; each adds up all the rows itself."""
    lens, num_sm = tensors["lens"], tensors["num_sm"]
    rows = lens.numel()
    each = triton.next_power_of_2(max(1, triton.cdiv(rows, GROUPS)))

    def call() -> None:
        _mqa_schedule[(num_sm + 1,)](
            lens,
            rows,
            tensors["schedule"],
            num_sm,
            GROUPS=GROUPS,
            EACH=each,
            CHUNK=min(each, MOST_AT_ONCE),
            num_warps=1 if rows <= FEW_ROWS else 8,
        )

    return call


KERNEL = Kernel(
    name="mqa_schedule",
    inputs=inputs,
    reference=reference,
    cost=cost,
    outputs={"schedule": EXACT},
    examples=(
        Shape(64, 40_000, num_sm=20),
        Shape(65, 3_000, num_sm=7, page_size=128, column=True),
        Shape(2_049, 5_000, num_sm=3),
    ),
    providers=(torch_provider(reference), Provider("triton", build_triton, TRITON)),
    check=check,
    check_values=check_values,
    bench=Bench(lambda rows, case: Shape(rows, 65536, num_sm=132), rows=(64, 256, 2048, 8192)),
)
