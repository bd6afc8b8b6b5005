"""What a kernel of the catalogue is: one operation, its reference, its cost, and who else can do it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from dsv4bench.kernels.layout import INDEX_K, KVLayout
from dsv4bench.units import format_count

Tensors = Mapping[str, Any]
Call = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Needs:
    """What a provider needs: a device type, packages, a least compute capability, or one generation and no other."""

    device: Literal["any", "cuda"] = "any"
    packages: tuple[str, ...] = ()
    capability: tuple[int, int] | None = None
    generation: int | None = None

    def why_not(self, device: str) -> str | None:
        """Return one sentence saying why this cannot run on `device` ("cpu" or "cuda"), or None if it can."""
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if missing:
            return f"the package {missing[0]!r} is not installed"
        if self.device == "cuda" and device != "cuda":
            return "needs a CUDA device"
        if self.capability is not None and device == "cuda":
            have = torch.cuda.get_device_capability()
            if have < self.capability:
                need = ".".join(map(str, self.capability))
                return f"needs compute capability {need}, this device has {have[0]}.{have[1]}"
        if self.generation is not None and device == "cuda":
            major, minor = torch.cuda.get_device_capability()
            if major != self.generation:
                return f"made for compute capability {self.generation}.x, this device has {major}.{minor}"
        return None


def takes_all(tensors: Tensors) -> str | None:
    """Return None: the `refuses` of a provider that can do every call that its kernel allows."""
    return None


def no_check(tensors: Tensors) -> None:
    """Raise nothing: the `check` of a provider that belongs to no kernel, and of a kernel that has none."""


@dataclass(frozen=True, slots=True)
class Provider:
    """Someone who can do a kernel's work: `build(tensors)` checks the arguments and returns the launching call.

    `unchecked(tensors)` returns that call for arguments that fit; `check` is the kernel's, which `Kernel.checking`
    sets. `refuses(tensors)` is a sentence where this provider cannot do a call that the kernel allows (a width, a
    layout, a number of heads), else None; `unchecked` then raises it as a ValueError. It reads no values. `bare`, where
    there is one, builds the call without what only our arguments ask for (a cast, a copy of the result to its place):
    that is what a comparison of speeds measures, and what it leaves in the outputs is not to be read.
    """

    name: str
    unchecked: Callable[[Tensors], Call]
    needs: Needs = Needs()
    refuses: Callable[[Tensors], str | None] = takes_all
    bare: Callable[[Tensors], Call] | None = None
    check: Callable[[Tensors], None] = no_check

    def build(self, tensors: Tensors) -> Call:
        """Return the launching call; a ValueError names an argument that does not fit the kernel."""
        self.check(tensors)
        return self.unchecked(tensors)

    def to_time(self, tensors: Tensors) -> Call:
        """Return the call that a comparison of speeds measures: the bare one where there is one."""
        return replace(self, unchecked=self.bare or self.unchecked).build(tensors)


@dataclass(frozen=True, slots=True)
class Cost:
    """The least work of one call, from its actual indices and lengths: FLOPs, bytes read, bytes written."""

    flops: int
    bytes_read: int
    bytes_written: int

    @property
    def bytes_moved(self) -> int:
        """Bytes read plus bytes written."""
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How near an output must be to the reference's.

    `share` of the elements must lie within `atol + rtol * |want|` (both 0: equal, NaN equal to NaN, -0 told from +0).
    Where the output is a cache, `gaps` (got, want, page_size, layout) tells by how many codes its bytes are apart, and
    none may be further apart than `limit` (specification 3.2).
    """

    rtol: float = 0.0
    atol: float = 0.0
    share: float = 1.0
    gaps: Callable[[torch.Tensor, torch.Tensor, int, KVLayout], torch.Tensor] | None = None
    limit: int = 1
    because: str = ""

    def deviation(self, got: torch.Tensor, want: torch.Tensor, tensors: Tensors | None = None) -> str | None:
        """Return None if `got` is near enough to `want`, else a sentence that says how far it is.

        `tensors` are those of the call, which tell the layout of a cache; without them `gaps` is not asked.
        """
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"shape {tuple(got.shape)} {got.dtype}, expected {tuple(want.shape)} {want.dtype}"
        if got.numel() == 0:
            return None
        far = ~self._near(got, want)
        count = int(far.sum())  # counted in integers: the mean of many ones is not always one
        allowed = int((1 - self.share) * got.numel())
        if count > allowed:
            first = far.nonzero()[0].tolist()
            bound = f" by more than rtol {self.rtol:g} atol {self.atol:g}" if self.rtol or self.atol else ""
            most = f"at most {allowed}" if allowed else "none"
            return (
                f"{count} of {format_count(got.numel(), 'element')} differ{bound}, {most} expected;"
                f" first at {first}: {got[tuple(first)].item()!r}, expected {want[tuple(first)].item()!r}"
            )
        return None if tensors is None else self.too_far(got, want, tensors)

    def too_far(self, got: torch.Tensor, want: torch.Tensor, tensors: Tensors) -> str | None:
        """Return None if no code of a cache is over `limit` codes off, else a sentence; whole pages are expected."""
        if self.gaps is None:
            return None
        gaps = self.gaps(got, want, tensors["page_size"], tensors.get("layout", INDEX_K))
        gap = int(gaps.max()) if gaps.numel() else 0
        return f"a value differs by {gap} codes, at most {self.limit} expected" if gap > self.limit else None

    def _near(self, got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
        if not got.is_floating_point() or (self.rtol == 0 and self.atol == 0):
            return same_bits(got, want)
        return torch.isclose(got.float(), want.float(), rtol=self.rtol, atol=self.atol, equal_nan=True)


EXACT = Tolerance(because="the specification says bit-exact")


def same_bits(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Return, element by element, whether two tensors of one dtype hold the same bits (any NaN equals any NaN)."""
    if not got.is_floating_point():
        return got == want
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    same = got.contiguous().view(bits) == want.contiguous().view(bits)
    return same | (got.float().isnan() & want.float().isnan())


@dataclass(frozen=True, slots=True)
class Bench:
    """At which shapes a kernel is timed: `shape(rows, case)` for every one of `rows` and `cases`.

    A case is the name of a KV layout where the kernel writes or reads one, else a word for what differs ("ratio 2").
    A CPU, which has the reference alone, takes `cpu_rows`: fewer where a row is long.
    """

    shape: Callable[[int, str], Any]
    rows: tuple[int, ...] = (8192,)
    cases: tuple[str, ...] = ("",)
    cpu_rows: int = 64


@dataclass(frozen=True, slots=True)
class Kernel:
    """One operation of the catalogue.

    `inputs(shape, generator)` makes every tensor of a call on the generator's device, outputs included;
    `reference(**tensors)` is the readable definition in plain torch and writes the outputs in place; `cost(tensors)`
    counts the least work; `outputs` names each tensor that a call writes, with its tolerance, and `updates` those of
    them whose contents before the call change a result; `examples` are shapes that every provider must pass.
    `check(tensors)` raises a ValueError for an argument of a wrong dtype, shape, stride or size: every provider runs it
    before it builds. It reads no tensor and launches nothing. `check_values(tensors)` raises one for a slot, id or
    length out of range; it reads tensors, so it runs before a result is trusted and in debug mode, never inside a
    measured call. `bench` says at which shapes it is timed; without it the examples are.
    """

    name: str
    inputs: Callable[[Any, torch.Generator], dict[str, Any]]
    reference: Callable[..., None]
    cost: Callable[[Tensors], Cost]
    outputs: Mapping[str, Tolerance]
    examples: tuple[Any, ...]
    providers: tuple[Provider, ...] = field(default=())
    check: Callable[[Tensors], None] = no_check
    check_values: Callable[[Tensors], None] = no_check
    bench: Bench | None = None
    updates: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Have every provider check the arguments of this kernel."""
        object.__setattr__(self, "providers", tuple(map(self.checking, self.providers)))

    def checking(self, provider: Provider) -> Provider:
        """Return a provider that checks its arguments as this kernel demands, before it builds."""
        return replace(provider, check=self.check)

    def provider(self, name: str) -> Provider:
        """Return the provider called `name`; KeyError names those that exist."""
        for provider in self.providers:
            if provider.name == name:
                return provider
        raise KeyError(f"{self.name} has no provider {name!r}; it has {', '.join(p.name for p in self.providers)}")


def torch_provider(reference: Callable[..., None]) -> Provider:
    """Make the provider "torch" of a reference."""

    def build_torch(tensors: Tensors) -> Call:
        return lambda: reference(**tensors)

    return Provider("torch", build_torch)


# the conversions to and from e4m3 (PTX cvt.e4m3x2) begin with compute capability 8.9
TRITON = Needs(device="cuda", packages=("triton",), capability=(8, 9))
# Gluon kernels use instructions that one generation has: warpgroup products and their barriers on Hopper
HOPPER = Needs(device="cuda", packages=("triton",), generation=9)
