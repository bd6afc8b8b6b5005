"""What the NVTX ranges of timed passes cost: host_submit of an eager step with silent ranges and with NVTX, in turn.

Usage: python benchmarks/mark_overhead.py [samples]. Prints both medians and the difference as a share; needs a GPU.
"""

import statistics
import sys

import torch

from dsv4bench.profiling.capture import run_pieces
from dsv4bench.profiling.group import GroupRun
from dsv4bench.profiling.session import open_session
from dsv4bench.ranges import Mark, Nvtx, Silent
from dsv4bench.workloads.cells import cells
from dsv4bench.workloads.options import PrefillArguments, prefill_options
from dsv4bench.workloads.weights import make_model


def main(samples: int) -> None:
    """Measure and print."""
    options = prefill_options(PrefillArguments(batch="1", graph=False, reuse="on"))
    (group,) = cells(options)
    session = open_session(options.device, None, quick=True)
    run = GroupRun(group, make_model(options.geometry[0], session.device, 0), session)
    run.allocate()
    step, forward = run.steps["on", "fused"], next(run.prefill.all_forwards())
    step.load(forward)
    pieces = step.pieces(forward.live)
    marks: dict[str, Mark] = {"silent": Silent(), "nvtx": Nvtx()}
    taken: dict[str, list[int]] = {name: [] for name in marks}
    for turn in range(samples + 5):
        for name in marks if turn % 2 else reversed(marks):
            step.ops.mark = marks[name]
            run_pieces(pieces)  # a mark prepares its ranges when it first meets them; timed passes warm up
            session.clock.synchronize()
            submit_ns = session.clock.measure(lambda: run_pieces(pieces), 1)[1]
            if turn >= 5:  # the first turns warm up
                taken[name].append(submit_ns)
    medians = {name: statistics.median(values) for name, values in taken.items()}
    share = statistics.median(b / a for a, b in zip(taken["silent"], taken["nvtx"], strict=True)) - 1
    print(f"host_submit at batch 1: {medians}, ns; nvtx adds {share:.3%} (median of {samples} paired ratios)")


if __name__ == "__main__":
    with torch.no_grad():
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
