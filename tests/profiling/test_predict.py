"""What reuse should save: calls, rows and bytes counted by hand, at a rate and a submission that fake clocks pin."""

import pytest
import torch

from dsv4bench.profiling.alone import ROUNDS
from dsv4bench.profiling.predict import SUBMIT_ROUNDS, peak_bytes, predict
from dsv4bench.ranges import Silent
from dsv4bench.workloads.batch import Batch
from tests.profiling.small_groups import FakeClock, allocated
from tests.workloads.stacks import Heard

# 68 tokens: the heads of sources 1 and 4 are dequantised once more without reuse, 34 and 68 rows
SAVED_ROWS, SAVED_CALLS = 34 + 68, 2
# packed row of an FP4 compressed cache and 512 bf16 values
FP4_ROW, BF16_ROW = 288, 1024
# all sources once: 34 + 34 + 68 rows
ONCE_BYTES = (34 + 34 + 68) * (FP4_ROW + BF16_ROW)


class QueueClock(FakeClock):
    """A clock whose calls only enqueue: of the rounds that are submitted one by one, the n-th takes n^2 x 1.2 us."""

    enqueues = True

    def __init__(self, events):
        super().__init__(events)
        self.submitted = 0

    def synchronize(self):
        self.events.append("synchronize")

    def measure(self, run, repeat):
        total_ns, _ = super().measure(run, repeat)
        self.submitted += repeat == 1
        return total_ns, 1_200 * self.submitted**2


def predicted(run, forwards=None, clock=None):
    step = run.steps["off", ("fused", "torch")]
    with torch.no_grad():
        return predict(step, forwards or run.prefill.forwards[0], clock or FakeClock(tick_ns=2_000), None)


@pytest.fixture(scope="module")
def run():
    return allocated(graph=False)


def test_the_prediction_is_bytes_over_the_rate_of_this_runs_own_dequant(run):
    clock = FakeClock(tick_ns=2_000 * ROUNDS)  # a round of all sources takes 2 us
    found = predicted(run, clock=clock)
    assert clock.events == ["measure"]
    assert (found["saved_calls"], found["saved_rows"]) == (SAVED_CALLS, SAVED_ROWS)
    assert found["saved_bytes"] == SAVED_ROWS * (FP4_ROW + BF16_ROW)
    assert found["dequant_bytes_per_s"] == pytest.approx(ONCE_BYTES / 2e-6)
    assert found["saved_ns"] == pytest.approx(2_000 * SAVED_ROWS / (34 + 34 + 68))
    assert found["how"].startswith("rows saved x 1312 bytes (read and written) / the dequant rate measured here")


def test_the_forwards_of_a_cell_add_up(run):
    (forward,) = run.prefill.forwards[0]
    one, three = predicted(run), predicted(run, [forward] * 3)
    assert (three["saved_calls"], three["saved_rows"]) == (3 * SAVED_CALLS, 3 * SAVED_ROWS)
    assert three["saved_ns"] == pytest.approx(3 * one["saved_ns"])


def test_a_forward_without_live_rows_saves_nothing(run):
    (forward,) = run.prefill.forwards[0]
    idle = run.prefill.forward(Batch((), 1).padded(8))
    assert predicted(run, [idle]) is None
    assert predicted(run, [forward, idle])["saved_rows"] == SAVED_ROWS


def test_a_host_that_enqueues_submits_the_dequants_of_all_sources_as_a_step_does(run):
    events, ops = [], run.steps["off", ("fused", "torch")].ops
    ops.mark = heard = Heard()
    found = predicted(run, clock=QueueClock(events))
    ops.mark = Silent()
    # the median of 1, 4, 9, ... 121 is that of the sixth of 11 rounds, each of three calls
    assert found["submit_ns_a_call"] == 36 * 1_200 / 3
    assert events == ["synchronize", "measure"] + ["synchronize", "measure"] * SUBMIT_ROUNDS
    assert heard.per_source("dequant_compressed") == dict.fromkeys((1, 3, 4), 1 + SUBMIT_ROUNDS)
    assert {rng.op for rng in heard.ranges} == {"dequant_compressed"}


def test_on_a_cpu_a_call_is_the_work_and_nothing_is_submitted(run):
    assert "submit_ns_a_call" not in predicted(run)


def test_measuring_the_rate_leaves_no_head_behind(run):
    predicted(run)
    assert run.steps["off", ("fused", "torch")].kv_buffer.head_source is None


def test_a_cpu_does_not_tell_its_peak():
    assert peak_bytes(lambda: pytest.fail("there is nothing to run for"), torch.device("cpu")) is None


def test_the_peak_of_a_gpu_is_that_of_one_run(monkeypatch):
    log = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: log.append("reset"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 123)
    assert peak_bytes(lambda: log.append("run"), torch.device("cuda")) == 123
    assert log == ["synchronize", "reset", "run", "synchronize"]
