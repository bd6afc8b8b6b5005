"""Which facts keep two records from being compared, one by one, and what is unknown rather than different."""

from dataclasses import replace

import pytest

from dsv4bench.results.comparability import FACTS, chip, differences, known, of_one_chip, two_machines, unknown
from dsv4bench.results.store import read_records
from tests.results.synthetic import record
from tests.source_tree import ROOT

HERE = {
    "gpu": "NVIDIA H200", "gpu_sms": 132, "cpu": "a CPU", "driver": "580.159.04", "power_limit_mw": 700_000,
    "cuda": "13.0", "mig": False, "injected": [], "cpu_threads": 16, "gpu_chip": "1111", "host_id": "2222",
}  # fmt: skip
TIMING = {"clock": "cuda events", "cache": "natural", "alignment": "barrier"}
CLOCKS = {"sm_mhz": [1900, 1905, 1910], "reasons": ["sw_power_cap"]}
BASE = record(environment=HERE, timing=TIMING, clocks=CLOCKS)


def changed(**values):
    """The record with other values of fields; those of a dict are changed one by one."""
    now = {name: getattr(BASE, name) for name in values}
    return replace(BASE, **{k: {**now[k], **v} if isinstance(v, dict) and now[k] else v for k, v in values.items()})


def there(**facts):
    return changed(environment=facts)


