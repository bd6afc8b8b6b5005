"""Every kernel of the catalogue keeps its contract: each provider, on every example, beside the reference."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dsv4bench.kernels import CATALOGUE, kernel
from dsv4bench.kernels.contract import Kernel, Tolerance, same_bits, torch_provider

GUARD = 64  # elements of poison on both sides of a tensor
POISON = 0xA5
Tensors = dict[str, Any]


def cases() -> Iterator[Any]:
    for name in CATALOGUE:
        for number, example in enumerate(kernel(name).examples):
            for provider in kernel(name).providers:
                yield pytest.param(kernel(name), example, provider, id=f"{name}-{number}-{provider.name}")


def made(subject: Kernel, example: Any, device: str) -> Tensors:
    return subject.inputs(example, torch.Generator(device).manual_seed(7))


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor like this one with poison for values."""
    flat = torch.full((tensor.numel() * tensor.element_size(),), POISON, dtype=torch.uint8, device=tensor.device)
    return flat.view(tensor.dtype).view(tensor.shape)


def spoilt(tensors: Tensors, names: set[str]) -> Tensors:
    for name in names:
        tensors[name].copy_(poison(tensors[name]))
    return tensors


def referred(subject: Kernel, tensors: Tensors) -> Tensors:
    """Run the reference over the tensors and return them."""
    subject.reference(**tensors)
    return tensors


def pure_outputs(subject: Kernel, example: Any, device: str) -> set[str]:
    """Name the outputs whose contents before a call change nothing, but that untouched elements keep them."""

    def is_pure(name: str) -> bool:
        got = referred(subject, spoilt(made(subject, example, device), {name}))
        kept = {other: same_bits(got[other], want[other]) for other in subject.outputs}
        kept[name] |= same_bits(got[name], poison(got[name]))
        return all(bool(same.all()) for same in kept.values())

    want = referred(subject, made(subject, example, device))
    return {name for name in subject.outputs if is_pure(name)}


def guarded(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy a tensor, strides and all, into a larger buffer full of poison; return the copy and the buffer."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    buffer = torch.full((extent + 2 * GUARD, tensor.element_size()), POISON, dtype=torch.uint8, device=tensor.device)
    copy = buffer.flatten().view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), GUARD)
    copy.copy_(tensor)
    return copy, buffer


def outside(copy: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a guarded copy's buffer that belong to none of its elements."""
    around = torch.ones(buffer.shape[0], dtype=torch.bool, device=buffer.device)
    around.as_strided(copy.shape, copy.stride(), GUARD).fill_(False)
    return buffer[around]


def filled(tensors: Tensors) -> list[str]:
    return [name for name, value in tensors.items() if isinstance(value, torch.Tensor) and value.numel()]


def deviations(subject: Kernel, got: Tensors, want: Tensors, before: Tensors) -> dict[str, str]:
    """Say of every tensor what is wrong with it after a call: outputs against the reference, inputs against before."""
    expected = {name: want[name] if name in subject.outputs else before[name] for name in filled(before)}
    found = {
        name: subject.outputs.get(name, Tolerance()).deviation(got[name], tensor) for name, tensor in expected.items()
    }
    return {name: text for name, text in found.items() if text}


def overwritten(subject: Kernel, got: Tensors, spoilt_want: Tensors, want: Tensors, before: Tensors) -> set[str]:
    """Name the outputs of which a call wrote an element that the reference leaves alone."""

    def is_overwritten(name: str) -> bool:
        bad = poison(got[name])
        untouched = same_bits(spoilt_want[name], bad) & same_bits(want[name], before[name])
        return not bool(same_bits(got[name], bad)[untouched & ~same_bits(before[name], bad)].all())

    return {name for name in subject.outputs if is_overwritten(name)}


@pytest.fixture
def where(request, device) -> str:
    """The device of the test; skips where the provider cannot run, sets the interpreter up where Triton needs it."""
    needs = request.node.callspec.params["provider"].needs
    if needs.packages == ("triton",):
        return request.getfixturevalue("triton_device")
    reason = needs.why_not(device)
    if reason:
        pytest.skip(reason)
    return device


@pytest.mark.parametrize(("subject", "example", "provider"), list(cases()))
def test_a_provider_does_what_the_reference_does_and_nothing_else(subject, example, provider, where):
    before = made(subject, example, where)
    want = referred(subject, made(subject, example, where))
    pure = pure_outputs(subject, example, where)
    spoilt_want = referred(subject, spoilt(made(subject, example, where), pure))
    got, buffers = spoilt(made(subject, example, where), pure), {}
    for name in filled(got):
        got[name], buffers[name] = guarded(got[name])

    provider.build(got)()

    assert deviations(subject, got, spoilt_want, before) == {}
    assert overwritten(subject, got, spoilt_want, want, before) & pure == set()
    assert {name for name, buffer in buffers.items() if (outside(got[name], buffer) != POISON).any()} == set()


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_kernel_is_called_what_the_catalogue_calls_it(name):
    assert kernel(name).name == name


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_reference_is_a_provider_everywhere(name):
    assert kernel(name).provider("torch").needs.why_not("cpu") is None


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_example_costs_something(name, generator):
    for example in kernel(name).examples:
        cost = kernel(name).cost(kernel(name).inputs(example, generator))
        counts = (cost.flops, cost.bytes_read, cost.bytes_written)
        assert all(type(count) is int for count in counts)
        assert cost.flops >= 0
        assert min(cost.bytes_read, cost.bytes_written) > 0


# ---- the checks above, on a kernel that breaks its contract on purpose


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
    assert pure_outputs(doubling(double_even), 8, "cpu") == {"even"}


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
    "broken", [writes_too_much, writes_too_little, changes_an_input, writes_before_the_start], ids=lambda f: f.__name__
)
def test_a_broken_promise_is_seen(broken):
    check = test_a_provider_does_what_the_reference_does_and_nothing_else
    check(doubling(double_even), 8, torch_provider(double_even), "cpu")
    with pytest.raises(AssertionError):
        check(doubling(double_even), 8, torch_provider(broken), "cpu")
