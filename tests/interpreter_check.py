"""The self-check of `tests/interpreter.py`: one small kernel whose answers are known."""

import torch
import triton
import triton.language as tl

COUNT = 8


@triton.jit
def answers(f32_ptr, bf16_ptr, e4m3_ptr, sum_ptr, fma_ptr, n, COUNT: tl.constexpr):
    lane = tl.arange(0, COUNT)
    x = tl.load(f32_ptr + lane)
    tl.store(bf16_ptr + lane, x.to(tl.bfloat16))
    tl.store(e4m3_ptr + lane, x.to(tl.float8e4nv).to(tl.uint8, bitcast=True))
    half = x.to(tl.bfloat16)
    tl.store(sum_ptr + lane, half + half)
    total = tl.zeros((COUNT,), tl.float32)
    for _ in range(n):
        total += 1.0
    tl.store(fma_ptr + lane, tl.fma(x, x, total - 4.0))


def wrong_answers() -> list[str]:
    """Run the kernel and name what differs from the answers worked out by hand."""
    x = torch.tensor([1.00390625, 1.01171875, -126.1, 500.0, 0.0029296875, -0.0, 448.0, 1.0 + 2**-12])
    bf16, doubled = torch.empty(COUNT, dtype=torch.bfloat16), torch.empty(COUNT, dtype=torch.bfloat16)
    e4m3, fused = torch.empty(COUNT, dtype=torch.uint8), torch.empty(COUNT)
    answers[(1,)](x, bf16, e4m3, doubled, fused, 3, COUNT=COUNT)
    checks = {
        "bf16 rounds to nearest even": bf16[:3].tolist() == [1.0, 1.015625, -126.0],
        "e4m3 rounds and saturates": bytes(e4m3.tolist()) == bytes.fromhex("3838f07e02807e38"),
        "bf16 addition": doubled[:3].tolist() == [2.0, 2.03125, -252.0],
        "an FMA rounds once": fused[7].item() == 2**-11 + 2**-24,
        "a loop over an argument": fused[5].item() == -1.0,
    }
    return [name for name, right in checks.items() if not right]
