"""One kernel by several providers: checked first, timed side by side, checked again, and recorded."""

import re
from dataclasses import replace

import pytest
import torch

from dsv4bench.profiling import kernel_bench
from dsv4bench.profiling.kernel_bench import COLD, HOT, Best, KernelRun, measure_best, rate, run_kernel
from dsv4bench.profiling.kernel_loops import Loop
from dsv4bench.profiling.kernel_recording import KERNEL_RULE, kernel_session, record, run
from dsv4bench.profiling.session import Session
from dsv4bench.profiling.timing import QUICK, StopRule, Timing
from dsv4bench.ranges import Silent
from dsv4bench.results.speed import speed
from dsv4bench.workloads.kernel_cells import KernelArguments, kernel_cells
from tests.profiling.small_groups import FakeClock

OWN = """
import torch

def right(x, weight, eps, out):
    wide = x.float()
    out.copy_(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float())

def wrong(x, weight, eps, out):
    right(x, weight, eps, out)
    out[-1, -1] += 1

def touches(x, weight, eps, out):
    right(x, weight, eps, out)
    weight[0] = 0

def raises(x, weight, eps, out):
    raise RuntimeError("no such shape")
"""
BEST = Best(2e9, 1e12)
HERE = {"cpu": "a CPU", "commit": "c0ffee" * 6, "dirty": False, "dsv4bench": "0"}


def session(**changes):
    clock = changes.pop("clock", FakeClock())
    rule = replace(QUICK, alike=False, **changes)
    return Session(torch.device("cpu"), clock, rule, Silent(), dict(HERE), ("dsv4bench", "kernels"), ("a note",))


@pytest.fixture
def group(tmp_path):
    """Return a function from functions of the user's file to the group of those providers and torch."""
    file = tmp_path / "own.py"
    file.write_text(OWN)

    def make(*functions, rows="4"):
        providers = ("torch", *(f"{file}:{name}" for name in functions))
        (found,) = kernel_cells(
            KernelArguments(("rms_norm",), (rows,), case=("width 512",), provider=providers, device="cpu")
        )
        return found

    return make


def ran(cells, of=None):
    return run_kernel(cells, of or session(), lambda name: None)


@pytest.mark.parametrize(
    ("function", "status", "reason"),
    [
        ("right", "ok", None),
        ("wrong", "wrong", r"against torch: out: .*first at \[3, 511\]"),
        ("touches", "wrong", "against torch: weight: "),
        ("raises", "failed", r".*own\.py:\d+: RuntimeError: no such shape"),
    ],
)
def test_only_a_right_result_has_a_speed(group, function, status, reason):
    own = ran(group(function)).lanes[1]
    assert own.status == status
    assert bool(own.timings) is (status == "ok")
    if reason:
        assert re.match(reason, own.reason)


def test_a_wrong_provider_ends_no_other(group):
    lanes = ran(group("wrong", "right")).lanes
    assert [lane.status for lane in lanes] == ["ok", "wrong", "ok"]


def test_providers_are_timed_in_turn_with_both_ceilings(group, monkeypatch):
    asked = []
    honest = kernel_bench.interleave

    def spy(subjects, clock, rule, at_border):
        asked.extend(subject.period for subject in subjects)
        return honest(subjects, clock, rule, at_border)

    monkeypatch.setattr(kernel_bench, "interleave", spy)
    found = ran(group("right"))
    assert asked == [COLD, HOT, COLD, HOT, "ceiling", "ceiling"]
    assert set(found.ceilings) == {"even_bytes_per_s", "even_read_share", "mixed_bytes_per_s", "mixed_read_share"}


