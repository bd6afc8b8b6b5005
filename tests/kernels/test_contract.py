"""Every kernel of the catalogue keeps its contract: each provider, on every example, beside the reference."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from dsv4bench.kernels import CATALOGUE, codec, kernel
from dsv4bench.kernels.contract import TRITON, Kernel, Provider, Tolerance, same_bits, torch_provider
from dsv4bench.kernels.layout import INDEX_K

GUARD = 64  # elements of poison on both sides of a tensor
POISON = 0xA5
Tensors = dict[str, Any]


@dataclass(frozen=True)
class Expectation:
    """What the reference makes of an example.

    `before` and `want` are the tensors around its call; `pure` names the outputs whose contents before a call change
    nothing; `spoilt` are the tensors after a call that found poison in those.
    """

    before: Tensors
    want: Tensors
    pure: set[str]
    spoilt: Tensors


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


def pure_outputs(subject: Kernel, example: Any, want: Tensors, device: str) -> set[str]:
    """Name the outputs that no result depends on; what a call leaves alone may keep what it held."""

    def is_pure(name: str) -> bool:
        got = referred(subject, spoilt(made(subject, example, device), {name}))
        same = {other: same_bits(got[other], want[other]) for other in subject.outputs}
        same[name] |= same_bits(got[name], poison(got[name]))
        return all(bool(found.all()) for found in same.values())

    return {name for name in subject.outputs if is_pure(name)}


def expectation(subject: Kernel, example: Any, device: str) -> Expectation:
    want = referred(subject, made(subject, example, device))
    pure = pure_outputs(subject, example, want, device)
    after = referred(subject, spoilt(made(subject, example, device), pure))
    return Expectation(made(subject, example, device), want, pure, after)


@cache
def expected(name: str, number: int, device: str) -> Expectation:
    return expectation(kernel(name), kernel(name).examples[number], device)


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


def deviations(subject: Kernel, got: Tensors, expected: Expectation) -> dict[str, str]:
    """Say of every tensor what is wrong with it: outputs against the reference, inputs against what they were."""
    found = {}
    for name, before in expected.before.items():
        if isinstance(before, torch.Tensor):
            want = expected.spoilt[name] if name in subject.outputs else before
            found[name] = subject.outputs.get(name, Tolerance()).deviation(got[name], want, expected.before)
    return {name: text for name, text in found.items() if text}


def overwritten(got: Tensors, expected: Expectation) -> set[str]:
    """Name the outputs of which a call wrote an element that the reference leaves alone."""

    def is_overwritten(name: str) -> bool:
        bad, before = poison(got[name]), expected.before[name]
        untouched = same_bits(expected.spoilt[name], bad) & same_bits(expected.want[name], before)
        return not bool(same_bits(got[name], bad)[untouched & ~same_bits(before, bad)].all())

    return {name for name in expected.pure if is_overwritten(name)}


def check(subject: Kernel, example: Any, provider: Provider, expected: Expectation, device: str) -> None:
    """Run a provider over poisoned outputs and guarded tensors, and compare every byte that it could have changed."""
    got, buffers = spoilt(made(subject, example, device), expected.pure), {}
    for name in filled(got):
        got[name], buffers[name] = guarded(got[name])

    provider.build(got)()

    assert deviations(subject, got, expected) == {}
    assert overwritten(got, expected) == set()
    assert {name for name, buffer in buffers.items() if (outside(got[name], buffer) != POISON).any()} == set()


CASES = [
    pytest.param(name, number, provider, id=f"{name}-{number}-{provider.name}")
    for name in CATALOGUE
    for number in range(len(kernel(name).examples))
    for provider in kernel(name).providers
]


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


@pytest.mark.parametrize(("name", "number", "provider"), CASES)
def test_a_provider_does_what_the_reference_does_and_nothing_else(name, number, provider, where):
    check(kernel(name), kernel(name).examples[number], provider, expected(name, number, where), where)


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
    data, scales = codec.paged(written, size, layout)
    page, slot = data.any(dim=2).nonzero()[-1].tolist()
    _, base, stride = layout.strides(size)
    channel = int(data[page, slot].nonzero()[0])
    scale = int(scales[page, slot].nonzero()[0])
    return {"data": (page, slot * layout.data_bytes + channel), "scale": (page, base + slot * stride + scale)}


WRITERS = [
    pytest.param(name, number, what, step, id=f"{name}-{example}-{what}")
    for name, number, example, data_step in [
        ("norm_rope_store", 0, "v4", 1),
        ("norm_rope_store", 1, "v41", 1),
        ("norm_rope_store", 2, "fp4", 16),
        ("compress_c1", 0, "fp4", 16),
        ("compress_c1", 1, "v41", None),
        ("compress_c1", 2, "v4", None),
        ("compress_c2", 0, "fp4", 16),
        ("compress_c2", 1, "v41", None),
        ("compress_c2", 2, "v4", None),
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
    "broken", [writes_too_much, writes_too_little, changes_an_input, writes_before_the_start], ids=lambda f: f.__name__
)
def test_a_broken_promise_is_seen(broken):
    subject = doubling(double_even)
    want = expectation(subject, 8, "cpu")
    check(subject, 8, torch_provider(double_even), want, "cpu")
    with pytest.raises(AssertionError):
        check(subject, 8, torch_provider(broken), want, "cpu")
