"""Every kernel of the catalogue keeps its contract: each provider, on every example, beside the reference."""

from functools import cache
from typing import Any

import pytest
import torch

from dsv4bench.kernels import CATALOGUE, kernel, paged
from dsv4bench.kernels.contract import TRITON, Kernel, Provider, no_check, torch_provider
from dsv4bench.kernels.layout import INDEX_K
from dsv4bench.profiling.contract_check import POISON, Expectation, Tensors, deviations, expectation

OWN = {"torch", "triton", "gluon"}


@cache
def expected(name: str, number: int, device: str) -> Expectation:
    return expectation(kernel(name), kernel(name).examples[number], device)


def check(subject: Kernel, example: Any, provider: Provider, expected: Expectation, device: str) -> None:
    assert deviations(subject, example, provider, expected, device) == {}


CASES = [
    pytest.param(name, number, provider, id=f"{name}-{number}-{provider.name}")
    for name in CATALOGUE
    for number in range(len(kernel(name).examples))
    for provider in kernel(name).providers
    if provider.name in OWN  # those of installed packages: test_upstream.py
]


@pytest.fixture
def where(request, device) -> str:
    """The device of the test; skips where the provider cannot run, sets the interpreter up where Triton needs it."""
    needs = request.node.callspec.params["provider"].needs
    if needs == TRITON:
        return request.getfixturevalue("triton_device")
    reason = needs.why_not(device)
    if reason:
        pytest.skip(reason)
    return device


@pytest.mark.parametrize(("name", "number", "provider"), CASES)
def test_a_provider_does_what_the_reference_does_and_nothing_else(name, number, provider, where):
    check(kernel(name), kernel(name).examples[number], provider, expected(name, number, where), where)


FULL_SIZE = [
    pytest.param(name, case, max(kernel(name).bench.rows), provider, id=f"{name}-{case}-{provider.name}")
    for name in CATALOGUE
    for case in kernel(name).bench.cases
    for provider in kernel(name).providers
    if provider.name in OWN - {"torch"}
]


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "case", "rows", "provider"), FULL_SIZE)
def test_a_provider_does_so_at_the_largest_size_that_is_timed(name, case, rows, provider, where):
    subject = kernel(name)
    shape = subject.bench.shape(rows, case)
    check(subject, shape, provider, expectation(subject, shape, where), where)


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_updates_of_a_kernel_are_the_outputs_on_whose_contents_before_a_result_depends(name):
    subject = kernel(name)
    pure = [expected(name, number, "cpu").pure for number in range(len(subject.examples))]
    assert set(subject.updates) == set(subject.outputs) - set.intersection(*pure)


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_kernel_is_called_what_the_catalogue_calls_it(name):
    assert kernel(name).name == name


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_reference_is_a_provider_everywhere(name):
    assert kernel(name).provider("torch").needs.why_not("cpu") is None


@pytest.mark.parametrize(
    ("have", "reason"),
    [((8, 0), "needs compute capability 8.9, this device has 8.0"), ((8, 9), None), ((9, 0), None)],
    ids=["A100", "L4", "H200"],
)
def test_triton_needs_a_device_that_converts_fp8(monkeypatch, have, reason):
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: have)
    assert TRITON.why_not("cuda") == reason


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_example_costs_something(name, generator):
    for example in kernel(name).examples:
        cost = kernel(name).cost(kernel(name).inputs(example, generator))
        counts = (cost.flops, cost.bytes_read, cost.bytes_written)
        assert all(type(count) is int for count in counts)
        assert cost.flops >= 0
        assert min(cost.bytes_read, cost.bytes_written) > 0


# ---- how many codes apart (specification 3.2), on writers that are wrong on purpose


def places(tensors: Tensors, written: torch.Tensor) -> dict[str, tuple[int, ...]]:
    """Return a place of the cache that holds data without rotation, and one that holds a scale, both written."""
    layout, size = tensors.get("layout", INDEX_K), tensors["page_size"]
    data, scales = paged.paged(written, size, layout)
    page, slot = data.any(dim=2).nonzero()[-1].tolist()
    data_stride, base, stride = layout.strides(size)
    channel = int(data[page, slot].nonzero()[0])
    scale = int(scales[page, slot].nonzero()[0])
    return {"data": (page, slot * data_stride + channel), "scale": (page, base + slot * stride + scale)}


WRITERS = [
    pytest.param(name, number, what, step, id=f"{name}-{example}-{what}")
    for name, number, example, data_step in [
        ("norm_rope_store", 0, "v4", 1),
        ("norm_rope_store", 1, "v41", 1),
        ("norm_rope_store", 2, "fp4", 16),
        ("norm_rope_store", 3, "v41_new", 1),
        ("norm_rope_store", 4, "fp4_new", 16),
        ("compress_c1", 0, "fp4", 16),
        ("compress_c1", 1, "v41", None),
        ("compress_c1", 2, "v4", None),
        ("compress_c2", 0, "fp4", 16),
        ("compress_c2", 1, "v41", None),
        ("compress_c2", 2, "v4", None),
        ("compress_c2_decode", 0, "fp4", 16),
        ("compress_c2_decode", 1, "v41", None),
        ("compress_c2_decode", 2, "v4", None),
        ("index_key", 0, "ratio 2", 16),
    ]
    for what, step in (("data", data_step), ("scale", 1))
    if step
]


@pytest.mark.parametrize(("name", "number", "what", "step"), WRITERS)
def test_as_many_codes_apart_as_its_limit_is_near_and_one_more_is_not(name, number, what, step):
    subject, want = kernel(name), expected(name, number, "cpu")
    written = want.spoilt["cache"] != want.before["cache"]
    written &= want.spoilt["cache"] != POISON
    place = places(want.before, written)[what]

    def moved(codes: int):
        def writer(**tensors):
            subject.reference(**tensors)
            byte = int(tensors["cache"][place])
            magnitude = byte >> 4 & 7 if step == 16 else byte & 127
            tensors["cache"][place] = byte + step * (codes if magnitude < 4 else -codes)

        return torch_provider(writer)

    limit = 2 if name == "index_key" else 1
    check(subject, subject.examples[number], moved(limit), want, "cpu")
    with pytest.raises(AssertionError, match=f"differs by {limit + 1} codes, at most {limit} expected"):
        check(subject, subject.examples[number], moved(limit + 1), want, "cpu")


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_values_of_every_example_pass_their_check(name, generator):
    for example in kernel(name).examples:
        kernel(name).check_values(kernel(name).inputs(example, generator))


def test_every_kernel_that_takes_ids_checks_them():
    """But the fake quant, for which a position outside its table is row 0."""
    unchecked = set()
    for name in CATALOGUE:
        subject = kernel(name)
        tensors = subject.inputs(subject.examples[0], torch.Generator())
        ids = [key for key, value in tensors.items() if torch.is_tensor(value) and not value.is_floating_point()]
        if set(ids) - set(subject.outputs) and subject.check_values is no_check:
            unchecked.add(name)
    assert unchecked == {"fake_quant"}
