"""What a control perturbs, and that only what the kernel allows and its reference shows is ever tried."""

from types import SimpleNamespace

import pytest
import torch

from dsv4bench.kernels import CATALOGUE, kernel
from dsv4bench.profiling.buffer_sets import copied
from dsv4bench.profiling.digest_child import sha256
from dsv4bench.profiling.digest_control import perturb


def subject(reference, *outputs, check=lambda tensors: None):
    return SimpleNamespace(reference=reference, outputs=dict.fromkeys(outputs), check_values=check)


def total(ids, out):
    out.fill_(int(ids.sum()))


def test_the_first_input_of_floats_is_perturbed_and_no_output():
    tensors = {"out": torch.zeros(2), "ids": torch.arange(2), "x": torch.ones(2), "y": torch.ones(2)}
    assert perturb(subject(None, "out"), tensors, 0.25) == "x + 0.25"
    assert [tensors[name].tolist() for name in ("out", "ids", "x", "y")] == [[0, 0], [0, 1], [1.25, 1.25], [1, 1]]


def test_a_kernel_of_bytes_has_their_lowest_bits_flipped():
    tensors = {"ids": torch.arange(2), "cache": torch.tensor([4, 7], dtype=torch.uint8), "out": torch.zeros(1)}
    assert perturb(subject(None, "out"), tensors, 0.25) == "lowest bits of cache"
    assert tensors["cache"].tolist() == [5, 6]


def test_an_input_without_elements_is_passed_over():
    tensors = {"none": torch.zeros(0), "x": torch.ones(1), "out": torch.zeros(1)}
    assert perturb(subject(None, "out"), tensors, 0.5) == "x + 0.5"


@pytest.mark.parametrize(
    ("allowed", "said", "ids"),
    [
        (range(10), "ids[0] 4 -> 5", [5, 9, 2]),
        ((), None, [4, 9, 2]),
        ((4, 9, 2, 3), "ids[0] 4 -> 3", [3, 9, 2]),
        ((4, 9, 2), "ids[0] 4 -> 9", [9, 9, 2]),
    ],
    ids=["one more", "nothing", "one less", "the largest"],
)
def test_one_integer_takes_the_first_value_that_the_kernel_allows(allowed, said, ids):
    def check(tensors):
        if not set(tensors["ids"].tolist()) <= set(allowed):
            raise ValueError("ids")

    tensors = {"ids": torch.tensor([4, 9, 2]), "out": torch.zeros(1, dtype=torch.int32)}
    assert perturb(subject(total, "out", check=check), tensors, 0.5) == said
    assert tensors["ids"].tolist() == ids
    assert tensors["out"].tolist() == [0]  # tried on copies


def test_an_element_that_no_output_shows_is_passed_over():
    tensors = {"ids": torch.tensor([[4, 9], [2, 2]]), "out": torch.zeros(1, dtype=torch.int64)}
    assert perturb(subject(lambda ids, out: out.fill_(int(ids[1, 1])), "out"), tensors, 0.5) == "ids[1, 1] 2 -> 3"


@pytest.mark.parametrize("top", [0, 1, 2, 3])
def test_a_choice_is_changed_by_one_value_above_or_below_all_others(top):
    logits = torch.tensor([1.0, 2.0, 3.0, 300.0], dtype=torch.bfloat16).roll(top)
    choose = subject(lambda logits, out: out.copy_(logits.argmax()), "out")
    tensors = {"logits": logits.clone(), "out": torch.zeros((), dtype=torch.int32)}
    assert perturb(choose, tensors, 0.5).startswith("logits[")
    assert int(tensors["logits"].argmax()) != int(logits.argmax())
    assert int((tensors["logits"] != logits).sum()) == 1


def test_values_that_are_not_numbers_change_nothing():
    tensors = {"logits": torch.full((2,), -torch.inf), "out": torch.zeros(1, dtype=torch.int32)}
    assert perturb(subject(lambda logits, out: out.zero_(), "out"), tensors, 0.5) is None


@pytest.mark.parametrize("name", CATALOGUE)
def test_what_is_perturbed_is_allowed_and_shown_by_the_reference(name):
    found = kernel(name)
    for case in found.bench.cases:
        before = found.inputs(found.bench.shape(found.bench.cpu_rows, case), torch.Generator().manual_seed(0))
        after = copied(before)
        assert perturb(found, after, 0.5), case
        found.check_values(after)
        changed = [key for key in before if isinstance(before[key], torch.Tensor) and not same(before[key], after[key])]
        assert len(changed) == 1
        assert changed[0] not in found.outputs
        found.reference(**before)
        found.reference(**after)
        assert any(not same(before[output], after[output]) for output in found.outputs)


def same(one, other):
    return sha256(one) == sha256(other)
