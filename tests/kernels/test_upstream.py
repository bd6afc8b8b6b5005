"""The kernels of installed packages beside this project's references, on a GPU: bytes, or a tolerance with a reason."""

from functools import cache

import pytest
import torch

from dsv4bench.kernels import CATALOGUE, kernel
from dsv4bench.kernels.layout import LAYOUTS, V4
from dsv4bench.kernels.paged import paged
from dsv4bench.kernels.upstream import ADAPTERS
from dsv4bench.profiling.contract_check import deviations, expectation, made
from tests.kernels.upstream_inputs import upstreams

CASES = [
    pytest.param(adapter, number, id=f"{adapter.kernel}-{adapter.package}-{number}")
    for adapter in ADAPTERS
    if adapter.kernel in CATALOGUE
    for number in range(len(kernel(adapter.kernel).examples))
]


@cache
def expected(name, number, device):
    subject = upstreams(kernel(name))
    return expectation(subject, subject.examples[number], device)


@pytest.mark.upstream
@pytest.mark.parametrize(("adapter", "number"), CASES)
def test_an_installed_kernel_does_what_the_reference_does(adapter, number, device):
    subject, provider = upstreams(kernel(adapter.kernel)), adapter.provider()
    example = subject.examples[number]
    reason = provider.needs.why_not(device) or provider.refuses(made(subject, example, device))
    if reason:
        pytest.skip(reason)
    assert deviations(subject, example, provider, expected(adapter.kernel, number, device), device) == {}


@pytest.mark.parametrize("name", CATALOGUE)
def test_upstream_is_held_to_every_output(name):
    assert set(upstreams(kernel(name)).outputs) == set(kernel(name).outputs)


@pytest.mark.parametrize("name", ["index_topk", "index_candidates"])
def test_rows_to_select_from_have_no_ties_and_see_what_they_saw(name):
    for example in kernel(name).examples:
        before, after = (made(subject, example, "cpu")["logits"] for subject in (kernel(name), upstreams(kernel(name))))
        assert torch.equal(before > float("-inf"), after > float("-inf"))
        for row in after:
            finite = row[row > float("-inf")].float()
            assert finite.isfinite().all()
            assert len(finite.unique()) == len(finite)


def test_scales_to_dequantise_are_neither_0_nor_255_in_v4_rows_alone():
    for example in kernel("dequant").examples:
        tensors = made(upstreams(kernel("dequant")), example, "cpu")
        layout = LAYOUTS[example.layout]
        _, scales = paged(tensors["cache"], example.page_size, layout)
        extreme = ((scales == 0) | (scales == 255)).any()
        assert bool(extreme) == (layout != V4 and layout.scale_bytes > 0)
