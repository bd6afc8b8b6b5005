"""Whose kernel does each operation of a step: one provider for all, and others for single kernels.

`--provider` takes a word (`triton`, `sglang`, ...), or assignments `dequant=sglang/attention=flash_mla`, or both:
`sglang/store=triton`. A kernel may also come from a file of the user's own, `dequant=my.py:function`: the function
takes the kernel's tensors by name and writes the outputs in place, as the kernel's reference does.

Where the provider of all has no kernel for an operation, cannot run it here, or refuses a call, this project's own
takes its place: Triton on a GPU, torch elsewhere. A provider that was named for one kernel never gives way.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from dsv4bench.errors import CellError, CellSkipped, DsvError, UsageError, nearest
from dsv4bench.kernels import CATALOGUE, kernel, kernel_name
from dsv4bench.kernels.contract import Call, Kernel, Needs, Provider, Tensors

OWN = {"cuda": "triton", "cpu": "torch"}
PROVIDERS = ("torch", "triton", "gluon", "sglang", "flash_mla", "deep_gemm")
ASSIGNED = re.compile(r"/(?=\w+=)")  # a slash before "kernel=" ends a part; other slashes belong to a path
IN_A_FILE = re.compile(r"(.+\.py):(\w+)")
HASH_DIGITS = 16  # of a SHA-256 in hexadecimal


@dataclass(frozen=True, slots=True)
class Choice:
    """The provider of all kernels, and those of single kernels as (kernel, provider) sorted by kernel."""

    of_all: str
    of_one: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """The one spelling of this choice: what a variant carries and `choice` reads."""
        return "/".join([self.of_all, *(f"{name}={provider}" for name, provider in self.of_one)])

    def resolve(self, name: str, device: str) -> tuple[Kernel, Provider]:
        """Return the catalogue's kernel `name` and who runs it on `device`; CellSkipped says who cannot."""
        found = kernel(name)
        wanted = dict(self.of_one).get(name)
        if wanted is not None:
            return found, _named(found, wanted, device)
        own = _own(found, device)
        return found, own if self.of_all == OWN[device] else _able(found, device).get(self.of_all) or own

    def instead(self, refused: Provider, why: str, name: str, device: str) -> Provider:
        """Return who runs a call that the provider of all refused; CellSkipped where it was named for this kernel."""
        own = _own(kernel(name), device)
        if name in dict(self.of_one) or own is refused:
            raise CellSkipped(f"provider {refused.name} of {name}: {why}")
        return own


def choice(text: str, device: str) -> Choice:
    """Return what one value of `--provider` means on `device`; UsageError names what is not known or not there."""
    found = parse(text, device)
    if device == "cpu" and "triton" in (found.of_all, *(provider for _, provider in found.of_one)):
        raise UsageError(
            "--provider triton: needs a CUDA device; on a CPU `python -m pytest tests/kernels` runs the Triton kernels"
            " in Triton's interpreter; expected torch or auto"
        )
    for _, provider in found.of_one:
        in_a_file = IN_A_FILE.fullmatch(provider)
        if in_a_file:
            own_file(*in_a_file.groups())  # a file that cannot be used is a mistake of the command line
    return found


def parse(text: str, device: str) -> Choice:
    """Read a choice as it is spelt; "auto", or nothing said of all kernels, is this project's own on `device`."""
    of_all, of_one = OWN[device], {}
    for part in ASSIGNED.split(text):
        name, equals, provider = part.partition("=")
        if equals:
            found = _kernel(name)
            if found in of_one:
                raise UsageError(f"--provider {text}: {found} is named twice; expected one provider for it")
            of_one[found] = _provider(provider)
        elif IN_A_FILE.fullmatch(part):
            raise UsageError(f"--provider {part}: a function is one kernel's; expected KERNEL=FILE.py:FUNCTION")
        elif part != "auto":
            of_all = _provider(part)
    return Choice(of_all, tuple(sorted(of_one.items())))


def why_not(chosen: Choice, device: str) -> str | None:
    """Return why the provider of all can run no kernel here, or None if it can run one."""
    providers = [provider for name in CATALOGUE for provider in kernel(name).providers]
    reasons = [provider.needs.why_not(device) for provider in providers if provider.name == chosen.of_all]
    if None in reasons:
        return None
    return f"provider {chosen.of_all}: {reasons[0] if reasons else 'no kernel of the catalogue has it'}"