def test_a_cold_loop_visits_every_set_and_a_hot_one_the_first(group, monkeypatch):
    monkeypatch.setattr(kernel_bench, "l2_bytes", lambda device: 20_000)
    found = ran(group("right"))
    bytes_of_a_call = 2 * (2 * 4 * 512 + 512)  # rows read and written, weight read
    assert found.cost.bytes_moved == bytes_of_a_call
    assert len(found.sets) == 7 == -(-3 * 20_000 // bytes_of_a_call)
    loops = found.lanes[1].loops
    assert (loops[COLD].calls, loops[HOT].calls) == (7, 1)
    for tensors in found.sets:
        tensors["out"].zero_()
    loops[HOT].run()
    assert [bool(tensors["out"].any()) for tensors in found.sets] == [True] + 6 * [False]
    loops[COLD].run()
    assert all(bool(tensors["out"].any()) for tensors in found.sets)


def test_samples_are_of_one_call(group, monkeypatch):
    monkeypatch.setattr(kernel_bench, "l2_bytes", lambda device: 20_000)
    lane = ran(group("right"), session(clock=FakeClock(tick_ns=7_000_000))).lanes[1]
    assert lane.per_call_ns(COLD) == [1_000_000] * 3  # 7 calls a loop
    assert lane.per_call_ns(HOT) == [7_000_000] * 3


def test_a_loop_that_does_less_than_eager_calls_is_wrong(group):
    found = KernelRun(group("right"), session())
    found.check()
    found.build()
    lane = found.lanes[1]
    lane.loops[COLD] = Loop(lambda: None, lane.loops[COLD].calls, 1, ())
    found.time()
    found.check_again()
    assert [one.status for one in found.lanes] == ["ok", "wrong"]
    assert "timed calls against eager ones: out" in lane.reason


def test_running_out_of_memory_ends_what_is_alive(group, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. GPU 0 has less")

    monkeypatch.setattr(kernel_bench, "rotation", full)
    lanes = ran(group("right", "wrong")).lanes
    assert [lane.status for lane in lanes] == ["out_of_memory", "out_of_memory", "wrong"]


def test_a_provider_that_cannot_run_is_a_record_with_its_reason():
    cells = kernel_cells(KernelArguments(("rms_norm",), ("2",), case=("width 512",), device="cpu"))
    (records,) = run(cells, session())
    by_name = {one.kernel["provider"]: one for one in records}
    assert by_name["torch"].status == "ok"
    assert by_name["triton"].status == "skipped"
    assert by_name["triton"].samples_ns == {}
    assert by_name["triton"].reason


def test_a_record_holds_shape_cost_ceilings_and_how_it_was_timed(group):
    found = ran(group("right"))
    one = record(found.lanes[1], found, BEST)
    assert one.kernel["name"] == "rms_norm"
    assert one.kernel["rows"] == 4
    assert one.kernel["bytes_read"] + one.kernel["bytes_written"] == found.cost.bytes_moved
    assert one.kernel["ceilings"]["copy_bytes_per_s"] == 2e9
    assert one.kernel["launches"] is None  # no graph tells
    lane = found.lanes[1]
    lane.loops[COLD] = replace(lane.loops[COLD], launches=2.0)
    assert record(lane, found, BEST).kernel["launches"] == 2.0
    assert one.timing["calls"] == {COLD: found.lanes[1].loops[COLD].calls, HOT: 1}
    assert one.note[0] == "a note"
    assert re.fullmatch(r"sha256 of .*own\.py:right: [0-9a-f]{16}", one.note[1])
    assert "too few samples" in one.flags
    assert [check["name"] for check in one.checks] == ["against torch", "timed calls against eager ones"]
    assert speed(one).cold.value == one.samples_ns[COLD][0]


def test_what_was_not_in_a_graph_is_flagged(group):
    found = ran(group("right"))
    lane = found.lanes[1]
    lane.loops[HOT] = replace(lane.loops[HOT], why_eager="synchronises")
    assert "not in a graph, launch gaps included: synchronises" in record(lane, found, BEST).flags


def test_sets_that_do_not_exceed_the_l2_are_flagged(group, monkeypatch):
    found = ran(group("right"))
    monkeypatch.setattr("dsv4bench.profiling.kernel_recording.l2_bytes", lambda device: 10**12)
    assert any(flag.startswith("cold is not quite cold") for flag in record(found.lanes[1], found, BEST).flags)


def test_a_rate_beyond_the_devices_peak_is_flagged(group, monkeypatch):
    found = ran(group("right"))
    found.session = replace(found.session, device=torch.device("cuda"), environment={"gpu": "NVIDIA H200"})
    monkeypatch.setattr("dsv4bench.profiling.kernel_recording.l2_bytes", lambda device: 0)
    lane = found.lanes[1]
    lane.timings[COLD].samples_ns[COLD] = [lane.loops[COLD].calls] * 6  # 1 ns a call
    found.cost = replace(found.cost, bytes_read=10_000, bytes_written=10_000, flops=0)  # 20 TB/s
    assert record(lane, found, BEST).flags[-1] == "implausible: 417 % of the peak HBM rate (4.8 TB/s)"
    found.cost = replace(found.cost, bytes_written=0, bytes_read=4_800)
    assert not any("implausible" in flag for flag in record(lane, found, BEST).flags)


def test_a_finished_group_is_left_out_and_ceilings_come_first(group):
    cells, told = group("right"), []
    keys = frozenset(cell.key(session().commit) for cell in cells)
    assert list(run([cells], session(), keys)) == []
    (records,) = run([cells], session(), keys - {cells[0].key(session().commit)}, lambda _, name: told.append(name))
    assert len(records) == 2
    assert told == ["ceilings", "check", "build", "time", "check again"]


def test_the_best_of_the_device_is_a_rate_of_one_call():
    timing = Timing({"ceiling": [2_000, 4_000, 4_000]}, 1, True, 1, "fixed")
    assert rate(100, Loop(lambda: None, 8, 4, ()), timing) == 100 * 8 * 10**9 / 4_000
    best = measure_best(session(clock=FakeClock(tick_ns=1_000_000)))
    assert best.copy_bytes_per_s == 16 * 1024**2 * 1000
    assert best.matmul_flops_per_s == 2 * 256**3 * 1000


def test_kernels_have_a_stopping_rule_of_their_own():
    full = kernel_session(replace(session(), rule=StopRule(samples=9)), quick=False)
    assert full.rule == replace(KERNEL_RULE, samples=9)
    quick = kernel_session(replace(session(), rule=QUICK), quick=True)
    assert quick.rule == replace(QUICK, alike=False)