# what changes: the fact's name, its values before and after, and whether that makes it another machine
CASES = {
    "name": (there(gpu="NVIDIA B300"), "machine", "NVIDIA H200", "NVIDIA B300", True),
    "sms": (there(gpu_sms=160), "SMs", "132", "160", True),
    "host": (there(cpu="Grace"), "host", "a CPU", "Grace", True),
    "chip": (there(gpu_chip="3333"), "GPU chip", "1111", "3333", True),
    "power": (there(power_limit_mw=500_000), "power limit", "700 W", "500 W", False),
    "driver": (there(driver="590.10"), "driver", "580", "590", False),
    "cuda": (there(cuda="12.8"), "CUDA", "13.0", "12.8", False),
    "mig": (there(mig=True), "MIG", "off", "on", False),
    "lock": (
        changed(clocks={"reasons": ["applications_clocks_setting"], "sm_mhz": [1500, None, 1490, 1500]}),
        "clock lock",
        "none",
        "1500 MHz",
        False,
    ),
    "lock-unread": (
        changed(clocks={"reasons": ["applications_clocks_setting"], "sm_mhz": []}),
        "clock lock",
        "none",
        "at an unknown clock",
        False,
    ),
    "profiler": (there(injected=["libTools.so"]), "profiler", "none", "libTools.so", False),
    "label": (changed(label="simulated"), "label", "measured", "simulated", False),
    "method": (changed(samples_ns={"graph_replay": [5]}), "method", "step_period", "graph_replay", False),
    "clock": (changed(timing={"clock": "perf_counter"}), "timing clock", "cuda events", "perf_counter", False),
    "cache": (changed(timing={"cache": "flushed"}), "cache policy", "natural", "flushed", False),
    "alignment": (changed(timing={"alignment": "none"}), "alignment", "barrier", "none", False),
    "cache-of-kernels": (
        changed(timing={"cache": {"b": 1, "a": 2}}),
        "cache policy",
        "natural",
        '{"a": 2, "b": 1}',
        False,
    ),
    "rows": (changed(batch={"rows": 7}), "workload (rows)", "1024", "7", False),
    "padding": (changed(batch={"padded_rows": 2048}), "workload (padded_rows)", "1024", "2048", False),
    "forwards": (changed(batch={"forwards": 2}), "workload (forwards)", "1", "2", False),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_fact_that_differs_is_named_with_both_values(case):
    other, what, before, after, machine = case
    (found,) = differences(BASE, other)
    assert (found.what, found.before, found.after) == (what, before, after)
    assert str(found) == f"{what}: {before} before, {after} after"
    assert two_machines([found]) is machine


def test_equal_facts_and_a_later_part_of_one_driver_are_comparable():
    assert differences(BASE, BASE) == []
    assert differences(BASE, there(driver="580.200.01", cpu_threads=8)) == []


def test_a_cpu_is_the_machine_and_its_threads_count():
    here = replace(BASE, engine="cpu-reference")
    there = replace(here, environment={**HERE, "cpu_threads": 1, "cpu": "another"})
    assert [one.what for one in differences(here, there)] == ["machine", "threads"]
    assert [one.what for one in differences(BASE, here)] == ["machine", "engine"]


def test_a_cpu_is_told_from_another_of_its_model_by_the_id_of_its_host():
    here = replace(BASE, engine="tape")
    (found,) = differences(here, replace(here, environment={**HERE, "host_id": "3333"}))
    assert str(found) == "host id: 2222 before, 3333 after"
    assert two_machines([found])
    assert differences(here, replace(here, environment={**HERE, "gpu_chip": "3333"})) == []
    assert differences(BASE, there(host_id="3333")) == []  # a container may have an id of its own, a GPU is one


def test_a_chip_that_neither_side_knows_is_unknown():
    old, tape = (replace(BASE, environment={"gpu": "NVIDIA H200"}, engine=engine) for engine in ("gpu", "tape"))
    assert differences(old, old) == []
    assert (unknown(old, old), unknown(tape, tape)) == (["GPU chip"], ["host id"])


CHIPS = {
    "none known": ("--", "--", "--", "--"),
    "one side known": ("--", "ab", "--", "ab"),
    "shared": ("ab", "bc", "b", "b"),
    "the newest that is shared": ("bab", "ab-c", "bb", "b"),
    "none shared": ("ab", "cd", "ab", "cd"),
    "one side": ("", "ab", "", "ab"),
}


@pytest.mark.parametrize(("before", "after", "old", "new"), CHIPS.values(), ids=CHIPS)
def test_records_of_a_chip_that_both_sides_know_stand_for_them(before, after, old, new):
    sides = [[there(gpu_chip=None if one == "-" else one) for one in letters] for letters in (before, after)]
    assert ["".join(chip(one) or "-" for one in side) for side in of_one_chip(*sides)] == [old, new]


def test_two_machines_may_differ_in_what_belongs_to_a_machine_and_in_nothing_else():
    b300 = there(gpu="NVIDIA B300", power_limit_mw=1_400_000, driver="590.1", cuda="13.1")
    assert two_machines(differences(BASE, b300))
    assert not two_machines(differences(BASE, replace(b300, label="simulated")))
    assert not two_machines(differences(BASE, there(driver="590.1")))
    assert not two_machines([])


def test_a_model_is_never_compared_even_with_a_model():
    model = changed(label="modelled")
    (found,) = differences(model, model)
    assert (found.what, found.before, found.after) == ("label", "modelled", "modelled")


def test_what_one_side_does_not_say_is_unknown_and_not_different():
    old = replace(BASE, timing=None, clocks=None, environment={"gpu": "NVIDIA H200"})
    assert differences(old, BASE) == []
    assert unknown(old, BASE) == [
        *("SMs", "host", "GPU chip", "power limit", "driver", "CUDA", "MIG", "clock lock", "profiler", "timing clock"),
        *("cache policy", "alignment"),
    ]
    assert unknown(BASE, old) == unknown(old, BASE)
    assert unknown(BASE, BASE) == []


def test_known_facts_are_text():
    facts = known(BASE)
    assert facts["power limit"] == "700 W"
    assert facts["workload (rows)"] == "1024"
    assert set(facts) <= set(FACTS)


def test_committed_runs_of_one_machine_are_comparable():
    first, second = (read_records(ROOT / "results" / name).records for name in ("h200-default", "h200-graph-forms"))
    ours = {record.mode: record for record in first if record.batch["requests"] == 1}
    for other in second:
        if other.batch["requests"] == 1 and other.mode in ours:
            assert differences(ours[other.mode], other) == []
