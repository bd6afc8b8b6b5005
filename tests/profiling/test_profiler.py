import pytest
import torch

from dsv4bench.profiling.profiler import profile_trace
from dsv4bench.profiling.traces.attribute import attribute
from dsv4bench.ranges import Range, RecordFunction, parse_range

ROPE = Range(layer=1, ratio=2, kv_source=2, op="rope")


def marked_step(x):
    mark = RecordFunction()

    def run():
        mark.enter(Range())
        mark.enter(ROPE)
        x.add_(1)
        mark.exit(ROPE)
        mark.exit(Range())

    return run


def test_ranges_come_back_from_the_profiler_nested_and_whole():
    trace = profile_trace(marked_step(torch.zeros(8)), "cpu")
    annotations = trace.annotations.assign(name=trace.names(trace.annotations["text"]))
    ours = {parse_range(found.name): found for found in annotations.itertuples() if parse_range(found.name)}
    assert set(ours) == {Range(), ROPE}
    step, rope = ours[Range()], ours[ROPE]
    assert step.start_ns <= rope.start_ns <= rope.end_ns <= step.end_ns
    assert step.thread == rope.thread


def test_a_cpu_has_no_device_operations():
    found = attribute(profile_trace(marked_step(torch.zeros(8)), "cpu"))
    assert found.ledger.rows() == []
    assert (found.coverage.attributed, found.coverage.unattributed, found.coverage.lost) == (0, 0, 0)


@pytest.mark.gpu
def test_a_gpu_step_is_counted_per_range():
    x = torch.zeros(8, device="cuda")
    marked_step(x)()
    found = attribute(profile_trace(marked_step(x), "cuda"))
    assert [(row["op"], row["kernels"], row["copies"]) for row in found.ledger.rows()] == [("rope", 1, 0)]
    assert (found.coverage.unattributed, found.coverage.lost) == (0, 0)
