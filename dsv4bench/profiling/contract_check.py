"""Whether a provider keeps its kernel's contract: the same outputs as the reference, and nothing else touched.

Outputs on which no result depends are poisoned before the call. Every tensor lies in a buffer full of poison, so that
a byte written beside it shows; inputs must come out as they went in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.errors import CellWrong
from dsv4bench.kernels.contract import Kernel, Provider, Tolerance, same_bits
from dsv4bench.workloads.providers import PROVIDERS, Choice, refuse_absent

GUARD = 64  # elements of poison on both sides of a tensor
POISON = 0xA5
SEED = 7
Tensors = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the reference makes of a shape.

    `before` and `want` are the tensors around its call; `pure` names the outputs whose contents before a call change
    nothing; `spoilt` are the tensors after a call that found poison in those.
    """

    before: Tensors
    want: Tensors
    pure: set[str]
    spoilt: Tensors


def broken(subject: Kernel, provider: Provider, device: str) -> str | None:
    """Return how a provider breaks the contract on the kernel's examples, or None if it keeps it."""
    for example in subject.examples:
        found = deviations(subject, example, provider, expectation(subject, example, device), device)
        for name, text in found.items():
            return f"{subject.name} {example}: {name}: {text}"
    return None


def check_choice(chosen: Choice, device: str) -> None:
    """Raise CellSkipped for a provider that cannot run here, CellWrong for a user's kernel that breaks its contract.

    Providers of the catalogue are under test in this project; a kernel from a file of the user's own is tested here,
    before anything is timed.
    """
    refuse_absent(chosen, device)
    for name, provider in chosen.of_one:
        found, resolved = chosen.resolve(name, device)
        text = broken(found, resolved, device) if provider not in PROVIDERS else None
        if text is not None:
            raise CellWrong(f"provider {provider} breaks the contract of {text}")


def expectation(subject: Kernel, example: Any, device: str) -> Expectation:
    """Return what the reference makes of a shape on `device`, from the same seed as `deviations` draws from."""
    want = _referred(subject, made(subject, example, device))
    pure = {name for name in subject.outputs if _is_pure(subject, example, want, name, device)}
    after = _referred(subject, _spoil(made(subject, example, device), pure))
    return Expectation(made(subject, example, device), want, pure, after)


def deviations(subject: Kernel, example: Any, provider: Provider, expected: Expectation, device: str) -> dict[str, str]:
    """Run a provider over poisoned outputs and guarded tensors; say of every tensor what is wrong with it, by name."""
    got, buffers = _spoil(made(subject, example, device), expected.pure), {}
    for name in [name for name, value in got.items() if isinstance(value, torch.Tensor) and value.numel()]:
        got[name], buffers[name] = guarded(got[name])
    provider.build(got)()
    found = {}
    for name, before in expected.before.items():
        if isinstance(before, torch.Tensor):
            want = expected.spoilt[name] if name in subject.outputs else before
            text = subject.outputs.get(name, Tolerance()).deviation(got[name], want, expected.before)
            found[name] = text or ("written where the reference writes nothing" if _over(got, expected, name) else "")
    for name, buffer in buffers.items():
        if (outside(got[name], buffer) != POISON).any():
            found[name] = "written outside the tensor"
    return {name: text for name, text in found.items() if text}


def made(subject: Kernel, example: Any, device: str) -> Tensors:
    """Return the tensors of a shape, drawn from the seed that all checks share."""
    return subject.inputs(example, torch.Generator(device).manual_seed(SEED))


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor like this one with poison for values."""
    flat = torch.full((tensor.numel() * tensor.element_size(),), POISON, dtype=torch.uint8, device=tensor.device)
    return flat.view(tensor.dtype).view(tensor.shape)


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


def _spoil(tensors: Tensors, names: set[str]) -> Tensors:
    for name in names:
        tensors[name].copy_(poison(tensors[name]))
    return tensors


def _referred(subject: Kernel, tensors: Tensors) -> Tensors:
    subject.reference(**tensors)
    return tensors


def _is_pure(subject: Kernel, example: Any, want: Tensors, name: str, device: str) -> bool:
    """Return whether no result depends on an output; what a call leaves alone may keep what it held."""
    got = _referred(subject, _spoil(made(subject, example, device), {name}))
    same = {other: same_bits(got[other], want[other]) for other in subject.outputs}
    same[name] |= same_bits(got[name], poison(got[name]))
    return all(bool(found.all()) for found in same.values())


def _over(got: Tensors, expected: Expectation, name: str) -> bool:
    """Return whether a call wrote an element of a pure output that the reference leaves alone."""
    if name not in expected.pure:
        return False
    bad, before = poison(got[name]), expected.before[name]
    untouched = same_bits(expected.spoilt[name], bad) & same_bits(expected.want[name], before)
    return not bool(same_bits(got[name], bad)[untouched & ~same_bits(before, bad)].all())
