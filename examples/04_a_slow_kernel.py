"""A planted slowdown, to see a gate turn red: the RMSNorm of ours, which first keeps its device busy for a while.

dsv4bench ab prefill --batch 8 --graph --reuse on --a provider=auto \
    --b provider=rms_norm=examples/04_a_slow_kernel.py:slow --gate; echo $?
"""

import time
from typing import Any

import torch

from dsv4bench.kernels.rms_norm import build_triton, reference

STEP_NS = 216_000_000  # of an H200: batch 8 x 1024 on 8192 cached tokens, in a graph
CALLS = 80  # of RMSNorm in that step: the input and the queries of 40 layers
SM_GHZ = 1.98  # the highest SM clock of an H200
CPU_NS = 1_000_000_000  # what a share is of, in a call on a CPU


def after_a_spin(share: float, tensors: dict[str, Any]) -> None:
    """Spin for a share of the step, dealt to its calls, then normalise; a graph captures both."""
    if tensors["x"].is_cuda:
        torch.cuda._sleep(round(share * STEP_NS / CALLS * SM_GHZ))
        build_triton(tensors)()
        return
    end = time.perf_counter_ns() + share * CPU_NS
    while time.perf_counter_ns() < end:
        pass
    reference(**tensors)


def slow(**tensors: Any) -> None:
    """Add 1 % to the step."""
    after_a_spin(0.01, tensors)


def slower(**tensors: Any) -> None:
    """Add 3 % to the step."""
    after_a_spin(0.03, tensors)


if __name__ == "__main__":
    for share in (0.01, 0.03):
        spin_us = share * STEP_NS / CALLS / 1000
        print(f"{spin_us:.0f} us in each of {CALLS} calls add {share:.0%} to a step of {STEP_NS / 1e6:.0f} ms")
