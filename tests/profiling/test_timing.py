import gc
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.profiling import timing
from dsv4bench.profiling.timing import QUICK, HostClock, Part, StopRule, Subject, Timing, abba, interleave
from dsv4bench.units import NS_PER_MS, NS_PER_S


class FakeClock:
    """Time passes only when a step runs; a step costs `host_ns` to enqueue and `device_ns` to execute."""

    name = "fake"

    def __init__(self, enqueues=True):
        self.enqueues = enqueues
        self.time_ns = 0
        self.submit_ns = 0
        self.log = []

    def now_ns(self):
        return self.time_ns

    def synchronize(self):
        self.log.append("sync")

    def measure(self, run, repeat):
        started, submitted = self.time_ns, self.submit_ns
        run()
        first = self.submit_ns - submitted
        for _ in range(repeat - 1):
            run()
        return self.time_ns - started, first

    def step(self, name, durations_ns, host_ns=0):
        """Make a step that takes the next of `durations_ns` each time, the last one for ever."""
        left = list(durations_ns)

        def run():
            self.log.append(name)
            self.time_ns += left.pop(0) if len(left) > 1 else left[0]
            self.submit_ns += host_ns

        return run


def subject(run, prepare=timing.nothing, period="step_period"):
    return Subject((Part(run, prepare),), period)


def steps(log):
    return "".join(entry for entry in log if entry != "sync")


@pytest.mark.parametrize(
    ("names", "order"),
    [("A", "AAAAA"), ("AB", "ABBAABBAAB"), ("ABC", "ABCCBAABCCBAABC")],
    ids=["alone", "before and after", "three"],
)
def test_subjects_are_taken_forwards_then_backwards(names, order):
    clock = FakeClock()
    subjects = [subject(clock.step(name, [10 * NS_PER_MS])) for name in names]
    interleave(subjects, clock, StopRule(samples=5, warm_ups=1))
    assert steps(clock.log) == names + order  # one warm-up each comes first


def test_the_queue_is_empty_before_every_timed_block_and_prepare_is_not_timed():
    clock = FakeClock()
    long_preparation = clock.step("p", [NS_PER_S])
    (taken,) = interleave([subject(clock.step("A", [10 * NS_PER_MS]), long_preparation)], clock, QUICK)
    assert clock.log == ["p", "sync", "A"] * 4
    assert taken.samples_ns["step_period"] == [10 * NS_PER_MS] * 3


def test_a_sample_of_several_forwards_is_their_sum():
    clock = FakeClock()
    parts = tuple(Part(clock.step(name, [ms * NS_PER_MS], host_ns=ms)) for name, ms in (("A", 7), ("B", 11)))
    (taken,) = interleave([Subject(parts, "graph_replay")], clock, QUICK)
    assert taken.samples_ns == {"graph_replay": [18 * NS_PER_MS] * 3, "host_submit": [18] * 3}
    assert steps(clock.log) == "AB" * 4


def test_steps_shorter_than_a_sample_are_repeated_and_divided():
    clock = FakeClock()
    fast, slow = subject(clock.step("A", [400_000], 9)), subject(clock.step("B", [NS_PER_MS], 8))
    timings = interleave([fast, slow], clock, QUICK)
    assert [t.repeat for t in timings] == [13, 13]  # 5 ms / 0.4 ms, rounded up, for both alike
    assert [t.samples_ns["step_period"] for t in timings] == [[400_000] * 3, [NS_PER_MS] * 3]
    assert [t.samples_ns["host_submit"] for t in timings] == [[9] * 3, [8] * 3]


def test_subjects_that_are_not_alike_each_repeat_as_often_as_they_need():
    clock = FakeClock()
    fast, slow = subject(clock.step("A", [400_000])), subject(clock.step("B", [NS_PER_S]))
    timings = interleave([fast, slow], clock, replace(QUICK, alike=False))
    assert [t.repeat for t in timings] == [13, 1]
    assert [t.samples_ns["step_period"] for t in timings] == [[400_000] * 3, [NS_PER_S] * 3]


def test_a_clock_that_does_not_enqueue_has_no_host_submit():
    clock = FakeClock(enqueues=False)
    (taken,) = interleave([subject(clock.step("A", [NS_PER_S]))], clock, QUICK)
    assert set(taken.samples_ns) == {"step_period"}
    assert taken.launch_bound is None


@pytest.mark.parametrize(
    ("durations_ms", "warm_ups"),
    [([10], 4), ([500, 40, 12, 10, 10, 10, 10], 7), ([500, 40, 1000, 1000, 1015, 1020], 6)],
    ids=["at once", "after start-up", "within 2 %"],
)
def test_warm_up_ends_when_the_last_ones_equal_those_before(durations_ms, warm_ups):
    clock = FakeClock()
    run = clock.step("A", [ms * NS_PER_MS for ms in durations_ms])
    (taken,) = interleave([subject(run)], clock, StopRule(samples=1))
    assert (taken.warm_ups, taken.settled) == (warm_ups, True)


def test_a_subject_that_has_settled_waits_for_the_others():
    clock = FakeClock()
    slow_start = clock.step("B", [500 * NS_PER_MS, 90 * NS_PER_MS, 10 * NS_PER_MS])
    timings = interleave([subject(clock.step("A", [NS_PER_S])), subject(slow_start)], clock, StopRule(samples=1))
    assert [t.warm_ups for t in timings] == [4, 6]
    assert steps(clock.log) == "ABBAABBABBAB"


