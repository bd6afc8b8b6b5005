"""Rates that cannot be true: beyond what the H200 gives at best, 4.8 TB/s and 1978.9 TFLOP/s."""

import pytest

from dsv4bench.results.plausibility import NOT_COLD, flagged, implausible
from dsv4bench.results.store import read_records
from tests.results.kernel_records import kernel_record, unable
from tests.results.synthetic import CPU, GPU, lost, record
from tests.source_tree import ROOT

HBM = "implausible: 417 % of the peak HBM rate (4.8 TB/s)"  # 20 / 4.8


def step(rate, **changes):
    return record(predicted={"saved_ns": 1, "dequant_bytes_per_s": rate}, **changes)


# a kernel moves 4 MB or does some FLOPs, in nanoseconds
CASES = {
    "memory": (kernel_record(cold=200), HBM),
    "just beyond": (kernel_record(cold=833), "implausible: 101 % of the peak HBM rate (4.8 TB/s)"),  # 4.802 TB/s
    "beyond the measured copy of 4.2 TB/s": (kernel_record(cold=834), None),
    "hot alone": (kernel_record(hot=1), None),
    "not cold": (kernel_record(cold=200, flags=[NOT_COLD]), None),
    "arithmetic": (
        kernel_record(cold=1_000, flops=4_000_000_000),
        "implausible: 203 % of the peak fp8 rate (1978.9 TFLOP/s)",
    ),
    "beyond bf16": (kernel_record(cold=1_000, flops=1_900_000_000), None),
    "another GPU": (kernel_record(cold=200, environment={"gpu": "NVIDIA GB200"}), "implausible: 250 % of the peak HBM"),
    "a GPU without peaks": (kernel_record(cold=200, environment={"gpu": "NVIDIA T4"}), None),
    "a CPU": (kernel_record(cold=200, engine="cpu-reference", environment=CPU), None),
    "no time": (unable(), None),
    "without ceilings": (kernel_record(cold=200, kernel={"name": "dequant"}), None),
    "a step": (step(2e13), HBM),
    "an honest step": (step(3.9e12), None),
    "a step on a CPU": (step(2e13, engine="cpu-reference"), None),
    "a step that predicts nothing": (record(), None),
    "a step that failed": (lost("failed", "died"), None),
    "said of a rank": (step(1e12, flags=["rank 1: implausible: 900 % of"]), "rank 1: implausible: 900 %"),
    "said before": (step(1e12, flags=["implausible: 900 % of something"]), "implausible: 900 % of something"),
}


@pytest.mark.parametrize(("seen", "said"), CASES.values(), ids=CASES)
def test_a_rate_beyond_the_peak_is_implausible(seen, said):
    found = implausible(seen)
    assert found is None if said is None else found.startswith(said)


def test_a_flag_is_said_once_behind_the_others():
    once = flagged(step(2e13, flags=["too few samples"]))
    assert once.flags == ["too few samples", HBM]
    assert flagged(once) is once
    honest = step(1e12)
    assert flagged(honest) is honest


@pytest.mark.parametrize("name", ["h200-kernels", "h200-metadata", "h200-default", "h200-ab-reuse"])
def test_no_committed_record_is_implausible(name):
    """Small kernels reach 125 % of the elementwise operation of their bytes, and honestly."""
    assert [one.key for one in read_records(ROOT / "results" / name).records if implausible(one)] == []


def test_the_machine_is_the_records():
    assert implausible(step(5e12, environment=GPU)) == "implausible: 105 % of the peak HBM rate (4.8 TB/s)"
