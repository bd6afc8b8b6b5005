"""A provider that breaks its kernel's contract is seen, and how is said."""

from dataclasses import replace

import pytest
import torch

from dsv4bench.errors import CellSkipped, CellWrong
from dsv4bench.kernels.contract import Kernel, Tolerance, torch_provider
from dsv4bench.profiling.contract_check import Tensors, broken, check_choice, deviations, expectation
from dsv4bench.workloads.providers import Choice, choice


def doubling(reference) -> Kernel:
    def inputs(rows: int, generator: torch.Generator) -> Tensors:
        x = torch.rand(rows, generator=generator)
        return {"x": x, "even": torch.zeros(rows), "twice": torch.rand(rows, generator=generator)}

    outputs = {"even": Tolerance(), "twice": Tolerance()}
    return Kernel("doubling", inputs, reference, lambda tensors: None, outputs, (8,))


def double_even(x, even, twice):
    """`even` is written at even places only; `twice` is doubled in place."""
    even[::2] = x[::2]
    twice.mul_(2)


def test_an_output_that_is_read_is_not_poisoned():
    assert expectation(doubling(double_even), 8, "cpu").pure == {"even"}


def writes_too_much(x, even, twice):
    double_even(x, even, twice)
    even[3] = 1.0


def writes_too_little(x, even, twice):
    even[:4:2] = x[:4:2]
    twice.mul_(2)


def changes_an_input(x, even, twice):
    double_even(x, even, twice)
    x[5] = 0.0


def writes_before_the_start(x, even, twice):
    double_even(x, even, twice)
    even.as_strided((1,), (1,), even.storage_offset() - 1).fill_(0.0)


@pytest.mark.parametrize(
    ("wrong", "name", "said"),
    [
        (writes_too_much, "even", "1 of 8 elements differ, none expected; first at ["),
        (writes_too_little, "even", "2 of 8 elements differ, none expected; first at ["),
        (changes_an_input, "x", "1 of 8 elements differ, none expected; first at ["),
        (writes_before_the_start, "even", "written outside the tensor"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_promise_is_seen(wrong, name, said):
    subject = doubling(double_even)
    found = deviations(subject, 8, torch_provider(wrong), expectation(subject, 8, "cpu"), "cpu")
    assert list(found) == [name]
    assert said in found[name]
    assert broken(subject, torch_provider(wrong), "cpu") == f"doubling 8: {name}: {found[name]}"


def test_how_far_an_output_is_off_is_counted():
    want = torch.zeros(1000)
    got = want.clone()
    got[:12] = 0.5
    near = Tolerance(rtol=0.01, atol=0.25, share=0.989)
    assert near.deviation(got, want) == (
        "12 of 1000 elements differ by more than rtol 0.01 atol 0.25, at most 11 expected; first at [0]: 0.5,"
        " expected 0.0"
    )
    got[0] = 0.25
    assert near.deviation(got, want) is None


def test_a_kept_promise_passes():
    subject = doubling(double_even)
    assert deviations(subject, 8, torch_provider(double_even), expectation(subject, 8, "cpu"), "cpu") == {}
    assert broken(subject, torch_provider(double_even), "cpu") is None


def test_a_share_that_may_differ_does_not_cover_what_must_stay_untouched():
    subject = replace(doubling(double_even), outputs={"even": Tolerance(share=0.5), "twice": Tolerance()})
    found = deviations(subject, 8, torch_provider(writes_too_much), expectation(subject, 8, "cpu"), "cpu")
    assert found == {"even": "written where the reference writes nothing"}


OWN = """
from dsv4bench.kernels import kernel

def right(**tensors):
    kernel("dequant").reference(**tensors)

def late(**tensors):
    kernel("dequant").reference(**tensors | {"ids": tensors["ids"].roll(1)})
"""


def test_a_users_own_kernel_is_tested_before_it_is_timed(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    check_choice(choice(f"dequant={tmp_path}/own.py:right", "cpu"), "cpu")
    with pytest.raises(
        CellWrong,
        match=r"own\.py:late breaks the contract of dequant Shape\(rows=37.*: out: [0-9]+ of 18944 elements differ",
    ):
        check_choice(choice(f"dequant={tmp_path}/own.py:late", "cpu"), "cpu")


def test_a_provider_that_can_run_nothing_is_skipped():
    with pytest.raises(CellSkipped, match="provider nobody: no kernel"):
        check_choice(Choice("nobody"), "cpu")