def test_warm_up_that_never_settles_ends_at_its_limit_and_says_so():
    clock = FakeClock()
    (taken,) = interleave([subject(clock.step("A", [2**n for n in range(60)]))], clock, StopRule(samples=1, warm_ups=7))
    assert (taken.warm_ups, taken.settled) == (7, False)


@pytest.mark.parametrize(
    ("rule", "samples_ns", "elapsed_ns", "reason"),
    [
        (StopRule(samples=3), [5, 900], 99 * NS_PER_S, None),
        (StopRule(samples=3), [5, 900, 5], 0, "fixed"),
        (StopRule(), [1000] * 9, NS_PER_S, None),
        (StopRule(), [1000] * 10, NS_PER_S // 2 - 1, None),
        (StopRule(), [1000] * 10, NS_PER_S // 2, "converged"),
        (StopRule(), [1000, 1010] * 10, NS_PER_S, "converged"),
        (StopRule(), [1000, 1030] * 10, NS_PER_S, None),
        (StopRule(), [1000, 1030] * 10, 15 * NS_PER_S, "timeout"),
        (StopRule(), [1000], 15 * NS_PER_S, "timeout"),
    ],
    ids=[
        "fixed number not reached, whatever the time",
        "fixed number reached",
        "too few",
        "too soon",
        "enough, equal",
        "interval within 1 %",
        "interval too wide",
        "timeout with a wide interval",
        "timeout with too few",
    ],
)
def test_stop_rule(rule, samples_ns, elapsed_ns, reason):
    assert rule.reason([samples_ns], elapsed_ns) == reason


def test_all_subjects_must_have_converged():
    assert StopRule().reason([[1000] * 10, [1000, 1030] * 5], NS_PER_S) is None


def test_sampling_goes_on_until_the_rule_says_why_it_ends():
    clock = FakeClock()
    (converged,) = interleave([subject(clock.step("A", [20 * NS_PER_MS]))], clock)
    assert (converged.stop, len(converged.samples_ns["step_period"])) == ("converged", 25)  # 25 x 20 ms = 0.5 s
    noisy = clock.step("B", [NS_PER_S, 2 * NS_PER_S] * 40)
    (timeout,) = interleave([subject(noisy)], clock, StopRule(warm_ups=1))
    assert (timeout.stop, timeout.warm_ups) == ("timeout", 1)
    assert sum(timeout.samples_ns["step_period"]) >= 15 * NS_PER_S


@pytest.mark.parametrize(("submit_ns", "bound"), [(94, False), (95, True), (120, True)])
def test_launch_bound_from_95_percent(submit_ns, bound):
    assert (
        Timing({"step_period": [100, 90, 110], "host_submit": [submit_ns] * 3}, 1, True, 1, "fixed").launch_bound
        is bound
    )


def test_borders_are_told_before_every_round_and_after_the_last():
    clock = FakeClock()
    subjects = [subject(clock.step(name, [NS_PER_S])) for name in "AB"]
    interleave(subjects, clock, StopRule(samples=2, warm_ups=1), at_border=lambda: clock.log.append("|"))
    assert steps(clock.log) == "AB|AB|BA|"


def test_a_block_of_rounds_has_no_border_inside():
    clock = FakeClock()
    rule = StopRule(samples=5, warm_ups=1, block=2)
    interleave([subject(clock.step("A", [NS_PER_S]))], clock, rule, at_border=lambda: clock.log.append("|"))
    assert steps(clock.log) == "A|AA|AA|A|"


def test_the_sm_clock_is_read_right_after_every_sample():
    clock, readings = FakeClock(), iter([1980, 1970, None, 1950])

    def sm_mhz():
        clock.log.append("mhz")
        return next(readings)

    subjects = [subject(clock.step(name, [NS_PER_S])) for name in "AB"]
    timings = interleave(subjects, clock, StopRule(samples=2, warm_ups=1), sm_mhz=sm_mhz)
    assert [one.sm_mhz for one in timings] == [(1980, 1950), (1970, None)]  # A B, B A
    assert steps(clock.log) == "AB" + "AmhzBmhz" + "BmhzAmhz"
    assert interleave(subjects, clock, StopRule(samples=1, warm_ups=1))[0].sm_mhz == ()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_rests_meanwhile_and_is_as_before_after_an_error(enabled):
    clock, seen = FakeClock(), []

    def run():
        seen.append(gc.isenabled())
        raise MemoryError

    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(MemoryError):
            interleave([subject(run)], clock, QUICK)
        assert (seen, gc.isenabled()) == ([False], enabled)
    finally:
        (gc.enable if was else gc.disable)()


@given(st.integers(1, 6), st.integers(0, 9))
def test_every_round_takes_everyone_once_and_two_rounds_are_a_palindrome(count, turn):
    first, second = list(abba(count, turn)), list(abba(count, turn + 1))
    assert sorted(first) == list(range(count))
    assert second == first[::-1]


def test_the_host_clock_measures_all_calls_and_the_first():
    total_ns, first_ns = HostClock().measure(lambda: sum(range(1000)), repeat=50)
    assert 0 < first_ns < total_ns


def test_the_cuda_clock_times_between_two_events(monkeypatch):
    calls = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            calls.append("event")

        def synchronize(self):
            calls.append("wait")

        def elapsed_time(self, end):
            return 1.2345

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("sync"))
    clock = timing.clock("cuda")
    clock.synchronize()
    total_ns, submit_ns = clock.measure(lambda: calls.append("step"), repeat=3)
    assert calls == ["sync", "event", "step", "step", "step", "event", "wait"]
    assert total_ns == 1_234_500
    assert submit_ns < clock.now_ns()


def test_a_cpu_is_timed_by_its_own_clock():
    assert isinstance(timing.clock("cpu"), HostClock)
