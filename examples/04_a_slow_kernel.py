"""A planted slowdown, to see a gate turn red: the RMSNorm of ours, which first keeps its device busy for a while.

dsv4bench ab prefill --batch 8 --graph --reuse on --a provider=auto \
    --b provider=rms_norm=examples/04_a_slow_kernel.py:slow --gate; echo $?
"""

import time

import torch

from dsv4bench.kernels.rms_norm import build_triton, reference

SHARE = 0.01  # of the step that is added
STEP_NS = 216_000_000  # of an H200: batch 8 x 1024 on 8192 cached tokens, in a graph
CALLS = 80  # of RMSNorm in that step: the input and the queries of 40 layers
SPIN_NS = SHARE * STEP_NS / CALLS
SM_GHZ = 1.98  # the highest SM clock of an H200
CPU_SPIN_NS = 10_000_000  # of a call on a CPU


def slow(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    """Spin, then normalise; both are captured in a graph."""
    if x.is_cuda:
        torch.cuda._sleep(round(SPIN_NS * SM_GHZ))
        build_triton({"x": x, "weight": weight, "eps": eps, "out": out})()
        return
    end = time.perf_counter_ns() + CPU_SPIN_NS
    while time.perf_counter_ns() < end:
        pass
    reference(x, weight, eps, out)


if __name__ == "__main__":
    print(f"{SPIN_NS / 1000:.0f} us in each of {CALLS} calls add {SHARE:.0%} to a step of {STEP_NS / 1e6:.0f} ms")
