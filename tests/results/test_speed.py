"""From samples, cost and ceilings to a rate and a share."""

from dataclasses import replace

import pytest

from dsv4bench.results.speed import peer, ratio, speed
from tests.results.kernel_records import kernel_record, unable
from tests.results.synthetic import record


def test_bytes_over_time_against_the_faster_elementwise_pass():
    found = speed(kernel_record(cold=2_000, hot=500))
    assert (found.bound, found.rate, found.ceiling) == ("memory", 2e12, 4e12)  # 4 MB in 2 us
    assert found.share == 0.5
    assert found.least_ns == 1_000
    assert (found.cold.value, found.hot.value, found.intensity) == (2_000, 500, 0)


@pytest.mark.parametrize(("flops", "bound"), [(7 * 10**8, "memory"), (8 * 10**8 + 10**6, "compute")])
def test_what_takes_longer_at_its_ceiling_binds(flops, bound):
    found = speed(kernel_record(flops=flops))  # the bytes take 1 us, and so do 8e8 FLOPs
    assert found.bound == bound
    assert found.intensity == flops / 4e6


def test_arithmetic_that_binds_is_measured_against_the_matmul():
    found = speed(kernel_record(cold=4_000, flops=1_600_000_000))
    assert (found.rate, found.ceiling, found.share) == (4e14, 8e14, 0.5)


def test_what_has_no_time_has_no_speed():
    assert speed(unable()) is None
    assert speed(record()) is None  # a step


@pytest.mark.parametrize(
    ("providers", "wanted"),
    [
        (("torch", "triton", "sglang"), "sglang"),
        (("triton", "flash_mla", "sglang"), "flash_mla"),
        (("torch", "triton"), "torch"),
        (("triton",), None),
    ],
)
def test_a_kernel_is_compared_with_another_projects_else_with_torch(providers, wanted):
    found = peer([kernel_record(name) for name in providers])
    assert (found.kernel["provider"] if found else None) == wanted


def test_who_has_no_time_is_nobodys_peer():
    assert peer([unable("sglang"), kernel_record("triton"), kernel_record("torch")]).kernel["provider"] == "torch"


def test_the_ratio_is_of_neighbouring_samples():
    ours = kernel_record("triton", cold=[100, 200, 100, 100, 100, 100])
    theirs = kernel_record("sglang", cold=[300, 600, 300, 300, 300, 330])
    assert ratio(ours, theirs).value == 3
    assert ratio(theirs, theirs) is None
    assert ratio(ours, None) is None
    assert ratio(ours, replace(theirs, group="another")) is None
    assert ratio(ours, kernel_record("sglang", cold=[300])) is None
    assert ratio(unable(), theirs) is None