def refuse_absent(chosen: Choice, device: str) -> None:
    """Raise CellSkipped for a provider of all that can run no kernel here: our own would run under its name."""
    reason = why_not(chosen, device)
    if reason is not None:
        raise CellSkipped(reason)


def _able(found: Kernel, device: str) -> dict[str, Provider]:
    """Return the providers of a kernel that can run on `device`, by name."""
    return {provider.name: provider for provider in found.providers if provider.needs.why_not(device) is None}


def _own(found: Kernel, device: str) -> Provider:
    """Return our own: Gluon where a kernel has it for this device; some of the operations have torch alone."""
    able = _able(found, device)
    return able.get("gluon") or able.get(OWN[device]) or able["torch"]


def _kernel(word: str) -> str:
    try:
        return kernel_name(word)
    except KeyError as error:
        raise UsageError(f"--provider {word}=: {error.args[0]}") from error


def _provider(word: str) -> str:
    if word in PROVIDERS or IN_A_FILE.fullmatch(word):
        return word
    known = ("auto", *PROVIDERS)
    raise UsageError(
        f"--provider {word}: not known{nearest(word, known)}; known: {', '.join(known)}, or for one kernel"
        " KERNEL=PROVIDER or KERNEL=FILE.py:FUNCTION"
    )


def _named(found: Kernel, wanted: str, device: str) -> Provider:
    in_a_file = IN_A_FILE.fullmatch(wanted)
    if in_a_file:
        return found.checking(own_file(*in_a_file.groups()))
    try:
        provider = found.provider(wanted)
    except KeyError as error:
        raise CellSkipped(str(error.args[0])) from error
    reason = provider.needs.why_not(device)
    if reason is not None:
        raise CellSkipped(f"provider {wanted} of {found.name}: {reason}")
    return provider


@cache
def own_file(path: str, function: str) -> Provider:
    """Return the provider that calls `function` of the Python file at `path`; UsageError if there is none.

    It belongs to no kernel yet: `Kernel.checking` has it check the arguments of one.
    """
    written = getattr(_module(path), function, None)
    if not callable(written):
        raise UsageError(f"--provider {path}:{function}: the file defines no function {function!r}")
    return Provider(f"{path}:{function}", _calling(written, path), Needs())


def own_files(of_one: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return, of (kernel, provider), the kernels whose provider is in a file of the user's: kernel to content hash."""
    found = ((name, IN_A_FILE.fullmatch(provider)) for name, provider in of_one)
    return {name: hashlib.sha256(_source(match[1])).hexdigest()[:HASH_DIGITS] for name, match in found if match}


def _calling(written: Callable[..., Any], path: str) -> Callable[[Tensors], Call]:
    first_line = getattr(getattr(written, "__code__", None), "co_firstlineno", 1)

    def build(tensors: Tensors) -> Call:
        def call() -> None:
            try:
                written(**tensors)
            except (KeyboardInterrupt, DsvError, torch.OutOfMemoryError):
                raise
            except BaseException as error:  # SystemExit too: it ends a cell, not the run
                raise CellError(own_error(error, path, first_line)) from error

        return call

    return build


def own_error(error: BaseException, path: str, otherwise: int = 1) -> str:
    """Return what went wrong in the file at `path`, and where in it: "my.py:12: RuntimeError: boom".

    `otherwise` is the line of an error that has none: a call that does not fit the function's arguments.
    """
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines.append(error.lineno)
    line = lines[-1] if lines else otherwise
    return f"{path}:{line}: {type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"


@cache
def _source(path: str) -> bytes:
    """Return the text of a file, read once: what a cell's key names is what runs."""
    if not Path(path).is_file():
        raise UsageError(f"--provider {path}: no such file")
    return Path(path).read_bytes()


@cache
def _module(path: str) -> ModuleType:
    source = _source(path)
    spec = importlib.util.spec_from_file_location(f"own_{Path(path).stem}", path)
    assert spec is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UsageError(f"--provider {own_error(error, path)} (while importing it)") from error
    return module
